"""What models, terminals and scripts are shown."""

from __future__ import annotations

import os
import re
import unicodedata
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from server_fakes import AFTER, BEFORE, DIGEST, HIT, MEMORY, ROWS, STATS, at

from code_memory import (
    MAX_REPLY_CHARS,
    Details,
    Hit,
    Memory,
    Redacted,
    SearchQuery,
    SearchResult,
    SessionDigest,
    Timeline,
    clean_line,
    count_tokens,
    cut_to_width,
    details_as_json,
    find_cut,
    hit_as_json,
    limit_reply,
    measure_width,
    memory_as_json,
    pad_to_width,
    render_bar,
    render_details,
    render_details_lines,
    render_search,
    render_search_lines,
    render_size,
    render_stats,
    render_stats_lines,
    render_time,
    render_timeline_lines,
    render_timelines,
    show_text,
    stats_as_json,
    timelines_as_json,
    wrap_to_width,
)

SEOUL = timezone(timedelta(hours=9))
NOW = datetime(2026, 1, 30, 8, 6, tzinfo=UTC)
GOLDEN = Path(__file__).parent / "golden"

QUERY = SearchQuery(text="DuckDB schema")
KOREAN = replace(
    HIT,
    memory=replace(MEMORY, id="K0r3aN", session_title="항구 이벤트를 DuckDB로 옮기기"),
    score=0.81,
    snippet=Redacted(
        "**스키마**는 세 개의 표로 되어 있습니다. " + "이벤트와 세션과 프로젝트입니다. " * 12
    ),
    more_like_this=3,
)


def whole(memory: Memory, text: str) -> Memory:
    return replace(memory, content=Redacted(text))


GOLDEN_CASES: dict[str, Any] = {
    "search.md": lambda: render_search(
        SearchResult(
            replace(QUERY, project="harbor", since=at("2026-01-01T00:00:00")),
            (HIT, KOREAN),
            12,
            ("Import: 40 of 412 transcripts; newer sessions may be missing.",),
        ),
        SEOUL,
    ),
    "search-one.md": lambda: render_search(SearchResult(QUERY, (HIT,), 1), SEOUL),
    "search-newest.md": lambda: render_search(
        SearchResult(SearchQuery(type="response", order="newest"), (HIT,), 1), SEOUL
    ),
    "search-nothing.md": lambda: render_search(
        SearchResult(replace(QUERY, type="prompt", until=at("2026-01-01T00:00:00")), (), 0), SEOUL
    ),
    "search-beyond.md": lambda: render_search(SearchResult(replace(QUERY, offset=50), (), 12), UTC),
    "timeline.md": lambda: render_timelines(
        [Timeline(MEMORY.id, (replace(BEFORE, time=at("2026-01-29T05:00:00")), MEMORY, AFTER))],
        ["nosuch"],
        SEOUL,
    ),
    "details.md": lambda: render_details(
        Details((MEMORY, replace(AFTER, agent_id="ab12", kept_only_here=True)), ("nosuch",)), SEOUL
    ),
    "details-part.md": lambda: render_details(
        Details((whole(MEMORY, "0123456789" * 60),)), SEOUL, offset=100, max_chars=200
    ),
    "details-session.md": lambda: render_details(Details((DIGEST,)), SEOUL),
    "stats.md": lambda: render_stats(STATS, SEOUL, NOW),
    "search.txt": lambda: "\n".join(
        render_search_lines(SearchResult(QUERY, (HIT, KOREAN), 12, ("A note.",)), SEOUL, 72)
    ),
    "search-colour.txt": lambda: "\n".join(
        render_search_lines(SearchResult(QUERY, (HIT,), 1), SEOUL, 72, True)
    ),
    "timeline.txt": lambda: "\n".join(
        render_timeline_lines([Timeline(MEMORY.id, ROWS)], ["nosuch"], SEOUL, 60)
    ),
    "details.txt": lambda: "\n".join(render_details_lines(Details((MEMORY, DIGEST)), SEOUL)),
    "stats.txt": lambda: "\n".join(render_stats_lines(STATS, SEOUL, NOW)),
}


