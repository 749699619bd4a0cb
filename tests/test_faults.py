"""What happens to a laptop happens to the store: nothing is lost, nothing doubled, and it says so."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import apsw
import pytest
from conftest import (
    ROOT,
    WAIT,
    FakeEmbedder,
    Transcript,
    count_stored,
    stop_in_the_midst,
    stored,
    sync,
    wait_until,
)
from test_end_to_end import Client, connect  # noqa: F401

import code_memory as cm

Begin = Callable[..., Transcript]
Run = Callable[..., subprocess.CompletedProcess[str]]
Connect = Callable[..., Client]

posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork and no signals")
PAGE = 4096


def store_of(home: Path) -> Path:
    return home / ".claude-code" / "memory" / cm.STORE_FILE


def open_memories(home: Path) -> cm.Memories:
    """Memories of a home, with a model that needs no loading."""
    memories = cm.Memories(cm.Places(store_of(home).parent, home, {}, "linux"), cm.Settings())
    memories.embedder = FakeEmbedder()
    memories._model_ready.set()
    return memories


def contents(home: Path) -> Counter[str]:
    memories = open_memories(home)
    try:
        return Counter(memory.content for memory in stored(memories))
    finally:
        memories.close()


def check_whole(home: Path) -> None:
    """The indexes hold each part of each memory once, and nothing else."""
    store = cm.Store(store_of(home))
    try:
        assert store.check() == []
        rows = {row for row, _ in store.every_memory(cm.Filter())}
        for sql in (
            "SELECT rowid FROM memory_fts",
            "SELECT id FROM vector",
            "SELECT rowid FROM memory_vec",
        ):
            assert {row // cm.PARTS_PER_MEMORY for (row,) in store._all(sql)} == rows, sql
    finally:
        store.close()


def run_and_exit(work: Callable[[], object]) -> NoReturn:
    """Do work in a child process that was forked, and end it."""
    try:
        work()
    except BaseException as error:
        os.write(2, f"{error!r}\n".encode())
        os._exit(3)
    os._exit(0)


def run_until_killed(work: Callable[[], object], delay: float | None) -> bool:
    """Do work in a child process, killed after a delay; return whether it was killed in the midst."""
    child = os.fork()
    if child == 0:
        run_and_exit(work)
    if delay is not None:
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, status
    return os.WIFSIGNALED(status)


@pytest.fixture(autouse=True)
def _batches_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the size of batches, which is made small below, given back after each test."""
    monkeypatch.setattr(cm, "BATCH_DRAFTS", cm.BATCH_DRAFTS)


def sync_home(home: Path) -> None:
    cm.BATCH_DRAFTS = 4  # many transactions, so that a kill falls into one
    memories = open_memories(home)
    sync(memories)
    memories.close()


def serve_home(home: Path) -> None:
    """Read in the background, as a server does, and search meanwhile."""
    cm.BATCH_DRAFTS = 4
    memories = open_memories(home)
    memories.start()
    end = time.monotonic() + 2
    while time.monotonic() < end and not memories._settled.is_set():
        memories.search(cm.SearchQuery("harbour"))
    memories.close()


def grow(transcripts: list[Transcript], round: int, expected: set[str]) -> None:
    """Append prompts, answers in several blocks, and tool calls with their results."""
    for t in transcripts:
        name = f"{t.session_id} round {round}"
        t.prompt(f"prompt {name} harbour")
        t.response(f"first {name}", f"msg_{name}")
        t.response(f"second {name}", f"msg_{name}")
        t.tool("Bash", f"toolu_{name}", {"command": f"run {name}"})
        t.result(f"toolu_{name}", f"done {name}")
        expected |= {
            f"prompt {name} harbour",
            f"first {name}\n\nsecond {name}",
            f"Bash: run {name}\ndone {name}",
        }


