"""The tools through the SDK's own client, and the pipe with a real process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from conftest import WAIT, wait_until
from hypothesis import given
from hypothesis import strategies as st
from server_fakes import MEMORY, FakeRecall

from code_memory import (
    APOLOGY,
    CALLS_IN_FLIGHT,
    END_GRACE_SECONDS,
    INSTRUCTIONS,
    MAX_MESSAGE_BYTES,
    MAX_REPLY_CHARS,
    PROMPTS,
    TOOLS,
    Arguments,
    CancelToken,
    SearchQuery,
    UsageError,
    answer_call,
    build_prompt,
    build_server,
    describe_fault,
    parse_ids,
    parse_message,
    parse_search,
    parse_when,
)

SEOUL = timezone(timedelta(hours=9))
NOW = datetime(2026, 1, 30, 5, 5, tzinfo=UTC)  # a Friday, 14:05 in Seoul
FAKE_SERVER = Path(__file__).with_name("fake_server.py")
TOOL = {tool["name"]: tool for tool in TOOLS}
SLOW = str(3 * WAIT)  # seconds that a slow search takes: nobody may wait for it


def call(name: str, arguments: Any, recall: FakeRecall | None = None) -> tuple[str, bool]:
    found = recall or FakeRecall()
    return answer_call(name, arguments, lambda: found, SEOUL, CancelToken())


# --- Arguments ---


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("2026-01-30", "2026-01-30T00:00", "2026-01-31T00:00"),
        ("2026/1/5", "2026-01-05T00:00", "2026-01-06T00:00"),
        ("2026-12", "2026-12-01T00:00", "2027-01-01T00:00"),
        ("2025", "2025-01-01T00:00", "2026-01-01T00:00"),
        ("today", "2026-01-30T00:00", "2026-01-31T00:00"),
        ("Yesterday", "2026-01-29T00:00", "2026-01-30T00:00"),
        ("this week", "2026-01-26T00:00", "2026-02-02T00:00"),
        ("last_week", "2026-01-19T00:00", "2026-01-26T00:00"),
        ("last month", "2025-12-01T00:00", "2026-01-01T00:00"),
        ("this month", "2026-01-01T00:00", "2026-02-01T00:00"),
        ("last year", "2025-01-01T00:00", "2026-01-01T00:00"),
        ("now", "2026-01-30T14:05", "2026-01-30T14:05"),
        ("7d", "2026-01-23T14:05", "2026-01-23T14:05"),
        ("2 weeks ago", "2026-01-16T14:05", "2026-01-16T14:05"),
        ("last 3 hours", "2026-01-30T11:05", "2026-01-30T11:05"),
        ("1m", "2025-12-31T14:05", "2025-12-31T14:05"),
        ("2026-01-30 10:30", "2026-01-30T10:30", "2026-01-30T10:30"),
        ("2026-01-30T01:30:00Z", "2026-01-30T10:30", "2026-01-30T10:30"),
        ("1769736600", "2026-01-30T10:30", "2026-01-30T10:30"),
        ("1769736600000", "2026-01-30T10:30", "2026-01-30T10:30"),
    ],
)
def test_parse_when(text: str, start: str, end: str) -> None:
    def at(local: str) -> int:
        return round(datetime.fromisoformat(local).replace(tzinfo=SEOUL).timestamp() * 1000)

    assert parse_when(text, NOW, SEOUL) == at(start)
    assert parse_when(text, NOW, SEOUL, end=True) == at(end)


@pytest.mark.parametrize(
    "text", ["soon", "7x", "2026-13-01", "2026-02-30", "0000", "-7d", "", "9999"]
)
def test_parse_when_refuses(text: str) -> None:
    with pytest.raises((ValueError, OverflowError)):
        parse_when(text, NOW, SEOUL, end=True)


def test_a_day_has_the_length_that_its_zone_gives_it() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    start = parse_when("2026-03-29", NOW, berlin)
    assert parse_when("2026-03-29", NOW, berlin, end=True) - start == 23 * 3_600_000


@pytest.mark.parametrize(
    ("given_ids", "ids"),
    [
        pytest.param("mem:a7Bc3x", ["a7Bc3x"], id="one text"),
        pytest.param(
            ["a7Bc3x", "[mem:Q1w2E3]", "`mem:x`"], ["a7Bc3x", "Q1w2E3", "x"], id="dressed"
        ),
        pytest.param("mem:a, mem:b\nmem:c", ["a", "b", "c"], id="several in a text"),
        pytest.param('["mem:a", "mem:b"]', ["a", "b"], id="JSON in a text"),
        pytest.param('["mem:a", ', ["a"], id="half a JSON"),
        pytest.param([12, "#S3"], ["#12", "#S3"], id="claude-mem numbers"),
        pytest.param(["toolu_01Ab", "a", "a"], ["toolu_01Ab", "a"], id="source ids, doubles"),
        pytest.param(None, [], id="nothing"),
        pytest.param([None, "", "[]"], [], id="empty ones"),
        pytest.param(["mem:a mem:b"], ["a", "b"], id="several in one of a list"),
    ],
)
def test_parse_ids(given_ids: object, ids: list[str]) -> None:
    assert parse_ids(given_ids) == ids


def search_query(**arguments: Any) -> SearchQuery:
    return parse_search(Arguments(TOOL["mem-search"], arguments), NOW, SEOUL)


@pytest.mark.parametrize(
    ("arguments", "query"),
    [
        pytest.param({"query": "a"}, SearchQuery("a"), id="only a query"),
        pytest.param({"query": "a", "topK": "7"}, SearchQuery("a", limit=7), id="number as text"),
        pytest.param({"query": "a", "topK": 7.0}, SearchQuery("a", limit=7), id="whole float"),
        pytest.param({"query": "a", "topK": 900}, SearchQuery("a", limit=50), id="too many"),
        pytest.param({"query": "a", "topK": None}, SearchQuery("a"), id="null is not given"),
        pytest.param({"query": "a", "top_k": 3}, SearchQuery("a", limit=3), id="snake case"),
        pytest.param({"query": 404}, SearchQuery("404"), id="a number to look for"),
        pytest.param({"query": ["a"]}, SearchQuery("a"), id="list of one"),
        pytest.param(
            {"query": "a", "limit": 3, "topK": 4}, SearchQuery("a", limit=4), id="new name wins"
        ),
        pytest.param(
            {"topK": 4, "limit": 3, "query": "a"}, SearchQuery("a", limit=4), id="in either order"
        ),
        pytest.param(
            {
                "query": "",
                "limit": 3,
                "type": "user_prompt",
                "projectPath": "/p",
                "obs_type": "bugfix,feature",
            },
            SearchQuery("", limit=3, type="prompt", project="/p", concept="bugfix"),
            id="older names",
        ),
        pytest.param(
            {"eventType": "session_summary", "file": "a.py", "tool": "Bash", "order": "newest"},
            SearchQuery(type="insight", file="a.py", tool="Bash", order="newest"),
            id="filters without a query",
        ),
        pytest.param(
            {"query": "a", "dateStart": "2026-01-29", "dateEnd": "2026-01-29"},
            SearchQuery("a", since=1769612400000, until=1769698800000),
            id="one day",
        ),
        pytest.param({"query": "a\0b\ud800"}, SearchQuery("a b\ufffd"), id="unstorable characters"),
        pytest.param({"query": "x" * 9_000}, SearchQuery("x" * 4_000), id="a very long query"),
    ],
)
def test_parse_search(arguments: dict[str, Any], query: SearchQuery) -> None:
    assert search_query(**arguments) == query


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("mem-search", {}, 'mem-search needs a query, or "" together with a filter.'),
        ("mem-search", {"query": {"a": 1}}, "query must be text."),
        ("mem-search", {"query": "a", "topK": "many"}, "topK must be a whole number from 1 to 50."),
        ("mem-search", {"query": "a", "topK": True}, "topK must be a whole number from 1 to 50."),
        ("mem-search", {"query": "a", "topK": [5]}, "topK must be a whole number from 1 to 50."),
        (
            "mem-search",
            {"query": "a", "topK": float("nan")},
            "topK must be a whole number from 1 to 50.",
        ),
        (
            "mem-search",
            {"query": "a", "eventType": "email"},
            "eventType must be one of prompt, response, tool, insight.",
        ),
        (
            "mem-search",
            {"query": "a", "order": 1},
            "order must be one of relevance, newest, oldest.",
        ),
        (
            "mem-search",
            {"query": "a", "since": "soon"},
            "since must be a date such as 2026-01-30, an age such as 7d or 2w, or yesterday.",
        ),
        (
            "mem-search",
            {"query": "a", "since": "today", "until": "2020"},
            "since must be earlier than until.",
        ),
        ("mem-timeline", {}, "mem-timeline needs ids from mem-search, or a query."),
        ("mem-details", {}, "mem-details needs ids, such as mem:a7Bc3x from mem-search."),
        ("mem-details", {"ids": {}}, "ids must be a list of ids such as mem:a7Bc3x."),
        ("mem-details", {"ids": [[]]}, "ids must be a list of ids such as mem:a7Bc3x."),
    ],
)
def test_wrong_arguments_are_told_in_one_sentence(
    name: str, arguments: dict[str, Any], message: str
) -> None:
    assert call(name, arguments) == (message, True)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=6,
)
argument_names = st.sampled_from(
    [*TOOL["mem-search"]["inputSchema"]["properties"], "ids", "limit", "anchor", "before"]
)


@given(
    st.sampled_from(list(TOOL)),
    st.dictionaries(argument_names | st.text(max_size=9), json_values, max_size=5),
)
def test_any_arguments_get_an_answer(name: str, arguments: dict[str, Any]) -> None:
    text, _ = call(name, arguments)
    assert text != APOLOGY
    assert 0 < len(text) <= MAX_REPLY_CHARS
    assert "Traceback" not in text
    text.encode()


# --- Replies ---


def test_unknown_arguments_are_named_below_the_reply() -> None:
    text, is_error = call("mem-search", {"query": "DuckDB", "foo": 1, "b`ar\n": 2, "topK": 99})
    assert not is_error
    assert text.endswith(
        "\n\nUnknown arguments, ignored: foo, b'ar.\ntopK goes from 1 to 50; 50 was used."
    )


def test_the_longest_reply_keeps_the_limit() -> None:
    arguments = {"query": "huge " + "x" * 300, "topK": 50} | {f"unknown{n}": n for n in range(99)}
    text, _ = call("mem-search", arguments)
    assert len(text) <= MAX_REPLY_CHARS
    assert "and 89 more" in text


def test_the_four_tools_answer() -> None:
    assert "### 1. [mem:a7Bc3x] (0.94)" in call("mem-search", {"query": "DuckDB schema"})[0]
    timeline = call("mem-timeline", {"anchor": "mem:a7Bc3x", "depth_before": 0})[0]
    assert "**[mem:a7Bc3x]" in timeline
    assert "Q1w2E3" not in timeline
    assert "CREATE TABLE" in call("mem-details", {"ids": "[mem:a7Bc3x]"})[0]
    assert "**Memories**: 1,234" in call("mem-stats", {"projectPath": "harbor"})[0]


def test_an_unknown_id_does_not_hide_the_others() -> None:
    text, is_error = call("mem-details", {"ids": ["nosuch", "a7Bc3x"]})
    assert not is_error
    assert "CREATE TABLE" in text
    assert "Unknown: nosuch." in text


def test_an_expected_error_is_one_plain_line() -> None:
    text, is_error = call("mem-search", {"query": "damaged"})
    assert is_error
    assert text == "The store is damaged; run `code-memory rebuild`."


def test_an_unexpected_fault_is_an_apology(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("mem-search", {"query": "fault ABRACADABRA"}) == (APOLOGY, True)
    log = capsys.readouterr().err
    assert "ValueError" in log
    assert "server_fakes.py" in log
    assert "ABRACADABRA" not in log


def test_faults_are_described_without_their_messages() -> None:
    try:
        try:
            raise KeyError("secret one")
        except KeyError as error:
            raise RuntimeError("secret two") from error
    except RuntimeError as error:
        text = describe_fault(error)
        group = describe_fault(ExceptionGroup("secret three", [error]))
    assert "builtins.KeyError\n" in text
    assert "builtins.RuntimeError\n" in text
    assert "RuntimeError" in group
    assert "secret t" not in (text + group).replace('"secret two"', "").replace(
        '"secret three"', ""
    )


def test_prompts() -> None:
    assert "about this: flaky tests ###" in build_prompt("recall", {"topic": "flaky\ntests ###"})
    assert '"7d"' in build_prompt("last-week", {})
    with pytest.raises(UsageError, match="needs a topic"):
        build_prompt("recall", {"topic": " "})
    with pytest.raises(UsageError, match="Unknown prompt"):
        build_prompt("other", {})


def test_what_a_model_reads_is_short() -> None:
    assert len(INSTRUCTIONS.split()) < 120
    assert [tool["name"] for tool in TOOLS] == [
        "mem-search",
        "mem-timeline",
        "mem-details",
        "mem-stats",
    ]
    assert [prompt["name"] for prompt in PROMPTS] == ["recall", "last-week"]


# --- Through the SDK's client, in this process ---

PROTOCOLS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"]


def in_process(recall: FakeRecall, mode: str = "auto") -> Any:
    from mcp.client import Client

    return Client(build_server(lambda: recall, SEOUL), mode=mode)


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28", "auto"])
def test_the_client_of_the_sdk(mode: str) -> None:
    async def talk() -> None:
        async with in_process(FakeRecall(), mode) as client:
            tools = (await client.list_tools()).tools
            size = len(
                json.dumps([tool.model_dump(by_alias=True, exclude_none=True) for tool in tools])
            )
            assert size < 4_600
            for tool in tools:
                assert tool.output_schema is None
                assert tool.title
                hints = tool.annotations
                assert hints is not None
                assert (hints.read_only_hint, hints.idempotent_hint) == (True, True)
                assert hints.open_world_hint is False
            result = await client.call_tool("mem-search", {"query": "DuckDB schema"})
            assert result.structured_content is None
            assert not result.is_error
            [content] = result.content
            assert content.text.startswith("## Memory Search Results\n\nFound 1 relevant memory")
            wrong = await client.call_tool("mem-search", {"query": "a", "topK": "many"})
            assert wrong.is_error
            assert wrong.content[0].text == "topK must be a whole number from 1 to 50."
            assert [one.name for one in (await client.list_prompts()).prompts] == [
                "recall",
                "last-week",
            ]
            prompt = await client.get_prompt("recall", {"topic": "harbor"})
            assert "harbor" in prompt.messages[0].content.text

    asyncio.run(talk())


def test_protocol_errors_are_worded_by_us() -> None:
    from mcp.shared.exceptions import MCPError

    async def talk() -> None:
        async with in_process(FakeRecall()) as client:
            with pytest.raises(MCPError, match=r"^Unknown tool\. The tools are mem-search, "):
                await client.call_tool("mem-forget", {})
            with pytest.raises(MCPError, match=r"^The prompt recall needs a topic\.$"):
                await client.get_prompt("recall", {})

    asyncio.run(talk())


def test_calls_work_side_by_side_and_the_rest_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_SLOW", SLOW)
    recall = FakeRecall()

    async def talk() -> None:
        async with in_process(recall) as client:
            await client.call_tool("mem-stats", {})
            calls = [
                asyncio.ensure_future(client.call_tool("mem-search", {"query": "slow"}))
                for _ in range(CALLS_IN_FLIGHT + 4)
            ]
            await asyncio.to_thread(wait_until, lambda: recall.searching == CALLS_IN_FLIGHT)
            assert (await client.list_tools()).tools  # what takes no thread waits for none
            recall.let_go.set()
            await asyncio.gather(*calls)

    try:
        asyncio.run(talk())
    finally:
        recall.let_go.set()
    assert recall.most_searching == CALLS_IN_FLIGHT
    assert len(recall.queries) == CALLS_IN_FLIGHT + 4


def test_a_cancelled_call_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_SLOW", SLOW)
    recall = FakeRecall()

    async def talk() -> None:
        async with in_process(recall) as client:
            task = asyncio.ensure_future(client.call_tool("mem-search", {"query": "slow"}))
            await asyncio.to_thread(wait_until, lambda: recall.searching)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await asyncio.to_thread(wait_until, lambda: recall.interrupted)
            assert not (await client.call_tool("mem-stats", {})).is_error

    try:
        asyncio.run(talk())
    finally:
        recall.let_go.set()
    assert recall.interrupted == 1


def test_a_token_interrupts_at_once_when_it_is_late() -> None:
    cancel, seen = CancelToken(), []
    cancel.cancel()
    with cancel.interrupting(lambda: seen.append(1)):
        assert cancel.cancelled
    cancel.cancel()
    assert seen == [1]


# --- Lines ---


@pytest.mark.parametrize(
    ("line", "code", "request_id"),
    [
        pytest.param(b"garbage", -32700, None, id="no JSON"),
        pytest.param(b'{"jsonrpc":"2.0","id":1,"method":"pi', -32700, None, id="half a message"),
        pytest.param(b"[" * 100_000, -32700, None, id="deeply nested"),
        pytest.param(b"\0" + b"x", -32600, None, id="rest of a line that was too long"),
        pytest.param(b"[]", -32600, None, id="empty batch"),
        pytest.param(b"5", -32600, None, id="number"),
        pytest.param(b'{"id":7}', -32600, 7, id="no method"),
        pytest.param(b'{"jsonrpc":"1.0","id":"a","method":"ping"}', -32600, "a", id="version"),
        pytest.param(b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600, None, id="null id"),
        pytest.param(b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', -32600, None, id="fraction"),
        pytest.param(b'{"jsonrpc":"2.0","id":true,"method":"ping"}', -32600, None, id="boolean"),
        pytest.param(
            b'{"jsonrpc":"2.0","id":3,"method":"ping","params":[]}', -32600, 3, id="params a list"
        ),
    ],
)
def test_what_is_no_message_is_answered(line: bytes, code: int, request_id: object) -> None:
    message, refusal = parse_message(line)
    assert message is None
    assert refusal is not None
    reply = json.loads(refusal)
    assert (reply["error"]["code"], reply["id"]) == (code, request_id)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        pytest.param(
            '\ufeff{"jsonrpc":"2.0","id":1,"method":"x"}\r'.encode(), None, id="BOM, CRLF"
        ),
        pytest.param(
            b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"t":"\xff"}}', "\ufffd", id="no UTF-8"
        ),
        pytest.param(
            b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"t":"\\uD83D\\ude00\\ud800"}}',
            "😀\ufffd",
            id="surrogates",
        ),
    ],
)
def test_odd_messages_are_read(line: bytes, text: str | None) -> None:
    message, refusal = parse_message(line)
    assert refusal is None
    assert message is not None
    params = getattr(message.message, "params", None)
    assert params == (None if text is None else {"t": text})


@given(
    st.binary(max_size=200)
    | st.text(alphabet='{}[]":,0129.eE-truefalsn\\ud8', max_size=99).map(str.encode)
)
def test_any_line_is_a_message_or_is_refused(line: bytes) -> None:
    message, refusal = parse_message(line)
    assert (message is None) != (refusal is None)


# --- A real process ---


class Talk:
    """The fake server as a child process, spoken to line by line."""

    def __init__(self, protocol: str = "2025-06-18", greet: bool = True, **env: str) -> None:
        clean = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        paths = os.pathsep.join(path for path in sys.path if path)
        self.process = subprocess.Popen(
            [sys.executable, str(FAKE_SERVER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**clean, "PYTHONPATH": paths, "FAKE_SCRIPT_GRACE": SLOW, **env},
        )
        self.lines: queue.Queue[bytes | None] = queue.Queue()
        self.errors: list[bytes] = []
        self._threads = [
            threading.Thread(target=work, daemon=True) for work in (self._read, self._read_errors)
        ]
        for thread in self._threads:
            thread.start()
        self.next_id = 0
        if greet:
            self.info = self.ask("initialize", hello(protocol))["result"]
            self.tell("notifications/initialized")

    def _read(self) -> None:
        assert self.process.stdout is not None
        with contextlib.suppress(ValueError):
            for line in self.process.stdout:
                self.lines.put(line)
        self.lines.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors.append(line)

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def tell(self, method: str, params: Any = None) -> None:
        body = {"jsonrpc": "2.0", "method": method} | ({"params": params} if params else {})
        self.write(json.dumps(body).encode() + b"\n")

    def send(self, method: str, params: Any = None, request_id: object = None) -> object:
        self.next_id += 1
        name = self.next_id if request_id is None else request_id
        body = {"jsonrpc": "2.0", "id": name, "method": method, "params": params or {}}
        self.write(json.dumps(body).encode() + b"\n")
        return name

    def receive(self) -> dict[str, Any]:
        line = self.lines.get(timeout=WAIT)
        assert line is not None, "the server ended"
        assert line.endswith(b"\n")
        assert not line.endswith(b"\r\n")
        reply: dict[str, Any] = json.loads(line.decode("utf-8"))
        return reply

    def ask(self, method: str, params: Any = None) -> dict[str, Any]:
        name = self.send(method, params)
        while True:
            reply = self.receive()
            if reply.get("id") == name:
                return reply

    def call(self, name: str, **arguments: Any) -> str:
        reply = self.ask("tools/call", {"name": name, "arguments": arguments})
        [content] = reply["result"]["content"]
        assert content["type"] == "text"
        text: str = content["text"]
        return text

    def wait(self) -> int:
        """Return the exit code."""
        return self.process.wait(WAIT)

    def end_input(self) -> int:
        """Go away, as a client does; return the exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.wait()

    def rest(self) -> list[bytes]:
        """Return what the server, which has ended, wrote and nobody received."""
        self._threads[0].join(WAIT)
        return [line for line in iter(self.lines.get, None) if line is not None]

    def log(self) -> str:
        """Return what the server, which has ended, said on stderr."""
        self._threads[1].join(WAIT)
        return self.told()

    def told(self) -> str:
        """Return what the server has said on stderr until now."""
        return b"".join(self.errors).decode("utf-8", "replace")


