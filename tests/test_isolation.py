"""Nothing leaves the machine: no socket, no other program, whatever the command."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROOT, WAIT, Transcript

Begin = Callable[..., Transcript]

# Runs the program with a hook that ends it at whatever could reach beyond the process.
GUARD = """
import os, sys
FORBIDDEN = (
    "socket.connect", "socket.bind", "socket.getaddrinfo", "socket.gethostbyname",
    "socket.sendto", "socket.sendmsg", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork",
    "os.forkpty", "os.system", "os.spawn", "os.startfile", "urllib.Request", "ftplib.connect",
    "http.client.connect", "smtplib.connect", "webbrowser.open", "pty.spawn",
)
def guard(event, args):
    if event in FORBIDDEN:
        os.write(2, f"FORBIDDEN {event} {args!r}\\n".encode())
        os._exit(97)
sys.addaudithook(guard)
sys.path.insert(0, sys.argv.pop(1))
import code_memory
sys.exit(code_memory.main())
"""

WISH = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "t", "version": "1"},
}
MESSAGES = b"".join(
    json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"
    for message in (
        {"id": 1, "method": "initialize", "params": WISH},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/list"},
        *(
            {"id": 3 + n, "method": "tools/call", "params": {"name": name, "arguments": arguments}}
            for n, (name, arguments) in enumerate(
                [
                    ("mem-search", {"query": "pier in the fog https://example.com"}),
                    ("mem-timeline", {"query": "pier"}),
                    ("mem-details", {"ids": ["s1"]}),
                    ("mem-stats", {}),
                ]
            )
        ),
    )
)
COMMANDS = [
    pytest.param(["sync"], id="sync"),
    pytest.param(["search", "pier in the fog"], id="search"),
    pytest.param(["stats"], id="stats"),
    pytest.param(["rebuild"], id="rebuild"),
    pytest.param(["export"], id="export"),
    pytest.param(["forget", "--matching", "pier", "--yes"], id="forget"),
    pytest.param(["mcp", "serve"], id="serve"),
]


@pytest.fixture
def guard(transcript: Begin, home: Path) -> Path:
    t = transcript()
    t.prompt("the pier in the fog, see https://example.com/x")
    t.response("It is http://localhost:1/ and the key is in the harbour.")
    path = home / "guard.py"
    path.write_text(GUARD)
    return path


def run(
    words: list[str], home: Path, guard: Path, before: list[str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    env = {
        "HOME": str(home), "USERPROFILE": str(home), "PATH": os.environ["PATH"],
        "PYTHONDONTWRITEBYTECODE": "1", "SYSTEMROOT": os.environ.get("SYSTEMROOT", ""),
    }  # fmt: skip
    return subprocess.run(
        [*(before or []), sys.executable, str(guard), str(ROOT), *words],
        input=MESSAGES if words == ["mcp", "serve"] else b"",
        capture_output=True, env=env, timeout=WAIT, cwd=home,
    )  # fmt: skip


def check(done: subprocess.CompletedProcess[bytes], words: list[str]) -> None:
    assert done.returncode == 0, done.stderr.decode()
    assert b"FORBIDDEN" not in done.stderr
    assert b"Traceback" not in done.stderr
    if words == ["mcp", "serve"]:
        replies = [json.loads(line) for line in done.stdout.splitlines()]
        assert {reply["id"] for reply in replies} == set(range(1, 7))
        assert not any(reply["result"].get("isError") for reply in replies)
    if words[0] == "search":
        assert b"pier in the fog" in done.stdout


def test_guard_sees_a_socket_and_a_program(guard: Path, home: Path) -> None:
    for code in (
        "import socket; socket.create_connection(('127.0.0.1', 1))",
        "import subprocess; subprocess.run(['true'])",
    ):
        folder = home / "fake"
        folder.mkdir(exist_ok=True)
        (folder / "code_memory.py").write_text(f"def main():\n    {code}\n")
        done = subprocess.run([sys.executable, str(guard), str(folder)], capture_output=True)
        assert done.returncode == 97


@pytest.mark.parametrize("words", COMMANDS)
def test_no_socket_and_no_other_program(words: list[str], guard: Path, home: Path) -> None:
    if words not in (["sync"], ["mcp", "serve"]):
        check(run(["sync"], home, guard), ["sync"])
    check(run(words, home, guard), words)


@pytest.mark.slow
@pytest.mark.parametrize("words", COMMANDS)
def test_works_without_any_network(words: list[str], guard: Path, home: Path) -> None:
    apart = ["unshare", "-rn"]
    if (
        not shutil.which("unshare")
        or subprocess.run([*apart, "true"], capture_output=True).returncode
    ):
        pytest.skip("no network namespace can be made here")
    if words not in (["sync"], ["mcp", "serve"]):
        check(run(["sync"], home, guard, apart), ["sync"])
    check(run(words, home, guard, apart), words)


@pytest.mark.slow
@pytest.mark.parametrize("words", COMMANDS)
def test_system_sees_no_connection_and_no_other_program(
    words: list[str], guard: Path, home: Path
) -> None:
    log = home / "trace"
    trace = ["strace", "-f", "-qq", "-o", str(log), "-e", "trace=%network,execve,execveat"]
    if (
        not shutil.which("strace")
        or subprocess.run([*trace, "true"], capture_output=True).returncode
    ):
        pytest.skip("strace does not work here")
    if words not in (["sync"], ["mcp", "serve"]):
        check(run(["sync"], home, guard), ["sync"])
    check(run(words, home, guard, trace), words)
    lines = log.read_text().splitlines()
    programs = [line for line in lines if re.search(r"\bexecve(?:at)?\(", line)]
    assert len([line for line in programs if line.endswith("= 0")]) == 1, programs  # itself
    # a pair of sockets within the process is what asyncio wakes itself with
    beyond = [
        line
        for line in lines
        if line not in programs
        and not re.search(
            r"\b(?:socketpair\(AF_UNIX|sendto\(\d+, \"\\0\", 1|recvfrom\(\d+, \"\\0+\")", line
        )
        and re.search(r"\b(?:connect|bind|listen|accept4?|sendto|sendmsg|sendmmsg|socket)\(", line)
    ]
    assert beyond == []
