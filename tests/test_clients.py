"""Sections 15 and 16: other programs' configs are changed with care."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tomllib
from datetime import datetime
from pathlib import Path

import pytest
from conftest import WAIT
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import code_memory as cm
from code_memory import (
    CLIENTS,
    ConfigError,
    Place,
    Shape,
    server_entry,
    with_server,
    without_server,
)

NOW = datetime(2026, 3, 4, 5, 6, 7)
JSON = CLIENTS["claude-desktop"][1]
JSONC = CLIENTS["zed"][1]
TOML = CLIENTS["codex"][1]
OTHER = {"command": "/opt/other/server", "args": ["--x", "é"], "env": {"A": "1"}}
ENTRY = server_entry(["/opt/code memory/code-memory"])
ENTRY_WITH_STORE = server_entry(["/opt/code memory/code-memory"], {"MEMORY_PATH": "/data/é"})
POSIX = pytest.mark.skipif(os.name == "nt", reason="links, owners and modes of POSIX")


def parse_jsonc(text):
    """A reader of the tests' own: comments and trailing commas go, outside of strings."""
    pattern = r'("(?:[^"\\]|\\.)*")|//[^\n]*|/\*.*?\*/'
    text = re.sub(pattern, lambda m: m[1] or " ", text, flags=re.S)
    text = re.sub(r'("(?:[^"\\]|\\.)*")|,(?=\s*[}\]])', lambda m: m[1] or "", text)
    return json.loads(text) if text.strip() else {}


PARSERS = {
    "json": lambda text: json.loads(text) if text.strip() else {},
    "jsonc": parse_jsonc,
    "toml": tomllib.loads,
}


# --- Adding and removing the entry in a text

TEXTS = [
    pytest.param(JSON, "", id="empty file"),
    pytest.param(JSON, " \n\t", id="only space"),
    pytest.param(JSON, "{}", id="empty object"),
    pytest.param(JSON, "{\r\n}\r\n", id="empty object on two lines"),
    pytest.param(JSON, '{"theme":"dark"}', id="compact"),
    pytest.param(JSON, '{"theme": "dark"}\n', id="one line with spaces"),
    pytest.param(JSON, '{ "theme" : "dark" }', id="one line, spaces within the braces"),
    pytest.param(JSON, '{"mcpServers":{}}', id="empty section"),
    pytest.param(JSON, '{\n  "mcpServers": {\n  }\n}\n', id="empty section on two lines"),
    pytest.param(JSON, '{\n  "mcpServers": { }\n}', id="empty section with a space"),
    pytest.param(
        JSON,
        json.dumps({"k": "Ctrl+Space", "mcpServers": {"other": OTHER}, "p": [1, None]}, indent=4),
        id="other servers and settings",
    ),
    pytest.param(
        JSON,
        '{"a": 2.5e3, "b": 1.0, "c": -0, "d": 12345678901234567890123, "mcpServers": {"o": {}}}',
        id="numbers as they are spelled",
    ),
    pytest.param(
        JSON,
        '{\r\n\t"mcpServers": {\r\n\t\t"other": {"command": "x"}\r\n\t}\r\n}\r\n',
        id="tabs and CRLF",
    ),
    pytest.param(
        JSON,
        json.dumps({"mcpServers": {"기억": OTHER, "mémoire": OTHER}}, ensure_ascii=False, indent=2),
        id="names that are not ASCII",
    ),
    pytest.param(JSON, '{"mcpServers": {"\\u0061\\/": {}, "\\ud83d": 1}}', id="escapes"),
    pytest.param(JSONC, "// mine\n{\n  // nothing yet\n}\n// end\n", id="JSONC, only comments"),
    pytest.param(
        JSONC,
        '{\n  "a": 1, // one\n  "context_servers": {\n    "x": {"command": "y"}, // why\n  },\n}\n',
        id="JSONC, trailing commas",
    ),
    pytest.param(
        JSONC,
        '{\n  "a": "http://x/*", /* two\n lines */\n  "b": 1 // last\n  /* and more */\n}',
        id="JSONC, remarks after the last member",
    ),
    pytest.param(JSONC, '{"a": 1, /* x */}', id="JSONC, one line"),
    pytest.param(JSONC, '{"context_servers": {/* none */}}', id="JSONC, a remark in the section"),
    pytest.param(TOML, "", id="TOML, empty file"),
    pytest.param(TOML, 'model = "x"', id="TOML, no newline at the end"),
    pytest.param(TOML, '# mine\r\nmodel = "x" # y\r\n', id="TOML, CRLF"),
    pytest.param(
        TOML,
        'notify = [\n  ["a"],\n]\ntext = """\n[mcp_servers.code-memory]\n"""\n\n'
        "[mcp_servers.o]\ncommand = 'C:\\x'\n\n[[list]]\na = nan # odd\n",
        id="TOML, what looks like a header",
    ),
    pytest.param(TOML, "[mcp_servers]\n\n\n", id="TOML, empty section and empty lines"),
]


@pytest.mark.parametrize("entry", [ENTRY, ENTRY_WITH_STORE], ids=["default store", "own store"])
@pytest.mark.parametrize(("shape", "text"), TEXTS)
def test_entry_is_added_and_removed(shape, text, entry):
    parse = PARSERS[shape.format]
    before = parse(text)
    new = with_server(text, entry, shape)
    after = parse(new)
    written = after[shape.section].pop("code-memory")
    assert {key: written[key] for key in entry} == entry
    assert all(written[key] == value for key, value in shape.extra)
    if not after[shape.section] and shape.section not in before:
        del after[shape.section]
    assert repr(after) == repr(before)
    assert with_server(new, entry, shape) == new
    assert cm.read_server(new, shape) == written
    assert without_server(new, shape, [text]) == text
    assert "\n" not in new.replace("\r\n", "") or "\r\n" not in text