@pytest.mark.parametrize("name", GOLDEN_CASES)
def test_golden(name: str) -> None:
    """Run with UPDATE_GOLDEN=1 to write the files anew, then read the difference."""
    text = GOLDEN_CASES[name]() + "\n"
    file = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_bytes(text.encode())
    assert text == file.read_bytes().decode()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("plain\ttab\nline", "plain\ttab\nline", id="plain text stays"),
        pytest.param("a\r\nb\rc\u2028d\x85e", "a\nb\nc\nd\ne", id="every line end"),
        pytest.param("\x1b[31mred\x1b[0m \x9b1mbold", "red bold", id="colours"),
        pytest.param("\x1b]0;title\x07x\x1b]8;;http://a\x1b\\y", "xy", id="window titles"),
        pytest.param("\x1b]never ended", "never ended", id="unfinished escape"),
        pytest.param("a\x00b\x07c", "a\ufffdb\ufffdc", id="control characters"),
        pytest.param("admin\u202etxt.exe\u2066", "admintxt.exe", id="bidirectional overrides"),
        pytest.param("pass\u200bword\ufeff\u00ad", "password", id="zero width"),
        pytest.param("hi\U000e0068\U000e0069", "hi", id="tag characters"),
        pytest.param("a\u200db", "ab", id="joiner in Latin text"),
        pytest.param("👩\u200d👧", "👩\u200d👧", id="joiner in emoji"),
        pytest.param("می\u200cخواهم", "می\u200cخواهم", id="non-joiner in Persian"),
        pytest.param("☀\ufe0f\ufe01\ufe02", "☀\ufe0f", id="bytes in variation selectors"),
        pytest.param("x\ud800y", "x\ufffdy", id="lone surrogate"),
    ],
)
def test_show_text(text: str, shown: str) -> None:
    assert show_text(text) == shown


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("", 0), ("four", 1), ("fives", 2), ("데이터", 3), ("DuckDB 스키마", 2 + 3)],
)
def test_count_tokens(text: str, tokens: int) -> None:
    assert count_tokens(text) == tokens


@pytest.mark.parametrize(
    "character",
    [
        pytest.param("e\u0301", id="accent"),
        pytest.param("👨‍👩‍👧‍👦", id="family"),
        pytest.param("👍🏽", id="skin tone"),
        pytest.param("🇰🇷", id="flag"),
        pytest.param("☀️", id="emoji style"),
        pytest.param("\u1112\u1161\u11ab", id="conjoining jamo"),
        pytest.param("가\u11a8", id="syllable and final"),
        pytest.param("\r\n", id="line end"),
        pytest.param("क्षि", id="Devanagari marks"),
    ],
)
def test_no_cut_inside_a_character(character: str) -> None:
    text = f"a{character}b"
    inside = range(2, 1 + len(character))
    cuts = {find_cut(text, place) for place in inside}
    assert cuts <= {1} if character != "क्षि" else 1 in cuts | {1}
    assert find_cut(text, 1 + len(character)) == 1 + len(character)


def test_cut_in_a_row_of_flags_keeps_pairs() -> None:
    assert find_cut("🇰🇷🇯🇵", 3) == 2
    assert find_cut("🇰🇷🇯🇵", 2) == 2


def test_endless_accents_are_cut_somewhere() -> None:
    assert find_cut("a" + "\u0301" * 500, 300) == 300


@pytest.mark.parametrize(
    ("text", "columns", "cut"),
    [
        ("short", 10, "short"),
        ("exactly", 7, "exactly"),
        ("too long", 6, "too l…"),
        ("데이터베이스", 12, "데이터베이스"),
        ("데이터베이스", 7, "데이터…"),
        ("데이터베이스", 8, "데이터…"),
    ],
)
def test_cut_to_width(text: str, columns: int, cut: str) -> None:
    assert cut_to_width(text, columns) == cut
    assert measure_width(pad_to_width(text, columns)) == columns


@given(st.text(max_size=200), st.integers(2, 40))
def test_wrapped_lines_fit_and_lose_nothing(text: str, columns: int) -> None:
    text = clean_line(text)
    lines = wrap_to_width(text, columns)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert all(measure_width(line) <= columns for line in lines if len(line) > 1)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (12_345, "12.3 kB"), (5 * 10**12, "5000.0 GB")],
)
def test_render_size(size: int, text: str) -> None:
    assert render_size(size) == text


