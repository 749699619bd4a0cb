"""Measure what code-memory costs as the history grows, and print one table.

usage: scale.py [MESSAGES ...] [--doublings N] [--repeats N] [--work DIR] [--raw FILE]

Without sizes: 10000 100000. `--doublings 5` stands for 10000 20000 40000 80000 160000. The program
is the command in $CODE_MEMORY (default: code-memory). Every repeat begins with an empty store and
goes through all sizes, so that a slow minute of the machine does not hit one size only.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

from client import (
    BenchError,
    Figure,
    LoadWatch,
    Server,
    clear_home,
    describe_machine,
    describe_repeats,
    find_files,
    make_work_folder,
    measure_disk,
    percentile,
    render_table,
    run,
)
from corpus import PLANTED_FILE, Needle, append_prompt, make_common_questions, make_history

DEFAULT_SIZES = (10_000, 100_000)
STARTS = 7  # of the server, in each repeat
COMMON_QUESTIONS = 100
APPENDS = 3  # in each repeat
LIVE_SECONDS = 60.0  # waited for an appended line
HITS = 10

TRANSCRIPTS = ".claude/projects"
KEPT = (TRANSCRIPTS, PLANTED_FILE)
NOT_STORE = (*KEPT, "server-stderr.log")

# The table's rows: name of the figure, and what it says.
ROWS: Mapping[str, str] = {
    "transcripts": "transcripts, MB",
    "import": "import, s",
    "import rate": "import, MB/s",
    "import cpu": "import, s of processor time",
    "import peak": "import, peak memory, MB",
    "unchanged": "sync with nothing new, s",
    "start": "start to `initialize`, p50, ms",
    "first search": "first search after the start, ms",
    "rare p50": "search for a rare word, p50, ms",
    "rare p95": "search for a rare word, p95, ms",
    "common p50": "search for common words, p50, ms",
    "common p95": "search for common words, p95, ms",
    "live": "an appended line is found after, s",
    "server peak": "server, peak memory, MB",
    "store": "store on disk, MB",
    "store share": "store, % of the transcripts",
}


@dataclass(slots=True)
class Size:
    """One history in a home of its own, and what was measured on it."""

    messages: int
    home: Path
    transcripts_mb: float
    needles: list[Needle]
    figures: dict[str, Figure] = field(default_factory=lambda: {name: Figure() for name in ROWS})

    def add(self, name: str, value: float) -> None:
        self.figures[name].add(value)


def find_program() -> list[str]:
    """Return the command in $CODE_MEMORY, with its program's whole path."""
    command = shlex.split(os.environ.get("CODE_MEMORY", "code-memory"))
    found = shutil.which(command[0])
    if not found:
        raise BenchError(
            f"{command[0]} is not there. Install it, or set CODE_MEMORY to the command."
        )
    return [str(Path(found).absolute()), *command[1:]]


def prepare(messages: int, work: Path) -> Size:
    home = work / f"home-{messages}"
    home.mkdir(parents=True)
    planted = make_history(messages, home)
    return Size(messages, home, planted.size_bytes / 1e6, planted.needles)


def measure(size: Size, program: Sequence[str], repeat: int) -> None:
    """Add one value to every figure of a size, beginning with an empty store."""
    home = size.home
    clear_home(home, KEPT)
    first = run([*program, "sync"], home)
    size.add("transcripts", size.transcripts_mb)
    size.add("import", first.seconds)
    size.add("import rate", size.transcripts_mb / first.seconds)
    size.add("import cpu", first.cpu_seconds)
    size.add("import peak", first.peak_mb)
    size.add("unchanged", run([*program, "sync"], home).seconds)
    store_mb = measure_disk(find_files(home, NOT_STORE))
    size.add("store", store_mb)
    size.add("store share", 100 * store_mb / size.transcripts_mb)

    serve = [*program, "mcp", "serve"]
    starts = []
    for _ in range(STARTS):
        server = Server(serve, home)
        starts.append(server.start_seconds)
        server.close()
    size.add("start", 1000 * percentile(starts, 0.5))

    server = Server(serve, home)
    try:
        size.add("first search", 1000 * search(server, "tests of the parser")[1])
        common = make_common_questions(COMMON_QUESTIONS, seed=repeat)
        rare = [needle.query for needle in size.needles]
        for name, queries in (("rare", rare), ("common", common)):
            replies = [search(server, query) for query in queries]
            times = [1000 * seconds for _, seconds in replies]
            size.add(f"{name} p50", percentile(times, 0.5))
            size.add(f"{name} p95", percentile(times, 0.95))
            if name == "rare":
                check_answers(size.needles, [text for text, _ in replies])
        for number in range(APPENDS):
            size.add("live", measure_live(server, home, f"{repeat}{number}"))
    finally:
        size.add("server peak", server.close())