@pytest.mark.parametrize(("shape", "text"), TEXTS)
def test_entry_is_removed_when_nothing_is_known_of_before(shape, text):
    parse = PARSERS[shape.format]
    left = without_server(with_server(text, ENTRY, shape), shape)
    before = parse(text)
    after = parse(left)
    for data in (before, after):
        if not data.get(shape.section, True):
            del data[shape.section]
    assert repr(after) == repr(before)
    for remark in re.findall(r"//[^\n]*|/\*.*?\*/|(?<!\")# \\w+", text):
        assert remark in left


def test_empty_section_stays_when_it_was_there_before():
    backup = '{"mcpServers": {}}'
    changed = with_server('{"mcpServers": {}, "new": 1}', ENTRY, JSON)
    assert json.loads(without_server(changed, JSON, [backup])) == {"mcpServers": {}, "new": 1}
    assert json.loads(without_server(changed, JSON, ["{}"])) == {"new": 1}


@pytest.mark.parametrize(
    ("shape", "text", "left"),
    [
        pytest.param(
            JSON,
            '{"mcpServers": {"code-memory": {}, "b": 1}}',
            '{"mcpServers": {"b": 1}}',
            id="first",
        ),
        pytest.param(
            JSON,
            '{"mcpServers": {"a": 1, "code-memory": {}, "b": 1}}',
            '{"mcpServers": {"a": 1, "b": 1}}',
            id="middle",
        ),
        pytest.param(
            JSON,
            '{"mcpServers": {"a": 1, "code-memory": 5}}',
            '{"mcpServers": {"a": 1}}',
            id="not an object",
        ),
        pytest.param(
            JSONC,
            '{"context_servers": {"a": 1, // x\n "code-memory": {}}}',
            '{"context_servers": {"a": 1 // x\n}}',
            id="a comment never takes in what follows",
        ),
        pytest.param(
            JSONC,
            '{"context_servers": {\n  // x\n  "code-memory": {} /* y */, // z\n  "b": 1}}',
            '{"context_servers": {\n  // x\n/* y */ // z\n  "b": 1}}',
            id="remarks around it stay",
        ),
        pytest.param(
            TOML, "[mcp_servers.code-memory]\na=1\n# next\n[z]\n", "# next\n[z]\n", id="TOML first"
        ),
        pytest.param(
            TOML,
            '[a]\n\n[ mcp_servers . "code-memory" ]\na=1\n'
            '[mcp_servers.code-memory.env]\nB="2"\n\n[z]\nc=1\n',
            "[a]\n\n[z]\nc=1\n",
            id="TOML with a subtable",
        ),
    ],
)
def test_entry_of_another_hand_is_removed(shape, text, left):
    assert without_server(text, shape) == left


@pytest.mark.parametrize("shape", [JSON, JSONC, TOML], ids=lambda shape: shape.format)
def test_no_entry_is_no_change(shape):
    text = "a = 1\n" if shape is TOML else '{"a":  1}\n'
    assert without_server(text, shape) == text


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        pytest.param(
            JSON,
            json.dumps(
                {
                    "mcpServers": {
                        "code-memory": {
                            "command": "npx",
                            "args": ["x"],
                            "disabled": True,
                            "env": {"A": "b", "MEMORY_PATH": "/old"},
                        },
                        "z": 1,
                    }
                }
            ),
            id="JSON",
        ),
        pytest.param(
            JSONC,
            '{"context_servers": {"code-memory": {"command": "npx", "disabled": true, /* mine */ '
            '"env": {"A": "b"}}, "z": 1 }, // keep\n}',
            id="JSONC",
        ),
        pytest.param(
            TOML,
            '[mcp_servers.z]\n\n[mcp_servers."code-memory"] # old\ncommand = "npx"\n'
            'disabled = true\n\n[mcp_servers.code-memory.env]\nA = "b"\n# keep\n[other]\n',
            id="TOML",
        ),
    ],
)
def test_older_entry_is_brought_up_to_date(shape, text):
    new = with_server(text, ENTRY, shape)
    data = PARSERS[shape.format](new)
    entry = data[shape.section]["code-memory"]
    assert entry["command"] == ENTRY["command"]
    assert entry["args"] == ENTRY["args"]
    assert entry["disabled"] is True
    assert entry["env"] == {"A": "b"}
    assert "z" in data[shape.section]
    assert ("keep" in text) == ("keep" in new)
    assert with_server(new, ENTRY, shape) == new
    left = PARSERS[shape.format](without_server(new, shape, [text]))
    assert set(left[shape.section]) == {"z"}


