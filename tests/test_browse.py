"""The browse page, as a file and in a real browser."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import random
import re
import stat
import sys
import zlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from chrome import Chrome, is_installed
from hypothesis import given, settings
from hypothesis import strategies as st

from code_memory import (
    MEMORY_TYPES,
    CodeMemoryError,
    Memory,
    Redacted,
    clean_line,
    render_browse,
    show_text,
    write_browse,
)

NOW = datetime(2026, 1, 30, 8, 6, tzinfo=UTC)
SEOUL = timezone(timedelta(hours=9))
HOUR = 3_600_000


def at(day: str, clock: str = "09:00") -> int:
    return int(datetime.fromisoformat(f"{day}T{clock}:00+00:00").timestamp() * 1000)


MEMORY = Memory(
    id="a7Bc3x", type="response", time=at("2026-01-30"), session_id="5e551011-0001", session_title="Invoices arrive twice",
    project="/home/dana/code/harbor-api", project_name="harbor-api", source="claude-code", source_ref="r1",
    agent_id=None, content=Redacted("The retry loop sends it again."),
)  # fmt: skip


class Page(HTMLParser):
    """What an HTML parser makes of the page: its tags, and the text inside scripts and style."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, list[str]] = {}
        self._open = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style", "title"):
            known = dict(attrs)
            self._open = known.get("class") or known.get("id") or tag
            self.inside.setdefault(self._open, []).append("")

    def handle_endtag(self, tag: str) -> None:
        self._open = "" if tag in ("script", "style", "title") else self._open

    def handle_comment(self, data: str) -> None:
        self.tags.append(("!--", {}))

    def handle_data(self, data: str) -> None:
        if self._open:
            self.inside[self._open][-1] += data

    def unpack(self, name: str) -> list[Any]:
        packed = self.inside.get(name, [])
        return [
            json.loads(zlib.decompress(base64.b64decode(text, validate=True))) for text in packed
        ]

    @property
    def index(self) -> dict[str, Any]:
        (index,) = self.unpack("index")
        assert isinstance(index, dict)
        return index

    @property
    def texts(self) -> list[str]:
        return [text for texts in self.unpack("texts") for text in texts]


def build(*memories: Memory, zone: timezone = SEOUL, version: str = "1.2.3") -> Page:
    return Page("".join(render_browse(memories, NOW, zone, version)))


# --- The file ---


def test_page_loads_nothing() -> None:
    text = "".join(render_browse([MEMORY], NOW, SEOUL, "1.2.3"))
    page = Page(text)
    assert not re.search(r"https?:|//[a-z]+\.[a-z]", re.sub(r">[\w+/=]{200,}<", "><", text))
    for tag, attributes in page.tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base")
        assert "src" not in attributes
        assert "style" not in attributes
        assert not [name for name in attributes if name.startswith("on")]
        assert (attributes.get("href") or "#").startswith("#")