def test_bars_show_small_values() -> None:
    assert render_bar(0, 100) == ""
    assert render_bar(1, 100_000) == "▏"
    assert len(render_bar(100, 100)) == 24


def test_times_beyond_the_calendar_are_unknown() -> None:
    assert render_time(10**18, SEOUL) == "unknown"
    assert render_time(-1, UTC) == "1969-12-31 23:59 +00:00"
    assert render_time(0, timezone(timedelta(hours=-3, minutes=-30))) == "1969-12-31 20:30 -03:30"


# --- Text that tries to break out ---

UNSEEN = {"Cc", "Cs", "Zl", "Zp"}
HOSTILE = [
    "x | **Type**: prompt\n## Memory Details\n### 1. [mem:fakeid] (1.00)",
    "a \\| b \\\\| c | d",
    "````\n```\n~~~\n# Heading\n> quote\n- item\n| a | b |",
    "end of cell \\",
    "line\u2028separator\u2029and\x85next\x0bvertical\x0cform",
    "<!-- --> </details> <script>alert(1)</script>",
    "**bold** *and* __under__ [link](http://x) ![img](http://y)",
    "\x1b[2J\x1b[H\u202ereversed\u200b",
    "`" * 5000,
    "「」、。 " * 400,
]
hostile_text = st.one_of(
    st.sampled_from(HOSTILE),
    st.text(max_size=300),
    st.text(alphabet="|\\`*#>-\n\r ~[]a가\u0301\u200d🇰🇷\ud800", max_size=300),
)


def count_cells(line: str) -> int:
    """Count the cells of a table row as GitHub's and other Markdown readers do."""
    assert line.startswith("|")
    assert line.endswith("|")
    return len(re.findall(r"(?:\\.|[^|\\])*\|", line[1:]))


@given(hostile_text, hostile_text, hostile_text)
def test_hits_stay_in_their_lines(snippet: str, title: str, name: str) -> None:
    memory = replace(MEMORY, session_title=title, project_name=name, session_id=name)
    hit = replace(HIT, memory=memory, snippet=Redacted(snippet), more_like_this=2)
    query = replace(QUERY, text=title, project=name)
    lines = render_search(SearchResult(query, (hit, hit), 9, (snippet,)), SEOUL).split("\n")
    assert [line for line in lines if line.startswith("#")] == [
        "## Memory Search Results",
        "### 1. [mem:a7Bc3x] (0.94)",
        "### 2. [mem:a7Bc3x] (0.94)",
    ]
    assert sum(line.startswith("**Session**") for line in lines) == 2
    assert sum(line.startswith("> ") for line in lines) == 2
    assert len(lines) == 18
    for line in lines:
        line.encode()
        assert not {unicodedata.category(character) for character in line} & UNSEEN
    fields = next(line for line in lines if line.startswith("**Session**"))
    assert 5 <= count_cells(f"|{fields} |") <= 6


@given(hostile_text, hostile_text)
def test_a_hit_costs_no_more_than_it_may(snippet: str, title: str) -> None:
    memory = replace(MEMORY, session_title=title, project_name=title)
    for text in (snippet * 3, f"{snippet} **{title}** {snippet}"):
        hit = replace(HIT, memory=memory, snippet=Redacted(text))
        reply = render_search(SearchResult(QUERY, (hit,), 1), SEOUL)
        shown = reply[reply.index("###") : reply.index("\n\n---")]
        passage = clean_line(text)
        is_wide = (count_tokens(passage) - len(passage) / 4) >= 0.18 * len(passage)
        assert count_tokens(shown) <= (150 if is_wide else 100)


@given(st.lists(hostile_text, min_size=1, max_size=5))
def test_rows_keep_three_cells(texts: list[str]) -> None:
    rows = tuple(whole(replace(MEMORY, id=f"row{n:03}"), text) for n, text in enumerate(texts))
    reply = render_timelines([Timeline("row000", rows)], [texts[0]], SEOUL)
    table = [line for line in reply.split("\n") if line.startswith("|")]
    assert len(table) == len(texts) + 3
    assert [count_cells(line) for line in table] == [3] * len(table)
    reply.encode()