def search(server: Server, query: str) -> tuple[str, float]:
    return server.call("mem-search", {"query": query, "topK": HITS})


def check_answers(needles: Sequence[Needle], replies: Sequence[str]) -> None:
    """Raise unless most needles were found: a store with nothing in it answers fast."""
    found = sum("### 1." in reply for reply in replies)
    if found < len(needles) / 2:
        raise BenchError(f"only {found} of {len(needles)} questions had an answer.")


def measure_live(server: Server, home: Path, name: str) -> float:
    """Append a line to a transcript; return the seconds until a search shows it.

    The transcript is put back as it was.
    """
    word = "zyxquark" + "".join("abcdefghij"[int(digit)] for digit in name)
    transcript = max(
        sorted((home / TRANSCRIPTS).glob("*/*.jsonl")), key=lambda p: p.stat().st_mtime
    )
    before = transcript.stat()
    append_prompt(transcript, f"Remember the {word} lamp from now on.")
    start = time.perf_counter()
    try:
        while (waited := time.perf_counter() - start) < LIVE_SECONDS:
            if "lamp from now" in search(server, word)[0].replace("*", ""):
                return time.perf_counter() - start
            time.sleep(0.05)
        raise BenchError(f"a line appended to a transcript was not found within {waited:.0f} s")
    finally:
        os.truncate(transcript, before.st_size)
        os.utime(transcript, ns=(before.st_atime_ns, before.st_mtime_ns))


def per_doubling(small: Size, large: Size, name: str) -> str:
    """Return by what factor a figure grows each time the history doubles."""
    before, after = small.figures[name].median, large.figures[name].median
    if not before > 0 < after:
        return "–"
    return f"×{(after / before) ** (1 / math.log2(large.messages / small.messages)):.2f}"


def render(sizes: Sequence[Size]) -> str:
    header = ["messages"]
    rows = [[label] for label in ROWS.values()]
    for number, size in enumerate(sizes):
        header.append(f"{size.messages:,}")
        for row, name in zip(rows, ROWS, strict=True):
            row.append(size.figures[name].show())
        if number:
            header.append("per doubling")
            for row, name in zip(rows, ROWS, strict=True):
                row.append(per_doubling(sizes[number - 1], size, name))
    return render_table(header, rows)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("messages", type=int, nargs="*")
    parser.add_argument("--doublings", type=int, help="this many sizes, each twice the one before")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--work", type=Path, help="folder for the histories (default: a new one)")
    parser.add_argument("--raw", type=Path, help="also write every measured value as JSON")
    args = parser.parse_args(argv)
    messages = args.messages or list(DEFAULT_SIZES)
    if args.doublings:
        first = args.messages[0] if args.messages else DEFAULT_SIZES[0]
        messages = [first * 2**number for number in range(args.doublings)]
    work = make_work_folder("scale", args.work)
    try:
        program = find_program()
        version = run([*program, "--version"], work).stdout.strip()
        sizes = []
        for count in sorted(messages):
            print(f"making {count:,} messages", file=sys.stderr)
            sizes.append(prepare(count, work))
        load = LoadWatch()
        for repeat in range(args.repeats):
            for size in sizes:
                start = time.perf_counter()
                measure(size, program, repeat)
                spent = time.perf_counter() - start
                print(
                    f"repeat {repeat + 1} of {args.repeats}, {size.messages:,} messages: {spent:.0f} s",
                    file=sys.stderr,
                )
        print(f"{version}; {describe_machine()}; {load.describe()}.")
        print(f"{describe_repeats(args.repeats)}.\n".capitalize())
        print(render(sizes))
        if args.raw:
            values = {
                size.messages: {name: figure.values for name, figure in size.figures.items()}
                for size in sizes
            }
            args.raw.write_text(json.dumps(values, indent=1), "utf-8")
    except BenchError as error:
        print(f"scale.py: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