def hello(protocol: str = "2025-06-18") -> dict[str, Any]:
    return {
        "protocolVersion": protocol,
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }


@pytest.fixture
def start() -> Iterator[Callable[..., Talk]]:
    talks: list[Talk] = []

    def begin(*args: Any, **env: Any) -> Talk:
        talks.append(Talk(*args, **env))
        return talks[-1]

    yield begin
    for talk in talks:
        talk.process.kill()
        talk.process.wait()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_protocols_over_stdio(start: Callable[..., Talk], protocol: str) -> None:
    talk = start(greet=False)
    params: dict[str, Any] = {}
    if protocol == "2026-07-28":
        meta = {
            "io.modelcontextprotocol/protocolVersion": protocol,
            "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        params = {"_meta": meta}
        info = talk.ask("server/discover", params)["result"]
        assert protocol in info["supportedVersions"]
    else:
        info = talk.ask("initialize", hello(protocol))["result"]
        assert info["protocolVersion"] == protocol
        assert info["serverInfo"]["name"] == "code-memory-mcp"
        talk.tell("notifications/initialized")
    assert info["capabilities"]["tools"] == {"listChanged": False}
    assert set(info["capabilities"]) == {"tools", "prompts"}
    assert info["instructions"] == INSTRUCTIONS
    reply = talk.ask("tools/list", params)["result"]
    assert len(json.dumps(reply["tools"], ensure_ascii=False)) < 4_600
    arguments = {"name": "mem-details", "arguments": {"ids": ["a7Bc3x"]}}
    result = talk.ask("tools/call", params | arguments)["result"]
    assert set(result) - {"_meta", "resultType"} == {"content", "isError"}
    assert MEMORY.content in result["content"][0]["text"]
    assert talk.end_input() == 0


def test_nothing_heavy_before_the_first_reply_and_one_start_after(
    start: Callable[..., Talk],
) -> None:
    talk = start(FAKE_PRINT="1")
    talk.call("mem-stats")
    talk.ask("initialize", hello())  # twice is allowed
    assert talk.end_input() == 0
    log = talk.log()
    assert log.count("fake: started, numpy False") == 1
    assert log.count("fake: closed") == 1
    assert "stray print while opening" in log


def test_the_wire_is_utf8_and_holds_nothing_else(start: Callable[..., Talk]) -> None:
    talk = start(PYTHONIOENCODING="cp1252", PYTHONUTF8="0", LC_ALL="C")
    assert "DuckDB" in talk.call("mem-search", query="noise duck")
    assert '"데이터 😀"' in talk.call("mem-search", query="데이터 😀")
    assert "\ufffd" in talk.call("mem-search", query="surrogate")
    talk.end_input()
    assert talk.rest() == []
    log = talk.log()
    assert "stray print\n" in log
    assert "stray write\n" in log


def test_piped_requests_are_answered_before_the_end() -> None:
    requests = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello()},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {
            "jsonrpc": "2.0",
            "id": 2,
            "method": "tools/call",
            "params": {"name": "mem-search", "arguments": {"query": "slow duck"}},
        },
        {"jsonrpc": "2.0", "id": 3, "method": "ping"},
    ]
    done = subprocess.run(
        [sys.executable, str(FAKE_SERVER)],
        input="\n".join(json.dumps(one) for one in requests).encode(),  # no last line end
        capture_output=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "FAKE_SLOW": str(END_GRACE_SECONDS + 0.2),
            "FAKE_SCRIPT_GRACE": SLOW,  # starting takes as long as it takes
        },
        timeout=WAIT,
        check=True,
    )
    replies = {reply["id"]: reply for reply in map(json.loads, done.stdout.splitlines())}
    assert set(replies) == {1, 2, 3}
    assert "a7Bc3x" in replies[2]["result"]["content"][0]["text"]


