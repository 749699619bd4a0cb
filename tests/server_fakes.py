"""Made-up memories, and a Recall over them that can be slow, broken or noisy."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from code_memory import (
    CancelToken,
    Details,
    Hit,
    Memory,
    Redacted,
    SearchQuery,
    SearchResult,
    SessionDigest,
    Stats,
    StoreError,
    Timeline,
)


def at(text: str) -> int:
    """Milliseconds of a moment in UTC."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


MEMORY = Memory(
    id="a7Bc3x",
    type="response",
    time=at("2026-01-30T05:05:00"),
    session_id="abc12345-0000-4000-8000-000000000001",
    session_title="Move the harbor events to DuckDB",
    project="/Users/dana/code/harbor-api",
    project_name="harbor-api",
    source="claude-code",
    source_ref="5f0c2a9e-1111-4222-8333-444455556666",
    agent_id=None,
    content=Redacted(
        "The DuckDB schema has three tables.\n```sql\nCREATE TABLE event (id);\n```\n"
    ),
    files=("src/core/event-store.ts",),
    tools=("Read", "Write"),
)
BEFORE = replace(
    MEMORY,
    id="Q1w2E3",
    type="prompt",
    time=MEMORY.time - 300_000,
    content=Redacted("Which tables does the DuckDB schema need?"),
    files=(),
    tools=(),
)
AFTER = replace(
    MEMORY,
    id="zZ9yY8",
    type="tool",
    time=MEMORY.time + 60_000,
    content=Redacted("Bash: pytest | tail\n3 passed"),
    files=(),
    tools=("Bash",),
)
ROWS = (BEFORE, MEMORY, AFTER)
HIT = Hit(
    memory=MEMORY,
    score=0.94,
    snippet=Redacted("The **DuckDB** **schema** has three tables: event, session and project."),
)
DIGEST = SessionDigest(
    session_id=MEMORY.session_id,
    title=MEMORY.session_title,
    project=MEMORY.project,
    source="claude-code",
    started=BEFORE.time,
    ended=AFTER.time,
    memories=(BEFORE,),
)
STATS = Stats(
    memories=1234,
    by_type={"prompt": 200, "response": 700, "tool": 330, "insight": 4},
    by_source={"claude-code": 1230, "codex": 4},
    sessions=41,
    projects=2,
    first_time=at("2025-11-03T01:00:00"),
    last_time=at("2026-01-30T05:06:00"),
    transcripts_read=412,
    transcripts_found=412,
    kept_only_here=12,
    expiring=1,
    redactions=7,
    top_projects=(("harbor-api", 900), ("항구", 334)),
    weeks=(("2026-01-19", 400), ("2026-01-26", 834)),
    store_path="/Users/dana/.claude-code/memory/code-memory.db",
    store_bytes=12_345_678,
)


class FakeRecall:
    """Finds the made-up memory for words with "duck" in them; notes what was asked."""

    def __init__(self) -> None:
        self.started = 0
        self.closed = 0
        self.interrupted = 0
        self.queries: list[SearchQuery] = []
        self.searching = 0  # slow searches at work now
        self.most_searching = 0
        self.let_go = threading.Event()  # ends the slow searches
        self._guard = threading.Lock()

    def search(self, query: SearchQuery, cancel: CancelToken) -> SearchResult:
        self.queries.append(query)
        if "noise" in query.text:
            print("stray print")
            os.write(1, b"stray write\n")
            print("stray read:", sys.stdin.readline() if not sys.stdin.closed else "")
        if "fault" in query.text:
            raise ValueError(f"secret of {query.text}")
        if "damaged" in query.text:
            raise StoreError("The store is damaged;\nrun `code-memory rebuild`.")
        if "slow" in query.text:
            self._wait(float(os.environ.get("FAKE_SLOW", "6")), cancel)
        if "surrogate" in query.text:
            hit = replace(HIT, snippet=Redacted("lone \ud800 surrogate"))
            return SearchResult(query, (hit,), 1)
        if "huge" in query.text:
            hits = tuple(replace(HIT, score=0.9 - n / 1000) for n in range(query.limit))
            return SearchResult(query, hits, 500)
        hits = (HIT,) if "duck" in query.text.lower() else ()
        return SearchResult(query, hits[: query.limit], len(hits))

    def _wait(self, seconds: float, cancel: CancelToken) -> None:
        stop: list[bool] = []
        end = time.monotonic() + seconds
        with self._guard:
            self.searching += 1
            self.most_searching = max(self.most_searching, self.searching)
        with cancel.interrupting(lambda: stop.append(True)):
            while not stop and not self.let_go.is_set() and time.monotonic() < end:
                time.sleep(0.01)
        with self._guard:
            self.searching -= 1
        if stop:
            self.interrupted += 1
            sys.stderr.write("fake: interrupted\n")
            sys.stderr.flush()

    def timeline(
        self, ids: Sequence[str], query: str, before: int, after: int, cancel: CancelToken
    ) -> tuple[Sequence[Timeline], Sequence[str]]:
        del cancel
        known = [one for one in ids if one == MEMORY.id] or ([MEMORY.id] if query else [])
        rows = ROWS[1 - min(before, 1) : 2 + min(after, 1)]
        unknown = [one for one in ids if one != MEMORY.id]
        return [Timeline(anchor, rows) for anchor in known], unknown

    def details(self, ids: Sequence[str], cancel: CancelToken) -> Details:
        del cancel
        known: dict[str, Memory | SessionDigest] = {one.id: one for one in ROWS}
        known["abc12345"] = DIGEST
        found = tuple(known[one] for one in ids if one in known)
        return Details(found, tuple(one for one in ids if one not in known))

    def stats(self, project: str, cancel: CancelToken) -> Stats:
        del project, cancel
        return STATS

    def start(self) -> None:
        self.started += 1
        sys.stderr.write(f"fake: started, numpy {'numpy' in sys.modules}\n")

    def close(self) -> None:
        self.closed += 1
        sys.stderr.write("fake: closed\n")


def open_fake_recall() -> FakeRecall:
    if os.environ.get("FAKE_BROKEN"):
        raise StoreError("The store cannot be opened: permission denied.")
    if os.environ.get("FAKE_PRINT"):
        print("stray print while opening")
    return FakeRecall()
