"""Texts are prepared the same way here and by helpers, and helpers never outlive their work."""

from __future__ import annotations

import io
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import FakeEmbedder, Transcript, wait_until

import code_memory as cm

Begin = Callable[..., Transcript]
# The program with a large import declared to be any.
SYNC = "import code_memory as cm; cm.HELPERS_FROM_BYTES = 0; cm.BATCH_DRAFTS = 20; raise SystemExit(cm.main(['sync', '--quiet']))"


def raw(text: str, **more: Any) -> cm.RawText:
    return cm.RawText(
        **({"text": text, "type": "response", "may_go_on": False, "labels": {}} | more)
    )


def test_preparing_filters_splits_and_embeds() -> None:
    preparer = cm.Preparer(cm.PrivacyFilter(), FakeEmbedder())
    text = "the pier " * 400 + "password: Vy7kQ2mTz9 end"
    (prepared,) = preparer.prepare([raw(text, labels={"files": ("/home/a/b.py",)})])
    stored = cm.unpack_text(prepared.packed)
    assert "Vy7k" not in stored
    assert stored.endswith(" end")
    assert (prepared.hidden, prepared.labels) == (1, {"files": ["/home/a/b.py"]})
    assert len(prepared.words) == 2
    assert len(prepared.vectors) == len(cm.split_chunks(stored, "response"))


@pytest.mark.parametrize(
    ("text", "may_go_on", "is_open"),
    [
        pytest.param("a <private> b", True, True, id="open"),
        pytest.param("a <private> b", False, False, id="nothing comes after it"),
        pytest.param("a <private>b</private>", True, False, id="closed"),
        pytest.param("a b", True, False, id="no tag"),
    ],
)
def test_an_open_private_tag_is_told(text: str, may_go_on: bool, is_open: bool) -> None:
    preparer = cm.Preparer(cm.PrivacyFilter(), None)
    assert preparer.prepare([raw(text, may_go_on=may_go_on)])[0].is_open is is_open


def test_helper_answers_as_the_preparer_does() -> None:
    raws = [
        raw("한국어와 code_memory.py", labels={"tools": ("Bash",)}),
        raw("Bash: ls", type="tool"),
    ]
    source = io.BytesIO(b"".join(pickle.dumps(value) for value in (((r"ab\d+",), ("note",), None), [tuple(r) for r in raws])))  # fmt: skip
    target = io.BytesIO()
    cm.serve_as_helper(source, target)
    answer = [cm.PreparedText(*fields) for fields in pickle.loads(target.getvalue())]
    assert answer == cm.Preparer(cm.PrivacyFilter((r"ab\d+",), ("note",)), None).prepare(raws)


def write_history(transcript: Begin) -> None:
    """Write what batches find hard: copies, results that come late, titles, tags left open."""
    for number in range(6):
        t = transcript(f"s{number}")
        t.write({"type": "summary", "summary": f"Title {number}", "leafUuid": "nowhere"})
        for turn in range(8):
            t.prompt(f"pier {number} turn {turn}")
            t.prompt("approved")
            t.response(f"first <private> part {turn}", f"msg_{number}_{turn}")
            t.tool(
                "Bash",
                f"toolu_{number}_{turn}",
                {"command": f"sleep {turn}"},
                f"msg_{number}_{turn}",
            )
            t.response(f"second part {turn} hidden", f"msg_{number}_{turn}")
            for filler in range(turn):
                t.response(f"filler {number} {turn} {filler}", f"msg_f_{number}_{turn}_{filler}")
            t.result(f"toolu_{number}_{turn}", f"woke {turn}")
            t.write({"type": "custom-title", "customTitle": f"Title {number}.{turn // 3}", "sessionId": t.session_id})  # fmt: skip
        copy = transcript(f"c{number}")
        copy.write(t.path.read_text(encoding="utf-8"))
        copy.prompt(f"goes on in the copy {number}")


def dump(store: cm.Store) -> list[Any]:
    """Return all of a store, without the rows' numbers."""
    return [
        sorted(
            (m.id, m.type, m.content, m.time, m.session_id, m.session_title, m.files, m.tools)
            for _, m in store.every_memory(cm.Filter())
        ),
        sorted(store._all("SELECT o.key, m.code FROM origin AS o LEFT JOIN memory AS m ON m.id = o.memory")),
        sorted(store._all("SELECT session_id, title, title_rank FROM session")),
        sorted(store._all("SELECT g.kind, g.name, m.code FROM memory_tag AS t JOIN tag AS g ON g.id = t.tag JOIN memory AS m ON m.id = t.memory")),
        sorted(store._all("SELECT key, size, position, tail, skipped FROM transcript")),
        store.meta("redactions"),
    ]  # fmt: skip


