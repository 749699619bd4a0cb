"""Shared fixtures: a scratch home, a writer of small invented transcripts, a small embedder."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import code_memory as cm

Line = dict[str, Any]

WAIT = 300  # seconds; only a hang takes so long, however slow or busy the machine

# Examples are the same in every run, and none is too slow for a busy machine. With
# CODE_MEMORY_FUZZ=2 and more they are others each time, and so many times as many.
FUZZ = int(os.environ.get("CODE_MEMORY_FUZZ", "1"))
settings.register_profile(
    "tests", deadline=None, derandomize=FUZZ == 1, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tests")


class FakeEmbedder:
    """A deterministic stand-in for the model: texts that share words lie near each other."""

    dim = 64
    fingerprint = "fake"

    def _word(self, word: str) -> Any:
        import numpy as np

        seed = int.from_bytes(hashlib.sha256(word.encode("utf-8", "replace")).digest()[:4], "big")
        return np.random.default_rng(seed).standard_normal(self.dim).astype(np.float32)

    def embed(self, texts: Sequence[str]) -> Any:
        import numpy as np

        rows = np.zeros((len(texts), self.dim), dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            for word in text.lower().split():
                row += self._word(word)
            row /= max(float(np.linalg.norm(row)), 1e-9)
        return rows

    def embed_tokens(self, texts: Sequence[str]) -> Any:
        """Return the numbers of each text's words, and the vectors of those words."""
        import numpy as np

        words: dict[str, int] = {}
        found = [
            np.array([words.setdefault(w, len(words)) for w in text.lower().split()], np.int64)
            for text in texts
        ]
        return found, np.stack([self._word(w) for w in words] or [np.zeros(self.dim, np.float32)])


class Transcript:
    """Writes one transcript line by line, as Claude Code does."""

    def __init__(self, path: Path, session_id: str, cwd: str = "/home/dana/harbor-api") -> None:
        self.path, self.session_id, self.cwd = path, session_id, cwd
        self.parent: str | None = None
        self.minute = 0
        path.parent.mkdir(parents=True, exist_ok=True)

    def line(self, kind: str, /, **fields: Any) -> Line:
        """Return one line with the common fields, its parent the line before."""
        self.minute += 1
        line = {
            "parentUuid": self.parent,
            "isSidechain": False,
            "userType": "external",
            "cwd": self.cwd,
            "sessionId": self.session_id,
            "version": "2.1.120",
            "type": kind,
            "uuid": str(uuid.uuid5(uuid.NAMESPACE_URL, f"{self.session_id}/{self.minute}")),
            "timestamp": f"2026-03-{1 + self.minute // 1440:02}T{self.minute // 60 % 24:02}:{self.minute % 60:02}:00.000Z",
            **fields,
        }
        self.parent = line["uuid"]
        return line

    def write(self, *lines: Line | str) -> None:
        with open(self.path, "a", encoding="utf-8", errors="surrogatepass", newline="") as file:
            for line in lines:
                text = line if isinstance(line, str) else json.dumps(line, ensure_ascii=False)
                file.write(text + "\n")

    def prompt(self, text: Any, **fields: Any) -> Line:
        line = self.line("user", **({"message": {"role": "user", "content": text}} | fields))
        self.write(line)
        return line

    def response(self, text: str, message_id: str = "", **fields: Any) -> Line:
        return self._assistant({"type": "text", "text": text}, message_id, fields)

    def tool(self, name: str, ref: str, fields: Line, message_id: str = "") -> Line:
        return self._assistant(
            {"type": "tool_use", "id": ref, "name": name, "input": fields}, message_id, {}
        )

    def _assistant(self, block: Line, message_id: str, fields: Line) -> Line:
        message_id = message_id or f"msg_{self.session_id}_{self.minute + 1}"
        message = {
            "id": message_id,
            "role": "assistant",
            "model": "claude-opus-4-5",
            "content": [block],
        }
        line = self.line("assistant", **({"message": message} | fields))
        self.write(line)
        return line

    def result(self, ref: str, content: Any, is_error: bool = False) -> Line:
        block = {
            "type": "tool_result",
            "tool_use_id": ref,
            "content": content,
            "is_error": is_error,
        }
        line = self.line(
            "user", message={"role": "user", "content": [block]}, toolUseResult={"stdout": "copy"}
        )
        self.write(line)
        return line


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture
def transcript(home: Path) -> Callable[..., Transcript]:
    """Return a function that begins a transcript in the scratch home."""

    def begin(
        session_id: str = "s1", folder: str = "-home-dana-harbor-api", **more: Any
    ) -> Transcript:
        name = more.pop("name", f"{session_id}.jsonl")
        return Transcript(home / ".claude" / "projects" / folder / name, session_id, **more)

    return begin


