"""Other sources. Each test makes the small stores that it needs."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import subprocess
import sys
import textwrap
import time
import tracemalloc
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import WAIT, grows_evenly

import code_memory as sources
from code_memory import Draft, SessionDraft, Skipped

SESSION = "5b1f0a52-7c1e-4a55-9a41-0c6a0f6f2a01"
NOON = 1_788_091_200_000  # 2026-08-30T12:00:00Z


class Read:
    """What a reader gave, sorted out."""

    def __init__(self, found: Iterable[sources.SourceItem]) -> None:
        items = list(found)
        self.drafts = [i for i in items if isinstance(i, Draft)]
        self.sessions = [i for i in items if isinstance(i, SessionDraft)]
        self.skipped = {i.reason: i.count for i in items if isinstance(i, Skipped)}
        self.cursor = next(i.value for i in reversed(items) if isinstance(i, sources.Cursor))
        self.total = len(self.drafts) + len(self.sessions) + sum(self.skipped.values())

    def one(self, ref: str) -> Draft:
        (draft,) = [d for d in self.drafts if d.source_ref == ref]
        return draft


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return what is in a folder: names, bytes, times of change."""
    return {
        str(p.relative_to(folder)): (p.read_bytes(), p.stat().st_mtime_ns)
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


def iso(milliseconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(milliseconds / 1000))


def write_lines(path: Path, *lines: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        for line in lines:
            file.write(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")
    return path


# --- claude-memory-layer ---

LAYER_SCHEMA = """
    CREATE TABLE events (
        id TEXT PRIMARY KEY, event_type TEXT NOT NULL, session_id TEXT NOT NULL,
        timestamp TEXT NOT NULL, content TEXT NOT NULL, canonical_key TEXT NOT NULL,
        dedupe_key TEXT UNIQUE, metadata TEXT, access_count INTEGER DEFAULT 0);
    CREATE TABLE event_dedup (dedupe_key TEXT PRIMARY KEY, event_id TEXT, created_at TEXT);
    CREATE TABLE sessions (
        id TEXT PRIMARY KEY, started_at TEXT NOT NULL, ended_at TEXT, project_path TEXT,
        summary TEXT, tags TEXT);
"""


def make_layer(path: Path, *events: dict[str, Any], wal: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with sqlite3.connect(path) as db:
        if wal:
            db.execute("PRAGMA journal_mode = WAL")
        db.executescript(LAYER_SCHEMA)
        add_events(db, *events)
    db.close()
    return path


def add_events(db: sqlite3.Connection, *events: dict[str, Any]) -> None:
    for event in events:
        row = {
            "id": "e1",
            "event_type": "user_prompt",
            "session_id": SESSION,
            "timestamp": iso(NOON),
            "content": "why does the retry charge twice?",
            "metadata": {},
            **event,
        }
        row["metadata"] = json.dumps(row["metadata"])
        db.execute(
            "INSERT INTO events (id, event_type, session_id, timestamp, content, metadata,"
            " canonical_key)"
            " VALUES (:id, :event_type, :session_id, :timestamp, :content, :metadata, '')",
            row,
        )


@pytest.mark.parametrize(
    ("stored", "kind"),
    [
        pytest.param("user_prompt", "prompt", id="user_prompt"),
        pytest.param("prompt", "prompt", id="prompt"),
        pytest.param("agent_response", "response", id="agent_response"),
        pytest.param("response", "response", id="response"),
        pytest.param("tool_observation", "tool", id="tool_observation"),
        pytest.param("tool", "tool", id="tool"),
        pytest.param("session_summary", "insight", id="session_summary"),
        pytest.param("insight", "insight", id="insight"),
    ],
)
def test_layer_knows_both_spellings_of_event_types(tmp_path: Path, stored: str, kind: str) -> None:
    path = make_layer(tmp_path / "events.sqlite", {"event_type": stored})
    (draft,) = Read(sources.read_claude_memory_layer(path)).drafts
    assert (draft.type, draft.source_ref, draft.session_id) == (kind, "e1", SESSION)


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        pytest.param(
            {"metadata": {"quarantine": {"status": "active"}}}, "quarantined", id="hidden"
        ),
        pytest.param({"event_type": "heartbeat"}, "unknown type", id="unknown type"),
        pytest.param({"content": "  "}, "without id, text or time", id="empty"),
        pytest.param({"timestamp": "yesterday"}, "without id, text or time", id="no time"),
        pytest.param({"content": "/clear"}, "bare slash command", id="slash command"),
        pytest.param({"content": "<task-notification>x"}, "by a program", id="machine text"),
    ],
)
def test_layer_counts_what_it_skips(tmp_path: Path, event: dict[str, Any], reason: str) -> None:
    path = make_layer(tmp_path / "events.sqlite", event, {"id": "e2"})
    read = Read(sources.read_claude_memory_layer(path))
    assert [d.source_ref for d in read.drafts] == ["e2"]
    assert [(reason in r, n) for r, n in read.skipped.items()] == [(True, 1)]


def test_layer_takes_the_time_of_saying_not_of_importing(tmp_path: Path) -> None:
    metadata = {"originalTimestamp": "2026-05-01T10:40:01.000Z"}
    path = make_layer(tmp_path / "events.sqlite", {"metadata": metadata})
    (draft,) = Read(sources.read_claude_memory_layer(path)).drafts
    assert iso(draft.time) == "2026-05-01T10:40:01.000Z"


def test_layer_released_from_quarantine_is_read(tmp_path: Path) -> None:
    metadata = {"quarantine": {"status": "released"}}
    path = make_layer(tmp_path / "events.sqlite", {"metadata": metadata})
    assert len(Read(sources.read_claude_memory_layer(path)).drafts) == 1


@pytest.mark.parametrize(
    ("metadata", "session_path", "registry", "known", "project"),
    [
        pytest.param(
            {"scope": {"project": {"path": "/w/scope"}}}, "/w/session", "/w/registry", (),
            "/w/scope", id="scope first",
        ),
        pytest.param({}, "/w/session", "/w/registry", (), "/w/session", id="then the session"),
        pytest.param({}, None, "/w/registry", (), "/w/registry", id="then the registry"),
        pytest.param({}, None, "", ("/home/dana/bench",), "/home/dana/bench", id="then the hash"),
        pytest.param({}, None, "", (), "", id="else unknown"),
    ],
)  # fmt: skip
def test_layer_finds_the_project(
    tmp_path: Path, metadata: Any, session_path: Any, registry: str, known: Any, project: str
) -> None:
    # 4acc3978: the folder's name for /home/dana/bench
    path = tmp_path / "projects" / "4acc3978" / "events.sqlite"
    make_layer(path, {"metadata": metadata})
    with sqlite3.connect(path) as db:
        db.execute(
            "INSERT INTO sessions VALUES (?, '', '', ?, NULL, NULL)", (SESSION, session_path)
        )
    db.close()
    if registry:
        entry = {SESSION: {"projectPath": registry, "projectHash": "00000000"}}
        text = json.dumps({"version": 1, "sessions": entry})
        (tmp_path / "session-registry.json").write_text(text, encoding="utf-8-sig")
    context = sources.SourceContext(projects=known)
    (draft,) = Read(sources.read_claude_memory_layer(path, "", context)).drafts
    assert draft.project == project


def test_layer_tool_content_is_json(tmp_path: Path) -> None:
    content = {
        "toolName": "Bash",
        "toolInput": {"command": "pytest -q"},
        "toolOutput": "",
        "success": False,
        "errorMessage": "2 failed",
        "metadata": {"filePath": "/w/tests/test_charge.py"},
    }
    path = make_layer(
        tmp_path / "events.sqlite",
        {"event_type": "tool_observation", "content": json.dumps(content)},
        {"id": "e2", "event_type": "tool_observation", "content": "no JSON at all"},
    )
    read = Read(sources.read_claude_memory_layer(path))
    tool = read.one("e1")
    assert tool.text == "Bash: pytest -q\n[failed] 2 failed"
    assert (tool.tools, tool.files) == (("Bash",), ("/w/tests/test_charge.py",))
    assert read.one("e2").text == "no JSON at all"


def test_layer_derived_tables_become_insights(tmp_path: Path) -> None:
    path = make_layer(tmp_path / "events.sqlite", {})
    with sqlite3.connect(path) as db:
        db.executescript(
            f"""
            CREATE TABLE consolidated_memories (
                memory_id TEXT, summary TEXT, topics TEXT, source_events TEXT, created_at TEXT);
            INSERT INTO consolidated_memories
                VALUES ('cm', 'keys derive from the order', '["billing"]', '["e1"]',
                    '{iso(NOON)}');
            CREATE TABLE memory_lessons (
                lesson_id TEXT, name TEXT, "trigger" TEXT, steps_json TEXT,
                source_session_ids TEXT, failure_modes_json TEXT, updated_at TEXT);
            INSERT INTO memory_lessons
                VALUES ('ls', 'Derive keys', 'a retry', '["derive", "store"]', '[]', '[]',
                    '{iso(NOON)}');
            """
        )
    db.close()
    read = Read(sources.read_claude_memory_layer(path))
    assert read.one("cm").session_id == SESSION
    assert read.one("cm").concepts == ("consolidated", "billing")
    assert read.one("ls").text == "Derive keys\nWhen: a retry\n- derive\n- store"


def test_layer_duckdb_without_the_extra_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    path = tmp_path / "events.duckdb"
    path.write_bytes(b"\0" * 8 + b"DUCK" + b"\0" * 100)
    assert sources.identify(path) == sources.FoundSource("claude-memory-layer-duckdb", path)
    with pytest.raises(sources.SourceError, match=r"pip install '\.\[duckdb\]'"):
        list(sources.read_claude_memory_layer_duckdb(path))


def test_layer_duckdb(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    folder = tmp_path / "store"
    folder.mkdir()
    path = folder / "events.duckdb"
    with duckdb.connect(str(path)) as db:
        db.execute(
            "CREATE TABLE events (id VARCHAR, event_type VARCHAR, session_id VARCHAR,"
            " timestamp TIMESTAMP, content VARCHAR, metadata JSON)"
        )
        db.execute(
            "CREATE TABLE sessions (id VARCHAR, started_at TIMESTAMP, project_path VARCHAR,"
            " summary VARCHAR)"
        )
        db.execute("INSERT INTO sessions VALUES ('s', '2026-01-01', '/w/shop', 'Retry')")
        db.execute(
            "INSERT INTO events VALUES"
            " ('e1', 'user_prompt', 's', '2026-01-30 14:05:00', '회의록 검색', '{}'),"
            " ('e2', 'user_prompt', 's', '2026-01-30', 'x',"
            """ '{"quarantine": {"status": "active"}}')"""
        )
    before = snapshot(folder)
    read = Read(sources.read_claude_memory_layer_duckdb(path))
    assert iso(read.one("e1").time) == "2026-01-30T14:05:00.000Z"
    assert (read.one("e1").project, read.one("e1").text) == ("/w/shop", "회의록 검색")
    assert read.total == 3
    again = list(sources.read_claude_memory_layer_duckdb(path, read.cursor))
    assert again == [sources.Cursor(read.cursor)]
    assert snapshot(folder) == before


# --- claude-mem ---


def make_mem(path: Path, new: bool = True) -> Path:
    """Make a claude-mem.db: of version 13, or with the columns of version 7."""
    path.parent.mkdir(parents=True, exist_ok=True)
    claude, own = (
        ("content_session_id", "memory_session_id")
        if new
        else ("claude_session_id", "sdk_session_id")
    )
    more = ", merged_into_project TEXT, agent_id TEXT" if new else ""
    prompt_more = "session_db_id INTEGER, " if new else ""
    title = ", custom_title TEXT" if new else ""
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript(
            f"""
            CREATE TABLE sdk_sessions (
                id INTEGER PRIMARY KEY AUTOINCREMENT, {claude} TEXT NOT NULL, {own} TEXT UNIQUE,
                project TEXT NOT NULL, user_prompt TEXT, started_at_epoch INTEGER{title});
            CREATE TABLE observations (
                id INTEGER PRIMARY KEY AUTOINCREMENT, {own} TEXT NOT NULL, project TEXT NOT NULL,
                text TEXT, type TEXT NOT NULL, title TEXT, subtitle TEXT, facts TEXT,
                narrative TEXT, concepts TEXT, files_read TEXT, files_modified TEXT,
                created_at TEXT, created_at_epoch INTEGER{more});
            CREATE TABLE session_summaries (
                id INTEGER PRIMARY KEY AUTOINCREMENT, {own} TEXT NOT NULL, project TEXT NOT NULL,
                request TEXT, investigated TEXT, learned TEXT, completed TEXT, next_steps TEXT,
                files_read TEXT, files_edited TEXT, notes TEXT, created_at TEXT,
                created_at_epoch INTEGER);
            CREATE TABLE user_prompts (
                id INTEGER PRIMARY KEY AUTOINCREMENT, {prompt_more}{claude} TEXT NOT NULL,
                prompt_number INTEGER, prompt_text TEXT NOT NULL, created_at TEXT,
                created_at_epoch INTEGER);
            INSERT INTO sdk_sessions ({claude}, {own}, project, user_prompt)
                VALUES ('{SESSION}', 'own-1', 'shop-api', 'Fix the duplicate charge');
            INSERT INTO observations (id, {own}, project, type, title, subtitle, facts, narrative,
                concepts, files_read, files_modified, created_at_epoch)
                VALUES (12, 'own-1', 'shop-api', 'bugfix', 'One key per order', 'Retries reuse it',
                    '["derived from order_id"]', 'Each retry made a new key.', '["gotcha"]',
                    '["retry.py"]', '["charge.py"]', {NOON});
            INSERT INTO observations (id, {own}, project, type, title, facts, concepts,
                files_read, text, created_at)
                VALUES (13, 'own-1', 'shop-api', 'change', 'Pinned', 'one plain line',
                    'how-it-works,pattern', 'infra/runner.tf', 'older free text', '{iso(NOON)}');
            INSERT INTO session_summaries (id, {own}, project, request, learned, files_edited,
                created_at_epoch)
                VALUES (3, 'own-1', 'shop-api', 'Fix it', 'Keys were new', '["charge.py"]', {NOON});
            INSERT INTO user_prompts (id, {claude}, prompt_text, created_at_epoch)
                VALUES (7, '{SESSION}', '日本語の全文検索はどうやって動くの', {NOON}),
                    (8, '{SESSION}', '/clear', {NOON});
            """
        )
    db.close()
    return path


@pytest.mark.parametrize("new", [pytest.param(True, id="v13"), pytest.param(False, id="v7")])
def test_mem_rows(tmp_path: Path, new: bool) -> None:
    read = Read(sources.read_claude_mem(make_mem(tmp_path / "claude-mem.db", new)))
    observation = read.one("#12")
    assert observation.text == (
        "[bugfix] One key per order\n\nRetries reuse it\n\nEach retry made a new key.\n\n"
        "- derived from order_id"
    )
    assert observation.concepts == ("bugfix", "gotcha")
    assert observation.files == ("charge.py", "retry.py")
    assert {d.session_id for d in read.drafts} == {SESSION}
    assert {d.project for d in read.drafts} == {"shop-api"}
    plain = read.one("#13")
    assert plain.concepts == ("change", "how-it-works", "pattern")
    assert plain.files == ("infra/runner.tf",)
    assert plain.text == "[change] Pinned\n\n- one plain line\n\nolder free text"
    assert read.one("#S3").text == "Request: Fix it\n\nLearned: Keys were new"
    assert read.one("#P7").text == "日本語の全文検索はどうやって動くの"
    assert read.total == 6
    assert sum(read.skipped.values()) == 1


def test_mem_columns_of_version_13(tmp_path: Path) -> None:
    path = make_mem(tmp_path / "claude-mem.db")
    with sqlite3.connect(path) as db:
        db.executescript(
            f"""
            UPDATE sdk_sessions SET custom_title = 'Duplicate charge';
            UPDATE observations SET merged_into_project = 'infra', agent_id = 'a7' WHERE id = 13;
            CREATE TABLE tool_uses (
                id INTEGER PRIMARY KEY, tool_use_id TEXT, content_session_id TEXT, project TEXT,
                tool_name TEXT, tool_input TEXT, tool_response TEXT, cwd TEXT,
                created_at_epoch INTEGER);
            INSERT INTO tool_uses VALUES (1, 'toolu_01', '{SESSION}', 'shop-api', 'Bash',
                '{{"command": "pytest -q"}}', '{{"stdout": "3 passed", "stderr": ""}}',
                '/home/u/shop-api', {NOON});
            """
        )
    db.close()
    read = Read(sources.read_claude_mem(path))
    tool = read.one("toolu_01")
    assert (tool.text, tool.keys) == ("Bash: pytest -q\n3 passed", ("toolu_01",))
    assert (read.one("#13").project, read.one("#13").agent_id) == ("infra", "a7")
    assert read.one("#P7").project == "/home/u/shop-api"  # from the tool's cwd
    assert (read.sessions[0].title, read.sessions[0].title_rank) == ("Duplicate charge", 2)


# --- Reading databases that belong to others ---


def test_unchanged_source_gives_nothing_and_new_rows_come_alone(tmp_path: Path) -> None:
    path = make_layer(tmp_path / "events.sqlite", {})
    first = Read(sources.read_claude_memory_layer(path))
    assert list(sources.read_claude_memory_layer(path, first.cursor)) == [
        sources.Cursor(first.cursor)
    ]
    with sqlite3.connect(path) as db:
        add_events(db, {"id": "e2"})
    db.close()
    second = Read(sources.read_claude_memory_layer(path, first.cursor))
    assert [d.source_ref for d in second.drafts] == ["e2"]


def test_changed_older_row_is_told_again_but_a_counter_is_not(tmp_path: Path) -> None:
    path = make_layer(tmp_path / "events.sqlite", {}, {"id": "e2"})
    first = Read(sources.read_claude_memory_layer(path))
    with sqlite3.connect(path) as db:
        db.execute("UPDATE events SET access_count = 9")
    db.close()
    second = Read(sources.read_claude_memory_layer(path, first.cursor))
    assert second.drafts == []
    with sqlite3.connect(path) as db:
        db.execute("UPDATE events SET content = 'said otherwise' WHERE id = 'e1'")
    db.close()
    third = Read(sources.read_claude_memory_layer(path, second.cursor))
    assert third.one("e1").text == "said otherwise"


@pytest.mark.parametrize("since", ["nonsense", "{}", '{"v": 0}', "[1]"])
def test_unknown_cursor_reads_everything(tmp_path: Path, since: str) -> None:
    path = make_layer(tmp_path / "events.sqlite", {})
    assert len(Read(sources.read_claude_memory_layer(path, since)).drafts) == 1


def test_rows_in_the_wal_are_read_and_nothing_is_left_behind(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    path = make_layer(folder / "events.sqlite", wal=True)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with sqlite3.connect(path, isolation_level=None) as writer:
        add_events(writer, {})  # committed, but only in the -wal
        before = snapshot(folder)
        assert "events.sqlite-wal" in before
        context = sources.SourceContext(scratch)
        read = Read(sources.read_claude_memory_layer(path, "", context))
        assert len(read.drafts) == 1
        assert snapshot(folder) == before
    writer.close()
    assert list(scratch.iterdir()) == []


def test_closed_wal_database_gets_no_new_files(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    path = make_layer(folder / "events.sqlite", {}, wal=True)
    before = snapshot(folder)
    assert list(before) == ["events.sqlite"]
    assert len(Read(sources.read_claude_memory_layer(path)).drafts) == 1
    assert snapshot(folder) == before


def test_read_only_folder(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    path = make_layer(folder / "events.sqlite", {}, wal=True)
    path.chmod(0o400)
    folder.chmod(0o500)
    try:
        assert len(Read(sources.read_claude_memory_layer(path)).drafts) == 1
    finally:
        folder.chmod(0o700)


def test_private_copy_is_private_and_removed_when_reading_stops(tmp_path: Path) -> None:
    path = make_layer(tmp_path / "source" / "events.sqlite", {}, {"id": "e2"})
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    reading = sources.read_claude_memory_layer(path, "", sources.SourceContext(scratch))
    next(reading)
    (copy,) = scratch.iterdir()
    if os.name != "nt":
        assert copy.stat().st_mode & 0o777 == 0o700
    reading.close()  # type: ignore[attr-defined]
    assert list(scratch.iterdir()) == []


def test_copy_of_a_killed_process_is_removed_after_an_hour(tmp_path: Path) -> None:
    path = make_layer(tmp_path / "events.sqlite", {})
    scratch = tmp_path / "scratch"
    for name, age in (("old", 7200), ("new", 60)):
        folder = scratch / f"{sources.SNAPSHOT_PREFIX}{name}"
        folder.mkdir(parents=True)
        os.utime(folder, (time.time() - age,) * 2)
    list(sources.read_claude_memory_layer(path, "", sources.SourceContext(scratch)))
    assert [p.name for p in scratch.iterdir()] == [f"{sources.SNAPSHOT_PREFIX}new"]


@pytest.mark.parametrize(
    ("before", "after", "whole"),
    [
        pytest.param([None, None], [None, None], True, id="quiet"),
        pytest.param([[4, 1, 7], None], [[8, 2, 7], None], True, id="wal grew"),
        pytest.param([[8, 1, 7], None], [[8, 2, 6], None], False, id="wal began anew"),
        pytest.param([[8, 1, 7], None], [None, None], False, id="wal gone"),
        pytest.param([None, None], [[8, 1, 7], None], True, id="wal came"),
        pytest.param([None, None], [None, [3, 1, 1]], False, id="rollback journal came"),
    ],
)
def test_copy_is_one_state(before: Any, after: Any, whole: bool) -> None:
    """The side files' signatures (size, time, checksum of the head) around the copying."""
    database, later = [9, 1, 5], [9, 2, 5]
    assert sources._agree([database, *before], [database, *after]) is whole
    assert not sources._agree([database, *before], [later, *after])


WRITER = """
    import sqlite3, sys, threading, time
    db = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=0)
    db.execute(f"PRAGMA journal_mode = {sys.argv[2]}")
    db.execute("PRAGMA wal_autocheckpoint = 40")
    threading.Thread(target=sys.stdin.read).start()  # ends when it is told to
    failed, number = 0, 0
    print("ready", flush=True)
    while threading.active_count() > 1:
        try:
            db.execute("BEGIN IMMEDIATE")
            for _ in range(3):  # always three at a time, so that a torn copy is seen
                number += 1
                db.execute(
                    "INSERT INTO observations (memory_session_id, project, type, created_at_epoch,"
                    " title, narrative)"
                    " VALUES ('own-1', 'shop-api', 'change', 1788091200000, ?, ?)",
                    (f"n{number}", "x" * 3000),
                )
            db.execute("COMMIT")
        except sqlite3.OperationalError:
            failed += 1
        time.sleep(float(sys.argv[3]))
    print(failed, number)
"""


@pytest.mark.parametrize(
    ("mode", "pause"),
    [
        pytest.param("WAL", "0.01", id="WAL"),
        pytest.param("DELETE", "0.2", id="rollback journal"),
    ],
)
def test_writer_keeps_working_while_we_read(tmp_path: Path, mode: str, pause: str) -> None:
    """A claude-mem at work, that gives up at once on any lock, never meets one of ours."""
    path = make_mem(tmp_path / "claude-mem.db")
    arguments = [sys.executable, "-c", textwrap.dedent(WRITER), str(path), mode, pause]
    writer = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert writer.stdout
    assert writer.stdout.readline() == "ready\n"
    cursor, seen, news, put_off = "", Counter[str](), 0, 0
    begun = time.monotonic()
    while news < 10 or time.monotonic() - begun < 3:
        assert time.monotonic() - begun < WAIT, f"{put_off} readings put off"
        try:
            read = Read(sources.read_claude_mem(path, cursor))
        except sources.SourceError:
            put_off += 1
            continue
        assert not any("rest of" in reason for reason in read.skipped)
        added = [d.text for d in read.drafts if d.text.startswith("[change] n")]
        assert len(added) % 3 == 0
        news += bool(added)
        seen.update(added)
        cursor = read.cursor
    failed, number = writer.communicate(timeout=WAIT)[0].split()
    read = Read(sources.read_claude_mem(path, cursor))
    seen.update(d.text for d in read.drafts if d.text.startswith("[change] n"))
    assert failed == "0"
    assert len(seen) == int(number)
    assert set(seen.values()) == {1}


def damage(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 4096 * 3)


def test_damaged_database_is_counted_not_raised(tmp_path: Path) -> None:
    events = [{"id": f"e{n}", "content": f"{n} " + "long " * 400} for n in range(200)]
    path = make_layer(tmp_path / "events.sqlite", *events)
    damage(path)
    read = Read(sources.read_claude_memory_layer(path))
    assert any("the rest of" in reason for reason in read.skipped)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"SQLite format 3\0" + b"\xff" * 5000, id="noise after the magic"),
        pytest.param(b"", id="empty"),
        pytest.param(b"not a database, but long enough to be one" * 100, id="text"),
    ],
)
def test_what_is_no_database_is_one_sentence_or_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "events.sqlite"
    path.write_bytes(content)
    try:
        assert Read(sources.read_claude_memory_layer(path)).drafts == []
    except sources.SourceError as error:
        assert str(path) in str(error)  # noqa: PT017


def test_missing_database_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(sources.SourceError, match="not there any more"):
        list(sources.read_claude_mem(tmp_path / "claude-mem.db"))


def test_row_that_is_not_utf8_is_counted(tmp_path: Path) -> None:
    path = make_layer(tmp_path / "events.sqlite", {}, {"id": "e2"}, {"id": "e3"})
    with sqlite3.connect(path) as db:
        db.execute("UPDATE events SET content = CAST(x'ff80' AS TEXT) WHERE id = 'e2'")
    db.close()
    read = Read(sources.read_claude_memory_layer(path))
    assert [d.source_ref for d in read.drafts] == ["e1", "e3"]
    assert read.skipped == {"text in events that is not UTF-8": 1}


# --- claude.ai ---


def conversation(number: int, *messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "uuid": f"c{number}",
        "name": "Harbor plans",
        "summary": "",
        "created_at": "2025-03-01T10:00:00.123456Z",
        "updated_at": "2025-03-01T11:00:00.123456Z",
        "account": {"uuid": "a"},
        **more,
        "chat_messages": list(messages),
    }


def message(ref: str, sender: str = "human", **more: Any) -> dict[str, Any]:
    return {
        "uuid": ref,
        "sender": sender,
        "text": "what is a quay?",
        "content": [],
        "created_at": "2025-03-01T10:00:01.500000Z",
        "attachments": [],
        "files": [],
        **more,
    }


def test_claude_ai_conversation(tmp_path: Path) -> None:
    path = tmp_path / "conversations.json"
    attachment = {"file_name": "notes.txt", "extracted_content": "tide 3 m"}
    blocks = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "A mooring."}]
    placeholder = "```\nThis block is not supported on your current device yet.\n```"
    path.write_text(
        json.dumps(
            [
                conversation(
                    1,
                    message("m1", attachments=[attachment], files=[{"file_name": "map.png"}]),
                    message("m2", "assistant", text=placeholder, content=blocks),
                    message("m3", text="", content=[]),
                    message("m4", "tool"),
                    summary="About quays",
                )
            ]
        )
    )
    read = Read(sources.read_claude_ai(path))
    assert read.one("m1").text == "what is a quay?\n\n[Attachment: notes.txt]\ntide 3 m"
    assert read.one("m1").files == ("notes.txt", "map.png")
    assert (read.one("m1").type, read.one("m2").type) == ("prompt", "response")
    assert read.one("m2").text == "A mooring."
    assert read.one("summary c1").concepts == ("summary",)
    assert read.sessions == [SessionDraft("c1", "claude-ai", "", "Harbor plans", 2)]
    assert read.skipped == {"message without text": 1, "message without sender, id or time": 1}
    assert list(sources.read_claude_ai(path, read.cursor)) == [sources.Cursor(read.cursor)]


@pytest.mark.parametrize(
    "created",
    [
        pytest.param("2025-03-01T10:00:01.500000", id="no zone"),
        pytest.param("2025-03-01T10:00:01.500000+", id="zone cut off"),
        pytest.param("2025-03-01T10:00:01+00:00", id="offset"),
    ],
)
def test_claude_ai_times(tmp_path: Path, created: str) -> None:
    path = tmp_path / "conversations.json"
    path.write_text(json.dumps([conversation(1, message("m1", created_at=created))]))
    assert iso(Read(sources.read_claude_ai(path)).one("m1").time) == "2025-03-01T10:00:01.000Z"


def test_claude_ai_zip_and_lone_surrogate(tmp_path: Path) -> None:
    path = tmp_path / "data-2025.zip"
    text = json.dumps([conversation(1, message("m1", text="cut here \ud83d"))])
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("users.json", "[]")
        archive.writestr("conversations.json", text)
    assert sources.identify(path) == sources.FoundSource("claude-ai", path)
    assert Read(sources.read_claude_ai(path)).one("m1").text == "cut here \ufffd"


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        pytest.param("[]", [], id="empty array"),
        pytest.param("", None, id="empty"),
        pytest.param('[{"a": 1}, {"a": 2}]', [1, 2], id="array"),
        pytest.param('\ufeff [\n{"a": 1}\n,\n{"a": 2}\n]\n', [1, 2], id="BOM and newlines"),
        pytest.param('{"a": 1}', [1], id="no array"),
        pytest.param('[{"a": 1}, {"a": ', [1, None], id="cut"),
        pytest.param('[{"a": 1}, oops, {"a": 2}]', [1, None], id="broken"),
    ],
)
@pytest.mark.parametrize("step", [1, 3, 1000])
def test_stream_json_array(
    text: str, numbers: list[int | None] | None, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "JSON_CHUNK_CHARS", step)
    rest = iter([text[i : i + step] for i in range(0, len(text), step)])
    found: list[int | None] = []
    try:
        for value in sources.stream_json_array(lambda size: next(rest, "")):
            found.append(value["a"])
    except ValueError:
        found.append(None)
    assert found == (numbers if numbers is not None else [None])