def test_policy_allows_only_the_page_itself() -> None:
    page = build(MEMORY)
    policy = next(
        a["content"] for t, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["base-uri"] == "'none'"
    for rule, element in (("script-src", "script"), ("style-src", "style")):
        (text,) = page.inside[element]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"


@pytest.mark.parametrize("hostile", [
    pytest.param("</script><script>window.pwned = 1</script>", id="closes the script"),
    pytest.param("<!-- <script>", id="opens a comment"),
    pytest.param("]]></title></style><img src=x onerror=alert(1)>", id="other elements"),
    pytest.param("a\u2028b\u2029c\u202ereversed\u2066", id="line separators and bidi overrides"),
    pytest.param("\x00\ud800 \x1b[31mred", id="NUL, a lone surrogate, an escape sequence"),
    pytest.param('\\u003c"\\"\\', id="backslashes and quotes"),
])  # fmt: skip
def test_no_text_becomes_html(hostile: str) -> None:
    memory = replace(
        MEMORY, content=Redacted(hostile), session_title=hostile, session_id=hostile, project=hostile,
        project_name=hostile, source=hostile, agent_id=hostile, files=(hostile,), tools=(hostile,),
        concepts=(hostile,),
    )  # fmt: skip
    page = build(memory)
    assert page.tags == build(MEMORY).tags
    assert page.texts == [show_text(hostile)]
    assert not re.search(
        "[\u202a-\u202e\u2066-\u2069\x00-\x08]", json.dumps(page.index, ensure_ascii=False)
    )


anything = st.text(st.characters(codec=None), max_size=60)
memories_strategy = st.lists(
    st.builds(
        Memory,
        id=st.text("abcXYZ019", min_size=6, max_size=6), type=st.sampled_from(MEMORY_TYPES),
        time=st.integers(-(2**60), 2**60) | st.integers(0, at("2030-01-01")), session_id=anything,
        session_title=anything, project=anything, project_name=anything, source=anything, source_ref=anything,
        agent_id=st.none() | anything, content=anything.map(Redacted), files=st.tuples(anything),
        tools=st.tuples(anything), concepts=st.tuples(anything, anything), kept_only_here=st.booleans(),
    ),
    max_size=8,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(memories_strategy)
def test_data_round_trips(memories: list[Memory]) -> None:
    page = build(*memories)
    assert [tag for tag, _ in page.tags].count("script") == 2 + bool(memories)
    assert page.texts == [show_text(memory.content) for memory in memories]
    names = page.index["names"]
    for row, memory in zip(page.index["rows"], memories, strict=True):
        code, type, time, _, session, source, agent, tools, files, concepts = row
        assert (code, MEMORY_TYPES[type]) == (memory.id, memory.type)
        assert time in (memory.time, 0)
        assert page.index["sessions"][session][0] == clean_line(memory.session_id)
        assert (names[source], names[agent]) == (
            clean_line(memory.source),
            clean_line(memory.agent_id or ""),
        )
        for found, given_ in (
            (tools, memory.tools),
            (files, memory.files),
            (concepts, memory.concepts),
        ):
            assert [names[name] for name in found] == [clean_line(name) for name in given_]


def test_wall_clock_of_the_zone_travels_with_each_memory() -> None:
    page = build(MEMORY, replace(MEMORY, id="far", time=2**60))
    assert [row[2:4] for row in page.index["rows"]] == [[MEMORY.time, 540], [0, 0]]
    assert page.index["now"] == NOW.timestamp() * 1000 + 9 * HOUR
    assert page.index["version"] == "1.2.3"


def test_session_without_a_title_is_named_by_its_first_prompt() -> None:
    prompts = [
        replace(
            MEMORY,
            type="prompt",
            session_title="",
            time=MEMORY.time + minute * 60_000,
            content=Redacted(text),
        )
        for minute, text in (
            (9, "Fix it."),
            (2, "Why do invoices\narrive twice?"),
            (5, "And here?"),
        )
    ]
    ((_, title, *_),) = build(*prompts).index["sessions"]
    assert title == "Why do invoices arrive twice?"


def test_session_is_kept_only_here_when_one_memory_says_so() -> None:
    kept = replace(MEMORY, kept_only_here=True)
    other = replace(MEMORY, session_id="other")
    assert [session[4] for session in build(MEMORY, kept, other).index["sessions"]] == [True, False]


def test_page_is_written_while_memories_are_read() -> None:
    read = 0

    def many() -> Iterator[Memory]:
        nonlocal read
        for read in range(1, 401):
            yield replace(
                MEMORY,
                id=f"m{read}",
                content=Redacted(f"{read} " + random.Random(read).randbytes(5000).hex()),
            )

    seen = []
    for piece in render_browse(many(), NOW, SEOUL):
        assert len(piece) < 2_000_000
        if 'class="texts">' in piece and "<style>" not in piece:
            seen.append(read)
    assert len(seen) > 5
    assert seen[0] < 100
    assert seen[-1] == 400


def test_empty_store_gives_a_page() -> None:
    page = build()
    assert page.index["rows"] == []
    assert page.texts == []


def test_words_exist_in_every_language() -> None:
    (script,) = build().inside["script"]
    table = script[script.index("const WORDS = {") : script.index("\n};")]
    words = {
        key: json.loads(f"[{texts}]")
        for key, texts in re.findall(r"(\w+): \[(.*?)\],\n", table, re.S)
    }
    assert len(words) > 50
    for key, texts in words.items():
        assert [bool(text) for text in texts] == [True] * 4, key
        english, *others = ({*re.findall(r"\{\w\}", text)} for text in texts)
        assert all(places == english for places in others), key
    frame = "".join(render_browse([], NOW, SEOUL))
    used = re.findall(r'data-(?:word|label)="(\w+)"', frame) + re.findall(r'say\("(\w+)"', script)
    assert set(used) <= set(words)


# --- Writing it ---


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")
def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "browse.html"
    path.write_text("old")
    path.chmod(0o644)
    assert write_browse([MEMORY, MEMORY], path, NOW, SEOUL) == 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_bytes().startswith(b"<!DOCTYPE html>")
    assert b"\r" not in path.read_bytes()
    assert [file.name for file in tmp_path.iterdir()] == ["browse.html"]


def test_failure_leaves_the_old_page(tmp_path: Path) -> None:
    path = tmp_path / "browse.html"
    path.write_text("old")

    def broken() -> Iterator[Memory]:
        yield MEMORY
        raise CodeMemoryError("The store is damaged.")

    with pytest.raises(CodeMemoryError, match="damaged"):
        write_browse(broken(), path, NOW, SEOUL)
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["browse.html"]


@pytest.mark.parametrize(
    "name", [pytest.param("no/such/folder.html", id="missing"), pytest.param("", id="a folder")]
)
def test_place_that_cannot_be_written_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(CodeMemoryError, match=r"cannot be written: .*--out"):
        write_browse([MEMORY], tmp_path / name, NOW, SEOUL)


# --- In a real browser ---

browser = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not is_installed(),
        reason="needs chromium and chromedriver (Debian: chromium, chromium-driver)",
    ),
]