@pytest.mark.parametrize(
    ("shape", "text", "place"),
    [
        pytest.param(JSON, '{"mcpServers": {', "line 1, column 17", id="cut short"),
        pytest.param(JSON, '{\n  // mine\n  "mcpServers": {}\n}', "line 2, column 3", id="comment"),
        pytest.param(JSON, "[]", "line 1, column 1", id="a list"),
        pytest.param(JSON, '"x"', "line 1, column 1", id="a string"),
        pytest.param(JSON, '{"mcpServers": []}', "line 1, column 16", id="section is a list"),
        pytest.param(JSON, '{"mcpServers": null}', "line 1, column 16", id="section is null"),
        pytest.param(JSON, '{"a": 1,\n "a": 2}', "line 2, column 2", id="key twice"),
        pytest.param(JSON, '{"a": 1, "\\u0061": 2}', "line 1, column 10", id="key twice, escaped"),
        pytest.param(JSON, '{"x": [{"a": 1, "a": 2}]}', "line 1, column 17", id="key twice, deep"),
        pytest.param(JSON, '{"a": 1,}', "line 1, column 8", id="trailing comma"),
        pytest.param(JSON, '{"a": 1 "b": 2}', "line 1, column 9", id="comma missing"),
        pytest.param(JSON, '{"a" 1}', "line 1, column 6", id="colon missing"),
        pytest.param(JSON, "{'a': 1}", "line 1, column 2", id="single quotes"),
        pytest.param(JSON, '{"a": NaN}', "line 1, column 7", id="not a JSON number"),
        pytest.param(JSON, '{"a": 01}', "line 1, column 8", id="leading zero"),
        pytest.param(JSON, '{"a": "x\ny"}', "line 1, column 7", id="newline in a string"),
        pytest.param(JSON, "{} {}", "line 1, column 4", id="two documents"),
        pytest.param(JSON, '{"a":' + "[" * 5000, "line 1", id="deep"),
        pytest.param(JSONC, "{ /* x", "line 1, column 3", id="JSONC, comment without an end"),
        pytest.param(
            JSONC,
            '{"context_servers": 1, "context_servers": 2}',
            "column 24",
            id="JSONC, section twice",
        ),
        pytest.param(TOML, "a = 1\nb =\n", "line 2, column 4", id="TOML"),
        pytest.param(TOML, "mcp_servers = 1", "not a table", id="TOML, section is a number"),
        pytest.param(TOML, "mcp_servers = {}", "line", id="TOML, section is inline"),
        pytest.param(
            TOML,
            "[mcp_servers]\ncode-memory = {command='x'}",
            "not a table of its own",
            id="TOML, entry is inline",
        ),
        pytest.param(TOML, "a = " + "[" * 5000, "nested too deeply", id="TOML, deep"),
    ],
)
def test_faults_are_named(shape, text, place):
    with pytest.raises(ConfigError, match=re.escape(place)):
        with_server(text, ENTRY, shape)


def test_byte_order_mark_is_read_and_never_written():
    text = "\ufeff" + json.dumps({"mcpServers": {"other": OTHER}})
    new = with_server(text, ENTRY, JSON)
    assert not new.startswith("\ufeff")
    assert without_server(new, JSON, [text]) == text.removeprefix("\ufeff")
    assert not with_server("\ufeff" + new, ENTRY, JSON).startswith("\ufeff")


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=8)
)
KEYS = st.sampled_from(["a", "mcpServers", "context_servers", "code-memory", "é", "//", "/*"])
VALUES = st.recursive(
    SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(KEYS, v, max_size=3), max_leaves=12
)
SPACE = st.sampled_from(["", " ", "\n", "\r\n", "\t", "\n\n  "])
TRIVIA = st.lists(
    SPACE | st.sampled_from(["// remark\n", "/* note */", '/* " , } */', "//\r\n"]), max_size=3
).map("".join)


@st.composite
def documents(draw, section, space, lenient=False):
    """The text of an object: values of any kind, spaced in any way."""

    def write(value):
        pad = lambda: draw(space)  # noqa: E731
        if isinstance(value, dict):
            items = [
                f"{pad()}{json.dumps(k)}{pad()}:{pad()}{write(v)}{pad()}" for k, v in value.items()
            ]
            return "{" + ",".join(items) + tail(items, pad) + "}"
        if isinstance(value, list):
            items = [f"{pad()}{write(v)}{pad()}" for v in value]
            return "[" + ",".join(items) + tail(items, pad) + "]"
        return json.dumps(value, ensure_ascii=draw(st.booleans()))

    def tail(items, pad):
        return ("," if items and lenient and draw(st.booleans()) else "") + pad()

    data = draw(st.dictionaries(KEYS.filter(lambda key: key != section), VALUES, max_size=3))
    if draw(st.booleans()):
        names = KEYS.filter(lambda key: key != "code-memory")
        data[section] = draw(st.dictionaries(names, VALUES, max_size=3))
    return draw(space) + write(data) + draw(space)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(documents("mcpServers", SPACE))
def test_any_json_document(text):
    check_any_document(text, JSON)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(documents("context_servers", TRIVIA, lenient=True))
def test_any_jsonc_document(text):
    check_any_document(text, JSONC)


def check_any_document(text, shape):
    parse = PARSERS[shape.format]
    new = with_server(text, ENTRY, shape)
    after, before = parse(new), parse(text)
    assert after[shape.section].pop("code-memory") == ENTRY
    assert list(after.items()) == list({**before, shape.section: after[shape.section]}.items())
    assert after[shape.section] == before.get(shape.section, {})
    assert without_server(new, shape, [text]) == text
    cut = without_server(new, shape, [text + " "])
    assert parse(cut) == before
    assert re.findall("remark|note", cut) == re.findall("remark|note", text)


# --- The hook at a session's end

HOOK = cm.render_hook_command(["/opt/my apps/code-memory"], "linux")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{\n  "model": "x"\n}\n',
        '{"hooks":{}}',
        '{\n\t"hooks": {\n\t\t"SessionEnd": []\n\t}\n}',
        '{"hooks": {"Stop": [], '
        '"SessionEnd": [{"matcher": "", "hooks": [{"command": "z sync --quiet"}]}]}}',
    ],
)
def test_hook_is_added_and_removed(text):
    new = cm.with_session_hook(text, HOOK)
    groups = json.loads(new)["hooks"]["SessionEnd"]
    assert groups[-1]["hooks"] == [{"type": "command", "command": HOOK, "timeout": 60}]
    assert cm.read_session_hook(new) == HOOK
    assert cm.with_session_hook(new, HOOK) == new
    moved = cm.with_session_hook(new, "/new/code-memory sync --quiet")
    assert len(json.loads(moved)["hooks"]["SessionEnd"]) == len(groups)
    assert cm.without_session_hook(moved, [text]) == text
    assert cm.without_session_hook(new, [text]) == text
    left = json.loads(cm.without_session_hook(new))
    others = json.loads(text or "{}")
    assert left.get("model") == others.get("model")
    assert len(left.get("hooks", {}).get("SessionEnd", [])) == len(groups) - 1