@posix
@pytest.mark.parametrize(
    ("kills", "work"),
    [
        pytest.param(12, sync_home, id="sync, 12 times"),
        pytest.param(5, serve_home, id="a server, 5 times"),
        pytest.param(200, sync_home, id="sync, 200 times", marks=pytest.mark.slow),
        pytest.param(40, serve_home, id="a server, 40 times", marks=pytest.mark.slow),
    ],
)
def test_killed_importer_loses_and_doubles_nothing(
    kills: int, work: Callable[[Path], None], transcript: Begin, home: Path
) -> None:
    rng = random.Random(kills)
    expected: set[str] = set()
    transcripts = [transcript(f"s{n}") for n in range(3)]
    grow(transcripts, 0, expected)
    start = time.monotonic()
    run_until_killed(lambda: work(home), None)
    usual = time.monotonic() - start
    before: set[str] = set()
    hit = round = 0
    while hit < kills:
        round += 1
        assert round < 20 * kills
        if round % 2:
            grow(transcripts, round, expected)
        killed = run_until_killed(lambda: work(home), rng.uniform(0.1, 1.1) * usual)
        usual *= 1.1 if killed else 0.8  # so that about two of three are killed, fast or slow
        hit += killed
        if round % 5 == 0 or hit == kills:
            found = contents(home)
            assert max(found.values()) == 1
            assert len(found) >= len(before)
            # what was there is there, whole or continued
            assert all(any(new.startswith(old) for new in found) for old in before - set(found))
            before = set(found)
    sync_home(home)
    assert contents(home) == Counter(expected)
    check_whole(home)