HOSTILE = "<img src=x onerror='window.pwned=1'> </script><script>window.pwned=1</script> **<b>bold</b>** `</code>`"
ANSWER = """The loop in `src/retry.py` takes only **200** as success.

```python
def deliver(order):
    # Every 2xx means accepted.
    return 200 <= order.send() < 300
```

1. Each invoice is mailed twice.
2. `</code>` stays text.

| File | Change |
|---|---|
| `retry.py` | every 2xx ends the retries |
"""


def history() -> Iterator[Memory]:
    """Yield three projects, six sessions and all kinds of memories, over eight months."""
    number = 0

    def memory(session: int, kind: str, text: str, **more: Any) -> Memory:
        nonlocal number
        number += 1
        project, day, title = SESSIONS[session]
        return replace(
            MEMORY, id=f"mem{number:03d}", type=kind, content=Redacted(text), session_id=f"5e55{session:04d}-0000",
            session_title=title, project=f"/home/dana/code/{project}", project_name=project,
            time=at(day) + number * 61_000, **more,
        )  # fmt: skip

    for session in range(len(SESSIONS)):
        more = {
            "kept_only_here": session == 1,
            "source": "codex" if session == 2 else "claude-code",
        }
        yield memory(
            session,
            "prompt",
            f"Customers get every invoice twice ({session}). Why?\n```\nERROR 202\n```",
            **more,
        )
        yield memory(
            session,
            "tool",
            "Grep: send_invoice\nsrc/jobs.py:41: send_invoice(order)",
            tools=("Grep",),
            **more,
        )
        yield memory(session, "tool", "Bash: pytest -q\n[failed] 1 failed", tools=("Bash",), **more)
        yield memory(session, "response", ANSWER, **more)
        yield memory(
            session, "insight", "決定: イベントログはSQLiteに置く。", concepts=("decision",), **more
        )
        yield memory(
            session,
            "tool",
            "Read: docs/quay.md\nhidden anchor",
            tools=("Read",),
            agent_id="agent-1",
            **more,
        )
        yield memory(session, "response", "The subagent's own report.", agent_id="agent-1", **more)
    yield memory(0, "prompt", HOSTILE)
    yield memory(0, "response", HOSTILE + "\n\n> quoted\n\n- 이벤트 로그를 데이터베이스에 둔다")
    for turn in range(120):
        yield memory(3, "response", f"Turn {turn}. " + "harbor lights " * 40)


