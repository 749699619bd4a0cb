#!/usr/bin/env python3
"""Try a finished code-memory as its first user would, in a scratch home; exit 1 if anything fails.

usage: trial.py PROGRAM [ARGUMENT ...]       (a frozen executable, or: python code-memory.pyz)

Needs nothing but Python, so that the machine that tries an artefact can be another one than the
machine that made it. Nothing of the caller's own home is read or written.
"""

from __future__ import annotations

import json
import os
import pickle
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

TIMEOUT_SECONDS = 300  # a first start is scanned by virus scanners, and runners are slow

OTHER_SERVER = {"command": "/opt/other/server", "args": ["--name", "é 기억"]}

# (prompt, answer). The questions below share no word with them.
TALKS = (
    (
        "The login page rejects correct passwords since Tuesday.",
        "The clock of the auth service was wrong, so every session token looked expired.",
    ),
    (
        "How do I make the PDF report smaller?",
        "Downsample the embedded images to 150 dpi before rendering.",
    ),
    (
        "결제 서버가 자꾸 멈춰요 🐢",
        "연결 풀의 크기가 너무 작아서 요청이 기다리고 있었습니다. 크기를 늘렸습니다 🎉",
    ),
    (
        "Write a haiku about the sea.",
        "Waves fold into foam, a gull leans on salted wind, dusk swallows the shore.",
    ),
)
BY_MEANING = ("users cannot sign in", TALKS[0])
KOREAN = ("연결 풀의 크기 🎉", TALKS[2])


class TrialError(Exception):
    """What the program did, and what it should have done."""


def expect(holds: bool, what: str) -> None:
    """Fail the trial with `what` unless it holds."""
    if not holds:
        raise TrialError(what)


def build_environment(home: Path) -> dict[str, str]:
    """Return the environment of a person whose home is `home`, on this system."""
    mine = ("XDG_", "CLAUDE_", "MEMORY_", "CODE_MEMORY_", "PYTHON", "VIRTUAL_ENV", "_PYI")
    env = {k: v for k, v in os.environ.items() if not k.startswith(mine)}
    env.update(HOME=str(home), USERPROFILE=str(home), SHIV_ROOT=str(home / ".shiv"))
    if os.name == "nt":
        roaming, local = home / "AppData" / "Roaming", home / "AppData" / "Local"
        env.update(APPDATA=str(roaming), LOCALAPPDATA=str(local))
        env.update(HOMEDRIVE=home.drive, HOMEPATH=str(home)[len(home.drive) :])
        for folder in (roaming, local):
            folder.mkdir(parents=True, exist_ok=True)
    return env


def find_config(home: Path) -> Path:
    """Return where Claude Desktop keeps its configuration below that home."""
    if os.name == "nt":
        folder = home / "AppData" / "Roaming" / "Claude"
    elif sys.platform == "darwin":
        folder = home / "Library" / "Application Support" / "Claude"
    else:
        folder = home / ".config" / "Claude"
    return folder / "claude_desktop_config.json"


def write_corpus(home: Path) -> None:
    """Write TALKS as transcripts of Claude Code."""
    for number, talk in enumerate(TALKS):
        session = f"{number}a1b2c3d-0000-4000-8000-00000000000{number}"
        parent = None
        lines = []
        for turn, (role, text) in enumerate(zip(("user", "assistant"), talk, strict=True)):
            line_id = f"{number}{turn}c0ffee-0000-4000-8000-0000000000{number}{turn}"
            message: dict[str, object] = {"role": role, "content": text}
            if role == "assistant":
                content = [{"type": "text", "text": text}]
                message.update(id=f"msg_trial{number}", type="message", model="m", content=content)
            lines.append(
                {
                    "type": role,
                    "uuid": line_id,
                    "parentUuid": parent,
                    "sessionId": session,
                    "timestamp": f"2026-0{number + 1}-05T09:0{turn}:00.000Z",
                    "cwd": f"/home/dana/code/project-{number}",
                    "version": "2.1.200",
                    "userType": "external",
                    "isSidechain": False,
                    "message": message,
                }
            )
            parent = line_id
        file = (
            home / ".claude" / "projects" / f"-home-dana-code-project-{number}" / f"{session}.jsonl"
        )
        file.parent.mkdir(parents=True)
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        file.write_bytes(text.encode("utf-8"))


