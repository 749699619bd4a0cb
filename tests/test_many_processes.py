"""Several programs on one store at once: none errs, none waits long, one reads at a time.

CODE_MEMORY_LOAD_SECONDS says how long; two minutes is what the program has to stand.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import WAIT, Transcript, count_stored, stop_in_the_midst, wait_until
from test_end_to_end import Client, connect  # noqa: F401

import code_memory as cm

Begin = Callable[..., Transcript]
Run = Callable[..., subprocess.CompletedProcess[str]]
Connect = Callable[..., Client]

SECONDS = float(os.environ.get("CODE_MEMORY_LOAD_SECONDS", "30"))
SERVERS = int(os.environ.get("CODE_MEMORY_LOAD_SERVERS", "3"))
# On a machine with nothing else to do it is below one second. How busy this one is, nobody knows:
# only who measures gives a bound; that nobody waits for an import is tried below without a clock.
LONGEST_WAIT = float(os.environ.get("CODE_MEMORY_LOAD_LONGEST", WAIT))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="kills and locks are POSIX here"),
]


def lock_holder(home: Path) -> int | None:
    """Return the process that has the right to import, as the system knows it."""
    lock = home / ".claude-code" / "memory" / "import.lock"
    for _ in range(3):  # the list may change while it is read, and then tells both
        try:
            wanted = f":{lock.stat().st_ino} "
            lines = Path("/proc/locks").read_text().splitlines()
        except OSError:
            return None
        found = [line for line in lines if "FLOCK" in line and wanted in line and "->" not in line]
        holders = {int(line.split()[4]) for line in found}
        if len(holders) <= 1:
            return min(holders, default=None)
    raise AssertionError(f"several processes import at once: {holders}")


def test_servers_sync_and_forget_under_load(
    transcript: Begin,
    run_cli: Run,
    home: Path,
    connect: Connect,  # noqa: F811
) -> None:
    transcripts = [transcript(f"s{n}") for n in range(8)]
    for t in transcripts:
        for turn in range(60):
            t.prompt(f"pier {t.session_id} {turn} in the fog")
    clients = [connect() for _ in range(SERVERS)]
    stop, errors, waits = threading.Event(), list[str](), list[float]()
    starts = list[float]()  # of each server's first call, which also waits for the model
    answered = set[Client]()
    forgotten: list[str] = []
    written = {f"pier {t.session_id} {turn} in the fog" for t in transcripts for turn in range(60)}
    calls = 0

    def ask(client: Client, seed: int) -> None:
        nonlocal calls
        rng = random.Random(seed)
        ids: list[str] = []
        while not stop.is_set():
            kind = rng.choice(
                ["search", "search", "search", "newest", "timeline", "details", "stats"]
            )
            name, arguments = {
                "search": ("mem-search", {"query": f"pier s{rng.randrange(8)} {rng.randrange(60)} fog"}),
                "newest": ("mem-search", {"query": "", "since": "2020", "topK": 20}),
                "timeline": ("mem-timeline", {"ids": ids[:1], "query": "fog"}),
                "details": ("mem-details", {"ids": ids[:5] or ["s1"]}),
                "stats": ("mem-stats", {}),
            }[kind]  # fmt: skip
            start = time.monotonic()
            try:
                result: Any = client.request("tools/call", {"name": name, "arguments": arguments})
            except Exception as error:
                errors.append(f"{kind}: {error!r}")
                return
            (waits if client in answered else starts).append(time.monotonic() - start)
            answered.add(client)
            text = result["content"][0]["text"]
            calls += 1
            if result.get("isError"):
                errors.append(f"{kind}: {text}")
            ids = re.findall(r"\[mem:(\w+)\]", text) or ids

    def write() -> None:
        number = 0
        while not stop.wait(0.3):
            t = transcripts[number % len(transcripts)]
            text = f"pier added {number} while all are busy"
            t.prompt(text)
            written.add(text)
            if number % 10 == 5:
                t.prompt(f"SECRET{number} to be forgotten, fog")
            number += 1

    def sync_all() -> None:
        while not stop.is_set():
            done = run_cli("sync")
            if done.returncode or done.stderr:
                errors.append(f"sync: {done.stderr}")

    def forget_all() -> None:
        while not stop.wait(1):
            done = run_cli("forget", "--matching", "to be forgotten", "--yes")
            if done.returncode or done.stderr:
                errors.append(f"forget: {done.stderr}")
            forgotten.append(done.stdout)

    work = [
        *(threading.Thread(target=ask, args=(client, n)) for n, client in enumerate(clients)),
        *(threading.Thread(target=job) for job in (write, sync_all, forget_all)),
    ]
    for thread in work:
        thread.start()
    begun = time.monotonic()
    holders: set[int] = set()

    def is_enough() -> bool:
        holders.update(holder for holder in (lock_holder(home),) if holder)
        took_turns = len(holders) > 1 or not Path("/proc/locks").exists()
        all_worked = calls > 10 and len(forgotten) > 1 and took_turns
        return bool(errors) or (all_worked and time.monotonic() - begun > SECONDS)

    wait_until(is_enough, "the turn of all")
    stop.set()
    for thread in work:
        thread.join(WAIT)
    assert errors == []
    waits.sort()
    print(f"\n{calls} calls, p50 {waits[len(waits) // 2]:.3f} s, p95 {waits[len(waits) * 95 // 100]:.3f} s, longest {waits[-1]:.3f} s; first ones at most {max(starts):.3f} s; {len(holders)} importers seen, {len(forgotten)} forgets")  # fmt: skip
    assert waits[-1] < LONGEST_WAIT
    for client in clients:
        assert client.end() == 0
        assert b"Traceback" not in b"".join(client.errors), b"".join(client.errors).decode()
    assert run_cli("sync").returncode == 0  # the last ones, which must be known to be forgotten
    assert run_cli("forget", "--matching", "to be forgotten", "--yes").returncode == 0
    assert run_cli("sync").returncode == 0
    store = cm.Store(home / ".claude-code" / "memory" / cm.STORE_FILE)
    texts = [memory.content for _, memory in store.every_memory(cm.Filter())]
    assert len(texts) == len(set(texts))
    assert set(texts) == written
    assert store.check() == []
    store.close()
    for path in (home / ".claude-code" / "memory").iterdir():
        assert b"to be forgotten" not in path.read_bytes(), path.name


def test_next_one_reads_when_the_reader_is_killed(
    transcript: Begin,
    home: Path,
    connect: Connect,  # noqa: F811
) -> None:
    if not Path("/proc/locks").exists():
        pytest.skip("who holds a lock is not told here")
    files = turns = 0

    def write_more() -> None:
        nonlocal files, turns
        for number in range(files, files + 60):
            t = transcript(f"s{number}")
            t.write(*(t.line("user", message={"role": "user", "content": f"pier {number} {turn} " + "fog " * 100}) for turn in range(150)))  # fmt: skip
        files, turns = files + 60, turns + 60 * 150

    def find_reader() -> Client | None:
        holder = lock_holder(home)
        return next((client for client in clients if client.process.pid == holder), None)

    path = home / ".claude-code" / "memory" / cm.STORE_FILE

    def stop_reader() -> Client | None:
        nonlocal known
        if count_stored(path) == turns:  # the import was quicker than we are
            known = turns
            write_more()
            clients[0].call("mem-search", query="pier 3")  # wakes its reader
        reader = find_reader()
        if reader is None or not stop_in_the_midst(reader.process.pid, path, known, turns):
            return None
        if lock_holder(home) == reader.process.pid:
            return reader
        reader.process.send_signal(signal.SIGCONT)  # another one has taken its turn
        return None

    known = 0
    write_more()
    clients = [connect() for _ in range(3)]
    reader: Client = wait_until(stop_reader, "the midst of an import")
    clients.remove(reader)
    for client in clients:  # nobody waits for the one that reads
        assert "An import is running" in client.call("mem-search", query="pier 3")
    reader.process.kill()
    reader.process.wait()
    store = cm.Store(path)
    assert known < store.count(cm.Filter()) < turns  # it was in the midst
    store.close()
    for client in clients:  # whoever asks wakes its own reader
        client.call("mem-search", query="pier 3")
    left = clients[0]
    left.search_until("pier 0 149", "pier 0 149")
    wait_until(lambda: f"{files} of {files} transcripts" in left.call("mem-stats"))
    store = cm.Store(path)
    assert store.count(cm.Filter()) == turns
    assert store.check() == []
    store.close()