SESSIONS = [
    ("harbor-api", "2026-01-29", "Invoices arrive twice"), ("harbor-api", "2025-11-03", "Flaky checkout test"),
    ("tidepool", "2026-01-12", "Move the queue"), ("tidepool", "2025-09-20", "A long session"),
    ("docs", "2025-07-01", "Release notes"), ("docs", "2025-06-30", ""),
]  # fmt: skip


@pytest.fixture(scope="module")
def page_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("browse") / "browse page.html"
    write_browse(history(), path, NOW, UTC)
    return path


@pytest.fixture(scope="module")
def window() -> Iterator[Chrome]:
    with Chrome() as chrome:
        yield chrome


@pytest.fixture
def chrome(window: Chrome, page_path: Path) -> Iterator[Chrome]:
    """The page, freshly opened; whatever a test did, the console must have stayed silent."""
    window.set_view(1280, 800)
    window.open(page_path)
    yield window
    assert window.log() == []


def shoot(chrome: Chrome, name: str) -> None:
    if folder := os.environ.get("BROWSE_SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        chrome.run("document.querySelector('#toast').hidden = true")
        chrome.screenshot(Path(folder) / f"{name}.png")


def search(chrome: Chrome, text: str) -> None:
    chrome.run("const q = document.querySelector('#query'); q.focus(); q.value = ''")
    chrome.type("#query", text)


def row_count(chrome: Chrome) -> int:
    return int(chrome.value("document.querySelectorAll('#list .row:not(.hit)').length"))


def wait_for_status(chrome: Chrome, text: str) -> None:
    """A search gives way to other work now and then, so what it finds is there a little later."""
    chrome.wait_for(f"document.querySelector('#status').textContent === {json.dumps(text)}")
    assert chrome.text("#status") == text


class TestBrowser:
    pytestmark = browser

    def test_overview(self, chrome: Chrome) -> None:
        assert chrome.text("#hero") == "164 memories from 6 sessions in 3 projects."
        assert "1 session exists only here now." in chrome.text("#hero-note")
        assert row_count(chrome) == 6
        assert chrome.value("performance.getEntriesByType('resource').length") == 0
        assert "Why" in chrome.text("#list .row:last-of-type")  # named by its first prompt
        shoot(chrome, "overview-light")
        chrome.set_view(1280, 800, dark=True)
        shoot(chrome, "overview-dark")

    @pytest.mark.parametrize(("text", "expected", "marked"), [
        pytest.param("invoice TWICE", "14 memories in 6 sessions", {"invoice", "twice"}, id="all words"),
        pytest.param("イベント", "6 memories in 6 sessions", {"イベント"}, id="Japanese, part of a run"),
        pytest.param("데이터", "1 memory in 1 session", {"데이터"}, id="Korean, part of a word"),
        pytest.param('"mailed twice"', "6 memories in 6 sessions", {"mailed twice"}, id="phrase"),
        pytest.param("invoice -mailed customers", "7 memories in 6 sessions", {"invoice", "Customers"}, id="excluded"),
        pytest.param("ＥＲＲＯＲ", "8 memories in 6 sessions", {"ERROR"}, id="full width"),
        pytest.param("mem:mem004", "1 memory in 1 session", set(), id="an id"),
    ])  # fmt: skip
    def test_search(self, chrome: Chrome, text: str, expected: str, marked: set[str]) -> None:
        search(chrome, text)
        wait_for_status(chrome, expected)
        found = chrome.value(
            "[...document.querySelectorAll('#list .snippet mark')].map(m => m.textContent)"
        )
        assert marked <= set(found)

    def test_nothing_found_says_so(self, chrome: Chrome) -> None:
        search(chrome, "zebra crossing")
        wait_for_status(chrome, "Nothing found")
        assert "All words must occur" in chrome.text("#list")
        chrome.click("#clear")
        wait_for_status(chrome, "6 sessions")

    def test_filters(self, chrome: Chrome) -> None:
        chrome.click("#types [data-type=insight]")
        wait_for_status(chrome, "6 memories in 6 sessions")
        chrome.click("#bars .bar")
        assert row_count(chrome) == 2
        chrome.click("#clear")
        chrome.click("#further summary")
        chrome.click("#kept")
        wait_for_status(chrome, "7 memories in 1 session")
        assert "Flaky checkout test" in chrome.text("#list")
        chrome.click("#clear")
        chrome.run(
            "const s = document.querySelector('#source'); s.value = 'codex'; s.dispatchEvent(new Event('change'))"
        )
        assert "Move the queue" in chrome.text("#list")
        assert row_count(chrome) == 1

    def test_calendar(self, chrome: Chrome) -> None:
        day = at("2026-01-12") // 86_400_000
        label = chrome.run(
            f"return document.querySelector('[data-day=\"{day}\"]').getAttribute('aria-label')"
        )
        assert label == "Monday, January 12, 2026: 7 memories"
        chrome.click(f"[data-day='{day}']")
        wait_for_status(chrome, "7 memories in 1 session")
        assert chrome.value("document.querySelector('#from').value") == "2026-01-12"
        chrome.press("Right", "Enter")  # a week on
        wait_for_status(chrome, "Nothing found")
        chrome.press("Enter")
        wait_for_status(chrome, "6 sessions")
        chrome.click("#days .month[title='November 2025']")
        assert "Flaky checkout test" in chrome.text("#list")
        assert row_count(chrome) == 1

    def test_order_by_time(self, chrome: Chrome) -> None:
        chrome.click("#by-time")
        headings = chrome.value(
            "[...document.querySelectorAll('#list h2 span:first-child')].map(h => h.textContent)"
        )
        assert headings == [
            "January 2026",
            "November 2025",
            "September 2025",
            "July 2025",
            "June 2025",
        ]

    def test_keyboard(self, chrome: Chrome) -> None:
        chrome.press("/")
        assert chrome.value("document.activeElement.id") == "query"
        chrome.press(*"twice")
        wait_for_status(chrome, "12 memories in 6 sessions")
        chrome.press("Down")
        assert chrome.value("document.activeElement.className") == "row"
        chrome.press("j")
        assert chrome.value("document.activeElement.className") == "row hit"
        chrome.press("k", "j", "Enter")
        chrome.wait_for("document.activeElement.matches('article.target')")
        assert chrome.value("location.hash").startswith("#mem:")
        chrome.press("j")
        assert chrome.value("document.activeElement.closest('#talk') !== null")
        chrome.press("n")
        chrome.wait_for("document.querySelector('#hit-count').textContent === '2 of 2'")
        chrome.press("Escape")
        chrome.wait_for("!document.querySelector('#overview').hidden")
        assert chrome.value("document.activeElement.matches('#list .row')")
        chrome.press("/", "Escape")
        wait_for_status(chrome, "6 sessions")
        chrome.press("Escape", "?")
        assert chrome.value("document.querySelector('#keys').open")
        chrome.press("Escape")
        assert not chrome.value("document.querySelector('#keys').open")

    def test_conversation(self, chrome: Chrome) -> None:
        chrome.click("#list .row")
        chrome.wait_for("document.querySelectorAll('#talk article').length > 0")
        assert chrome.text("#session-title") == "Invoices arrive twice"
        assert chrome.text("#talk article.prompt pre") == "ERROR 202"
        assert chrome.text("#talk article.response pre .k") == "def"
        assert chrome.value("document.querySelectorAll('#talk article.response ol li').length") == 2
        assert chrome.text("#talk article.response tbody code") == "retry.py"
        assert "Grep · Bash" in chrome.text("#talk details.fold")
        assert not chrome.value("document.querySelector('#talk details.fold').open")
        chrome.click("#talk details.fold > summary")
        chrome.click("#talk .tool:nth-of-type(2) > summary")
        assert "1 failed" in chrome.text("#talk .tool:nth-of-type(2) pre")
        shoot(chrome, "conversation-light")
        chrome.set_view(1280, 800, dark=True)
        shoot(chrome, "conversation-dark")

    @pytest.mark.parametrize("id", [
        pytest.param("mem004", id="a response"), pytest.param("mem003", id="a folded tool"),
        pytest.param("mem006", id="a tool of a subagent"), pytest.param("mem150", id="deep in a long session"),
    ])  # fmt: skip
    def test_link_to_a_memory(self, chrome: Chrome, page_path: Path, id: str) -> None:
        chrome.open(page_path, f"#mem:{id}")
        chrome.wait_for("document.querySelector('.target')")
        box = chrome.run(
            "const b = document.querySelector('.target').getBoundingClientRect(); return [b.top, b.height]"
        )
        assert chrome.value("document.querySelector('.target').id") == f"mem:{id}"
        assert 60 < box[0] < 760
        assert box[1] > 10
        assert chrome.value("document.activeElement.id") == f"mem:{id}"

    def test_unknown_link_is_named(self, chrome: Chrome, page_path: Path) -> None:
        chrome.open(page_path, "#mem:nothere")
        chrome.wait_for("document.querySelector('#toast').textContent.includes('mem:nothere')")
        assert not chrome.value("document.querySelector('#overview').hidden")

    def test_long_session_grows_both_ways(self, chrome: Chrome, page_path: Path) -> None:
        chrome.open(page_path, "#mem:mem100")
        chrome.wait_for("document.querySelector('.target')")
        pane = "document.querySelector('#pane')"
        for end, id in (("0", "mem022"), (f"{pane}.scrollHeight", "mem164")):
            chrome.wait_for(
                f"({pane}.scrollTop = {end}, document.getElementById('mem:{id}') !== null)"
            )
        assert chrome.value("document.querySelectorAll('#talk article').length") == 123

    def test_copying_an_id(self, chrome: Chrome) -> None:
        chrome.run(
            "navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }"
        )
        chrome.click("#list .row")
        chrome.wait_for("document.querySelector('#talk .copy-id')")
        chrome.click("#talk .copy-id")
        assert chrome.value("window.copied") == "mem:mem001"
        assert chrome.value("document.querySelector('#toast').textContent") == "Copied mem:mem001"

    def test_hostile_text_stays_text(self, chrome: Chrome, page_path: Path) -> None:
        chrome.open(page_path, "#mem:mem044")
        chrome.wait_for("document.querySelector('.target')")
        assert "<img src=x onerror='window.pwned=1'> </script>" in chrome.text(".target .text")
        assert chrome.text(".target code") == "</code>"
        assert (
            chrome.value(
                "document.querySelectorAll('#reader img, #reader script, #reader b').length"
            )
            == 0
        )
        assert chrome.value("typeof window.pwned") == "undefined"

    def test_theme_button(self, chrome: Chrome) -> None:
        ground = "getComputedStyle(document.body).backgroundColor"
        light = chrome.value(ground)
        chrome.click("#theme")
        assert chrome.value(ground) != light
        chrome.click("#theme")
        assert chrome.value(ground) == light
        chrome.run("localStorage.clear()")

    def test_phone_width(self, chrome: Chrome, page_path: Path) -> None:
        chrome.set_view(375, 760)
        chrome.open(page_path)
        fits = "document.scrollingElement.scrollWidth <= innerWidth"
        assert chrome.value(fits)
        shoot(chrome, "phone")
        chrome.run("document.querySelector('#list .row').click()")
        chrome.wait_for("document.querySelector('#talk article')")
        assert chrome.value(fits)
        assert not chrome.value("document.querySelector('.side').offsetParent")
        shoot(chrome, "phone-conversation")
        chrome.click("#back")
        chrome.wait_for("document.querySelector('.side').offsetParent")

    def test_everything_has_a_name_for_a_screen_reader(self, chrome: Chrome) -> None:
        chrome.run("document.querySelector('#list .row').click()")
        chrome.wait_for("document.querySelector('#talk article')")
        nodes = chrome.devtools("Accessibility.getFullAXTree")["nodes"]
        roles = [node.get("role", {}).get("value") for node in nodes if not node["ignored"]]
        assert {"banner", "main", "navigation", "search", "status", "article", "heading"} <= set(
            roles
        )
        for node in nodes:
            if not node["ignored"] and node["role"]["value"] in (
                "button",
                "link",
                "searchbox",
                "combobox",
                "gridcell",
            ):
                assert node["name"]["value"].strip(), node

    def test_without_the_browsers_own_inflate(self, page_path: Path) -> None:
        with Chrome() as old:
            old.devtools(
                "Page.addScriptToEvaluateOnNewDocument", source="delete window.DecompressionStream"
            )
            old.open(page_path)
            assert old.value("typeof DecompressionStream") == "undefined"
            assert old.text("#hero").startswith("164 memories")
            search(old, "データ")
            search(old, "데이터")
            wait_for_status(old, "1 memory in 1 session")
            assert old.log() == []

    @pytest.mark.parametrize(("language", "hero", "count"), [
        pytest.param("ko", "프로젝트 3개, 세션 6개에서 모은 기억 164개.", "세션 6개", id="Korean"),
        pytest.param("ja", "プロジェクト 3件、セッション 6件からの記憶 164件。", "セッション 6件", id="Japanese"),
        pytest.param("zh-CN", "来自 3 个项目、6 个会话的 164 条记忆。", "6 个会话", id="Chinese"),
        pytest.param("de", "164 memories from 6 sessions in 3 projects.", "6 sessions", id="others see English"),
    ])  # fmt: skip
    def test_languages(self, page_path: Path, language: str, hero: str, count: str) -> None:
        with Chrome(language) as chrome:
            chrome.open(page_path)
            assert chrome.text("#hero") == hero
            wait_for_status(chrome, count)
            assert chrome.log() == []

    def test_empty_page(self, window: Chrome, tmp_path: Path) -> None:
        write_browse([], tmp_path / "empty.html", NOW, UTC)
        window.set_view(1280, 800)
        window.open(tmp_path / "empty.html")
        assert window.text("#hero") == "There are no memories yet."
        assert window.log() == []

    @pytest.mark.slow
    def test_twenty_thousand_memories_are_quick(self, window: Chrome, tmp_path: Path) -> None:
        words = "queue worker ledger retry cache index schema rollback fixture token".split()
        many = (
            replace(
                MEMORY, id=f"n{n}", type=MEMORY_TYPES[n % 4], session_id=f"session-{n // 25}", time=MEMORY.time - n * 1_500_000,
                content=Redacted(" ".join(words[(n * 7 + k * k) % 10] for k in range(100)) + f" number{n}"),
            )
            for n in range(20_000)
        )  # fmt: skip
        write_browse(many, tmp_path / "large.html", NOW, UTC)
        window.open(tmp_path / "large.html")
        window.wait_for("performance.getEntriesByName('first-contentful-paint').length")
        painted = window.value(
            "performance.getEntriesByName('first-contentful-paint')[0].startTime"
        )
        shown = window.value("performance.getEntriesByName('shown')[0].startTime")
        print(f"first paint {painted:.0f} ms, overview and list {shown:.0f} ms")
        ready = window.value("performance.getEntriesByName('ready')[0].startTime")
        assert shown < ready  # before the texts are read
        assert window.value("document.querySelectorAll('*').length") < 2_000  # not a row for each
        search(window, "ledger number19999")
        wait_for_status(window, "1 memory in 1 session")
        assert window.log() == []