@pytest.fixture
def import_with(
    tmp_path: Path, home: Path, transcript: Begin, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[list[cm.Helper]], tuple[list[Any], cm.ImportReport]]]:
    """Return a function that reads a history into a new store with some helpers."""
    monkeypatch.setattr(cm, "BATCH_DRAFTS", 7)
    monkeypatch.setattr(cm, "HELPED_BATCH", 1)  # batches end at the same lines with all helpers
    write_history(transcript)
    stores: list[cm.Store] = []

    def run(helpers: list[cm.Helper]) -> tuple[list[Any], cm.ImportReport]:
        store = cm.Store(tmp_path / f"store{len(stores)}" / cm.STORE_FILE)
        stores.append(store)
        root = cm.TranscriptRoot(home / ".claude" / "projects", "claude-code")
        importer = cm.Importer(store, cm.PrivacyFilter(), None, [root], cm.Settings())
        importer._has_written = True
        found = sorted(cm.find_transcripts([root]), key=lambda f: f.path)
        return dump(store) if not found else (lambda r: (dump(store), r))(importer.import_transcripts(found, helpers=helpers))  # fmt: skip

    yield run
    for store in stores:
        store.close()


def start_helper() -> cm.Helper:
    return cm.Helper(cm.find_helper_command(False), cm.Settings(), None)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_helpers_change_nothing_in_what_is_stored(import_with: Any, count: int) -> None:
    alone, report = import_with([])
    helped, helped_report = import_with([start_helper() for _ in range(count)])
    assert helped == alone
    assert (helped_report.memories, helped_report.duplicates, helped_report.redactions) == (
        report.memories,
        report.duplicates,
        report.redactions,
    )
    assert len(alone[0]) > 200


@pytest.mark.parametrize("when", ["before", "after texts were handed over"])
def test_work_of_a_helper_that_is_gone_is_done_here(
    import_with: Any, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    alone, _ = import_with([])
    helpers = [start_helper(), start_helper()]
    if when == "before":
        for helper in helpers:
            helper._process.kill()
            helper._process.wait()
    else:
        begin, calls = cm.Helper.begin, 0

        def begin_and_die(self: cm.Helper, raws: Any) -> None:
            nonlocal calls
            calls += 1
            begin(self, raws)
            if calls % 3 == 0:
                self._process.kill()

        monkeypatch.setattr(cm.Helper, "begin", begin_and_die)
    assert import_with(helpers)[0] == alone
    assert all(helper._process.poll() is not None for helper in helpers)


def test_no_helper_where_none_can_be_started() -> None:
    with pytest.raises(cm.HelperError, match="No helper could be started"):
        cm.Helper(["/no/such/program"], cm.Settings(), None)


def test_reading_in_the_background_starts_no_helper(
    transcript: Begin, memories: cm.Memories, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a helper was started")

    monkeypatch.setattr(cm, "HELPERS_FROM_BYTES", 0)
    monkeypatch.setattr(cm, "Helper", refuse)
    transcript().prompt("pier")
    memories.start()
    wait_until(lambda: memories.search(cm.SearchQuery("pier")).hits, "the prompt")
    assert memories._problem == ""


def children_of(pid: int) -> set[int]:
    try:
        return {int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}
    except OSError:
        return set()


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="children are seen in /proc here")
@pytest.mark.parametrize("sign", ["SIGKILL", "SIGINT", "SIGTERM"])
def test_helpers_end_with_the_program(transcript: Begin, home: Path, sign: str) -> None:
    for number in range(40):
        t = transcript(f"s{number}")
        t.write(*(t.line("user", message={"role": "user", "content": f"pier {number} {turn} " + "fog " * 100}) for turn in range(200)))  # fmt: skip
    env = {k: v for k, v in os.environ.items() if not k.startswith(("CLAUDE_", "MEMORY_", "XDG_"))}
    env["HOME"] = str(home)
    end = time.monotonic() + 120
    process = subprocess.Popen([sys.executable, "-c", SYNC], env=env, cwd=home, stderr=subprocess.DEVNULL)  # fmt: skip
    helpers: set[int] = set()
    while len(helpers) < 2 and process.poll() is None and time.monotonic() < end:
        helpers |= children_of(process.pid)
        time.sleep(0.005)
    assert helpers
    process.send_signal(getattr(signal, sign))
    process.wait(60)
    while any(map(is_running, helpers)) and time.monotonic() < end:
        time.sleep(0.02)
    assert not any(map(is_running, helpers))
    # What was read stays, and the rest is read by the next.
    assert (
        subprocess.run([sys.executable, "-c", SYNC], env=env, cwd=home, timeout=120).returncode == 0
    )
    store = cm.Store(home / ".claude-code" / "memory" / cm.STORE_FILE)
    assert store.count(cm.Filter()) == 40 * 200
    assert store.check() == []
    store.close()
