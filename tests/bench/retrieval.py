"""Measure how well search finds the turn that answers a question.

usage: retrieval.py [--quick] [--kind KIND ...] [--words-only] [--model FOLDER] [--misses]

Every session of retrieval_set.json becomes a transcript in a scratch home and is imported; every
question goes to `Memories.search`. A turn is found at rank r if one of the question's gold turns
is the r-th hit; a session, if it holds a gold turn and is the r-th distinct session among the hits.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import code_memory as cm

SET_FILE = HERE / "retrieval_set.json"
HITS = 50  # asked for; ranks beyond them count as not found

# Groups of kinds, for floors and for reading the table.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "exact": ("ident", "error", "path", "command", "tool", "quoted", "exclude", "typo"),
    "sense": ("paraphrase", "decision", "reversed", "followup", "date", "neardup", "code"),
    "one language": ("ko-ko", "ja-ja", "zh-zh", "mixed"),
    "across languages": ("ko-en", "ja-en", "zh-en", "en-cjk"),
}

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the search gave for one question; a rank is 1 for the first, None for not found."""

    question: Json
    turn_rank: int | None
    session_rank: int | None
    first: str  # id of the first hit's turn, "" without a hit
    unwanted: int  # of the first ten, hits that hold an excluded word
    seconds: float


@dataclass(frozen=True, slots=True)
class Figures:
    """Percentages over some questions, and the mean reciprocal rank."""

    questions: int
    turn_1: float
    turn_5: float
    turn_10: float
    mrr_10: float
    session_1: float
    session_5: float


# --- the set as transcripts ---


def read_set(path: Path = SET_FILE) -> tuple[list[Json], list[Json]]:
    """Return the sessions and the questions."""
    whole = json.loads(path.read_text("utf-8"))
    return whole["sessions"], whole["questions"]


def make_uuid(name: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"code-memory-bench/{name}"))


def write_transcript(session: Json, home: Path) -> Path:
    """Write one session as Claude Code does: a line for each prompt, text, tool call and result."""
    folder = home / ".claude" / "projects" / ("-" + session["cwd"].strip("/").replace("/", "-"))
    folder.mkdir(parents=True, exist_ok=True)
    session_id = make_uuid(session["id"])
    lines: list[Json] = [{"type": "ai-title", "sessionId": session_id, "aiTitle": session["title"]}]
    for turn in session["turns"]:
        for kind, message in make_messages(turn):
            lines.append(
                {
                    "parentUuid": lines[-1].get("uuid"),
                    "isSidechain": False,
                    "userType": "external",
                    "cwd": session["cwd"],
                    "sessionId": session_id,
                    "version": "2.1.120",
                    "gitBranch": "main",
                    "type": kind,
                    "message": message,
                    "uuid": make_uuid(turn["id"] + ("/result" if kind == "user" else "")),
                    "timestamp": turn["time"],
                }
            )
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    path = folder / f"{session_id}.jsonl"
    path.write_text(text, "utf-8")
    return path


def make_messages(turn: Json) -> Iterator[tuple[str, Json]]:
    """Yield the lines' types and messages of one turn."""
    if turn["kind"] == "prompt":
        yield "user", {"role": "user", "content": turn["text"]}
        return
    answer = {
        "id": f"msg_{make_uuid(turn['id'])[:12]}",
        "role": "assistant",
        "model": "claude-opus-4-5",
    }
    if turn["kind"] == "response":
        yield "assistant", answer | {"content": [{"type": "text", "text": turn["text"]}]}
        return
    ref = make_ref(turn)
    block = {"type": "tool_use", "id": ref, "name": turn["tool"], "input": turn["input"]}
    yield "assistant", answer | {"content": [block]}
    result = {"type": "tool_result", "tool_use_id": ref, "content": turn.get("result", "")}
    yield "user", {"role": "user", "content": [result]}


def make_ref(turn: Json) -> str:
    """Return the id by which a memory names the turn it was made from."""
    if turn["kind"] == "tool":
        return "toolu_" + make_uuid(turn["id"]).replace("-", "")[:20]
    return make_uuid(turn["id"] + ("/result" if turn["kind"] == "prompt" else ""))