def test_end_of_input_without_a_word(start: Callable[..., Talk]) -> None:
    assert start(greet=False).end_input() == 0


def test_end_of_input_does_not_wait_for_a_slow_call(start: Callable[..., Talk]) -> None:
    talk = start(FAKE_SLOW=SLOW)
    talk.send("tools/call", {"name": "mem-search", "arguments": {"query": "slow"}})
    talk.call("mem-stats")
    time.sleep(0.6)  # or it would be taken for a script, which wants its answers
    assert talk.end_input() == 0
    assert talk.rest() == []


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals on Windows")
@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 0), ("SIGINT", 130)])
def test_signals_end_it(start: Callable[..., Talk], name: str, code: int) -> None:
    talk = start(FAKE_SLOW=SLOW)
    talk.send("tools/call", {"name": "mem-search", "arguments": {"query": "slow"}})
    talk.call("mem-stats")
    talk.process.send_signal(getattr(signal, name))
    assert talk.wait() == code
    log = talk.log()
    assert "Traceback" not in log
    assert "fault" not in log


@pytest.mark.skipif(not hasattr(__import__("select"), "poll"), reason="cannot be seen there")
def test_a_client_that_closes_only_stdout_is_gone(start: Callable[..., Talk]) -> None:
    """Spoken to without a reading thread, so that the pipe really closes."""
    process = subprocess.Popen(
        [sys.executable, str(FAKE_SERVER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    del start
    assert process.stdin is not None
    assert process.stdout is not None
    request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello()}
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.flush()
    assert process.stdout.readline()
    process.stdout.close()
    try:
        assert process.wait(WAIT) == 0
    finally:
        process.kill()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_a_client_that_stops_reading_costs_nothing() -> None:
    process = subprocess.Popen(
        [sys.executable, str(FAKE_SERVER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    lines = [{"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello()}]
    lines += [
        {
            "jsonrpc": "2.0",
            "id": number,
            "method": "tools/call",
            "params": {"name": "mem-search", "arguments": {"query": "huge", "topK": 50}},
        }
        for number in range(1, 600)
    ]
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)

    def feed(pipe: Any) -> None:
        with contextlib.suppress(OSError, ValueError):
            pipe.write(data)
            pipe.flush()

    feeder = threading.Thread(target=feed, args=(process.stdin,), daemon=True)
    feeder.start()
    try:
        used = [0, 0, 0]

        def is_idle() -> bool:
            """It has answered what it takes on, and uses less than a tenth of a processor."""
            time.sleep(1)
            used[:] = [*used[1:], _read_cpu_ticks(process.pid)]
            return used[0] > 10 and used[2] - used[0] < 0.2 * os.sysconf("SC_CLK_TCK")

        wait_until(is_idle)
        assert process.poll() is None
        # What was held back comes when the client reads again.
        seen = 0
        for line in process.stdout:
            seen += b'"result"' in line
            if seen == 600:
                break
        assert seen == 600
    finally:
        process.kill()
        process.wait()


def _read_cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


@pytest.mark.skipif(sys.platform == "win32", reason="pipes are told apart on POSIX")
def test_a_client_that_leaves_without_reading(start: Callable[..., Talk]) -> None:
    del start
    process = subprocess.Popen(
        [sys.executable, str(FAKE_SERVER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdin is not None
    lines = [{"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello()}]
    call_params = {"name": "mem-search", "arguments": {"query": "huge", "topK": 50}}
    lines += [
        {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": call_params}
        for number in range(1, 30)
    ]
    process.stdin.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    process.stdin.close()
    try:
        assert process.wait(WAIT) == 0  # stdout is still open and full
    finally:
        process.kill()


def test_garbage_is_answered_and_survived(start: Callable[..., Talk]) -> None:
    talk = start()
    talk.write(b"\xff\xfe" + random.Random(1).randbytes(1 << 20).replace(b"\n", b"") + b"\n")
    assert talk.receive()["error"]["code"] == -32700
    talk.write(b"more\ngarbage\n\n\r\n")  # one answer for a run of it
    assert talk.ask("ping")["result"] == {}
    talk.write(b"x" * (MAX_MESSAGE_BYTES * 2) + b"\n")
    assert talk.receive()["error"] == {"code": -32600, "message": "Message too long"}
    talk.write(b'{"jsonrpc":"2.0","id":77,"met')
    time.sleep(0.2)  # so that it is read by itself; read at once, it must be no other
    talk.write(b'hod":"ping"}\n')
    assert talk.receive() == {"jsonrpc": "2.0", "id": 77, "result": {}}
    assert talk.end_input() == 0


def test_unknown_methods_and_tools(start: Callable[..., Talk]) -> None:
    talk = start()
    assert talk.ask("resources/list")["error"]["code"] == -32601
    assert talk.ask("no/such", {"a": 1})["error"]["code"] == -32601
    talk.tell("notifications/no-such", {"a": 1})
    unknown = talk.ask("tools/call", {"name": "mem-forget", "arguments": {}})["error"]
    assert unknown["code"] == -32602
    assert unknown["message"].startswith("Unknown tool. The tools are")
    assert talk.ask("tools/call", {"name": "mem-stats", "arguments": []})["error"]["code"] == -32602
    assert talk.ask("tools/call", {})["error"]["code"] == -32602
    assert "Memories" in talk.call("mem-stats")


def test_requests_before_initialize_are_refused_and_survived(start: Callable[..., Talk]) -> None:
    talk = start(greet=False)
    assert talk.ask("ping")["result"] == {}
    assert "error" in talk.ask("tools/list")
    assert "error" in talk.ask("tools/call", {"name": "mem-stats"})
    assert talk.ask("initialize", hello())["result"]["protocolVersion"] == "2025-06-18"
    assert "Memories" in talk.call("mem-stats")


def test_ids_used_twice(start: Callable[..., Talk]) -> None:
    talk = start()
    params = {"name": "mem-search", "arguments": {"query": "duck"}}
    for _ in range(2):
        talk.send("tools/call", params, request_id="same")
    assert [talk.receive()["id"] for _ in range(2)] == ["same", "same"]
    talk.send("tools/call", params, request_id="1")
    talk.send("ping", request_id=1)
    assert {str(talk.receive()["id"]) for _ in range(2)} == {"1"}
    assert talk.end_input() == 0


def test_a_cancelled_request_is_not_answered_and_stops(start: Callable[..., Talk]) -> None:
    talk = start(FAKE_SLOW=SLOW)
    name = talk.send("tools/call", {"name": "mem-search", "arguments": {"query": "slow"}})
    talk.call("mem-stats")
    talk.tell("notifications/cancelled", {"requestId": name})
    assert talk.ask("ping")["result"] == {}
    wait_until(lambda: "fake: interrupted" in talk.told())
    assert talk.end_input() == 0
    assert talk.rest() == []


def test_a_memory_that_cannot_be_opened_is_told_plainly(start: Callable[..., Talk]) -> None:
    talk = start(FAKE_BROKEN="1")
    assert talk.call("mem-stats") == "The store cannot be opened: permission denied."
    assert talk.call("mem-search", query="x") == "The store cannot be opened: permission denied."
    talk.end_input()
    assert "Traceback" not in talk.log()


def test_the_log_never_holds_a_query(start: Callable[..., Talk]) -> None:
    talk = start()
    assert talk.call("mem-search", query="fault ABRACADABRA") == APOLOGY
    talk.ask("tools/call", {"name": "mem-search", "arguments": "ABRACADABRA"})
    talk.ask("ABRACADABRA")
    talk.write(b'{"ABRACADABRA"\n')
    talk.tell("notifications/progress", {"ABRACADABRA": {}})
    assert "DuckDB" in talk.call("mem-search", query="duck")
    talk.end_input()
    log = talk.log()
    assert "ValueError" in log
    assert "ABRACADABRA" not in log


def test_two_thousand_calls_eight_in_flight(start: Callable[..., Talk]) -> None:
    talk = start()
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("mem-search", {"query": "duck"}),
        ("mem-timeline", {"ids": ["a7Bc3x"]}),
        ("mem-details", {"ids": ["a7Bc3x"]}),
        ("mem-stats", {}),
    ]
    waiting: set[object] = set()
    for number in range(2_000):
        name, arguments = kinds[number % 4]
        waiting.add(talk.send("tools/call", {"name": name, "arguments": arguments}))
        if len(waiting) >= 8:
            waiting.remove(talk.receive()["id"])
    while waiting:
        waiting.remove(talk.receive()["id"])
    assert talk.end_input() == 0
