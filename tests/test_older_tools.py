"""What claude-mem's and claude-memory-layer's tools gave, through the four: docs/coming-from-other-tools.md."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import sync
from test_sources import NOON, SESSION, make_layer, make_mem

import code_memory as cm


@pytest.fixture
def call(home: Path, memories: cm.Memories) -> Callable[..., str]:
    """Return a function that calls a tool over a store filled from both older programs."""
    make_mem(home / ".claude-mem" / "claude-mem.db")
    with sqlite3.connect(home / ".claude-mem" / "claude-mem.db") as db:
        db.execute(
            "CREATE TABLE tool_uses (id INTEGER PRIMARY KEY, tool_use_id TEXT, content_session_id TEXT,"
            " tool_name TEXT, tool_input TEXT, tool_response TEXT, cwd TEXT, created_at_epoch INTEGER)"
        )
        db.execute(
            "INSERT INTO tool_uses VALUES (1, 'toolu_x', ?, 'Bash', ?, 'two passed', '/w/shop-api', ?)",
            (SESSION, json.dumps({"command": "pytest tests/charge"}), NOON),
        )
    db.close()
    sync(memories)

    def answer(tool: str, /, **arguments: Any) -> str:
        text, is_error = cm.answer_call(tool, arguments, lambda: memories, None, cm.CancelToken())
        assert not is_error, text
        return text

    return answer


@pytest.mark.parametrize(
    ("tool", "arguments", "found"),
    [
        pytest.param("mem-search", {"query": "retry key order", "eventType": "insight"}, "One key per order", id="search_observations"),
        pytest.param("mem-search", {"query": "keys were new", "type": "sessions"}, "Keys were new", id="search_sessions"),
        pytest.param("mem-search", {"query": "全文検索", "type": "prompts"}, "全文検索", id="search_user_prompts"),
        pytest.param("mem-search", {"query": "", "obs_type": "bugfix"}, "One key per order", id="find_by_type"),
        pytest.param("mem-search", {"query": "", "concept": "gotcha"}, "One key per order", id="find_by_concept"),
        pytest.param("mem-search", {"query": "", "file": "charge.py"}, "One key per order", id="find_by_file"),
        pytest.param("mem-search", {"query": "retry", "dateStart": "2020-01-01", "orderBy": "date_desc"}, "retry", id="dateRange"),
        pytest.param("mem-search", {"query": "", "project": "shop-api", "order": "newest", "limit": 10}, "shop-api", id="get_recent_context"),
        pytest.param("mem-timeline", {"anchor": "#12", "depth_before": 10, "depth_after": 10}, "One key per order", id="get_context_timeline"),
        pytest.param("mem-timeline", {"query": "each retry made a new key"}, "Around", id="get_timeline_by_query"),
        pytest.param("mem-details", {"ids": ["#12", "#13"]}, "older free text", id="get_observations"),
        pytest.param("mem-details", {"ids": ["#S3"]}, "Keys were new", id="get_session, a summary"),
        pytest.param("mem-details", {"ids": [SESSION]}, "全文検索", id="get_session, whole"),
        pytest.param("mem-details", {"ids": ["#P7"]}, "全文検索", id="get_prompt"),
        pytest.param("mem-details", {"ids": ["toolu_x"]}, "two passed", id="get_tool_uses"),
        pytest.param("mem-search", {"query": "", "tool": "Bash"}, "pytest", id="tool uses of one tool"),
        pytest.param("mem-search", {"query": "全文検索", "eventType": "user_prompt"}, "全文検索", id="stored type names"),
        pytest.param("mem-stats", {"projectPath": "shop-api"}, "Memories", id="mem-stats"),
    ],
)  # fmt: skip
def test_older_tool(
    tool: str, arguments: dict[str, Any], found: str, call: Callable[..., str]
) -> None:
    text = call(tool, **arguments).replace("**", "")
    assert found.casefold() in text.casefold()


def test_citations_of_the_ancestor_lead_to_their_memory(home: Path, memories: cm.Memories) -> None:
    event = "0a3e7c9e-1111-4222-8333-444455556666"
    make_layer(
        home / ".claude-code/memory/events.sqlite",
        {"id": event, "event_type": "user_prompt", "content": "pick a citation"},
    )
    sync(memories)
    ids = [f"[mem:{cm.memory_code(event)}]", event]
    found = memories.details(ids).found
    assert [m.content for m in found if isinstance(m, cm.Memory)] == ["pick a citation"] * 2


def test_help_is_in_the_server_itself() -> None:
    assert len(cm.INSTRUCTIONS.split()) < 120
    assert all(tool["description"] for tool in cm.TOOLS)