def test_hook_beside_others_in_one_group_goes_alone():
    other = {"type": "command", "command": "other"}
    ours = {"type": "command", "command": HOOK}
    text = json.dumps({"hooks": {"SessionEnd": [{"matcher": "", "hooks": [ours, other]}]}})
    left = json.loads(cm.without_session_hook(text))
    assert left == {"hooks": {"SessionEnd": [{"matcher": "", "hooks": [other]}]}}


def test_hook_command_of_windows_is_quoted_for_every_shell():
    command = cm.render_hook_command([r"C:\Program Files\code-memory\code-memory.exe"], "win32")
    assert command == '"C:/Program Files/code-memory/code-memory.exe" sync --quiet'


@pytest.mark.parametrize("text", ["[]", '{"hooks": []}', '{"hooks": {"SessionEnd": {}}}', "{//\n}"])
def test_hook_is_not_put_where_it_does_not_belong(text):
    with pytest.raises(ConfigError):
        cm.with_session_hook(text, HOOK)


# --- Places

CLINE = "globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json"


@pytest.mark.parametrize(
    ("client", "platform", "env", "expected"),
    [
        pytest.param(
            "claude-desktop",
            "darwin",
            {},
            "Library/Application Support/Claude/claude_desktop_config.json",
            id="Claude Desktop, macOS",
        ),
        pytest.param(
            "claude-desktop",
            "linux",
            {},
            ".config/Claude/claude_desktop_config.json",
            id="Claude Desktop, Linux",
        ),
        pytest.param(
            "claude-desktop",
            "linux",
            {"XDG_CONFIG_HOME": "~/cfg"},
            "cfg/Claude/claude_desktop_config.json",
            id="Claude Desktop, XDG",
        ),
        pytest.param(
            "claude-desktop",
            "win32",
            {},
            "AppData/Roaming/Claude/claude_desktop_config.json",
            id="Claude Desktop, Windows",
        ),
        pytest.param(
            "claude-desktop",
            "win32",
            {"APPDATA": "~\\R"},
            "R/Claude/claude_desktop_config.json",
            id="Claude Desktop, APPDATA",
        ),
        pytest.param("claude-code", "darwin", {}, ".claude.json", id="Claude Code"),
        pytest.param(
            "claude-code",
            "linux",
            {"CLAUDE_CONFIG_DIR": "~/cc"},
            "cc/.claude.json",
            id="Claude Code, its own folder",
        ),
        pytest.param("cursor", "win32", {}, ".cursor/mcp.json", id="Cursor"),
        pytest.param(
            "vscode",
            "darwin",
            {},
            "Library/Application Support/Code/User/mcp.json",
            id="VS Code, macOS",
        ),
        pytest.param("vscode", "linux", {}, ".config/Code/User/mcp.json", id="VS Code, Linux"),
        pytest.param(
            "vscode", "win32", {}, "AppData/Roaming/Code/User/mcp.json", id="VS Code, Windows"
        ),
        pytest.param("windsurf", "linux", {}, ".codeium/windsurf/mcp_config.json", id="Windsurf"),
        pytest.param("codex", "linux", {}, ".codex/config.toml", id="Codex"),
        pytest.param(
            "codex", "linux", {"CODEX_HOME": "~/cx"}, "cx/config.toml", id="Codex, its own folder"
        ),
        pytest.param("gemini", "darwin", {}, ".gemini/settings.json", id="Gemini"),
        pytest.param("zed", "darwin", {}, ".config/zed/settings.json", id="Zed, macOS"),
        pytest.param("zed", "linux", {}, ".config/zed/settings.json", id="Zed, Linux"),
        pytest.param("zed", "win32", {}, "AppData/Roaming/Zed/settings.json", id="Zed, Windows"),
        pytest.param("lm-studio", "linux", {}, ".lmstudio/mcp.json", id="LM Studio"),
        pytest.param(
            "cline",
            "darwin",
            {},
            f"Library/Application Support/Code/User/{CLINE}",
            id="Cline, macOS",
        ),
        pytest.param(
            "cline",
            "win32",
            {},
            f"AppData/Roaming/Code/User/{CLINE}",
            id="Cline, Windows",
        ),
    ],
)
def test_usual_place(tmp_path, client, platform, env, expected):
    (place,) = cm.client_places(client, platform, tmp_path, env)
    assert place.path == tmp_path / expected
    assert not place.present
    (tmp_path / expected).parent.mkdir(parents=True, exist_ok=True)
    (place,) = cm.client_places(client, platform, tmp_path, env)
    assert place.path == tmp_path / expected
    assert place.present or client in ("claude-code", "cline")


def test_every_client_has_a_name_a_shape_and_places():
    assert set(CLIENTS) == set(cm._FINDERS)


@pytest.mark.parametrize(
    ("folders", "labels"),
    [
        pytest.param([], ["classic place"], id="none"),
        pytest.param(["R/Claude"], ["classic place"], id="classic"),
        pytest.param(["L/Packages/Claude_x1"], ["packaged app"], id="packaged"),
        pytest.param(
            ["L/Packages/Claude_x1", "R/Claude"], ["packaged app", "classic place"], id="both"
        ),
        pytest.param(
            ["L/Packages/Claude_x1", "L/Packages/Claude_x2", "L/Packages/Other_x"],
            ["packaged app"] * 2,
            id="two packages",
        ),
    ],
)
def test_windows_places(tmp_path, folders, labels):
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
    env = {"APPDATA": str(tmp_path / "R"), "LOCALAPPDATA": str(tmp_path / "L")}
    places = cm.client_places("claude-desktop", "win32", tmp_path, env)
    assert [place.label for place in places] == labels
    outcomes = cm.install(places, ENTRY, NOW)
    assert [outcome.word for outcome in outcomes] == ["created"] * len(labels)
    for place in places:
        assert json.loads(place.path.read_bytes())["mcpServers"]["code-memory"] == ENTRY
    for place in places[:-1]:
        assert place.path.parts[-4:-1] == ("LocalCache", "Roaming", "Claude")