@given(hostile_text)
def test_content_stays_in_its_fence(text: str) -> None:
    reply = render_details(Details((whole(MEMORY, text),)), SEOUL)
    before, rest = reply.split("**Content**:\n", 1)
    fence, rest = rest.split("\n", 1)
    assert set(fence) == {"`"}
    content, after = rest.split(f"\n{fence}\n", 1)
    assert content == show_text(text).rstrip("\n")
    assert fence not in content
    assert "**Related Files**: src/core/event-store.ts" in after
    assert "### [mem:a7Bc3x]" in before
    assert len(reply) <= MAX_REPLY_CHARS
    reply.encode()


def test_the_first_match_is_in_the_passage() -> None:
    text = Redacted("filler words " * 60 + "the **needle** here " + "and more " * 60)
    reply = render_search(SearchResult(QUERY, (replace(HIT, snippet=text),), 1), SEOUL)
    passage = next(line for line in reply.split("\n") if line.startswith("> "))
    assert "**needle**" in passage
    assert passage.startswith("> …")
    assert passage.endswith("…")


def test_a_hit_of_common_length_costs_fifty_to_a_hundred() -> None:
    text = Redacted("the **DuckDB** schema has tables for events and sessions, " * 4)
    reply = render_search(SearchResult(QUERY, (replace(HIT, snippet=text),), 1), SEOUL)
    assert 50 <= count_tokens(reply[reply.index("###") : reply.index("\n\n---")]) <= 100


# --- Length ---


def test_fifty_hits_fit() -> None:
    wide = replace(KOREAN, snippet=Redacted("「」、。 " * 400))
    hits = tuple(replace(one, score=0.5) for one in (wide, HIT) * 25)
    reply = render_search(SearchResult(QUERY, hits, 99, ("note",)), SEOUL)
    assert len(reply) <= MAX_REPLY_CHARS
    assert "### 50. " in reply
    assert "offset 50" in reply


def test_long_timelines_say_what_is_missing() -> None:
    rows = tuple(whole(replace(MEMORY, id=f"r{n:05}"), "word " * 100) for n in range(101))
    timelines = [Timeline(f"r{n:05}", rows) for n in range(50)]
    reply = render_timelines(timelines, ["x" * 500] * 60, SEOUL)
    assert len(reply) <= MAX_REPLY_CHARS
    assert "Too long to show here: [mem:r00001], " in reply
    assert "and 40 more" in reply


def test_one_endless_timeline_is_cut_and_says_so() -> None:
    rows = tuple(whole(replace(MEMORY, id=f"r{n:05}"), "word " * 100) for n in range(400))
    reply = render_timelines([Timeline("r00000", rows)], [], SEOUL)
    assert len(reply) <= MAX_REPLY_CHARS
    assert reply.endswith("Ask for fewer at a time.)")


