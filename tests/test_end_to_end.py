"""The real server over real pipes, on a real store, as Claude Desktop starts it."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, WAIT, Transcript

import code_memory as cm

Begin = Callable[..., Transcript]
Run = Callable[..., subprocess.CompletedProcess[str]]


class Client:
    """A bare MCP client: one JSON message a line."""

    def __init__(self, home: Path, protocol: str = "2025-06-18", **env: str) -> None:
        variables = {"HOME": str(home), "USERPROFILE": str(home), "PATH": os.environ["PATH"], **env}
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "code_memory.py"), "mcp", "serve"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=variables, cwd="/",
        )  # fmt: skip
        self.lines: queue.Queue[bytes] = queue.Queue()
        self.errors: list[bytes] = []
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(
            target=lambda: self.errors.extend(self.process.stderr or ()), daemon=True
        ).start()
        self.number = 0
        self.info = self.request(
            "initialize",
            {
                "protocolVersion": protocol,
                "capabilities": {},
                "clientInfo": {"name": "t", "version": "1"},
            },
        )
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self.lines.put(line)

    def send(self, message: Any) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(message, ensure_ascii=False).encode() + b"\n")
        self.process.stdin.flush()

    def request(self, method: str, params: Any = None) -> Any:
        self.number += 1
        self.send({"jsonrpc": "2.0", "id": self.number, "method": method, "params": params or {}})
        while True:
            reply = json.loads(self.lines.get(timeout=WAIT))
            if reply.get("id") == self.number:
                return reply["result"]

    def call(self, tool: str, **arguments: Any) -> str:
        result = self.request("tools/call", {"name": tool, "arguments": arguments})
        text: str = result["content"][0]["text"]
        assert not result.get("isError"), text
        return text

    def search_until(self, words: str, mark: str) -> str:
        end = time.monotonic() + WAIT
        while time.monotonic() < end:
            text = self.call("mem-search", query=words)
            if mark in text:
                return text
            time.sleep(0.05)
        raise AssertionError(f"{mark} was never found")

    def end(self) -> int:
        assert self.process.stdin
        self.process.stdin.close()
        return self.process.wait(WAIT)


@pytest.fixture
def connect(home: Path) -> Iterator[Callable[..., Client]]:
    clients: list[Client] = []

    def make(**more: Any) -> Client:
        clients.append(Client(home, **more))
        return clients[-1]

    yield make
    for client in clients:
        client.process.kill()
        client.process.wait()
        for pipe in (client.process.stdin, client.process.stdout):
            if pipe:
                pipe.close()


def test_four_tools_on_a_store_that_was_not_there(
    transcript: Begin, connect: Callable[..., Client]
) -> None:
    t = transcript("aaaa-1")
    t.prompt("로그인 버튼이 왜 느려? 🚀")
    t.response("The session cookie is checked twice.")
    client = connect(PYTHONIOENCODING="cp1252")
    assert client.info["serverInfo"]["name"] == "code-memory-mcp"
    found = client.search_until("로그인 🚀", "느려")
    assert "🚀" in found
    (id, *_) = re.findall(r"\[mem:(\w+)\]", found)
    assert "cookie" in client.call("mem-timeline", ids=[id])
    details = client.call("mem-details", ids=[id, "ZZZZZZ"])
    assert "로그인 버튼이 왜 느려? 🚀" in details
    assert "ZZZZZZ" in details
    assert "1 of 1 transcripts" in client.call("mem-stats")
    assert client.end() == 0


def test_times_carry_their_zone(transcript: Begin, connect: Callable[..., Client]) -> None:
    t = transcript()
    line = t.line("user", message={"role": "user", "content": "evening work on the buoy"})
    t.write(line | {"timestamp": "2026-03-23T15:50:20.000Z"})
    client = connect(TZ="Asia/Seoul")
    found = client.search_until("buoy", "evening")
    assert "2026-03-24 00:50 +09:00" in found
    (id, *_) = re.findall(r"\[mem:(\w+)\]", found)
    assert "2026-03-24 +09:00" in client.call("mem-timeline", ids=[id])


def test_appended_line_is_found_by_a_running_server(
    transcript: Begin, connect: Callable[..., Client]
) -> None:
    t = transcript()
    t.prompt("the first words")
    client = connect()
    client.search_until("first words", "first")
    t.prompt("freshly appended QUOKKA_7731")
    client.search_until("QUOKKA_7731", "freshly appended")


def test_five_servers_start_at_once_on_one_store(
    transcript: Begin, connect: Callable[..., Client]
) -> None:
    for number in range(30):
        t = transcript(f"s{number}")
        for turn in range(10):
            t.response(f"berth {number} turn {turn}")
    made: list[Client] = []
    threads = [threading.Thread(target=lambda: made.append(connect())) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert len(made) == 5
    for client in made:
        client.search_until("berth 7", "berth")
    transcript("late").prompt("a late LOBSTER")
    for client in made:
        client.search_until("LOBSTER", "late")
    store = cm.Store(Path(made[0].call("mem-stats").split("**Store**: ")[1].split(" (")[0]))
    assert store.count(cm.Filter(type="response")) == 300
    store.close()


def test_reply_is_cut_below_its_limit_and_says_how_to_go_on(
    transcript: Begin, connect: Callable[..., Client]
) -> None:
    t = transcript()
    for number in range(20):
        t.response(f"observation {number} " + "about the harbour wall " * 400)
    client = connect()
    found = client.search_until("observation harbour wall", "observation")
    ids = re.findall(r"\[mem:(\w+)\]", client.call("mem-search", query="harbour wall", topK=20))
    assert ids
    assert found
    details = client.call("mem-details", ids=ids)
    assert len(details) <= cm.MAX_REPLY_CHARS
    assert "offset" in details


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
def test_signals_end_it(name: str, transcript: Begin, connect: Callable[..., Client]) -> None:
    transcript().prompt("x y z")
    client = connect()
    client.process.send_signal(getattr(signal, name))
    client.process.wait(WAIT)


def test_logs_hold_no_words_of_the_person(
    transcript: Begin, connect: Callable[..., Client]
) -> None:
    transcript().prompt("SECRETWORDS in a prompt")
    client = connect()
    client.search_until("SECRETWORDS", "prompt")
    client.request(
        "tools/call", {"name": "mem-search", "arguments": {"query": "QUERYWORDS", "topK": "many"}}
    )
    client.end()
    logged = b"".join(client.errors)
    assert b"SECRETWORDS" not in logged
    assert b"QUERYWORDS" not in logged


def test_damaged_store_is_said_in_a_reply(
    transcript: Begin, run_cli: Run, home: Path, connect: Callable[..., Client]
) -> None:
    t = transcript()
    for number in range(50):
        t.prompt(f"pier {number}")
    run_cli("sync")
    path = home / ".claude-code/memory/code-memory.db"
    path.write_bytes(b"nothing like a database " * 4000)
    client = connect()
    result = client.request("tools/call", {"name": "mem-search", "arguments": {"query": "pier"}})
    assert result["isError"]
    assert "damaged" in result["content"][0]["text"]
    assert "code-memory rebuild" in result["content"][0]["text"]
    done = run_cli("rebuild")
    assert done.returncode == 0, done.stderr
    assert list(path.parent.glob("*.damaged-*"))
    client.search_until("pier", "pier")


def test_forgotten_memory_is_gone_for_a_running_server(
    transcript: Begin, run_cli: Run, connect: Callable[..., Client]
) -> None:
    transcript().prompt("forget this WALRUS")
    client = connect()
    client.search_until("WALRUS", "forget this")
    assert run_cli("forget", "--matching", "WALRUS", "--yes").returncode == 0
    assert "forget this" not in client.call("mem-search", query="WALRUS")