def test_claude_ai_large_export_in_bounded_memory(tmp_path: Path) -> None:
    """60 MB in a zip: what is held is a few conversations, not the export."""
    path = tmp_path / "export.zip"
    said = "the harbor wall holds " * 400
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("conversations.json", "w") as file,
    ):
        file.write(b"[")
        for number in range(1400):
            messages = [message(f"m{number}-{n}", text=said) for n in range(5)]
            file.write(b"," * (number > 0) + json.dumps(conversation(number, *messages)).encode())
        file.write(b"]")
    with zipfile.ZipFile(path) as archive:
        assert archive.getinfo("conversations.json").file_size > 60_000_000
    tracemalloc.start()
    count = sum(isinstance(item, Draft) for item in sources.read_claude_ai(path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 7000
    assert peak < 16_000_000


def test_one_large_conversation_costs_linear_time(tmp_path: Path) -> None:
    paths = {count: tmp_path / f"{count}" / "conversations.json" for count in (50, 400)}
    for count, path in paths.items():
        path.parent.mkdir()
        messages = [message(f"m{n}", text="x" * 50_000) for n in range(count)]  # 20 MB, one element
        path.write_text(json.dumps([conversation(1, *messages), conversation(2, message("last"))]))

    def read(count: int) -> None:
        assert len(Read(sources.read_claude_ai(paths[count])).drafts) == count + 1

    assert grows_evenly(read, *paths)


def test_broken_export_keeps_what_came_before(tmp_path: Path) -> None:
    path = tmp_path / "conversations.json"
    whole = json.dumps([conversation(1, message("m1")), conversation(2, message("m2"))])
    path.write_text(whole[:-40])
    read = Read(sources.read_claude_ai(path))
    assert [d.source_ref for d in read.drafts] == ["m1"]
    assert read.skipped == {"the rest of the export, from where its JSON breaks off": 1}


# --- Codex ---


def line(kind: str, payload: dict[str, Any], second: int = 0) -> dict[str, Any]:
    return {"timestamp": iso(NOON + 1000 * second), "type": kind, "payload": payload}


def meta(session_id: str = "s1", **more: Any) -> dict[str, Any]:
    return line("session_meta", {"id": session_id, "cwd": "/w/shop", "source": "cli", **more})


def said(role: str, *texts: str, second: int = 0, **more: Any) -> dict[str, Any]:
    blocks = [{"type": "input_text" if role == "user" else "output_text", "text": t} for t in texts]
    payload = {"type": "message", "role": role, "content": blocks, **more}
    return line("response_item", payload, second)


def event(text: str, second: int = 0) -> dict[str, Any]:
    return line("event_msg", {"type": "user_message", "message": text}, second)


def call(name: str, arguments: Any, ref: str = "call_1", **more: Any) -> dict[str, Any]:
    payload: dict[str, Any] = {"type": "function_call", "name": name}
    if arguments is not None:
        payload["arguments"] = json.dumps(arguments)
    return line("response_item", {**payload, "call_id": ref, **more})


def output(text: Any, ref: str = "call_1") -> dict[str, Any]:
    payload = {"type": "function_call_output", "call_id": ref, "output": text}
    return line("response_item", payload)


PATCH = "*** Begin Patch\n*** Update File: src/a.py\n+x\n*** End Patch"
CONTEXT = said(
    "user", "# AGENTS.md instructions for /w/shop", "<environment_context>\n</environment_context>"
)


def test_codex_prompts_come_once(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "rollout-x.jsonl",
        meta(),
        said("developer", "be kind"),
        CONTEXT,
        said("user", "fix the retry"),
        event("fix the retry"),
        line("event_msg", {"type": "agent_message", "message": "Done."}),
        said("assistant", "Done.", id="msg_1"),
        line("event_msg", {"type": "token_count"}),
        line("response_item", {"type": "reasoning", "summary": []}),
        said("user", "<turn_aborted>\nstopped"),
        said("user", "and again"),
        event("and again"),
    )
    read = Read(sources.read_codex(path))
    assert [(d.type, d.text) for d in read.drafts] == [
        ("prompt", "fix the retry"),
        ("response", "Done."),
        ("prompt", "and again"),
    ]
    assert read.sessions == [SessionDraft("s1", "codex", "/w/shop")]
    assert {d.project for d in read.drafts} == {"/w/shop"}
    assert read.total == 12


def test_codex_without_events_takes_the_messages(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rollout-x.jsonl", meta(), CONTEXT, said("user", "fix it"))
    assert [d.text for d in Read(sources.read_codex(path)).drafts] == ["fix it"]


def test_codex_lines_of_before_payloads(tmp_path: Path) -> None:
    bare = said("user", "fix it")["payload"]
    path = write_lines(
        tmp_path / "rollout-2025-05-07T17-24-21-5973b6c0-94b8-487b-a530-2aeb6098ae0e.jsonl",
        {
            "id": "5973b6c0-94b8-487b-a530-2aeb6098ae0e",
            "timestamp": iso(NOON),
            "instructions": None,
        },
        {"record_type": "state"},
        bare,
    )
    (draft,) = Read(sources.read_codex(path)).drafts
    assert (draft.text, draft.time) == ("fix it", NOON)


def test_codex_request_is_taken_out_of_the_ide_context(tmp_path: Path) -> None:
    text = (
        "# Context from my IDE setup:\n\n## Open tabs:\n- a.py\n\n## My request for Codex:\nfix a\n"
    )
    path = write_lines(tmp_path / "rollout-x.jsonl", meta(), said("user", text), event(text))
    assert [d.text for d in Read(sources.read_codex(path)).drafts] == ["fix a"]


@pytest.mark.parametrize(
    ("lines", "texts", "files"),
    [
        pytest.param(
            [call("shell", {"command": ["bash", "-lc", "ls"]}),
             output(json.dumps({"output": "a.py", "metadata": {"exit_code": 0}}))],
            ["shell: ls", "a.py"], (), id="shell",
        ),
        pytest.param(
            [call("exec_command", {"cmd": "false", "workdir": "/w"}),
             output("Chunk ID: 1\nWall time: 0 s\nProcess exited with code 1\nOutput:\nno\n")],
            ["exec_command: false", "[failed] no"], (), id="exec_command",
        ),
        pytest.param(
            [call("apply_patch", None, type="custom_tool_call", input=PATCH),
             output([{"type": "input_text", "text": "Exit code: 0\nOutput:\nSuccess."}])],
            [f"apply_patch: {PATCH}", "Success."], ("src/a.py",), id="apply_patch",
        ),
        pytest.param(
            [call("update_plan", {"plan": [{"step": "read"}, {"step": "write"}]}), output("")],
            ["update_plan: - read\n- write"], (), id="plan, empty output",
        ),
    ],
)  # fmt: skip
def test_codex_tools(tmp_path: Path, lines: Any, texts: list[str], files: tuple[str, ...]) -> None:
    path = write_lines(tmp_path / "rollout-x.jsonl", meta(), *lines)
    drafts = Read(sources.read_codex(path)).drafts
    assert [d.text for d in drafts] == texts
    assert {(d.source_ref, d.joins) for d in drafts} == {("call_1", "tool call_1")}
    assert [d.continues for d in drafts] == [False, True][: len(texts)]
    assert drafts[0].files == files


def test_codex_compaction_is_an_insight(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "rollout-x.jsonl",
        meta(),
        line("compacted", {"message": "We chose WAL."}),
        line("compacted", {"message": "", "replacement_history": []}),
    )
    read = Read(sources.read_codex(path))
    assert [(d.type, d.text) for d in read.drafts] == [("insight", "We chose WAL.")]
    assert read.skipped == {"compaction without a summary": 1}


def test_codex_subagent_belongs_to_its_parent(tmp_path: Path) -> None:
    spawn = {"subagent": {"thread_spawn": {"parent_thread_id": "s1", "depth": 1}}}
    path = write_lines(
        tmp_path / "rollout-x.jsonl",
        meta("child", source=spawn),
        event("look into a.py"),
        said("assistant", "It is fine."),
    )
    read = Read(sources.read_codex(path))
    assert [(d.session_id, d.agent_id, d.type) for d in read.drafts] == [
        ("s1", "child", "response")
    ]
    assert "prompt of a subagent, written by the model" in read.skipped


def test_codex_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rollout-x.jsonl", meta(), said("user", "one"), event("one"))
    first = Read(sources.read_codex(path))
    write_lines(path, said("user", "two", second=5), b'{"timestamp": "2026')
    second = Read(sources.read_codex(path, first.cursor))
    assert second.drafts == []  # the event is still to come
    with path.open("ab") as file:
        file.write(json.dumps(event("two", 5)).encode()[len(b'{"timestamp": "2026') :] + b"\n")
    third = Read(sources.read_codex(path, second.cursor))
    assert [(d.text, d.session_id, d.project) for d in third.drafts] == [("two", "s1", "/w/shop")]
    assert list(sources.read_codex(path, third.cursor)) == [sources.Cursor(third.cursor)]


def test_broken_lines_are_counted(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "rollout-x.jsonl",
        meta(),
        b'{"type": "event_msg", "payload": {"ty\n',
        b"\0\0\0\n",
        b"[1, 2]\n",
        event("still read"),
    )
    read = Read(sources.read_codex(path))
    assert [d.text for d in read.drafts] == ["still read"]
    assert read.skipped == {"broken JSON": 1, "not a JSON object": 1}


def test_replaced_file_is_read_from_its_start(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rollout-x.jsonl", meta(), event("one"), event("more"))
    first = Read(sources.read_codex(path))
    path.unlink()
    write_lines(path, meta("s2"), *[event(f"new {n}") for n in range(9)])
    second = Read(sources.read_codex(path, first.cursor))
    assert len(second.drafts) == 9
    assert second.drafts[0].session_id == "s2"


def test_codex_titles(tmp_path: Path) -> None:
    entry = {"id": "s1", "thread_name": "Fix the retry", "updated_at": iso(NOON)}
    path = write_lines(tmp_path / "session_index.jsonl", entry)
    read = Read(sources.read_codex_titles(path))
    assert read.sessions == [SessionDraft("s1", "codex", "", "Fix the retry", 2)]


# --- Prompt history, our own export ---


def test_history(tmp_path: Path) -> None:
    base = {"timestamp": NOON, "project": "/w/shop", "pastedContents": {}}
    pasted = {"1": {"id": 1, "type": "text", "content": "Traceback: boom"}}
    path = write_lines(
        tmp_path / "history.jsonl",
        {**base, "display": "why does it fail?", "sessionId": SESSION},
        {**base, "display": "look: [Pasted text #1 +20 lines]", "pastedContents": pasted},
        {**base, "display": "[Pasted text #2 +3 lines] gone"},
        {**base, "display": "/clear "},
        {**base, "display": "/model opus"},
        {**base, "display": "/review PR 12"},
        {**base, "display": "/home/u/a.py is wrong"},
        {**base, "display": "!ls"},
        b"broken\n",
    )
    read = Read(sources.read_claude_history(path))
    assert [d.text for d in read.drafts] == [
        "why does it fail?",
        "look: Traceback: boom",
        "[Pasted text #2 +3 lines] gone",
        "/review PR 12",
        "/home/u/a.py is wrong",
    ]
    assert read.drafts[0].session_id == SESSION
    made_up = {d.session_id for d in read.drafts[1:]}
    assert len(made_up) == 1
    assert made_up == {read.sessions[0].session_id}
    assert read.total == 9 + 1  # the made-up session has no line of its own
    again = Read(sources.read_claude_history(path))
    assert again.drafts == read.drafts


def test_export_keeps_ids(tmp_path: Path) -> None:
    memory = {
        "id": "mem:a7Bc3x",
        "type": "insight",
        "time": "2026-08-30T12:00:00.000Z",
        "session_id": SESSION,
        "session_title": "Retry",
        "project": "/w/shop",
        "project_name": "shop",
        "source": "claude-mem",
        "source_ref": "#12",
        "agent_id": None,
        "content": "one key per order",
        "files": ["a.py"],
        "tools": [],
        "concepts": ["bugfix"],
        "keys": ["k1", "k2"],
    }
    path = write_lines(tmp_path / "export.jsonl", memory, {**memory, "type": "dream"})
    assert sources.identify(path) == sources.FoundSource("code-memory", path)
    read = Read(sources.read_export(path))
    (draft,) = read.drafts
    assert (draft.source, draft.source_ref, draft.time) == ("claude-mem", "#12", NOON)
    assert (draft.files, draft.concepts, draft.keys) == (("a.py",), ("bugfix",), ("k1", "k2"))
    assert read.sessions == [SessionDraft(SESSION, "claude-mem", "/w/shop", "Retry", 2)]
    assert read.skipped == {"not a whole memory": 1}


def test_long_files_of_lines_have_cursors_in_between(tmp_path: Path) -> None:
    base = {"timestamp": NOON, "project": "/w", "sessionId": SESSION}
    path = write_lines(
        tmp_path / "history.jsonl", *[{**base, "display": f"prompt {n}"} for n in range(4500)]
    )
    items = list(sources.read_claude_history(path))
    cursors = [i.value for i in items if isinstance(i, sources.Cursor)]
    assert len(cursors) == 3
    rest = Read(sources.read_claude_history(path, cursors[1]))
    assert [d.text for d in rest.drafts] == [f"prompt {n}" for n in range(4000, 4500)]


# --- Finding ---


def test_find_sources_in_their_usual_places(tmp_path: Path) -> None:
    layer = tmp_path / ".claude-code" / "memory"
    made = [
        ("claude-memory-layer", make_layer(layer / "events.sqlite")),
        ("claude-memory-layer", make_layer(layer / "projects" / "4acc3978" / "events.sqlite")),
        ("claude-mem", make_mem(tmp_path / ".claude-mem" / "claude-mem.db")),
        ("codex", write_lines(tmp_path / ".codex/sessions/2026/08/30/rollout-a.jsonl", meta())),
        ("codex", write_lines(tmp_path / ".codex/archived_sessions/rollout-b.jsonl", meta())),
        ("codex-titles", write_lines(tmp_path / ".codex/session_index.jsonl", {})),
        ("claude-history", write_lines(tmp_path / ".claude/history.jsonl", {})),
    ]
    (layer / "code-memory.db").write_bytes(b"ours")
    found = sources.find_sources(tmp_path, {})
    assert {(f.kind, f.path) for f in found} == set(made)
    assert sources.find_sources(tmp_path / "empty", {}) == []


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param('{"CLAUDE_MEM_DATA_DIR": "~/elsewhere"}', id="flat"),
        pytest.param('\ufeff{"env": {"CLAUDE_MEM_DATA_DIR": "~/elsewhere"}}', id="BOM, nested"),
        pytest.param('{"CLAUDE_MEM_DATA_DIR": "$HOME/elsewhere"}', id="variable"),
        pytest.param(None, id="environment"),
        pytest.param("not json", id="broken settings, environment"),
    ],
)
def test_claude_mem_is_found_where_it_is_told_to_be(tmp_path: Path, settings: str | None) -> None:
    path = make_mem(tmp_path / "elsewhere" / "claude-mem.db")
    env = {}
    if settings is None or settings == "not json":
        env["CLAUDE_MEM_DATA_DIR"] = "~/elsewhere"
    if settings is not None:
        (tmp_path / ".claude-mem").mkdir()
        (tmp_path / ".claude-mem" / "settings.json").write_text(settings, encoding="utf-8")
    assert sources.find_sources(tmp_path, env) == [sources.FoundSource("claude-mem", path)]


def test_sources_of_other_homes(tmp_path: Path) -> None:
    rollout = write_lines(tmp_path / "cx/sessions/rollout-a.jsonl", meta())
    history = write_lines(tmp_path / "cc/history.jsonl", {})
    env = {"CODEX_HOME": str(tmp_path / "cx"), "CLAUDE_CONFIG_DIR": str(tmp_path / "cc")}
    found = {f.path for f in sources.find_sources(tmp_path, env)}
    assert found == {rollout, history}


def make_other_database(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE events (x)")
    db.close()


TRANSCRIPT = {"type": "user", "sessionId": SESSION, "uuid": "u", "message": {"content": "hi"}}


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        pytest.param(lambda p: make_layer(p), "claude-memory-layer", id="claude-memory-layer"),
        pytest.param(lambda p: make_mem(p), "claude-mem", id="claude-mem"),
        pytest.param(lambda p: make_mem(p, False), "claude-mem", id="claude-mem 7"),
        pytest.param(lambda p: write_lines(p, meta()), "codex", id="codex"),
        pytest.param(lambda p: write_lines(p, TRANSCRIPT), "claude-code", id="transcript"),
        pytest.param(
            lambda p: write_lines(p, {"display": "x", "timestamp": 1, "project": "/w"}),
            "claude-history", id="history",
        ),
        pytest.param(lambda p: write_lines(p, [conversation(1)]), "claude-ai", id="export"),
        pytest.param(
            lambda p: p.write_text(json.dumps([conversation(1)], indent=2)),
            "claude-ai", id="export, indented",
        ),
        pytest.param(lambda p: p.write_text("[1, 2]"), None, id="other JSON"),
        pytest.param(lambda p: p.write_text("hello"), None, id="text"),
        pytest.param(lambda p: p.write_bytes(b""), None, id="empty"),
        pytest.param(lambda p: make_other_database(p), None, id="other database"),
    ],
)  # fmt: skip
def test_identify_goes_by_content(
    tmp_path: Path, make: Callable[[Path], object], kind: str | None
) -> None:
    path = tmp_path / "some-file"
    make(path)
    found = sources.identify(path)
    assert found == (sources.FoundSource(kind, path) if kind else None)


def test_identify_folders(tmp_path: Path) -> None:
    mem = make_mem(tmp_path / "mem" / "claude-mem.db")
    write_lines(tmp_path / "transcripts" / "-w-shop" / "a.jsonl", TRANSCRIPT)
    write_lines(tmp_path / "transcripts" / "-w-shop" / "b.jsonl", TRANSCRIPT)
    write_lines(tmp_path / "codex" / "rollout-a.jsonl", meta())
    assert sources.identify(tmp_path / "mem") == sources.FoundSource("claude-mem", mem)
    folder = tmp_path / "transcripts"
    assert sources.identify(folder) == sources.FoundSource("claude-code", folder)
    assert sources.identify(tmp_path / "codex") is None
    kinds = Counter(f.kind for f in sources.identify_all(tmp_path))
    assert kinds == {"claude-mem": 1, "claude-code": 1, "codex": 1}


def test_event_ids_make_the_citations_of_claude_memory_layer(tmp_path: Path) -> None:
    """Its [mem:RrY6FZ] is made of the event's id alone, which is our source_ref."""
    ref = "00000000-0000-4000-8000-000000000001"
    path = make_layer(tmp_path / "events.sqlite", {"id": ref})
    (draft,) = Read(sources.read_claude_memory_layer(path)).drafts
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
    digest = hashlib.sha256(draft.source_ref.encode()).digest()
    assert "".join(alphabet[byte % 62] for byte in digest[:6]) == "RrY6FZ"


@pytest.fixture(autouse=True)
def no_copy_is_left(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """No test leaves a private copy of a database in the system's folder, here one of its own."""
    folder = tmp_path_factory.mktemp("system")
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    yield
    assert list(folder.glob(f"{sources.SNAPSHOT_PREFIX}*")) == []
