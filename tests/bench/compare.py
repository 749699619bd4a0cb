"""Measure code-memory beside other tools that search Claude Code's history: one corpus, one run.

usage: compare.py --tools DIR [--setup] [--messages N] [--repeats N] [--only NAME ...] [--work DIR]

`--setup` first gives each of the other tools a Python environment of its own in DIR and installs
the version below from PyPI. code-memory is the command in $CODE_MEMORY (default: code-memory).

Every repeat takes all tools in turn, each beginning with another one, each in a new home folder
with a copy of the same transcripts where Claude Code keeps them. Each tool builds its index the
way its own documentation says, then its MCP server is asked over stdin and stdout. A needle is
found when one of the first ten hits shows it, or the text that the tool gives when asked for that
hit. What a reply repeats of the question does not count.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sqlite3
import subprocess
import sys
import time
import venv
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
    Ran,
    Server,
    count_cpu_seconds,
    describe_machine,
    describe_repeats,
    find_files,
    make_work_folder,
    measure_disk,
    percentile,
    render_table,
    run,
    show_number,
)
from corpus import (
    PLANTED_FILE,
    Key,
    Needle,
    Planted,
    append_prompt,
    make_common_questions,
    make_history,
    read_planted,
)
from scale import find_program

HITS = 10
STARTS = 5  # of each server, in each repeat
COMMON_QUESTIONS = 60
LIVE_SECONDS = 75.0  # recall-agents looks for new lines once a minute
FIRST_SCAN_SECONDS = 4 * 3600.0
KEY_WINDOW = 12  # so many characters of a key in a row are a leak

TRANSCRIPTS = ".claude/projects"
NOT_STORE = (TRANSCRIPTS, PLANTED_FILE, "server-stderr.log")


@dataclass(frozen=True, slots=True)
class Hit:
    """One hit of a search: what the reply shows of it, and what to ask to read it whole."""

    shown: str
    address: tuple[str, ...] = ()


class Tool:
    """How one tool is installed, indexed, asked and read."""

    name = ""
    packages: tuple[str, ...] = ()
    program = ""  # in its environment
    environment: Mapping[str, str] = {}
    live_note = ""
    takes_prefixes = False  # its search takes `word*`

    def __init__(self, command: Sequence[str]) -> None:
        self.command = list(command)

    def path(self, name: str) -> str:
        """Return the path of another program of the same environment."""
        return str(Path(self.command[0]).with_name(name))

    def index(self, home: Path) -> Ran:
        """Build the index of everything."""
        return run(self.index_command(), home, self.environment)

    def index_command(self) -> list[str]:
        raise NotImplementedError

    def update(self, home: Path) -> Ran | None:
        """Bring the index up to date by a command; None where there is no such command."""
        return run(self.index_command(), home, self.environment)

    def update_for_live(self, home: Path) -> None:
        """Do what a person must do so that new lines are found while the server runs."""

    def serve(self, home: Path) -> Server:
        return Server(self.serve_command(), home, self.environment)

    def serve_command(self) -> list[str]:
        raise NotImplementedError

    def ask(self, server: Server, query: str) -> tuple[list[Hit], float]:
        """Search; return the first ten hits and the seconds until the reply was there."""
        raise NotImplementedError

    def ask_word(self, server: Server, word: str) -> list[Hit]:
        """Search for a word alone; where the tool offers it, also for what begins with it."""
        hits, _ = self.ask(server, word)
        if self.takes_prefixes and word.replace("_", "").isalnum():
            hits += self.ask(server, f"{word}*")[0]
        return hits

    def read(self, server: Server, home: Path, hit: Hit) -> str:
        """Return the whole text of a hit, as the tool gives it."""
        raise NotImplementedError


class CodeMemory(Tool):
    name = "code-memory"

    def index_command(self) -> list[str]:
        return [*self.command, "sync"]

    def serve_command(self) -> list[str]:
        return [*self.command, "mcp", "serve"]

    def ask(self, server: Server, query: str) -> tuple[list[Hit], float]:
        text, seconds = server.call("mem-search", {"query": query, "topK": HITS})
        parts = re.split(r"(?m)^### \d+\. \[mem:(\w+)\]", text)
        hits = [
            Hit(re.sub(r"\*\*|[«»]", "", shown), (name,))
            for name, shown in zip(parts[1::2], parts[2::2], strict=True)
        ]
        return hits, seconds

    def read(self, server: Server, home: Path, hit: Hit) -> str:
        return server.call("mem-details", {"ids": list(hit.address)})[0]


class RecallAgents(Tool):
    name = "recall-agents"
    packages = ("recall-agents[embeddings]==0.5.1",)
    program = "recall"

    def index_command(self) -> list[str]:
        return [*self.command, "index"]

    def serve_command(self) -> list[str]:
        return [*self.command, "serve"]

    def ask(self, server: Server, query: str) -> tuple[list[Hit], float]:
        # A result is a chat with up to three of its messages: each counts as a hit here.
        text, seconds = server.call("search_chats", {"query": query, "limit": HITS})
        hits = []
        chat = ""
        for line in text.splitlines():
            if found := re.match(r"  \[(\d+)\] (.*)", line):
                hits.append(Hit(re.sub("[«»]", "", found[2]), (chat, found[1])))
            elif line.startswith("  "):
                hits.append(Hit(re.sub("[«»]", "", line), (chat, "0")))
            elif " · " in line:
                chat = line.split(" · ")[0]
        return hits, seconds

    def read(self, server: Server, home: Path, hit: Hit) -> str:
        chat, number = hit.address
        given = {"chat_id": chat, "offset": int(number), "limit": 1}
        text = server.call("read_chat", given)[0]
        messages = json.loads(text).get("transcript", [])
        return "\n".join(message["text"] for message in messages)


class ClaudeArchive(Tool):
    name = "claude-archive-mcp"
    packages = ("claude-archive-mcp==1.14.0",)
    program = "claude-archive-mcp"
    live_note = "after its index command"
    takes_prefixes = True

    def index_command(self) -> list[str]:
        return [self.path("claude-archive-index"), "reindex", "--source", "claude_code"]

    def update(self, home: Path) -> Ran | None:
        return run([*self.index_command(), "--incremental"], home, self.environment)

    def update_for_live(self, home: Path) -> None:
        self.update(home)

    def serve_command(self) -> list[str]:
        return self.command

    def ask(self, server: Server, query: str) -> tuple[list[Hit], float]:
        text, seconds = server.call("search_chats", {"query": query, "limit": HITS})
        hits = [
            Hit(
                re.sub(r"[\[\]]", "", row["snippet"]),
                (row["conversation_uuid"], str(row["message_index"]), row["sender"]),
            )
            for row in json.loads(text).get("results", [])
        ]
        return hits, seconds

    def read(self, server: Server, home: Path, hit: Hit) -> str:
        chat, number, _ = hit.address
        given = {"uuid": chat, "message_range": [int(number), int(number)]}
        messages = json.loads(server.call("get_chat", given)[0]).get("messages", [])
        return "\n".join(message["text"] or "" for message in messages)


class RollingMemory(Tool):
    name = "mcp-rolling-memory"
    # It needs numpy, and the SDK before version 2, without saying so.
    packages = ("mcp-rolling-memory==0.2.0", "mcp==1.30.0", "numpy==2.4.6")
    program = "mcp-rolling-memory"
    takes_prefixes = True
    # There is no model to be had offline.
    environment: Mapping[str, str] = {"ROLLING_MEMORY_AUTO_EMBED": "0"}

    def index(self, home: Path) -> Ran:
        # Only its server builds the index, and says in its log when it has.
        cpu_before = count_cpu_seconds()
        start = time.perf_counter()
        server = self.serve(home)
        try:
            while "首次扫描完成" not in server.log_path.read_text("utf-8", "replace"):
                if time.perf_counter() - start > FIRST_SCAN_SECONDS:
                    raise BenchError(f"{self.name}: the first scan did not end")
                time.sleep(0.02)
            seconds = time.perf_counter() - start
        finally:
            peak = server.close()
        return Ran(seconds, count_cpu_seconds() - cpu_before, peak, "", "", 0)

    def update(self, home: Path) -> Ran | None:
        return None

    def serve_command(self) -> list[str]:
        return self.command

    def ask(self, server: Server, query: str) -> tuple[list[Hit], float]:
        # The search of all projects; the other one leaves the newest session out.
        text, seconds = server.call("memory_search_global", {"query": query, "top_k": HITS})
        parts = re.split(r"(?m)^- \[\w+\] .*\n  ", text)
        return [Hit(part.removesuffix("\n"), (part,)) for part in parts[1:]], seconds

    def read(self, server: Server, home: Path, hit: Hit) -> str:
        # No tool gives a message whole; in its favour, what its database holds counts.
        database = home / ".rolling-memory" / "memory.db"
        with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as db:
            rows = db.execute(
                "SELECT text FROM conversation_messages WHERE substr(text, 1, 300) = ?",
                (hit.shown,),
            ).fetchall()
        return "\n".join(text for (text,) in rows)


RIVALS: tuple[type[Tool], ...] = (RecallAgents, ClaudeArchive, RollingMemory)

# The table's rows: name of the figure, and what it says.
ROWS: Mapping[str, str] = {
    "index": "index, s",
    "index rate": "index, MB of transcripts/s",
    "index cpu": "index, s of processor time",
    "index peak": "index, peak memory, MB",
    "unchanged": "index again with nothing new, s",
    "start": "start to `initialize`, p50, ms",
    "rare p50": "search for a rare word, p50, ms",
    "rare p95": "search for a rare word, p95, ms",
    "common p50": "search for common words, p50, ms",
    "common p95": "search for common words, p95, ms",
    "found": "needles found by a question",
    "shown": "of these, shown in the reply itself",
    "by word": "needles found by the rare word alone",
    "keys shown": "keys shown in replies",
    "keys stored": "keys in the files it wrote",
    "live": "an appended line is found after, s",
    "server peak": "server, peak memory, MB",
    "disk": "disk, MB",
    "disk share": "disk, % of the transcripts",
}


@dataclass(slots=True)
class Result:
    """What was measured of one tool, over all repeats."""

    tool: Tool
    figures: dict[str, Figure] = field(default_factory=lambda: {name: Figure() for name in ROWS})
    found_by_kind: dict[str, Figure] = field(default_factory=dict)

    def add(self, name: str, value: float) -> None:
        self.figures[name].add(value)


# --- measuring one tool ---


def measure(result: Result, corpus: Path, planted: Planted, work: Path, repeat: int) -> None:
    tool = result.tool
    home = work / f"{tool.name}-{repeat}"
    shutil.copytree(corpus, home)
    try:
        transcripts_mb = planted.size_bytes / 1e6
        built = tool.index(home)
        result.add("index", built.seconds)
        result.add("index rate", transcripts_mb / built.seconds)
        result.add("index cpu", built.cpu_seconds)
        result.add("index peak", built.peak_mb)
        again = tool.update(home)
        if again:
            result.add("unchanged", again.seconds)
        disk_mb = measure_disk(find_files(home, NOT_STORE))
        result.add("disk", disk_mb)
        result.add("disk share", 100 * disk_mb / transcripts_mb)
        result.add("keys stored", count_keys_on_disk(planted.keys, home))
        starts = []
        for _ in range(STARTS):
            server = tool.serve(home)
            starts.append(server.start_seconds)
            server.close()
        result.add("start", 1000 * percentile(starts, 0.5))
        server = tool.serve(home)
        try:
            measure_server(result, server, planted, home, repeat)
        finally:
            server.close()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def measure_server(
    result: Result, server: Server, planted: Planted, home: Path, repeat: int
) -> None:
    tool = result.tool
    tool.ask(server, "tests of the parser")
    answers: list[list[Hit]] = []
    times = []
    for needle in planted.needles:
        hits, seconds = tool.ask(server, needle.query)
        answers.append(hits)
        times.append(1000 * seconds)
    result.add("rare p50", percentile(times, 0.5))
    result.add("rare p95", percentile(times, 0.95))
    common = make_common_questions(COMMON_QUESTIONS, seed=repeat)
    times = [1000 * tool.ask(server, question)[1] for question in common]
    result.add("common p50", percentile(times, 0.5))
    result.add("common p95", percentile(times, 0.95))
    result.add("live", measure_live(tool, server, home, repeat))
    result.add("server peak", server.watch.peak_bytes / 1e6)

    found: dict[str, int] = dict.fromkeys((needle.kind for needle in planted.needles), 0)
    shown = by_word = 0
    for needle, hits in zip(planted.needles, answers, strict=True):
        at_once = any(needle.mark in hit.shown for hit in hits)
        shown += at_once
        found[needle.kind] += at_once or is_read(tool, server, home, needle, hits)
        hits = tool.ask_word(server, needle.mark)
        by_word += any(needle.mark in hit.shown for hit in hits) or is_read(
            tool, server, home, needle, hits
        )
    if not any(found.values()):
        raise BenchError(f"{tool.name} found not one needle: it has not read the transcripts.")
    result.add("found", sum(found.values()))
    result.add("shown", shown)
    result.add("by word", by_word)
    for kind, count in found.items():
        result.found_by_kind.setdefault(kind, Figure()).add(count)
    result.add("keys shown", sum(is_shown(tool, server, home, key) for key in planted.keys))


def is_read(tool: Tool, server: Server, home: Path, needle: Needle, hits: Sequence[Hit]) -> bool:
    return any(needle.mark in tool.read(server, home, hit) for hit in hits)


def is_shown(tool: Tool, server: Server, home: Path, key: Key) -> bool:
    """Say whether a key comes out of the search for the words around it, or of reading its hits."""
    hits, _ = tool.ask(server, key.query)
    texts = [hit.shown for hit in hits] + [tool.read(server, home, hit) for hit in hits]
    everything = "\n".join(texts).lower()
    return any(window in everything for window in cut_windows(key, step=1))


def cut_windows(key: Key, step: int) -> list[str]:
    """Return runs of the key's longest random part, as an index would hold them: in lower case."""
    part = max(re.findall(r"[A-Za-z0-9]+", key.value), key=len).lower()
    last = len(part) - KEY_WINDOW
    starts = sorted({*range(0, last, step), last})
    return [part[start : start + KEY_WINDOW] for start in starts]


