"""Run a program as a person or an MCP client does, and measure it from outside (Linux).

Nothing here knows the program: it is a command, a home folder, and what goes over stdin and stdout.
"""

from __future__ import annotations

import json
import os
import platform
import queue
import resource
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Json = dict[str, Any]

# How often the memory of a running program is looked at.
SAMPLE_SECONDS = 0.05
# Of these variables nothing is passed on: each could lead a program out of its scratch home.
OWN_PREFIXES = ("XDG_", "CLAUDE_", "MEMORY_", "CODE_MEMORY_", "RECALL_", "ROLLING_MEMORY_")
OWN_NAMES = ("APPDATA", "LOCALAPPDATA", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


class BenchError(Exception):
    """A program under test did not do what the measurement needs."""


def make_environment(home: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a person whose home folder is `home`, with no network to models."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(OWN_PREFIXES) and name not in OWN_NAMES
    }
    whole = str(home.resolve())
    kept |= {"HOME": whole, "USERPROFILE": whole, "HF_HUB_OFFLINE": "1"}
    return kept | dict(more or {})


# --- memory ---


def list_tree(pid: int) -> Iterator[int]:
    """Yield a process and all that it started, directly or not."""
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            started = children.read_text().split()
        except OSError:
            continue
        for child in started:
            yield from list_tree(int(child))


def read_resident(pid: int) -> tuple[int, int]:
    """Return a process's resident memory in bytes, now and at most so far; zeros once it is gone."""
    now = most = 0
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                now = int(line.split()[1]) * 1024
            elif line.startswith("VmHWM:"):
                most = int(line.split()[1]) * 1024
    except OSError:
        pass
    return now, most


class MemoryWatch:
    """Follows the resident memory of a process and its children until told to stop.

    The peak is the largest sum seen at one moment, or the largest of one process if that is more
    (the system remembers a process's own peak, so nothing short is missed there).
    """

    def __init__(self, pid: int) -> None:
        self.pid, self.peak_bytes, self.most_processes = pid, 0, 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.look()
            self._stop.wait(SAMPLE_SECONDS)

    def look(self) -> None:
        found = [read_resident(pid) for pid in list_tree(self.pid)]
        alive = [now for now, _ in found if now]
        self.most_processes = max(self.most_processes, len(alive))
        self.peak_bytes = max([self.peak_bytes, sum(alive), *(most for _, most in found)])

    def stop(self) -> float:
        """Return the peak in MB."""
        self._stop.set()
        self._thread.join()
        return self.peak_bytes / 1e6


# --- commands and servers ---


def count_cpu_seconds() -> float:
    """Return the processor time of all programs that this process has run to their end."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@dataclass(frozen=True, slots=True)
class Ran:
    """One finished command."""

    seconds: float
    cpu_seconds: float  # of the processor, all its processes together
    peak_mb: float
    stdout: str
    stderr: str
    code: int


def run(
    command: Sequence[str],
    home: Path,
    more: Mapping[str, str] | None = None,
    timeout_seconds: float = 6 * 3600,
    check: bool = True,
) -> Ran:
    """Run a command to its end."""
    cpu_before = count_cpu_seconds()
    start = time.perf_counter()
    process = subprocess.Popen(
        command,
        env=make_environment(home, more),
        cwd=home,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    watch = MemoryWatch(process.pid)
    try:
        stdout, stderr = process.communicate(timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        raise BenchError(f"{command[0]}: not done after {timeout_seconds:.0f} s") from None
    finally:
        peak = watch.stop()
    seconds = time.perf_counter() - start
    if check and process.returncode:
        raise BenchError(
            f"{' '.join(command)}: exit code {process.returncode}\n{stderr[-2000:]}{stdout[-500:]}"
        )
    cpu_seconds = count_cpu_seconds() - cpu_before
    return Ran(seconds, cpu_seconds, peak, stdout, stderr, process.returncode)


class Server:
    """An MCP server as a child process, spoken to in JSON lines over stdin and stdout."""

    def __init__(
        self, command: Sequence[str], home: Path, more: Mapping[str, str] | None = None
    ) -> None:
        self.log_path = home / "server-stderr.log"
        self._log = open(self.log_path, "ab")
        self._replies: queue.Queue[Json | None] = queue.Queue()
        self._last_id = 0
        start = time.perf_counter()
        self.process = subprocess.Popen(
            command,
            env=make_environment(home, more),
            cwd=home,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        self.watch = MemoryWatch(self.process.pid)
        threading.Thread(target=self._read, daemon=True).start()
        who = {"name": "bench", "version": "1"}
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": who}
        self.request("initialize", hello)
        self.start_seconds = time.perf_counter() - start
        self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            try:
                self._replies.put(json.loads(line))
            except ValueError:
                continue
        self._replies.put(None)

    def _send(self, message: Json) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(message, ensure_ascii=False).encode() + b"\n")
        self.process.stdin.flush()

    def request(self, method: str, params: Json, timeout_seconds: float = 600) -> Json:
        self._last_id += 1
        self._send({"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params})
        end = time.monotonic() + timeout_seconds
        while True:
            try:
                reply = self._replies.get(timeout=max(0.01, end - time.monotonic()))
            except queue.Empty:
                raise BenchError(f"no reply to {method} in {timeout_seconds:.0f} s") from None
            if reply is None:
                told = self.log_path.read_text("utf-8", "replace")[-2000:]
                raise BenchError(f"the server ended while answering {method}\n{told}")
            if reply.get("id") == self._last_id and "method" not in reply:
                return reply

    def call(self, tool: str, arguments: Json) -> tuple[str, float]:
        """Return the text of a tool's reply, and how long it took; an error is text, too."""
        start = time.perf_counter()
        reply = self.request("tools/call", {"name": tool, "arguments": arguments})
        seconds = time.perf_counter() - start
        result = reply.get("result")
        if result is None:
            return json.dumps(reply.get("error"), ensure_ascii=False), seconds
        return "\n".join(part.get("text", "") for part in result["content"]), seconds

    def close(self) -> float:
        """End the server as a client does, by closing its input; returns its peak memory in MB."""
        self.watch.look()
        peak = self.watch.stop()
        assert self.process.stdin
        self.process.stdin.close()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.close()
        return peak


# --- folders ---


def make_work_folder(name: str, parent: Path | None) -> Path:
    """Return a new folder for a run's histories; the caller deletes it."""
    return Path(tempfile.mkdtemp(prefix=f"code-memory-{name}-", dir=parent)).resolve()


def find_files(home: Path, leave_out: Sequence[str] = ()) -> Iterator[Path]:
    """Yield the files below `home`, except below or at these paths (relative to it)."""
    for path in sorted(home.rglob("*")):
        relative = path.relative_to(home).as_posix()
        skipped = any(relative == out or relative.startswith(f"{out}/") for out in leave_out)
        if not skipped and path.is_file() and not path.is_symlink():
            yield path


def measure_disk(paths: Iterator[Path]) -> float:
    """Return the size of files in MB."""
    return sum(path.stat().st_size for path in paths) / 1e6


def clear_home(home: Path, keep: Sequence[str]) -> None:
    """Delete everything in `home` except these paths (relative to it) and what is below them."""
    for path in list(home.iterdir()):
        name = path.name
        below = [kept.partition("/")[2] for kept in keep if kept.split("/")[0] == name]
        if not below:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        elif "" not in below:
            clear_home(path, below)


# --- figures ---


@dataclass(slots=True)
class Figure:
    """The repeated measurements of one thing: shown as their median and, in brackets, spread."""

    values: list[float] = field(default_factory=list)

    def add(self, value: float) -> None:
        self.values.append(value)

    @property
    def median(self) -> float:
        return statistics.median(self.values) if self.values else float("nan")

    def show(self, unit: str = "") -> str:
        if not self.values:
            return "–"
        middle = f"{show_number(self.median)}{unit and ' ' + unit}"
        low, high = show_number(min(self.values)), show_number(max(self.values))
        return middle if low == high else f"{middle} ({low}–{high})"


def show_number(value: float) -> str:
    """Return a number with three significant digits, and no more decimals than it needs."""
    if value != value:
        return "–"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def describe_repeats(repeats: int) -> str:
    if repeats < 3:
        return f"too few repeats to quote: {repeats}"
    return f"median of {repeats} repeats, and their spread"


def render_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table: the first column is text, the others are figures."""
    lines = ["| " + " | ".join(header) + " |", "|---|" + "---:|" * (len(header) - 1)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


# --- the machine ---


def describe_machine() -> str:
    """Return what kind of machine this is: processor, cores, memory, system, Python."""
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{os.cpu_count()} cores of {model}, {memory:.0f} GiB of memory, {platform.system()} "
        f"{platform.machine()}, Python {platform.python_version()}"
    )


class LoadWatch:
    """Says how busy the machine was with other things while something was measured."""

    def __init__(self) -> None:
        self._start = self._read()
        self._first = os.getloadavg()[0]

    @staticmethod
    def _read() -> tuple[float, float, float]:
        """Return seconds of all cores' time, of those busy, and of our own ended processes."""
        ticks = [int(part) for part in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        per_second = os.sysconf("SC_CLK_TCK")
        own = os.times()
        ours = own.user + own.system + own.children_user + own.children_system
        return sum(ticks) / per_second, (sum(ticks) - ticks[3] - ticks[4]) / per_second, ours

    def describe(self) -> str:
        whole, busy, own = (
            after - before for after, before in zip(self._read(), self._start, strict=True)
        )
        others = max(0.0, busy - own) / whole if whole else 0.0
        return (
            f"load average {self._first:.1f} at the start; other processes took "
            f"{100 * others:.0f} % of the cores' time during the run"
        )