@posix
@pytest.mark.parametrize("action", ["rebuild", "salvage", "forget", "upgrade"])
@pytest.mark.slow
def test_killed_care_loses_nothing(
    action: str, transcript: Begin, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected: set[str] = set()
    transcripts = [transcript("s1")]
    for round in range(40):
        grow(transcripts, round, expected)
    sync_home(home)
    (home / ".claude").rename(home / "gone")  # nothing but the store has the text
    path = store_of(home)
    if action == "salvage":
        damage(path, "fts")
    if action == "upgrade":
        monkeypatch.setattr(cm, "MIGRATIONS", (*cm.MIGRATIONS, ADDED))

    def work() -> None:
        memories = open_memories(home)
        if action == "forget":
            with memories.borrow_store() as store:
                doomed = cm.find_doomed(store, cm.ForgetChoice(matching="round 7"))
            cm.forget(memories, doomed)
        elif action == "upgrade":
            cm.Store(path).close()
        else:
            cm.rebuild(memories, False, lambda what, done, total: None)
        memories.close()

    wanted = {text for text in expected if action != "forget" or "round 7" not in text}
    sound = shutil.copytree(home, home.with_name("sound"))
    start = time.monotonic()
    run_until_killed(work, None)
    usual = time.monotonic() - start
    rng = random.Random(1)
    for _ in range(15):
        shutil.rmtree(home)
        shutil.copytree(sound, home)
        for _ in range(2):
            run_until_killed(work, rng.uniform(0.02, 1) * usual)
        run_until_killed(work, None)
        found = contents(home)
        assert max(found.values()) == 1
        assert {t for t in found if "round 7" not in t or t in wanted} == wanted
        check_whole(home)
        if action == "forget":
            raw = b"".join(p.read_bytes() for p in path.parent.iterdir())
            assert b"round 7" not in raw
        if action == "upgrade":
            backup = path.with_name(f"{path.name}.schema-{len(cm.MIGRATIONS) - 1}.backup")
            db = apsw.Connection(str(backup))
            assert db.execute("SELECT count(*) FROM memory").fetchall() == [(len(expected),)]
            db.close()


@posix
def test_cut_wal_loses_at_most_what_is_read_again(transcript: Begin, home: Path) -> None:
    expected: set[str] = set()
    transcripts = [transcript("s1")]
    for round in range(6):
        grow(transcripts, round, expected)

    def work() -> None:
        sync_home(home)  # closes the store, which would empty the WAL

    reader = apsw.Connection(str(make_empty(home)))  # as long as one reads, the WAL stays
    reader.execute("BEGIN; SELECT 1 FROM meta").fetchall()
    run_until_killed(work, None)
    path = store_of(home)
    wal = Path(f"{path}-wal")
    size = wal.stat().st_size
    assert size > 100_000
    copy = home.with_name("copy")
    shutil.copytree(home, copy)
    reader.close()
    rng = random.Random(3)
    cuts = [0, 10, 32, 33, size - 1, size - PAGE, *(rng.randrange(size) for _ in range(14))]
    for cut in cuts:
        shutil.rmtree(home)
        shutil.copytree(copy, home)
        Path(f"{path}-shm").unlink()  # memory: gone with the power
        with open(wal, "r+b") as file:
            file.truncate(cut)
        found = contents(home)
        assert not found or max(found.values()) == 1
        sync_home(home)
        assert contents(home) == Counter(expected), cut
        check_whole(home)


def prepare_store(path: Path, state: str) -> None:
    """Leave a store as a program of before left it."""
    if state == "not there":
        return
    child = os.fork()
    if child == 0:
        store = cm.Store(path)
        for number in range(20):
            with store.writing():
                store.set_meta(f"before {number}", "x" * 500)
        if state == "not in WAL mode":
            store.db.pragma("journal_mode", "delete")
        os.kill(os.getpid(), signal.SIGKILL)  # which leaves what is in the WAL there
    os.waitpid(child, 0)
    if state == "without shared memory":
        Path(f"{path}-shm").unlink()


@posix
@pytest.mark.parametrize(
    "rounds",
    [pytest.param(6, id="6 times"), pytest.param(60, id="60 times", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize(
    "state",
    [
        "not there",
        "left by a kill",
        "without shared memory",
        "not in WAL mode",
        "of an older schema",
    ],
)
def test_many_open_it_at_the_same_moment(
    state: str, rounds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is refused, whoever makes, switches, upgrades or mends it, and whoever is killed."""
    rng = random.Random(rounds)
    prepared = tmp_path / "prepared" / cm.STORE_FILE
    prepare_store(prepared, state)
    if state == "of an older schema":
        monkeypatch.setattr(cm, "MIGRATIONS", (*cm.MIGRATIONS, ADDED))
    for round in range(rounds):
        path = tmp_path / str(round) / cm.STORE_FILE
        if prepared.exists():
            shutil.copytree(prepared.parent, path.parent)

        def work(name: str, path: Path = path) -> None:
            store = cm.Store(path)
            with store.writing():
                store.set_meta(name, 1)
            assert store.uses_wal(), store.notes
            assert store.notes == []
            store.close()

        waiting, go = os.pipe()
        children = []
        for number in range(5):
            children.append(os.fork())
            if children[-1] == 0:
                os.close(go)
                os.read(waiting, 1)  # ends for all of them at once
                run_and_exit(partial(work, f"opened by {number}"))
        os.close(waiting)
        os.close(go)
        if round % 2:
            time.sleep(rng.uniform(0, 0.02))
            os.kill(children[0], signal.SIGKILL)
        ended = [os.waitpid(child, 0)[1] for child in children]
        assert ended[1:] == [0, 0, 0, 0]
        assert ended[0] in (0, signal.SIGKILL)
        store = cm.Store(path)
        for number in range(1, 5):
            assert store.meta(f"opened by {number}") == 1
        assert (store.meta("before 19") is None) == (state == "not there")
        assert store.check() == []
        assert store.db.pragma("user_version") == len(cm.MIGRATIONS)
        store.close()
        shutil.rmtree(path.parent)


def make_empty(home: Path) -> Path:
    cm.Store(store_of(home)).close()
    return store_of(home)


# --- Damage ---


def pages_of(path: Path, *tables: str) -> list[int]:
    db = apsw.Connection(str(path))
    db.execute("PRAGMA wal_checkpoint(truncate)").fetchall()
    like = " OR ".join("name LIKE ?" for _ in tables)
    try:
        pages = db.execute(f"SELECT pageno FROM dbstat WHERE {like} ORDER BY pageno", tables)
        return [number for (number,) in pages]
    except apsw.SQLError:  # built without dbstat
        roots = db.execute(f"SELECT rootpage FROM sqlite_master WHERE {like}", tables)
        return [number for (number,) in roots if number]
    finally:
        db.close()


def damage(path: Path, what: str) -> None:
    rng = random.Random(5)
    tables = {
        "fts": ("memory_fts_data",), "vectors": ("memory_vec_vector_chunks00",), "text": ("memory",),
        "origins": ("origin",), "sessions": ("session",),
    }  # fmt: skip
    numbers = pages_of(path, *tables[what]) if what in tables else []
    data = bytearray(path.read_bytes())
    if what == "header":
        data[:100] = bytes(100)
    elif what == "first page":
        data[:PAGE] = rng.randbytes(PAGE)
    elif what == "end cut off":
        del data[len(data) * 5 // 6 :]
    elif what == "no database":
        data[:] = b"nothing like a database " * 4000
    else:
        for number in numbers:
            data[(number - 1) * PAGE : number * PAGE] = rng.randbytes(PAGE)
    path.write_bytes(data)
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


DAMAGES = [
    "fts",
    "vectors",
    "text",
    "origins",
    "sessions",
    "header",
    "first page",
    "end cut off",
    "no database",
]


@pytest.mark.parametrize("what", DAMAGES)
@pytest.mark.slow
def test_damage_is_said_and_rebuilt(
    what: str,
    transcript: Begin,
    run_cli: Run,
    home: Path,
    connect: Connect,  # noqa: F811
) -> None:
    for number in range(6):
        t = transcript(f"s{number}")
        for turn in range(8):
            t.prompt(f"pier {number} {turn} " + random.Random(turn).randbytes(700).hex())
    sync_home(home)
    expected = contents(home)
    path = store_of(home)
    damage(path, what)
    before = path.read_bytes()
    # said plainly, by a command and by the server, unless the damage touches neither
    done = run_cli("search", "pier 3")
    assert "Traceback" not in done.stderr
    if done.returncode:
        assert done.stderr.count("\n") == 1
        assert "damaged" in done.stderr
        assert "code-memory rebuild" in done.stderr
    client = connect()
    for tool, arguments in (("mem-search", {"query": "pier 3"}), ("mem-stats", {})):
        result = client.request("tools/call", {"name": tool, "arguments": arguments})
        text = result["content"][0]["text"]
        assert "Sorry" not in text
        if result.get("isError"):
            assert "damaged" in text
            assert "code-memory rebuild" in text
    done = run_cli("rebuild")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    copies = list(path.parent.glob("*.damaged-*"))
    if what not in ("vectors", "text", "origins", "sessions", "fts"):
        assert any(copy.read_bytes() == before for copy in copies)
    client.search_until("pier 3 7", "pier 3 7")  # read again without being told
    sync_home(home)
    assert contents(home) == expected
    assert cm.Store(path).check() == []
    assert client.end() == 0
    assert b"Traceback" not in b"".join(client.errors)


@pytest.mark.parametrize("what", [what for what in DAMAGES if what != "no database"])
def test_text_that_only_the_store_has_is_saved_from_damage(
    what: str, transcript: Begin, memories: cm.Memories, home: Path
) -> None:
    for number in range(4):
        t = transcript(f"s{number}")
        for turn in range(10):
            t.prompt(f"pier {number} {turn} " + random.Random(turn).randbytes(900).hex())
    sync(memories)
    before = Counter(memory.content for memory in stored(memories))
    memories.close()
    shutil.rmtree(home / ".claude")
    path = store_of(home)
    if what == "text":  # one page of it, the one that leads to all others
        data = bytearray(path.read_bytes())
        root = cm.Store(path)._one("SELECT rootpage FROM sqlite_master WHERE name = 'memory'")
        data[(root - 1) * PAGE : root * PAGE] = bytes(PAGE)
        path.write_bytes(data)
    else:
        damage(path, what)
    memories = open_memories(home)
    lines = cm.rebuild(memories, False, lambda what, done, total: None)
    found = Counter(memory.content for memory in stored(memories))
    assert not found - before
    assert len(found) >= (10 if what == "end cut off" else 40), lines
    if what == "origins":
        assert "forgotten" in " ".join(lines)
    check_whole(home)
    memories.close()


@pytest.mark.parametrize("half", [False, True], ids=["whole pages", "half pages"])
def test_no_damaged_page_is_a_surprise(
    half: bool, transcript: Begin, memories: cm.Memories, home: Path
) -> None:
    for number in range(3):
        t = transcript(f"s{number}")
        for turn in range(5):
            t.prompt(f"pier {number} {turn} " + random.Random(turn).randbytes(900).hex())
    sync(memories)
    expected = Counter(memory.content for memory in stored(memories))
    memories.close()
    path = store_of(home)
    sound = path.read_bytes()
    rng = random.Random(9)
    for page in range(0, len(sound) // PAGE, 2):
        data = bytearray(sound)
        start = page * PAGE + half * PAGE // 2  # its second half is what its first one leads to
        data[start : (page + 1) * PAGE] = rng.randbytes((page + 1) * PAGE - start)
        for leftover in path.parent.glob(cm.STORE_FILE + "*"):
            leftover.unlink()
        path.write_bytes(data)
        broken = open_memories(home)
        asked: list[Callable[[], object]] = [
            partial(broken.details, ["s1"]),
            broken.stats,
            partial(broken.search, cm.SearchQuery("", session_id="s1")),
            partial(sync, broken),
        ]
        for ask in asked:
            with contextlib.suppress(cm.StoreDamagedError):  # no other error
                ask()
        cm.rebuild(broken, False, lambda what, done, total: None)
        sync(broken)
        assert Counter(memory.content for memory in stored(broken)) == expected, page
        broken.close()


def test_damaged_page_that_leads_back_is_not_read_in_circles() -> None:
    class Circle:
        """Gives rows as a tree of pages does of which one leads to an earlier one."""

        def execute(self, sql: str) -> Iterator[tuple[int, str]]:
            low = int(sql.split(">")[1].split()[0]) if ">" in sql else -1
            limit = int(sql.split("LIMIT")[1])
            rows = [(n % 50, "x") for n in range(low + 1 if 0 <= low < 50 else 0, 200)]
            return iter(rows[:1] if limit == 1 else rows)

    for key, by_number in (("id", True), ("code", False)):
        lost = set[str]()
        found = list(cm._read_despite_damage(Circle(), "memory", "x", key, by_number, lost))
        assert len(found) <= 50
        assert lost == {"memory"}


def test_what_lost_keys_doubled_is_one_again_after_a_repair(
    transcript: Begin, memories: cm.Memories, home: Path
) -> None:
    t = transcript()
    for turn in range(6):
        t.prompt(f"pier {turn}")
    sync(memories)
    with memories.borrow_store() as store, store.writing():
        store.db.execute("DELETE FROM origin")
    t.path.rename(t.path.with_name("renamed.jsonl"))
    sync(memories)
    assert len(stored(memories)) == 12
    memories.close()
    damage(store_of(home), "fts")
    memories = open_memories(home)
    cm.rebuild(memories, False, lambda what, done, total: None)
    sync(memories)
    assert len(stored(memories)) == 6
    memories.close()


def test_two_repairs_in_one_second_keep_two_copies(transcript: Begin, home: Path) -> None:
    transcript().prompt("x")
    for _ in range(2):
        sync_home(home)
        store_of(home).write_bytes(b"no database " * 400)
        memories = open_memories(home)
        cm.rebuild(memories, False, lambda what, done, total: None)
        memories.close()
    assert len(list(store_of(home).parent.glob("*.damaged-*"))) == 2


def test_pause_survives_a_repair(transcript: Begin, memories: cm.Memories, home: Path) -> None:
    transcript().prompt("x")
    sync(memories)
    with memories.borrow_store() as store, store.writing():
        store.set_meta("paused", 1)
    memories.close()
    damage(store_of(home), "fts")
    memories = open_memories(home)
    cm.rebuild(memories, False, lambda what, done, total: None)
    with memories.borrow_store() as store:
        assert store.meta("paused") == 1
    memories.close()


# --- No room ---


@pytest.fixture
def small_disk(home: Path) -> Iterator[Callable[[str], Path]]:
    """Return a function that mounts, or makes larger, a small disk for the store."""
    place = home / ".claude-code"
    place.mkdir()
    mounted = False

    def mount(size: str) -> Path:
        nonlocal mounted
        option = f"remount,size={size}" if mounted else f"size={size}"
        words = ["mount", "-t", "tmpfs", "-o", option, "tmpfs", str(place)]
        if shutil.which("mount") is None or subprocess.run(words, capture_output=True).returncode:
            pytest.skip("no disk can be mounted here")
        mounted = True
        return place

    yield mount
    if mounted:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.slow
def test_full_disk_while_importing(
    small_disk: Callable[[str], Path],
    transcript: Begin,
    run_cli: Run,
    home: Path,
    connect: Connect,  # noqa: F811
) -> None:
    small_disk("1m")
    expected = set()
    for number in range(6):
        t = transcript(f"s{number}")
        for turn in range(60):
            text = f"pier {number} {turn} " + random.Random(turn).randbytes(2000).hex()
            t.prompt(text)
            expected.add(text)
    done = run_cli("sync")
    assert done.returncode == 1
    assert "full" in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    client = connect()
    search = {"name": "mem-search", "arguments": {"query": "pier 3"}}

    def says_full() -> bool:
        text = client.request("tools/call", search)["content"][0]["text"]
        assert "Sorry" not in text
        return "is full" in text

    wait_until(says_full)
    result = client.request("tools/call", {"name": "mem-stats", "arguments": {}})
    assert "Sorry" not in result["content"][0]["text"]
    assert client.end() == 0
    assert b"Traceback" not in b"".join(client.errors)
    small_disk("60m")
    done = run_cli("sync")
    assert done.returncode == 0, done.stderr
    assert contents(home) == Counter(expected)
    check_whole(home)


# A change of the schema that some later version makes.
ADDED = "CREATE TABLE later (x); INSERT INTO later SELECT randomblob(200) FROM memory;"


def test_full_disk_while_upgrading(
    small_disk: Callable[[str], Path],
    transcript: Begin,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_disk("60m")
    t = transcript()
    for turn in range(100):
        t.prompt(f"pier {turn} " + random.Random(turn).randbytes(2000).hex())
    sync_home(home)
    expected = contents(home)
    path = store_of(home)
    size = sum(p.stat().st_size for p in path.parent.iterdir())
    small_disk(f"{size * 3 // 2 // 1024}k")
    with monkeypatch.context() as patch:
        patch.setattr(cm, "MIGRATIONS", (*cm.MIGRATIONS, ADDED))
        with pytest.raises(cm.StoreError, match="full"):
            cm.Store(path)
        assert not list(path.parent.glob("*.backup"))  # no half copy that looks like a whole one
    assert contents(home) == expected
    small_disk("60m")
    with monkeypatch.context() as patch:
        patch.setattr(cm, "MIGRATIONS", (*cm.MIGRATIONS, ADDED))
        assert contents(home) == expected
        (backup,) = path.parent.glob("*.backup")
    db = apsw.Connection(str(backup))
    assert db.pragma("user_version") == len(cm.MIGRATIONS)
    assert db.execute("SELECT count(*) FROM memory").fetchall() == [(100,)]
    db.close()


def test_full_disk_while_repairing_changes_nothing(
    small_disk: Callable[[str], Path], transcript: Begin, home: Path
) -> None:
    small_disk("60m")
    t = transcript()
    for turn in range(100):
        t.prompt(f"pier {turn} " + random.Random(turn).randbytes(2000).hex())
    sync_home(home)
    expected = contents(home)
    path = store_of(home)
    damage(path, "fts")
    before = path.read_bytes()
    small_disk(f"{len(before) * 5 // 4 // 1024}k")
    memories = open_memories(home)
    with pytest.raises(cm.StoreError, match="full"):
        cm.rebuild(memories, False, lambda what, done, total: None)
    assert path.read_bytes() == before
    assert {p.name for p in path.parent.glob("*.*")} <= {
        path.name, f"{path.name}-wal", f"{path.name}-shm", "import.lock", "settings.toml"
    }  # fmt: skip
    small_disk("60m")
    cm.rebuild(memories, False, lambda what, done, total: None)
    memories.close()
    assert contents(home) == expected


# --- No right ---


@pytest.fixture
def as_nobody() -> Iterator[tuple[Path, Run]]:
    """A home that belongs to an unprivileged user, and a function that runs the program as them."""
    if os.name != "posix" or os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv, to run as somebody else")
    base = Path(tempfile.mkdtemp())
    base.chmod(0o755)
    shutil.copy(ROOT / "code_memory.py", base)
    home = base / "home"
    home.mkdir()

    def run(*words: str, **more: Any) -> subprocess.CompletedProcess[str]:
        subprocess.run(["chown", "-R", "65534:65534", str(home)], check=True)
        return subprocess.run(
            ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
             sys.executable, str(base / "code_memory.py"), *words],
            capture_output=True, text=True, timeout=WAIT, cwd="/", stdin=subprocess.DEVNULL,
            env={"HOME": str(home), "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"} | more,
        )  # fmt: skip

    if run("--version").returncode:
        shutil.rmtree(base)
        pytest.skip("an unprivileged user cannot run this Python")
    yield home, run
    shutil.rmtree(base)


@pytest.mark.slow
def test_read_only_folder(as_nobody: tuple[Path, Run]) -> None:
    home, run = as_nobody
    t = Transcript(home / ".claude/projects/-x/s1.jsonl", "s1")
    t.prompt("the pier in the fog")
    done = run("sync")
    assert done.returncode == 0, done.stderr
    folder = store_of(home).parent
    for path in folder.iterdir():
        path.chmod(0o400)
    folder.chmod(0o500)
    t.prompt("what cannot be stored")
    for words in (["search", "pier"], ["details", "s1"], ["stats"], ["export"]):
        done = run(*words)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
    assert "pier in the fog" in run("search", "pier").stdout
    assert "cannot be written" in run("search", "pier").stdout
    for words in (
        ["sync"], ["forget", "--matching", "pier", "--yes"], ["rebuild"], ["pause"],
        ["import", str(t.path)],
    ):  # fmt: skip
        done = run(*words)
        assert done.returncode == 1, words
        assert done.stderr.startswith("code-memory: "), words
        assert done.stderr.count("\n") == 1, done.stderr
        assert "Traceback" not in done.stderr
    folder.chmod(0o700)
    for path in folder.iterdir():
        path.chmod(0o600)
    assert run("sync").returncode == 0
    assert "what cannot be stored" in run("search", "cannot").stdout


@pytest.mark.slow
def test_one_folder_without_permission(as_nobody: tuple[Path, Run]) -> None:
    home, run = as_nobody
    for name in ("a", "b"):
        Transcript(home / f".claude/projects/-{name}/{name}.jsonl", f"s-{name}").prompt(
            f"pier {name}"
        )
    assert run("sync").returncode == 0
    Transcript(home / ".claude/projects/-c/c.jsonl", "s-c").prompt("pier c")
    locked = home / ".claude/projects/-b"
    locked.chmod(0)
    done = run("sync")
    assert done.returncode == 0
    assert "cannot be read" in done.stdout
    shown = run("search", "--limit", "9", "pier").stdout
    assert all(f"pier {name}" in shown for name in "abc")
    assert json.loads(run("stats", "--json").stdout)["kept_only_here"] == 0  # locked is not gone
    locked.chmod(0o700)


# --- The ground moves ---


@pytest.mark.parametrize("what", ["the folder", "all files", "the database only", "the lock"])
@pytest.mark.slow
def test_store_deleted_while_serving(
    what: str,
    transcript: Begin,
    home: Path,
    connect: Connect,  # noqa: F811
) -> None:
    t = transcript()
    for turn in range(30):
        t.prompt(f"pier {turn}")
    client = connect()
    client.search_until("pier 29", "pier 29")
    path = store_of(home)
    if what == "the folder":
        path.parent.rename(home / "gone")  # at one stroke: the server may still write there
        shutil.rmtree(home / "gone")
    elif what == "all files":
        for file in path.parent.iterdir():
            file.unlink(missing_ok=True)
    elif what == "the lock":
        (path.parent / "import.lock").unlink()
    else:
        path.unlink()
    client.search_until("pier 3", "pier 3")
    t.prompt("written LATER")
    client.search_until("LATER", "written")
    assert client.end() == 0
    assert b"Traceback" not in b"".join(client.errors)
    assert max(contents(home).values()) == 1
    assert len(contents(home)) == 31
    check_whole_words(home)


def check_whole_words(home: Path) -> None:
    store = cm.Store(store_of(home))
    assert store.check() == []
    store.close()


def test_states_of_a_deleted_store_are_not_those_of_the_next(
    transcript: Begin, memories: cm.Memories, home: Path
) -> None:
    transcript("s1").prompt("one")
    sync(memories)
    memories.stats()
    assert memories._states[1]
    shutil.rmtree(store_of(home).parent)
    other = open_memories(home)
    (home / ".claude").rename(home / "elsewhere")
    transcript("s2").prompt("two")
    sync(other)
    other.close()
    with memories.borrow_store() as store:
        assert memories._read_states(store) == store.transcripts()


def test_clock_that_goes_back(transcript: Begin, memories: cm.Memories) -> None:
    t = transcript()
    t.prompt("written tomorrow")
    os.utime(t.path, (4e9, 4e9))
    sync(memories)
    t.prompt("written yesterday")
    os.utime(t.path, (1e9, 1e9))
    sync(memories)
    line = t.line("user", message={"role": "user", "content": "from the year 2525"})
    t.write(line | {"timestamp": "2525-01-01T00:00:00Z"})
    os.utime(t.path, (1, 1))
    sync(memories)
    assert len(stored(memories)) == 3
    assert "2525" in cm.render_search(memories.search(cm.SearchQuery("year 2525")), None)
    cm.render_stats(memories.stats(), None, cm.datetime(2020, 1, 1).astimezone())


CHANGES: dict[str, Callable[[Path, Path], object]] = {
    "deleted": lambda path, other: path.unlink(),
    "shrunk": lambda path, other: os.truncate(path, path.stat().st_size // 2),
    "emptied": lambda path, other: os.truncate(path, 0),
    "replaced": lambda path, other: os.replace(other, path),
    "overwritten": lambda path, other: path.write_bytes(other.read_bytes()),
    "renamed": lambda path, other: path.rename(path.with_name("renamed.jsonl")),
    "made a folder": lambda path, other: (path.unlink(), path.mkdir()),
    "made a dangling link": lambda path, other: (path.unlink(), path.symlink_to("nowhere")),
}


@pytest.mark.parametrize("change", [*CHANGES, "appended"])
@pytest.mark.slow
@posix
def test_transcript_that_changes_while_it_is_read(
    change: str, transcript: Begin, run_cli: Run, home: Path
) -> None:
    t = transcript("s1")
    u = transcript("s2", folder="-elsewhere", name="other.txt")
    u.prompt("from the other file")
    for n in range(50):
        u.prompt(f"other {n}")
    lines = 0
    while True:
        known, lines = count_stored(store_of(home)), lines + 1500
        t.write(*(t.line("user", message={"role": "user", "content": f"pier {n} " + "fog " * 40}) for n in range(lines - 1500, lines)))  # fmt: skip
        mine, told = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(told)
            sync_home(home)
            os.read(mine, 1)  # ends when it is told to
            os._exit(0)
        os.close(mine)
        in_the_midst = stop_in_the_midst(child, store_of(home), known + 200, lines)
        if in_the_midst:
            count = count_stored(store_of(home))
            if change == "appended":
                for n in range(100):
                    t.prompt(f"appended {n}")
            else:
                CHANGES[change](t.path, u.path)
            os.kill(child, signal.SIGCONT)
            if change == "appended":
                for n in range(100, 200):
                    t.prompt(f"appended {n}")
        os.close(told)
        _, status = os.waitpid(child, 0)
        assert status == 0
        if in_the_midst:
            break
    first = contents(home)
    assert len(first) >= count > known + 200
    done = run_cli("sync")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    found = contents(home)
    assert max(found.values()) == 1
    assert not first - found
    if change == "appended":
        assert len(found) == lines + 200
    if change == "renamed":
        assert len(found) == lines
    if change in ("replaced", "overwritten"):
        assert "from the other file" in found
    check_whole_words(home)


@posix
def test_pipe_folder_and_dangling_link_are_no_transcripts(
    transcript: Begin, run_cli: Run, home: Path
) -> None:
    t = transcript()
    t.prompt("the only one")
    folder = t.path.parent
    os.mkfifo(folder / "pipe.jsonl")
    (folder / "folder.jsonl").mkdir()
    (folder / "dangling.jsonl").symlink_to("nowhere")
    (folder / "loop.jsonl").symlink_to("loop.jsonl")
    (folder / "device.jsonl").symlink_to("/dev/zero")
    (folder / "up").symlink_to("..")
    done = run_cli("sync", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["memories"], report["notes"]) == (1, [])
    for name in ("pipe.jsonl", "folder.jsonl", "dangling.jsonl", "loop.jsonl", "device.jsonl"):
        done = run_cli("import", str(folder / name))
        assert done.returncode in (0, 1, 2), name
        assert "Traceback" not in done.stderr
    assert run_cli("import", str(folder)).returncode == 0


@pytest.mark.slow
@posix
def test_folder_without_wal(transcript: Begin, home: Path) -> None:
    """SQLite's "unix-dotfile" locks, but has no shared memory: as on some network drives."""
    script = home / "program.py"
    script.write_text(
        "import sys, apsw\n"
        "real = apsw.Connection\n"
        "def connect(path, **more):\n"
        "    return real(path, **({} if path == ':memory:' else {'vfs': 'unix-dotfile'}), **more)\n"
        "apsw.Connection = connect\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "import code_memory\n"
        "sys.exit(code_memory.main())\n"
    )

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(script), *words], capture_output=True, text=True, timeout=WAIT,
            env={"HOME": str(home), "PATH": os.environ["PATH"]}, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    for number in range(5):
        t = transcript(f"s{number}")
        for turn in range(100):
            t.prompt(f"pier {number} {turn}")
    results: list[subprocess.CompletedProcess[str]] = []
    threads = [
        threading.Thread(target=lambda words=words: results.append(run(*words)))
        for words in (["sync"], ["sync"], ["sync"])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [done.returncode for done in results] == [0, 0, 0], [done.stderr for done in results]
    done = run("search", "pier 3")
    assert done.returncode == 0, done.stderr
    assert "pier 3" in done.stdout
    assert "WAL" in done.stdout
    # a lock of another kind: SQLite's own are not looked at here
    assert not Path(f"{store_of(home)}-wal").exists()
    assert len(contents(home)) == 500


def test_no_lock_to_be_had_is_said(
    transcript: Begin, memories: cm.Memories, monkeypatch: pytest.MonkeyPatch
) -> None:
    transcript().prompt("x")

    def refuse(file: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(cm, "lock_file", refuse)
    with pytest.raises(cm.StoreError, match="cannot be locked"):
        sync(memories)