@contextmanager
def filled_memories(
    sessions: Sequence[Json], settings: cm.Settings | None = None
) -> Iterator[cm.Memories]:
    """Lend the memories of a scratch home into which the sessions were imported."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder).resolve()
        for number, session in enumerate(sessions):
            path = write_transcript(session, home)
            # They are read in the order of their times: the same one in every run.
            os.utime(path, (1_767_225_600 + number, 1_767_225_600 + number))
        places = cm.Places(home / ".claude-code" / "memory", home, {}, "linux")
        memories = cm.Memories(places, settings or cm.Settings())
        try:
            cm.sync(memories, quiet=True)
            yield memories
        finally:
            memories.close()


# --- asking and counting ---


def ask_all(
    memories: cm.Memories, sessions: Sequence[Json], questions: Sequence[Json]
) -> list[Outcome]:
    """Ask every question and return what came of it."""
    turn_of = {make_ref(turn): turn["id"] for session in sessions for turn in session["turns"]}
    turn_of |= {
        f"title:{make_uuid(session['id'])}": f"{session['id']}.title" for session in sessions
    }
    return [ask(memories, turn_of, question) for question in questions]


def ask(memories: cm.Memories, turn_of: Mapping[str, str], question: Json) -> Outcome:
    begun = time.perf_counter()
    hits = memories.search(cm.SearchQuery(question["query"], limit=HITS)).hits
    seconds = time.perf_counter() - begun
    turns = [turn_of[hit.memory.source_ref] for hit in hits]
    sessions = list(dict.fromkeys(turn.split(".")[0] for turn in turns))
    wanted = set(question["gold"])
    unwanted = 0
    if question["kind"] == "exclude":
        words = [word[1:] for word in question["query"].split() if word.startswith("-")]
        # A whole word, or for Chinese, Japanese and Korean any part of the text.
        pattern = "|".join(rf"\b{word}\b" if word.isascii() else word for word in words)
        found = [re.search(pattern, hit.memory.content, re.IGNORECASE) for hit in hits[:10]]
        unwanted = sum(match is not None for match in found)
    return Outcome(
        question,
        find_rank(turns, wanted),
        find_rank(sessions, {gold.split(".")[0] for gold in wanted}),
        turns[0] if turns else "",
        unwanted,
        seconds,
    )


def find_rank(found: Sequence[str], wanted: set[str]) -> int | None:
    return next((rank for rank, one in enumerate(found, 1) if one in wanted), None)


def count(outcomes: Sequence[Outcome]) -> Figures:
    """Return the figures over some outcomes; there must be at least one."""
    total = len(outcomes)

    def within(ranks: Sequence[int | None], k: int) -> float:
        return 100 * sum(rank is not None and rank <= k for rank in ranks) / total

    turns = [outcome.turn_rank for outcome in outcomes]
    sessions = [outcome.session_rank for outcome in outcomes]
    mrr = sum(1 / rank for rank in turns if rank and rank <= 10) / total
    return Figures(
        total,
        within(turns, 1),
        within(turns, 5),
        within(turns, 10),
        mrr,
        within(sessions, 1),
        within(sessions, 5),
    )


def render_table(outcomes: Sequence[Outcome]) -> list[str]:
    """Return a Markdown table: a row for each kind, each group, and all."""
    rows = [
        "| kind | questions | turn R@1 | R@5 | R@10 | MRR@10 | session hit@1 | R@5 |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for group, kinds in {**GROUPS, "all": ()}.items():
        for kind in kinds:
            rows += render_row(kind, [o for o in outcomes if o.question["kind"] == kind])
        members = [o for o in outcomes if not kinds or o.question["kind"] in kinds]
        rows += render_row(f"**{group}**", members)
    return rows


def render_row(name: str, outcomes: Sequence[Outcome]) -> list[str]:
    if not outcomes:
        return []
    f = count(outcomes)
    return [
        f"| {name} | {f.questions} | {f.turn_1:.1f} | {f.turn_5:.1f} | {f.turn_10:.1f} "
        f"| {f.mrr_10:.3f} "
        f"| {f.session_1:.1f} | {f.session_5:.1f} |"
    ]


def describe_run(sessions: Sequence[Json], outcomes: Sequence[Outcome], seconds: float) -> str:
    """Return what the table does not say: sizes, times, and hits that were ruled out."""
    times = sorted(1000 * outcome.seconds for outcome in outcomes)
    turns = sum(len(session["turns"]) for session in sessions)
    unwanted = sum(outcome.unwanted for outcome in outcomes)
    return (
        f"{len(sessions)} sessions, {turns} turns, imported in {seconds:.1f} s; search p50 "
        f"{times[len(times) // 2]:.1f} ms, p95 {times[int(0.95 * len(times))]:.1f} ms; "
        f"hits with an excluded word: {unwanted}"
    )


def find_misses(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the outcomes whose turn is not among the first five hits."""
    return [outcome for outcome in outcomes if (outcome.turn_rank or HITS) > 5]


def describe_miss(outcome: Outcome) -> str:
    question = outcome.question
    return (
        f"{question['kind']:10} turn {outcome.turn_rank or '-':>3} "
        f"session {outcome.session_rank or '-':>3} {question['query'].splitlines()[0][:90]!r} "
        f"wanted {','.join(question['gold'])}, first {outcome.first}"
    )


# --- command line ---


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="ask only the questions of the regression test"
    )
    parser.add_argument(
        "--kind", action="append", default=[], help="ask only this kind; may be repeated"
    )
    parser.add_argument("--words-only", action="store_true", help="search without the model")
    parser.add_argument("--model", type=Path, help="another model2vec folder than the bundled one")
    parser.add_argument(
        "--misses", action="store_true", help="also list what is not among the first five"
    )
    return parser


def main() -> int:
    args = build_parser().parse_args()
    sessions, questions = read_set()
    if args.quick:
        questions = [question for question in questions if question.get("quick")]
    if args.kind:
        questions = [question for question in questions if question["kind"] in args.kind]
    if not questions:
        print("No question is of such a kind.", file=sys.stderr)
        return 2
    # A folder that holds no model is how a person, too, would end up with words only.
    model = HERE if args.words_only else args.model
    begun = time.perf_counter()
    with filled_memories(sessions, cm.Settings(model=model)) as memories:
        ready = time.perf_counter()
        outcomes = ask_all(memories, sessions, questions)
    print("\n".join(render_table(outcomes)))
    print()
    print(describe_run(sessions, outcomes, ready - begun))
    if args.misses:
        print()
        print("\n".join(map(describe_miss, find_misses(outcomes))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