def test_clients_with_several_folders_get_every_one_that_is_there(tmp_path):
    for folder in ("Code/User", "VSCodium/User"):
        (tmp_path / ".config" / folder).mkdir(parents=True)
    places = cm.client_places("vscode", "linux", tmp_path, {})
    assert [place.label for place in places] == ["", "VSCodium"]


def test_named_config_is_the_only_place(tmp_path):
    file = tmp_path / "my.json"
    assert cm.client_places("cursor", "linux", tmp_path, {}, file) == [
        Place("cursor", file, CLIENTS["cursor"][1])
    ]


# --- The command


@pytest.mark.parametrize(
    ("platform", "script"),
    [("linux", "bin/code-memory"), ("win32", "Scripts/code-memory.exe")],
)
def test_own_command(tmp_path, platform, script):
    python = str(tmp_path / "python")
    prefix, exe = str(tmp_path), str(tmp_path / "app.exe")
    assert cm.own_command("x", exe, True, prefix, platform) == (exe,)
    fallback = (python, "-m", "code_memory")
    assert cm.own_command("code_memory.py", python, False, prefix, platform) == fallback
    archive = tmp_path / "code-memory.pyz"
    archive.touch()
    assert cm.own_command(str(archive), python, False, prefix, platform) == (python, str(archive))
    user = tmp_path / "user" / Path(script).name
    user.parent.mkdir()
    user.touch()
    argv0 = str(user).removesuffix(".exe")
    assert cm.own_command(argv0, python, False, prefix, platform) == (str(user),)
    installed = tmp_path / script
    installed.parent.mkdir()
    installed.touch()
    assert cm.own_command(argv0, python, False, prefix, platform) == (str(installed),)


# --- Files


def place_at(path, client="claude-desktop"):
    return Place(client, path, CLIENTS[client][1])


def kept_texts(path):
    return [backup.read_bytes() for backup in cm.find_backups(path)]


EXAMPLES = {
    "claude-desktop": '{"theme": "dark"}',
    "claude-code": '{\n  "numStartups": 7,\n  "projects": {"/x": {"mcpServers": {}}}\n}',
    "cursor": '{\n  "mcpServers": {}\n}\n',
    "vscode": '{\n\t// mine\n\t"servers": {},\n\t"inputs": [],\n}\n',
    "windsurf": '{"mcpServers": {"a": {"command": "b"}}}',
    "codex": '# mine\nmodel = "x"\n\n[mcp_servers.a]\ncommand = "b"\n',
    "gemini": '{"theme": "Default", "mcpServers": {}}',
    "zed": '// Zed settings\n{\n  "theme": "One", // dark\n  "context_servers": {\n  },\n}\n',
    "lm-studio": '{\n  "mcpServers": {}\n}',
    "cline": '{\n  "mcpServers": {\n    "a": {"command": "b", "autoApprove": []}\n  }\n}',
}


@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["no mark", "byte order mark"])
@pytest.mark.parametrize("client", CLIENTS)
def test_install_and_uninstall_give_the_same_bytes(tmp_path, client, mark):
    path, shape = tmp_path / "config", CLIENTS[client][1]
    text = EXAMPLES[client]
    path.write_bytes((mark + text).encode())
    path.chmod(0o640)
    (outcome,) = cm.install([place_at(path, client)], ENTRY, NOW)
    assert (outcome.word, outcome.backup) == ("updated", cm.find_backups(path)[0])
    assert kept_texts(path) == [(mark + text).encode()]
    data = PARSERS[shape.format](path.read_text("utf-8"))
    written = data[shape.section]["code-memory"]
    assert written == {**dict(shape.extra), **ENTRY}
    assert cm.install([place_at(path, client)], ENTRY, NOW)[0].word == "unchanged"
    (outcome,) = cm.uninstall([place_at(path, client)], NOW)
    assert outcome.word == "removed"
    assert path.read_bytes() == text.encode()
    assert len(cm.find_backups(path)) == 1
    assert cm.uninstall([place_at(path, client)], NOW)[0].word == "absent"


@pytest.mark.parametrize("client", CLIENTS)
def test_a_file_that_we_made_goes_again(tmp_path, client):
    path = tmp_path / "new" / "config"
    assert cm.uninstall([place_at(path, client)], NOW)[0].word == "absent"
    assert cm.install([place_at(path, client)], ENTRY, NOW)[0].word == "created"
    assert cm.uninstall([place_at(path, client)], NOW)[0].word == "removed"
    assert not path.exists()


def test_an_empty_file_is_empty_again(tmp_path):
    path = tmp_path / "config"
    path.touch()
    assert cm.install([place_at(path)], ENTRY, NOW)[0].word == "updated"
    assert cm.uninstall([place_at(path)], NOW)[0].word == "removed"
    assert path.read_bytes() == b""


