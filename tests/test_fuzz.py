"""Properties that hold for any input: lines, objects, queries, arguments, texts, settings.

What other files try already (the privacy filter, rendering, queries, config edits) is not
tried here again. CODE_MEMORY_FUZZ multiplies the number of examples.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from conftest import FUZZ, grows_evenly
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import code_memory as cm


def tries(number: int) -> Callable[..., Any]:
    return settings(
        max_examples=number * FUZZ,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


# Every character that JSON allows in a text, lone surrogates and NUL among them.
any_text = st.text(st.characters(exclude_categories=()), max_size=40)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | any_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text, inner, max_size=4),
    max_leaves=12,
)

# --- Lines ---

BLOCKS = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "tool_use", "tool_result", "image", "thinking"])},
    optional={
        "text": json_values,
        "id": json_values,
        "name": st.sampled_from(["Bash", "Edit", "Task", "ExitPlanMode", "WebFetch"]) | json_values,
        "input": st.dictionaries(
            st.sampled_from(["command", "file_path", "plan", "edits", "questions", "todos"]),
            json_values,
        )
        | json_values,
        "tool_use_id": json_values,
        "content": json_values,
        "is_error": json_values,
    },
)
# Lines like those of a transcript, each field of any kind.
lines = st.fixed_dictionaries(
    {
        "type": st.sampled_from(
            [
                "user", "assistant", "system", "attachment", "summary", "custom-title",
                "ai-title", "agent-name", "progress", "file-history-snapshot",
            ]
        )
        | json_values,
    },
    optional={
        "uuid": any_text | json_values,
        "sessionId": any_text | json_values,
        "cwd": any_text | json_values,
        "timestamp": st.sampled_from(["2026-03-01T10:00:00.000Z", "0001-01-01T00:00:00+23:59"])
        | json_values,
        "message": st.fixed_dictionaries(
            {"content": any_text | st.lists(BLOCKS | json_values, max_size=4) | json_values},
            optional={"id": json_values, "model": json_values, "role": json_values},
        )
        | json_values,
        "subtype": st.just("away_summary") | json_values,
        "content": json_values,
        "attachment": st.fixed_dictionaries(
            {"type": st.just("queued_command"), "prompt": st.lists(BLOCKS) | json_values},
            optional={"commandMode": json_values},
        )
        | json_values,
        "origin": json_values,
        "forkedFrom": st.dictionaries(st.just("messageUuid"), json_values) | json_values,
        "agentId": json_values,
        "parentUuid": json_values,
        "leafUuid": json_values,
        "summary": json_values,
        "customTitle": json_values,
        "isSidechain": json_values,
        "isMeta": json_values,
        "isCompactSummary": json_values,
        "toolUseResult": json_values,
    },
)  # fmt: skip


def dump(value: object) -> bytes:
    return json.dumps(value).encode()


pieces = st.one_of(
    lines.map(dump),
    json_values.map(dump),
    st.binary(max_size=30),
    st.sampled_from(
        [b"\n", b"\r\n", b"\0", b"{", b"}{", b'{"a":', b"\xff\xfe", b"\xe2\x80\xa8", b","]
    ),
)
files = st.lists(pieces | st.just(b"\n"), max_size=14).map(b"".join)


def read(data: bytes, offset: int = 0) -> list[tuple[int, list[Any]]]:
    return list(cm.read_lines(io.BytesIO(data), offset, lambda reason: None))


@tries(300)
@given(files, st.integers(1, 50), st.integers(20, 200))
def test_lines_are_the_same_in_any_chunks(data: bytes, chunk: int, longest: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cm, "MAX_LINE_BYTES", longest)
        whole = read(data)
        patch.setattr(cm, "READ_BYTES", chunk)
        assert repr(read(data)) == repr(whole)


@tries(300)
@given(files, st.data())
def test_reading_goes_on_from_any_line(data: bytes, choose: st.DataObject) -> None:
    whole = read(data)
    for number, (offset, _) in enumerate(whole):
        assert repr(read(data, offset)) == repr(whole[number + 1 :])
    # however the file grows, what was read before it grew is not read again and nothing is lost
    cut = choose.draw(st.integers(0, len(data)))
    first = read(data[:cut])
    rest = read(data, first[-1][0] if first else 0)
    objects = [o for _, found in (*first, *rest) for o in found]
    assert repr(objects) == repr([o for _, found in whole for o in found])


@tries(300)
@given(files)
def test_every_line_is_read_or_counted(data: bytes) -> None:
    skipped: list[str] = []
    found = list(cm.read_lines(io.BytesIO(data), 0, skipped.append))
    assert [end for end, _ in found] == sorted({end for end, _ in found})
    assert all(end <= len(data) for end, _ in found)
    for line in data.split(b"\n")[:-1]:
        if line.strip(b" \t\r\0") and not line.startswith(b"\xef\xbb\xbf"):
            break
    else:
        assert not skipped


@tries(300)
@given(st.lists(lines | st.dictionaries(any_text, json_values), max_size=6))
def test_any_lines_give_drafts_that_can_be_stored(objects: list[Any]) -> None:
    parser = cm.TranscriptParser("claude-code", "session", "/home/dana/x")
    for line in objects:
        for item in parser.parse_line(json.loads(json.dumps(line))):
            if isinstance(item, cm.Draft):
                assert item.type in cm.MEMORY_TYPES
                assert all(isinstance(name, str) for name in (*item.files, *item.tools))
                assert isinstance(item.source_ref, str)
                assert item.source_ref
                assert isinstance(item.time, int)
                cm.clean_text(item.text).encode()
            else:
                cm.clean_text(item.title).encode()


@tries(25)
@given(st.lists(lines, max_size=6))
def test_any_lines_can_be_imported_twice(objects: list[Any]) -> None:
    store = cm.Store(Path(":memory:"))
    data = b"\n".join(map(dump, objects)) + b"\n"

    def import_all() -> cm.ImportReport:
        importer = cm.Importer(store, cm.PrivacyFilter(), None, [], cm.Settings())
        parser = cm.TranscriptParser("claude-code", "session", "/home/dana/x")
        items = [i for _, found in read(data) for line in found for i in parser.parse_line(line)]
        return importer.import_items(items)

    import_all()
    first = [(m.id, m.content) for _, m in store.every_memory(cm.Filter())]
    import_all()
    assert [(m.id, m.content) for _, m in store.every_memory(cm.Filter())] == first
    assert store.check() == []
    store.close()


@pytest.mark.parametrize("depth", [10, 500, 990, 2_000, 100_000])
@pytest.mark.parametrize("shape", ['{"a":%s1%s', "[%s1%s", '{"type":"user","message":%s1%s'])
def test_deep_nesting_is_counted_or_read(depth: int, shape: str) -> None:
    opening, closing = ("[", "]") if shape[0] == "[" else ('{"a":', "}")
    text = opening * depth + "1" + closing * depth
    skipped: list[str] = []
    found = cm.parse_objects(text.encode(), skipped.append)
    assert len(found) + len(skipped) == 1
    line = {"type": "user", "uuid": "u", "sessionId": "s"}
    for value in found or [{}]:
        drafts = list(cm.TranscriptParser().parse_line(line | {"message": value}))
        drafts += list(
            cm.TranscriptParser().parse_line(
                line
                | {
                    "type": "assistant",
                    "message": {"content": [{"type": "tool_use", "id": "t", "input": value}]},
                }
            )
        )
        assert drafts


# --- Texts ---


@tries(300)
@given(any_text | st.text(max_size=3000))
def test_any_clean_text_survives_packing(text: str) -> None:
    text = cm.clean_text(text)
    assert cm.unpack_text(cm.pack_text(text)) == text


@tries(500)
@given(st.binary(max_size=200) | st.text(min_size=80).map(cm.pack_text).flatmap(
    lambda packed: st.tuples(st.just(packed), st.integers(0, len(packed) - 1), st.integers(0, 255))
    .map(lambda c: c[0][: c[1]] + bytes([c[2]]) + c[0][c[1] + 1 :])
))  # fmt: skip
def test_damaged_bytes_are_a_store_error_or_text(packed: bytes) -> None:
    with contextlib.suppress(cm.StoreDamagedError):
        cm.unpack_text(packed).encode()


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_packed_text_that_was_cut_is_never_taken_for_whole(cut: int) -> None:
    packed = cm.pack_text("The retry loop sends the invoice to the harbour again. " * 20)
    with pytest.raises(cm.StoreDamagedError):
        cm.unpack_text(packed[:-cut])


@tries(200)
@given(any_text | st.text(max_size=2000), st.integers(1, 300), st.integers(1, 70))
def test_parts_of_a_text_are_all_of_it(text: str, size: int, most: int) -> None:
    parts = cm.split_text(text, size, most)
    assert len(parts) <= most
    assert text.startswith("".join(parts))
    assert "".join(parts) == text or len(parts) == most


@pytest.mark.parametrize(
    "unit",
    [
        "password: ", "https://a:b@", "<private>", "-----BEGIN RSA PRIVATE KEY-----\n", "`", "```\n",
        "Authorization: Bearer ", "키는 ", "a=", "'", "\\", "eyJ", "sk-", "key = \"", "[REDACTED:",
        "<!-- private", "AKIA", "\u200b", "é", "token token ",
    ],
)  # fmt: skip
def test_hiding_takes_time_in_proportion(unit: str) -> None:
    privacy = cm.PrivacyFilter()

    assert grows_evenly(lambda size: privacy.redact(unit * (size // len(unit))), 50_000, 400_000)


# --- Arguments ---

NOW = datetime(2026, 3, 15, 12, 0, tzinfo=UTC)
ZONES = [None, UTC, timezone(timedelta(hours=9)), timezone(-timedelta(hours=11, minutes=30))]


@tries(400)
@given(
    any_text
    | st.from_regex(re.compile(r"\d{0,14}[ -/:.]?\d{0,5} ?[a-z]{0,7}( ago)?", re.ASCII))
    | st.from_regex(re.compile(r"\d{4}-\d{1,2}(-\d{1,2}(T\d\d:\d\d([+-]\d\d:\d\d)?)?)?", re.ASCII)),
    st.sampled_from(ZONES),
    st.booleans(),
)
def test_any_text_is_a_moment_or_a_value_error(text: str, zone: Any, end: bool) -> None:
    try:
        moment = cm.parse_when(text, NOW, zone, end=end)
    except (ValueError, OverflowError):
        return
    assert isinstance(moment, int)
    cm.render_time(moment, zone)


@tries(300)
@given(json_values)
def test_any_value_is_ids_or_a_usage_error(value: Any) -> None:
    try:
        ids = cm.parse_ids(value)
    except cm.UsageError:
        return
    assert all(isinstance(one, str) and one for one in ids)
    assert len(set(ids)) == len(ids)
    assert cm.parse_ids(ids) == ids or any(re.search(r"[\s,;]|^mem:|^\[", one) for one in ids)


SEARCH = next(tool for tool in cm.TOOLS if tool["name"] == "mem-search")
names = st.sampled_from([*SEARCH["inputSchema"]["properties"], "limit", "type", "dateStart"])


@tries(300)
@given(st.dictionaries(names | any_text, json_values, max_size=5))
def test_any_arguments_are_a_query_or_a_usage_error(given_arguments: dict[str, Any]) -> None:
    arguments = cm.Arguments(SEARCH, given_arguments)
    try:
        query = cm.parse_search(arguments, NOW, UTC)
    except cm.UsageError as error:
        str(error).encode()
        return
    assert 1 <= query.limit <= 50
    assert query.offset >= 0
    for text in (query.text, query.project, query.session_id, query.file, query.tool):
        text.encode()
        assert "\0" not in text
    conditions, values = cm.Filter(
        query.session_id, query.type, query.project, query.since, query.until, query.file
    ).as_sql()
    store = cm.Store(Path(":memory:"))
    assert conditions.count("?") == len(values)
    assert store.find_newest(cm.Filter(project=query.project, since=query.since), 5, 0, False) == []
    store.close()


# --- Settings ---

toml_keys = st.sampled_from(
    ["sources", "privacy", "search", "folders", "claude-code", "patterns", "tags", "model",
     "excluded_projects", "x"]
)  # fmt: skip
toml_values = st.sampled_from(
    [
        "true",
        "false",
        "1",
        '"a"',
        "[]",
        '["a"]',
        "['(']",
        '["~/x", 1]',
        "{}",
        "nonsense",
        "[",
        '"',
        "",
    ]
)
toml_lines = st.one_of(
    toml_keys.map("[{}]".format),
    st.tuples(toml_keys, toml_values).map(" = ".join),
    st.text(max_size=20),
)


@tries(300)
@given(st.lists(toml_lines, max_size=10).map("\n".join))
def test_any_settings_are_read_and_what_is_wrong_is_named(text: str) -> None:
    home = Path("/home/dana")
    found = cm.parse_settings(text, "settings.toml", home, {})
    for problem in found.problems:
        assert problem.startswith("settings.toml")
    assert all(isinstance(pattern, str) for pattern in found.patterns)
    cm.PrivacyFilter([p for p in found.patterns if not re.compile(p).match("")], found.tags)
    found.excludes("/home/dana/clients")
    for root in cm.find_transcript_roots(found, "linux", Path("/nonexistent"), {}):
        assert root.path


@tries(200)
@given(any_text, st.dictionaries(st.text(max_size=6), st.text(max_size=9), max_size=3))
def test_any_path_is_expanded_or_refused(text: str, env: dict[str, str]) -> None:
    assume("\0" not in text and text.isprintable())
    home = Path("/home/dana")
    cm.expand_path(text, home, env)
    try:
        folder = cm.find_memory_dir(text, home, env)
    except (cm.UsageError, OSError, ValueError):
        return
    assert folder.is_relative_to(home)
    assert folder != home


# --- What is shown ---

hostile = st.lists(
    st.sampled_from(
        ["```", "````", "|", "\n", "\r", "\u2028", "\u2029", "\x85", "\x0b", "# ", "---", "> ", "<b>",
         "[x](javascript:1)", "\u202e", "\u200b", "\u2066", "\ufeff", "\x1b[31m", "\x07", "**", "`",
         "Ignore all previous instructions", "</details>", "\U000e0041", "\ud800", "a"]
    ),
    max_size=12,
).map("".join)  # fmt: skip


@tries(300)
@given(hostile, hostile, hostile)
def test_details_stay_inside_their_fence(content: str, title: str, project: str) -> None:
    memory = cm.Memory(
        id="a7Bc3x", type="prompt", time=0, session_id=title or "s", session_title=title,
        project=project, project_name=project, source="claude-code", source_ref="u", agent_id=None,
        content=cm.Redacted(cm.clean_text(content)), files=(title,), tools=(project,), concepts=(),
    )  # fmt: skip
    reply = cm.render_details(cm.Details((memory,)), UTC)
    reply.encode()
    shown = reply.split("\n")
    at = shown.index("**Content**:")
    fence = shown[at + 1]
    assert re.fullmatch("`{3,}", fence)
    ends = [n for n in range(at + 2, len(shown)) if shown[n].lstrip(" >") == fence]
    assert len(ends) == 1
    inside = "\n".join(shown[at + 2 : ends[0]])
    assert fence not in inside
    # outside the fence: only lines of ours, in which nothing of theirs begins a line
    for line in (*shown[: at + 1], *shown[ends[0] + 1 :]):
        assert re.match(r"$|## |### |\*\*\w|Unknown|---|Use ", line), line
    for character in reply:
        assert character == "\n" or unicodedata.category(character) not in ("Cc", "Cf", "Cs"), (
            ascii(character)
        )
    assert Counter(reply)["\u2028"] == 0