@pytest.fixture
def memories(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[cm.Memories]:
    """Memories of the scratch home, with the fake embedder."""
    monkeypatch.setattr(cm, "load_model", lambda folder: FakeEmbedder())
    monkeypatch.setattr(cm, "find_model", lambda *args: home)
    places = cm.Places(home / ".claude-code" / "memory", home, {}, "linux")
    made = cm.Memories(places, cm.Settings())
    yield made
    made.close()


def clean_environment(home: Path) -> dict[str, str]:
    """Return the variables of a person with this home, none of them about what we read."""
    ours = ("CLAUDE_", "MEMORY_", "CODE_MEMORY_", "XDG_")
    env = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    return env | {"HOME": str(home), "USERPROFILE": str(home), "NO_COLOR": "1"}


@pytest.fixture
def run_cli(home: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs the program as a process of its own in the scratch home."""

    def run(*words: str, **more: Any) -> subprocess.CompletedProcess[str]:
        env = clean_environment(home) | more.pop("env", {})
        return subprocess.run(
            [sys.executable, str(ROOT / "code_memory.py"), *words],
            capture_output=True,
            text=True,
            encoding="utf-8",
            env=env,
            cwd=home,
            timeout=WAIT,
            **more,
        )

    return run


def sync(memories: cm.Memories) -> cm.ImportReport:
    """Import all that is new, as `code-memory sync` does."""
    return cm.sync(memories, quiet=True)


def stored(memories: cm.Memories, type: str = "") -> list[cm.Memory]:
    """Return all stored memories in the order of their rows."""
    with memories.borrow_store() as store:
        return [memory for _, memory in store.every_memory(cm.Filter(type=type))]


# --- For what takes time ---


def wait_until(holds: Callable[[], Any], what: object = "what was waited for") -> Any:
    """Return what a function gives as soon as that is true; fails only when that never comes."""
    end = time.monotonic() + WAIT
    while not (found := holds()):
        assert time.monotonic() < end, f"{what} never came"
        time.sleep(0.005)
    return found


def grows_evenly(work: Callable[[int], object], small: int, large: int) -> bool:
    """Say whether work grows with its size, and not with the square of it.

    It may grow by the middle (in proportion) between the two. What else runs on the machine only
    ever adds to a time, so the least of more and more runs is taken until it is small enough.
    """

    def measure(size: int) -> float:
        start = time.process_time()
        work(size)
        return time.process_time() - start

    most = (large / small) ** 1.5
    least = {small: measure(small), large: measure(large)}
    for _ in range(12):
        if least[large] < most * least[small] + 0.05:
            return True
        for size in least:
            least[size] = min(least[size], measure(size))
    return False


def count_stored(path: Path) -> int:
    """Return how many memories a store holds that others write to; 0 while that cannot be told."""
    try:
        db = apsw.Connection(
            f"{path.as_uri()}?mode=ro", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        )
    except apsw.Error:
        return 0
    try:
        db.set_busy_timeout(1_000)
        return int(db.execute("SELECT count(*) FROM memory").fetchone()[0])
    except apsw.Error:
        return 0
    finally:
        db.close()


def stop_in_the_midst(process: int, store: Path, known: int, total: int) -> bool:
    """Stop a process as soon as its import added to the `known` memories of the store.

    If it had added all and the store holds `total`, it goes on instead, and this is False. The
    process must not end by itself.
    """
    wait_until(lambda: count_stored(store) > known)
    os.kill(process, signal.SIGSTOP)
    _, status = os.waitpid(process, os.WUNTRACED)
    assert os.WIFSTOPPED(status), status
    if known < count_stored(store) < total:
        return True
    os.kill(process, signal.SIGCONT)
    return False