def test_what_was_changed_since_the_install_stays(tmp_path):
    path = tmp_path / "config"
    path.write_text('{"a": 1.0}')
    cm.install([place_at(path)], ENTRY, NOW)
    path.write_text(path.read_text().replace("1.0", "2.50"))
    cm.uninstall([place_at(path)], NOW)
    assert path.read_text() == '{"a": 2.50}'
    assert len(cm.find_backups(path)) == 2  # the state that no other backup could give back


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b'{"mcpServers": {', id="cut short"),
        pytest.param(b"[]", id="a list"),
        pytest.param('{"a": "é"}'.encode("latin-1"), id="Latin-1"),
        pytest.param("{}".encode("utf-16"), id="UTF-16"),
    ],
)
def test_a_file_that_cannot_be_read_stays(tmp_path, data):
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    bad.write_bytes(data)
    outcomes = cm.install([place_at(bad), place_at(good)], ENTRY, NOW)
    assert [outcome.word for outcome in outcomes] == ["error", "created"]
    assert str(bad) in outcomes[0].detail
    assert "left untouched" in outcomes[0].detail
    assert bad.read_bytes() == data
    assert cm.uninstall([place_at(bad)], NOW)[0].word == "error"
    (state,) = cm.read_states([place_at(bad)])
    assert state.error
    assert state.exists
    assert sorted(tmp_path.iterdir()) == [bad, good]


def test_dry_run_writes_nothing(tmp_path):
    path = tmp_path / "config"
    ledger = tmp_path / "ledger.json"
    assert (
        cm.install([place_at(path)], ENTRY, NOW, dry_run=True, ledger=ledger)[0].word == "created"
    )
    assert list(tmp_path.iterdir()) == []
    path.write_text("{}")
    assert cm.install([place_at(path)], ENTRY, NOW, dry_run=True)[0].word == "updated"
    assert [p.name for p in tmp_path.iterdir()] == ["config"]
    assert path.read_text() == "{}"


def test_backups_are_never_written_over(tmp_path):
    path = tmp_path / "config [x]*"
    backups = []
    for number in range(3):
        path.write_text(f'{{"a": {number}}}')
        backups.append(cm.install([place_at(path)], ENTRY, NOW)[0].backup)
    assert cm.find_backups(path) == backups[::-1]
    assert [b.read_text() for b in backups] == [f'{{"a": {n}}}' for n in range(3)]


@POSIX
@pytest.mark.parametrize("mode", [0o600, 0o644, 0o664])
def test_mode_is_kept_and_backups_are_private(tmp_path, mode):
    path = tmp_path / "config"
    path.write_text("{}")
    path.chmod(mode)
    (outcome,) = cm.install([place_at(path)], ENTRY, NOW)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert stat.S_IMODE(outcome.backup.stat().st_mode) == 0o600
    cm.uninstall([place_at(path)], NOW)
    assert stat.S_IMODE(path.stat().st_mode) == mode


@POSIX
def test_new_file_is_private(tmp_path):
    cm.install([place_at(tmp_path / "a" / "config")], ENTRY, NOW)
    assert stat.S_IMODE((tmp_path / "a" / "config").stat().st_mode) == 0o600


@POSIX
def test_link_stays_a_link(tmp_path):
    real = tmp_path / "dotfiles" / "claude.json"
    real.parent.mkdir()
    real.write_text("{}")
    path = tmp_path / "config"
    path.symlink_to(os.path.relpath(real, tmp_path))
    cm.install([place_at(path)], ENTRY, NOW)
    assert path.is_symlink()
    assert "code-memory" in real.read_text()
    assert [p.name for p in real.parent.iterdir()] == ["claude.json"]
    cm.uninstall([place_at(path)], NOW)
    assert path.is_symlink()
    assert real.read_text() == "{}"


@POSIX
def test_link_to_nothing_gets_its_target(tmp_path):
    path = tmp_path / "config"
    path.symlink_to(tmp_path / "later" / "x.json")
    assert cm.install([place_at(path)], ENTRY, NOW)[0].word == "created"
    assert "code-memory" in (tmp_path / "later" / "x.json").read_text()


@POSIX
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root")
def test_owner_is_kept(tmp_path):
    path = tmp_path / "config"
    path.write_text("{}")
    os.chown(path, 12345, 12346)
    cm.install([place_at(path)], ENTRY, NOW)
    assert (path.stat().st_uid, path.stat().st_gid) == (12345, 12346)


def test_change_by_another_program_is_not_lost(tmp_path):
    path = tmp_path / "config"
    path.write_text('{"new": 1}')
    with pytest.raises(ConfigError, match="another program"):
        cm.write_config(path, "{}", b'{"old": 1}')
    assert path.read_text() == '{"new": 1}'
    assert [p.name for p in tmp_path.iterdir()] == ["config"]


def test_path_that_is_not_unicode_is_an_error(tmp_path):
    path = tmp_path / "config"
    entry = server_entry(["/opt/\udcff/code-memory"])
    assert cm.install([place_at(path)], entry, NOW)[0].word == "error"
    assert not path.exists()


def test_folder_in_place_of_the_file(tmp_path):
    (outcome,) = cm.install([place_at(tmp_path)], ENTRY, NOW)
    assert outcome.word == "error"
    assert str(tmp_path) in outcome.detail


AS_NOBODY = """
import sys
sys.path[:0] = {path!r}
from datetime import datetime
from pathlib import Path
import code_memory as cm
place = cm.Place("claude-desktop", Path(sys.argv[1]), cm.CLIENTS["claude-desktop"][1])
outcomes = cm.install([place], cm.server_entry(["/x"]), datetime(2026, 1, 1))
outcomes += cm.uninstall([place], datetime(2026, 1, 1))
for outcome in outcomes:
    print(outcome.word, outcome.detail)
"""