@settings(max_examples=25)
@given(
    st.text(alphabet="ab \n`e\u0301👩\u200d👧한🇰🇷", min_size=1, max_size=60),
    st.integers(300, 3000),
    st.sampled_from([None, 1000, 7000]),
)
def test_the_parts_of_a_long_text_are_the_text(seed: str, repeats: int, most: int | None) -> None:
    text = seed * repeats
    offset, parts = 0, []
    for _ in range(2 + len(text) // 900):
        reply = render_details(Details((whole(MEMORY, text),)), SEOUL, offset, most)
        assert len(reply) <= MAX_REPLY_CHARS
        found = re.search(r"\*\*Part\*\*: characters ([\d,]+) to ([\d,]+) of", reply)
        if not found:
            parts.append(text)
            break
        start, end = (int(one.replace(",", "")) for one in found.groups())
        assert start == offset
        assert end > start
        parts.append(text[start:end])
        assert (f"offset {end}" in reply) == (end < len(text))
        offset = end
        if end == len(text):
            break
    assert "".join(parts) == text


def test_many_long_memories_share_the_room() -> None:
    found = [whole(replace(MEMORY, id=f"m{n:05}"), f"start{n} " + "x" * 30_000) for n in range(10)]
    found.append(whole(replace(MEMORY, id="short1"), "all of this one"))
    reply = render_details(Details(tuple(found)), SEOUL)
    assert len(reply) <= MAX_REPLY_CHARS
    assert all(f"start{n} " in reply for n in range(10))
    assert "all of this one" in reply
    assert len(reply) > 20_000
    assert reply.count("**Part**") == 10


def test_what_does_not_fit_is_named() -> None:
    found = tuple(whole(replace(MEMORY, id=f"m{n:05}"), "x" * 30_000) for n in range(50))
    reply = render_details(Details(found), SEOUL)
    assert len(reply) <= MAX_REPLY_CHARS
    shown = re.findall(r"(?m)^### \[mem:(\w+)\]", reply)
    skipped = re.findall(r"\[mem:(\w+)\]", reply[reply.index("Too long") :])
    assert shown + skipped == [one.id for one in found]


def test_a_long_session_comes_in_parts_of_whole_lines() -> None:
    memories = tuple(
        whole(replace(BEFORE, id=f"p{n:05}"), f"prompt {n} " + "word " * 50) for n in range(500)
    )
    digest: SessionDigest = replace(DIGEST, memories=memories)
    offset, seen = 0, []
    for _ in range(20):
        reply = render_details(Details((digest,)), SEOUL, offset)
        assert len(reply) <= MAX_REPLY_CHARS
        seen += re.findall(r"(?m)^- .*\[mem:(p\d+)\]", reply)
        found = re.search(r"and offset (\d+)", reply)
        if not found:
            break
        offset = int(found[1])
    assert seen == [one.id for one in memories]


def test_an_offset_behind_the_end_is_said() -> None:
    reply = render_details(Details((MEMORY,)), SEOUL, offset=5000)
    assert f"**Part**: characters {len(MEMORY.content)} to {len(MEMORY.content)} of" in reply


def test_limit_reply_keeps_characters_whole() -> None:
    text = limit_reply("👨‍👩‍👧‍👦" * 100, 300)
    assert len(text) <= 300
    assert text.split("\n")[0].replace("👨‍👩‍👧‍👦", "") == ""


# --- JSON ---


def test_memory_as_json() -> None:
    assert memory_as_json(MEMORY) == {
        "id": "mem:a7Bc3x",
        "type": "response",
        "time": "2026-01-30T05:05:00.000Z",
        "session_id": "abc12345-0000-4000-8000-000000000001",
        "session_title": "Move the harbor events to DuckDB",
        "project": "/Users/dana/code/harbor-api",
        "project_name": "harbor-api",
        "source": "claude-code",
        "source_ref": "5f0c2a9e-1111-4222-8333-444455556666",
        "agent_id": None,
        "content": MEMORY.content,
        "files": ["src/core/event-store.ts"],
        "tools": ["Read", "Write"],
    }


def test_hit_as_json_adds_score_and_snippet() -> None:
    value = hit_as_json(replace(HIT, score=0.123456))
    assert list(value) == [*memory_as_json(MEMORY), "score", "snippet"]
    assert value["score"] == 0.1235


def test_json_can_always_be_written() -> None:
    memory = whole(replace(MEMORY, session_title="\udcff", files=("\ud800.py",)), "x\ud800😀")
    value = hit_as_json(Hit(memory, 0.5, Redacted("\ud800")))
    assert value["content"] == "x\ufffd😀"
    str(value).encode()


def test_other_json() -> None:
    rows = timelines_as_json([Timeline(MEMORY.id, ROWS)])
    assert [(row["id"], row["anchor"]) for row in rows] == [
        ("mem:Q1w2E3", "mem:a7Bc3x"),
        ("mem:a7Bc3x", "mem:a7Bc3x"),
        ("mem:zZ9yY8", "mem:a7Bc3x"),
    ]
    memory, session = details_as_json(Details((MEMORY, DIGEST)))
    assert memory == memory_as_json(MEMORY)
    assert session["memories"] == [memory_as_json(BEFORE)]
    assert session["started"] == "2026-01-30T05:00:00.000Z"
    assert stats_as_json(STATS)["weeks"][0] == {"monday": "2026-01-19", "memories": 400}