class Trial:
    """One program, tried step by step in one scratch home."""

    def __init__(self, command: list[str], home: Path) -> None:
        self.command = command
        self.home = home
        self.env = build_environment(home)

    def run(self, *arguments: str) -> str:
        """Run one command and return its standard output; it must end well."""
        done = subprocess.run(
            [*self.command, *arguments],
            env=self.env,
            cwd=self.home,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_SECONDS,
        )
        out, err = (stream.decode("utf-8", "replace") for stream in (done.stdout, done.stderr))
        told = " ".join(arguments)
        expect(done.returncode == 0, f"`{told}` ended with {done.returncode}: {err or out}")
        expect("Traceback" not in err, f"`{told}` showed a traceback: {err}")
        return out

    def try_version(self) -> None:
        """It starts and knows who it is."""
        out = self.run("--version")
        expect("0." in out or "1." in out, f"--version says {out!r}")

    def try_search(self) -> None:
        """A small corpus is read and found by meaning alone, which needs the model and vec0."""
        write_corpus(self.home)
        self.run("sync")
        for query, talk in (BY_MEANING, KOREAN):
            hits = json.loads(self.run("search", query, "--json"))
            expect(bool(hits), f"nothing was found for {query!r}")
            expect(
                any(text in hits[0]["content"] for text in talk),
                f"for {query!r} the first hit is {hits[0]['content']!r}",
            )

    def try_server(self) -> None:
        """It speaks MCP on pipes: UTF-8, LF, JSON only, and it ends when its client does."""
        server = subprocess.Popen(
            [*self.command, "mcp", "serve"],
            env=self.env,
            cwd=self.home,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert server.stdin
        assert server.stdout
        lines: queue.Queue[bytes] = queue.Queue()
        errors: list[bytes] = []

        def read_out(stream: object = server.stdout) -> None:
            for line in stream:  # type: ignore[attr-defined]
                lines.put(line)
            lines.put(b"")

        threading.Thread(target=read_out, daemon=True).start()
        threading.Thread(target=lambda: errors.extend(server.stderr or ()), daemon=True).start()

        def send(message: dict[str, object]) -> None:
            body = json.dumps({"jsonrpc": "2.0", **message}, ensure_ascii=False) + "\n"
            server.stdin.write(body.encode("utf-8"))  # type: ignore[union-attr]
            server.stdin.flush()  # type: ignore[union-attr]

        def ask(number: int, method: str, params: dict[str, object]) -> dict[str, object]:
            send({"id": number, "method": method, "params": params})
            while True:
                line = lines.get(timeout=TIMEOUT_SECONDS)
                told = b"".join(errors).decode("utf-8", "replace")
                expect(line != b"", f"the server ended while answering {method}: {told}")
                expect(line.endswith(b"\n") and b"\r" not in line, f"a line ends in {line[-4:]!r}")
                reply = json.loads(line.decode("utf-8"))
                if reply.get("id") == number:
                    expect("error" not in reply, f"{method} was refused: {reply}")
                    result: dict[str, object] = reply["result"]
                    return result

        try:
            client = {"name": "trial", "version": "1"}
            began = time.monotonic()
            hello = ask(
                1,
                "initialize",
                {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client},
            )
            print(f"      initialize was answered after {time.monotonic() - began:.2f} s")
            expect(hello["serverInfo"]["name"] == "code-memory-mcp", f"it is {hello}")  # type: ignore[index]
            send({"method": "notifications/initialized"})
            tools = [tool["name"] for tool in ask(2, "tools/list", {})["tools"]]  # type: ignore[attr-defined]
            expect("mem-search" in tools, f"its tools are {tools}")
            query, _ = KOREAN
            reply = ask(3, "tools/call", {"name": "mem-search", "arguments": {"query": query}})
            text = "".join(part["text"] for part in reply["content"])  # type: ignore[attr-defined]
            expect(not reply.get("isError"), f"mem-search failed: {text}")
            expect("🎉" in text and "연결" in text, f"Korean and emoji came back as {text!r}")
            began = time.monotonic()
            server.stdin.close()
            server.wait(TIMEOUT_SECONDS)
            expect(server.returncode == 0, f"it ended with {server.returncode}")
            print(f"      it ended {time.monotonic() - began:.2f} s after its client")
        finally:
            if server.poll() is None:
                server.kill()

    def try_helper(self) -> None:
        """It prepares texts for a large `sync`, asked through pipes, and ends when they do."""
        text = "A helper read 한국어 and 🎉."
        asked = [(text, "prompt", False, {"files": ("pier.py",)})]
        done = subprocess.run(
            [*self.command, "prepare-texts"],
            env=self.env,
            cwd=self.home,
            check=False,
            input=pickle.dumps(((), (), None)) + pickle.dumps(asked),
            capture_output=True,
            timeout=TIMEOUT_SECONDS,
        )
        expect(done.returncode == 0, f"a helper ended with {done.returncode}")
        ((packed, words, _, labels, *_),) = pickle.loads(done.stdout)
        expect(text.encode() in packed, f"a helper packed {packed!r}")
        expect("helper" in words[0] and labels == {"files": ["pier.py"]}, "a helper found no words")

    def try_install(self) -> None:
        """It adds itself to Claude Desktop and takes itself out again, and touches nothing else."""
        config = find_config(self.home)
        config.parent.mkdir(parents=True, exist_ok=True)
        before = {"mcpServers": {"other": OTHER_SERVER}, "theme": "dark"}
        config.write_text(json.dumps(before, indent=2), encoding="utf-8")
        self.run("mcp", "install")
        after = json.loads(config.read_text("utf-8"))
        entry = after["mcpServers"].pop("code-memory", None)
        expect(entry is not None, f"no entry was written: {after}")
        expect(after == before, f"the rest of the config became {after}")
        # a zipapp is started by Python, and its own file is then the first argument
        words = [entry["command"], *entry["args"]]
        expect(words[-2:] == ["mcp", "serve"], f"the entry is {entry}")
        started = os.path.realpath(words[-3])
        expect(
            os.path.samefile(started, self.command[-1]),
            f"the entry starts {started}, not {self.command[-1]}",
        )
        self.run("mcp", "status")
        self.run("mcp", "uninstall")
        left = json.loads(config.read_text("utf-8"))
        expect(left == before, f"after `mcp uninstall` the config is {left}")
        expect(any((self.home / ".claude-code" / "memory").iterdir()), "the memories are gone")


STEPS = (
    Trial.try_version,
    Trial.try_search,
    Trial.try_server,
    Trial.try_helper,
    Trial.try_install,
)


def try_program(command: list[str], home: Path) -> None:
    """Run every step; raises TrialError at the first that fails."""
    trial = Trial(command, home)
    for step in STEPS:
        began = time.monotonic()
        step(trial)
        print(f"   ✓  {step.__doc__} ({time.monotonic() - began:.1f} s)", flush=True)


def main(command: list[str]) -> int:
    """Try the program in a new scratch home, which is removed when all went well."""
    if not command:
        print(__doc__, file=sys.stderr)
        return 2
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8", errors="replace")
    resolved = shutil.which(command[0]) or command[0]
    command = [os.path.abspath(resolved), *map(os.path.abspath, command[1:])]
    home = Path(tempfile.mkdtemp(prefix="code-memory-trial-")).resolve()
    print(f"trying {' '.join(command)}", flush=True)
    try:
        try_program(command, home)
    except (TrialError, subprocess.TimeoutExpired, queue.Empty) as error:
        print(
            f"   ✗  {error or type(error).__name__}\n      the scratch home is {home}", flush=True
        )
        return 1
    shutil.rmtree(home, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