@POSIX
@pytest.mark.parametrize(
    ("name", "mode", "folder_mode", "words"),
    [
        pytest.param("c.json", 0o600, 0o755, ["error", "error"], id="file not readable"),
        pytest.param("c.json", 0o644, 0o755, ["error", "absent"], id="folder not writable"),
        pytest.param("c.json", 0o444, 0o777, ["error", "absent"], id="file is read-only"),
        pytest.param(
            "new.json", 0o644, 0o755, ["error", "absent"], id="no file, folder not writable"
        ),
        pytest.param("sub/new.json", 0o644, 0o755, ["error", "absent"], id="no folder"),
        pytest.param("c.json", 0o644, 0o700, ["error", "error"], id="folder not readable"),
    ],
)
def test_permission_denied_is_a_sentence(tmp_path_factory, name, mode, folder_mode, words):
    if not shutil.which("setpriv") or os.geteuid() != 0:
        pytest.skip("needs root and setpriv to become another user")
    folder = Path(subprocess.check_output(["mktemp", "-d"], text=True).strip())
    try:
        (folder / "c.json").write_text("{}")
        (folder / "c.json").chmod(mode)
        folder.chmod(folder_mode)
        code = AS_NOBODY.format(path=sys.path)
        command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable]
        done = subprocess.run(
            [*command, "-c", code, str(folder / name)], capture_output=True, text=True, cwd="/"
        )
        if "code_memory" in done.stderr or "Permission denied" in done.stderr[:200]:
            pytest.skip("another user may not read this checkout or start this Python")
        lines = done.stdout.splitlines()
        assert [line.split(" ", 1)[0] for line in lines] == words, done.stderr
        assert str(folder / name) in lines[0]
        assert "permission is denied" in lines[0]
        assert sorted(p.name for p in folder.iterdir()) == ["c.json"]
        assert (folder / "c.json").read_text() == "{}"
    finally:
        shutil.rmtree(folder)


# --- What is remembered, and status


def test_wiped_entry_is_told_from_one_that_never_was(tmp_path):
    path, ledger = tmp_path / "config", tmp_path / "store" / "clients.json"
    places = [place_at(path)]
    assert not cm.read_states(places, ledger)[0].was_installed
    path.write_text('{"mcpServers": {"other": {}}}')
    cm.install(places, ENTRY, NOW, ledger=ledger)
    assert cm.read_installed(ledger) == {str(path): "claude-desktop"}
    (state,) = cm.read_states(places, ledger)
    assert (state.command, state.env) == ((ENTRY["command"], "mcp", "serve"), {})
    path.write_text('{"mcpServers": {}}')
    (state,) = cm.read_states(places, ledger)
    assert state.was_installed
    assert state.entry is None
    assert state.lost == ("other",)
    cm.uninstall(places, NOW, ledger=ledger)
    assert cm.read_installed(ledger) == {}


@pytest.mark.parametrize("text", ["", "[]", "{", '{"/x": "no such client"}'])
def test_damaged_ledger_is_no_fault(tmp_path, text):
    ledger = tmp_path / "clients.json"
    ledger.write_text(text)
    assert cm.read_installed(ledger) == {}
    cm.install([place_at(tmp_path / "c")], ENTRY, NOW, ledger=ledger)
    assert list(cm.read_installed(ledger)) == [str(tmp_path / "c")]


# --- Claude Code


def claude_stub(path, calls, works=True):
    """Stands in for `claude`: `mcp add` and `mcp remove` on one file, as Claude Code writes it."""

    def run(words):
        calls.append(list(words))
        data = json.loads(path.read_text() or "{}") if path.exists() else {}
        servers = data.setdefault("mcpServers", {})
        if works and words[2] == "remove":
            servers.pop("code-memory", None)
        elif works:
            end = words.index("--")
            env = dict(w.removeprefix("--env=").split("=", 1) for w in words[6:end])
            entry = {"type": "stdio", "command": words[end + 1], "args": list(words[end + 2 :])}
            servers["code-memory"] = {**entry, "env": env}
        path.write_text(json.dumps(data, indent=2))
        return subprocess.CompletedProcess(words, 0 if works else 1, "", "")

    return run


def claude_code_place(path):
    return Place("claude-code", path, CLIENTS["claude-code"][1], by_command=True)


def test_claude_code_through_its_own_command(tmp_path):
    path, calls = tmp_path / ".claude.json", []
    path.write_text('{"a": 1}')
    options = {"claude": "/bin/claude", "run": claude_stub(path, calls)}
    (outcome,) = cm.install([claude_code_place(path)], ENTRY_WITH_STORE, NOW, **options)
    assert outcome.word == "updated"
    assert "claude mcp add" in outcome.detail
    assert calls == [
        [
            "/bin/claude",
            "mcp",
            "add",
            "--scope",
            "user",
            "code-memory",
            "--env=MEMORY_PATH=/data/é",
            "--",
            ENTRY["command"],
            "mcp",
            "serve",
        ]
    ]
    assert kept_texts(path) == [b'{"a": 1}']
    (outcome,) = cm.install([claude_code_place(path)], ENTRY_WITH_STORE, NOW, **options)
    assert (outcome.word, len(calls)) == ("unchanged", 1)
    (outcome,) = cm.install([claude_code_place(path)], ENTRY, NOW, **options)
    assert [call[2] for call in calls] == ["add", "remove", "add"]
    (outcome,) = cm.uninstall([claude_code_place(path)], NOW, **options)
    assert outcome.word == "removed"
    assert "code-memory" not in json.loads(path.read_text())["mcpServers"]


def test_claude_code_when_its_command_fails(tmp_path):
    path, calls = tmp_path / ".claude.json", []
    path.write_text('{"a": 1}')
    options = {"claude": "/bin/claude", "run": claude_stub(path, calls, works=False)}
    (outcome,) = cm.install([claude_code_place(path)], ENTRY, NOW, **options)
    assert outcome.word == "updated"
    assert json.loads(path.read_text())["mcpServers"]["code-memory"] == ENTRY
    (outcome,) = cm.uninstall([claude_code_place(path)], NOW, **options)
    assert outcome.word == "removed"
    assert "code-memory" not in path.read_text()