def count_keys_on_disk(keys: Sequence[Key], home: Path) -> int:
    """Count the keys of which a file that the tool wrote holds a run, as plain bytes."""
    leaked: set[str] = set()
    for path in find_files(home, NOT_STORE):
        content = path.read_bytes().lower()
        for key in keys:
            if key.value not in leaked:
                windows = cut_windows(key, step=KEY_WINDOW // 2)
                if any(window.encode() in content for window in windows):
                    leaked.add(key.value)
    return len(leaked)


def measure_live(tool: Tool, server: Server, home: Path, repeat: int) -> float:
    """Append a line to the newest transcript; return the seconds until it is found, or NaN."""
    word = "zyxquark" + "abcdefghij"[repeat % 10]
    transcripts = sorted((home / TRANSCRIPTS).glob("*/*.jsonl"))
    newest = max(transcripts, key=lambda path: path.stat().st_mtime)
    append_prompt(newest, f"Remember the {word} lamp from now on.")
    start = time.perf_counter()
    tool.update_for_live(home)
    while time.perf_counter() - start < LIVE_SECONDS:
        if any(word in hit.shown for hit in tool.ask(server, word)[0]):
            return time.perf_counter() - start
        time.sleep(0.1)
    return float("nan")


# --- the tables ---


def show(result: Result, name: str, planted: Planted) -> str:
    figure = result.figures[name]
    values = [value for value in figure.values if value == value]
    if name == "live" and not values and figure.values:
        return f"not within {show_number(LIVE_SECONDS)}"
    if not values:
        return "–"
    if name in ("found", "shown", "by word", "keys shown", "keys stored"):
        low, high = min(values), max(values)
        whole = len(planted.keys) if name.startswith("keys") else len(planted.needles)
        counted = f"{low:.0f}" if low == high else f"{low:.0f}–{high:.0f}"
        return counted if name == "shown" else f"{counted} of {whole}"
    note = f", {result.tool.live_note}" if name == "live" and result.tool.live_note else ""
    return Figure(values).show() + note


def render(results: Sequence[Result], planted: Planted) -> str:
    header = ["", *(result.tool.name for result in results)]
    rows = [
        [label, *(show(result, name, planted) for result in results)]
        for name, label in ROWS.items()
    ]
    return render_table(header, rows)


def render_kinds(results: Sequence[Result], planted: Planted) -> str:
    counts: dict[str, int] = {}
    for needle in planted.needles:
        counts[needle.kind] = counts.get(needle.kind, 0) + 1
    header = ["needles found by a question", "planted", *(result.tool.name for result in results)]
    rows = [
        [
            kind,
            str(count),
            *(f"{result.found_by_kind[kind].median:.0f}" for result in results),
        ]
        for kind, count in counts.items()
    ]
    return render_table(header, rows)


# --- setting up ---


def set_up(tools: Path) -> None:
    """Give each rival an environment of its own, and install it there from PyPI."""
    for rival in RIVALS:
        folder = tools / rival.name
        print(f"installing {' '.join(rival.packages)}", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", *rival.packages]
        if subprocess.run(pip, stderr=subprocess.DEVNULL).returncode:
            raise BenchError(f"pip could not install {' '.join(rival.packages)}.")


def find_rivals(tools: Path) -> list[Tool]:
    found = []
    for rival in RIVALS:
        program = tools.absolute() / rival.name / "bin" / rival.program
        if not program.exists():
            raise BenchError(f"{program} is not there; run once with --setup.")
        found.append(rival([str(program)]))
    return found


def show_versions(results: Sequence[Result], own_version: str) -> str:
    return ", ".join(
        result.tool.packages[0] if result.tool.packages else own_version for result in results
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--tools", type=Path, required=True, help="folder of the environments")
    parser.add_argument("--setup", action="store_true", help="first install the other tools there")
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", help="names of the tools to measure")
    parser.add_argument("--work", type=Path, help="folder for the histories (default: a new one)")
    args = parser.parse_args(argv)
    work = make_work_folder("compare", args.work)
    try:
        if args.setup:
            set_up(args.tools)
        program = find_program()
        version = run([*program, "--version"], work).stdout.strip()
        tools: list[Tool] = [CodeMemory(program), *find_rivals(args.tools)]
        results = [Result(tool) for tool in tools if not args.only or tool.name in args.only]
        corpus = work / "corpus"
        corpus.mkdir()
        make_history(args.messages, corpus)
        planted = read_planted(corpus)
        load = LoadWatch()
        for repeat in range(args.repeats):
            first = repeat % len(results)
            for result in results[first:] + results[:first]:
                start = time.perf_counter()
                measure(result, corpus, planted, work, repeat)
                spent = time.perf_counter() - start
                print(
                    f"repeat {repeat + 1} of {args.repeats}, {result.tool.name}: {spent:.0f} s",
                    file=sys.stderr,
                )
        print(f"{show_versions(results, version)}; {describe_machine()}; {load.describe()}.")
        print(
            f"{planted.messages:,} messages, {planted.size_bytes / 1e6:.1f} MB of transcripts; "
            f"{describe_repeats(args.repeats)}.\n"
        )
        print(render(results, planted))
        print()
        print(render_kinds(results, planted))
    except BenchError as error:
        print(f"compare.py: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