def test_session_hook_on_disk(tmp_path):
    path = tmp_path / "settings.json"
    assert cm.session_hook_path(tmp_path, {"CLAUDE_CONFIG_DIR": str(tmp_path)}) == path
    assert cm.add_session_hook(path, HOOK, NOW).word == "created"
    assert cm.remove_session_hook(path, NOW).word == "removed"
    assert not path.exists()
    path.write_text('{ "hooks": {"Stop": [1]} }')
    assert cm.add_session_hook(path, HOOK, NOW).word == "updated"
    assert cm.add_session_hook(path, HOOK, NOW).word == "unchanged"
    assert cm.remove_session_hook(path, NOW).word == "removed"
    assert path.read_text() == '{ "hooks": {"Stop": [1]} }'
    assert cm.remove_session_hook(path, NOW).word == "absent"


# --- Running programs


@pytest.mark.parametrize(
    ("path", "desktop"),
    [
        ("/Applications/Claude.app/Contents/MacOS/Claude", True),
        (r"C:\Program Files\WindowsApps\Claude_1.2.3_x64__abc\app\Claude.exe", True),
        (r"C:\Users\dana\AppData\Local\AnthropicClaude\app-1\claude.exe", True),
        ("/usr/bin/claude-desktop", True),
        ("/usr/lib/claude-desktop/app.asar", True),
        ("/home/dana/.local/bin/claude", False),
        (r"C:\Users\dana\.local\bin\claude.exe", False),
        ("claude", False),
    ],
)
def test_claude_desktop_is_told_from_claude_code(path, desktop):
    assert cm._is_claude_desktop(path) is desktop


def test_claude_is_running(tmp_path):
    assert cm.claude_is_running("linux", tmp_path / "none") is False
    process = tmp_path / "123"
    process.mkdir()
    (process / "cmdline").write_bytes(b"claude\0--resume\0")
    assert cm.claude_is_running("linux", tmp_path) is False
    (process / "cmdline").write_bytes(b"/usr/lib/electron\0/usr/lib/claude-desktop/app.asar\0")
    assert cm.claude_is_running("linux", tmp_path) is True
    assert cm.claude_is_running("win32") in (False, True)
    assert cm.claude_is_running("darwin") in (False, True)


SERVER = """
import json, sys, os
line = json.loads(sys.stdin.readline())
assert line["method"] == "initialize"
assert os.getcwd() == os.path.abspath(os.sep) or os.name == "nt"
name = sys.argv[1]
result = {"protocolVersion": "2025-06-18", "serverInfo": {"name": name}, "capabilities": {}}
print(json.dumps({"jsonrpc": "2.0", "id": 1, "result": result}), flush=True)
sys.stdin.read()
"""
FLOOD = "import sys\nfor _ in range(3000): sys.stderr.write('x' * 1000 + '\\n')\n"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        pytest.param(SERVER, None, id="answers"),
        pytest.param(FLOOD + SERVER, None, id="floods stderr, then answers"),
        pytest.param(
            SERVER.replace("sys.argv[1]", "'other'"), "another server", id="another server"
        ),
        pytest.param("import sys; sys.exit('no store')", "exit code 1.*no store", id="ends"),
        pytest.param("print('hello')", "not the protocol", id="prints"),
        pytest.param("print('[' * 100000)", "not the protocol", id="deep"),
        pytest.param(f"import time; time.sleep({3 * WAIT})", "did not answer within", id="silent"),
        pytest.param(
            "import sys\nwhile True: sys.stderr.write('x' * 1000)",
            "did not answer",
            id="floods stderr",
        ),
        pytest.param(
            "import sys\nwhile True: sys.stdout.write('x' * 1000)",
            "not the protocol",
            id="floods stdout",
        ),
        pytest.param(
            SERVER.replace("sys.stdin.read()", f"import time; time.sleep({3 * WAIT})"),
            None,
            id="does not end",
        ),
        pytest.param(
            f"import signal, time; signal.signal(15, 1); time.sleep({3 * WAIT})",
            "did not answer",
            id="ignores signals",
        ),
    ],
)
def test_handshake(code, said):
    wait = WAIT if said is None or "did not" not in said else 1
    problem = cm.prove_handshake(sys.executable, ["-c", code, "code-memory-mcp"], {}, wait)
    if said is None:
        assert problem is None
    else:
        assert re.search(said, problem, re.S)


def test_handshake_with_a_child_that_holds_the_pipes():
    grandchild = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(30)'])"
    code = f"import subprocess, sys; {grandchild}"
    problem = cm.prove_handshake(sys.executable, ["-c", code], {}, 0.8)
    assert problem is not None


def test_handshake_with_what_is_not_a_program(tmp_path):
    assert "is not there" in cm.prove_handshake(str(tmp_path / "none"), [], {}, WAIT)
    file = tmp_path / "file"
    file.write_text("x")
    assert "permission is denied" in cm.prove_handshake(str(file), [], {}, WAIT)
    file.chmod(0o755)
    file.write_bytes(b"\x7fELF")
    assert "could not be started" in cm.prove_handshake(str(file), [], {}, WAIT)


def test_handshake_has_few_variables():
    checked = "assert 'SECRET' not in os.environ and os.environ['MEMORY_PATH'] == '/x'"
    code = SERVER.replace("name = sys.argv[1]", f"name = 'code-memory-mcp'; {checked}")
    environ = {**os.environ, "SECRET": "1"}
    problem = cm.prove_handshake(
        sys.executable, ["-c", code], {"MEMORY_PATH": "/x"}, WAIT, environ=environ
    )
    assert problem is None


def test_shapes_are_the_ones_of_the_clients():
    assert CLIENTS["vscode"][1] == Shape("jsonc", "servers", (("type", "stdio"),))
    assert CLIENTS["zed"][1].section == "context_servers"
