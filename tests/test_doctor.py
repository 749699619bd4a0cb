"""The doctor finds each fault that can be seen from here, and says what to do."""

from __future__ import annotations

import json
import os
import stat
import sys
from datetime import datetime
from pathlib import Path

import pytest

import code_memory as cm
import code_memory as dr
from code_memory import CLIENTS, Check, ConfigError, ConfigState, Place, StoreHealth

NOW = datetime(2026, 3, 4, 5, 6, 7)
PROGRAM = sys.executable
GOOD = {"command": PROGRAM, "args": ["mcp", "serve"]}


def place_at(path, client="claude-desktop", label="", present=True):
    return Place(client, path, CLIENTS[client][1], label, present)


def write_entry(path, entry=GOOD, **more):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"mcpServers": {"code-memory": entry}, **more}), "utf-8")


def judge(places, ledger=None, install=None, platform="linux"):
    return dr.check_configs(cm.read_states(places, ledger), platform, install)


def faults(checks):
    return [check for check in checks if not check.ok]


def installer(entry=GOOD):
    """What the command line passes in: writes the entry, and says so or fails."""

    def install(place):
        (outcome,) = cm.install([place], entry, NOW)
        if outcome.word == "error":
            raise ConfigError(outcome.detail)
        return f"{place.path}: {outcome.word}"

    return install


# --- Configs


def test_healthy_config(tmp_path):
    write_entry(tmp_path / "c")
    (check,) = judge([place_at(tmp_path / "c")])
    assert check.ok
    assert PROGRAM in check.text


def test_never_installed(tmp_path):
    (check,) = judge([place_at(tmp_path / "c")], install=installer())
    assert not check.ok
    assert "mcp install" in check.advice
    assert dr.fix_all([check])[0].ok
    assert judge([place_at(tmp_path / "c")])[0].ok


def test_claude_desktop_is_not_there(tmp_path):
    (check,) = judge([place_at(tmp_path / "c", present=False)])
    assert "was not found" in check.text


def test_other_clients_need_no_entry(tmp_path):
    assert judge([place_at(tmp_path / "c", "cursor")]) == []


def test_wiped_entry(tmp_path):
    path, ledger = tmp_path / "c", tmp_path / "clients.json"
    path.write_text('{"mcpServers": {"other": {}, "third": {}}}')
    cm.install([place_at(path)], GOOD, NOW, ledger=ledger)
    path.write_text('{"theme": "dark"}')
    (check,) = judge([place_at(path)], ledger, installer())
    assert not check.ok
    assert "is gone from" in check.text
    assert "other, third" in check.text
    assert "Quit Claude Desktop" in check.advice
    assert str(cm.find_backups(path)[0]) in check.advice
    assert [result.ok for result in dr.fix_all([check])] == [True]
    assert json.loads(path.read_text())["mcpServers"]["code-memory"] == GOOD


def test_wrong_windows_place(tmp_path):
    package = tmp_path / "L" / "Packages" / "Claude_x"
    package.mkdir(parents=True)
    env = {"APPDATA": str(tmp_path / "R"), "LOCALAPPDATA": str(tmp_path / "L")}
    write_entry(tmp_path / "R" / "Claude" / "claude_desktop_config.json")
    places = cm.client_places("claude-desktop", "win32", tmp_path, env)
    checks = judge(places, install=installer(), platform="linux")
    assert [check.ok for check in checks] == [False, True]
    assert "does not read" in checks[0].text
    assert checks[0].name == "Claude Desktop (packaged app)"
    assert str(package) in dr.fix_all(checks)[0].text
    assert all(check.ok for check in judge(places))


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        pytest.param({"command": "/no/such/code-memory", "args": []}, "is gone", id="gone"),
        pytest.param({"command": "npx", "args": ["x"]}, "not a full path", id="older npx entry"),
        pytest.param({"command": 5}, "names no program", id="not a word"),
        pytest.param({"command": PROGRAM, "args": "x"}, "names no program", id="args not a list"),
        pytest.param([], "names no program", id="not an object"),
        pytest.param({"command": PROGRAM, "args": ["/x/a.pyz"]}, "a.pyz is gone", id="zipapp gone"),
        pytest.param({"url": "http://x"}, "names no program", id="a remote server"),
    ],
)
def test_command_that_cannot_start(tmp_path, entry, said):
    write_entry(tmp_path / "c", entry)
    (check,) = judge([place_at(tmp_path / "c")], install=installer())
    assert not check.ok
    assert said in check.text
    dr.fix_all([check])
    assert judge([place_at(tmp_path / "c")])[0].ok


@pytest.mark.skipif(os.name == "nt", reason="modes of POSIX")
def test_command_that_may_not_run(tmp_path):
    program = tmp_path / "code-memory"
    program.write_text("x")
    program.chmod(stat.S_IRUSR)
    assert "may not be run" in dr.find_command_fault([str(program)], "linux")


@pytest.mark.parametrize(
    ("program", "full"),
    [(r"C:\Program Files\x.exe", True), (r"\\server\x.exe", True), ("x.exe", False)],
)
def test_full_paths_of_windows(program, full):
    fault = dr.find_command_fault([program], "win32")
    assert ("not a full path" not in fault) is full


@pytest.mark.parametrize(
    ("path", "fleeting"),
    [
        ("/private/var/folders/x/AppTranslocation/1/d/code-memory", True),
        (r"C:\Users\dana\AppData\Local\Temp\Temp1_x.zip\code-memory.exe", True),
        ("/Applications/code-memory/code-memory", False),
        (r"C:\Users\dana\AppData\Local\Programs\code-memory\code-memory.exe", False),
    ],
)
def test_fleeting_folder(path, fleeting):
    assert dr.is_fleeting(path) is fleeting


def test_byte_order_mark(tmp_path):
    path = tmp_path / "c"
    write_entry(path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    (check,) = judge([place_at(path)], install=installer())
    assert "byte order mark" in check.text
    dr.fix_all([check])
    assert not path.read_bytes().startswith(b"\xef")
    assert judge([place_at(path)])[0].ok


def test_config_that_is_not_valid(tmp_path):
    path = tmp_path / "c"
    path.write_text('{"mcpServers": {}, }')
    (check,) = judge([place_at(path)], install=installer())
    assert not check.ok
    assert check.fix is None
    assert f"{path}: line 1, column 18" in check.text


def test_two_copies_and_two_stores(tmp_path):
    other = tmp_path / "code-memory"
    other.write_bytes(b"")
    other.chmod(0o755)
    write_entry(tmp_path / "a")
    write_entry(tmp_path / "b", {"command": str(other), "args": [], "env": {"MEMORY_PATH": "/x"}})
    places = [place_at(tmp_path / "a"), place_at(tmp_path / "b", "cursor")]
    copies, stores = faults(judge(places, install=installer()))
    assert PROGRAM in copies.text
    assert str(other) in copies.text
    assert "/x" in stores.text
    dr.fix_all([copies])
    assert all(check.ok for check in judge(places))


# --- Running, handshake, hook


@pytest.mark.parametrize(
    ("running", "faulty", "ok"),
    [(False, False, True), (False, True, True), (True, False, True), (True, True, False)],
)
def test_claude_running(running, faulty, ok):
    assert dr.check_running(running, faulty).ok is ok


def test_each_command_is_started_once():
    def state(client, entry):
        return ConfigState(place_at(Path("/x"), client), exists=True, entry=entry)

    calls = []

    def prove(command, args, env):
        calls.append((command, list(args), env))
        return "it did not answer." if env else None

    with_store = {**GOOD, "env": {"MEMORY_PATH": "/y"}}
    states = [
        state("claude-desktop", GOOD),
        state("cursor", GOOD),
        state("zed", with_store),
        state("cline", {"command": "/gone"}),
        state("codex", None),
    ]
    checks = dr.check_handshakes(states, "linux", prove)
    assert calls == [
        (PROGRAM, ["mcp", "serve"], {}),
        (PROGRAM, ["mcp", "serve"], {"MEMORY_PATH": "/y"}),
    ]
    assert [check.ok for check in checks] == [True, False]
    assert "it did not answer." in checks[1].text


@pytest.mark.parametrize(
    ("command", "ok"),
    [
        pytest.param(None, None, id="no hook"),
        pytest.param(f"{PROGRAM} sync --quiet", True, id="there"),
        pytest.param(f"'{PROGRAM}' sync --quiet", True, id="single quotes"),
        pytest.param(f'"{PROGRAM}" sync --quiet', True, id="double quotes"),
        pytest.param("'/gone away/code-memory' sync --quiet", False, id="gone"),
    ],
)
def test_session_hook(command, ok):
    checks = dr.check_hook(Path("/settings.json"), command, "linux")
    assert [check.ok for check in checks] == ([] if ok is None else [ok])


# --- The store

HEALTHY = {"path": "/m", "memories": 1200, "transcripts_read": 4, "transcripts_found": 4}


@pytest.mark.parametrize(
    ("changes", "bad", "said"),
    [
        pytest.param({}, [], "1,200 memories", id="healthy"),
        pytest.param({"problem": "permission is denied."}, ["Store"], "denied", id="unreadable"),
        pytest.param({"exists": False}, ["Store"], "code-memory sync", id="no store yet"),
        pytest.param({"damage": ("row 7 is missing",)}, ["Store"], "row 7", id="damaged"),
        pytest.param({"unindexed": 3}, ["Index"], "code-memory rebuild", id="index incomplete"),
        pytest.param({"model_problem": "The model is gone."}, ["Model"], "words only", id="model"),
        pytest.param({"transcripts_read": 1}, ["Import"], "1 of 4", id="import not done"),
        pytest.param({"wal": False}, [], "write-ahead", id="no WAL"),
        pytest.param({"expiring": 2}, [], "all of them are kept", id="expiring, kept"),
        pytest.param(
            {"expiring": 2, "expiring_unread": 1}, ["Expiry"], "1 of them", id="expiring, not kept"
        ),
    ],
)
def test_store(changes, bad, said):
    checks = dr.check_store(StoreHealth(**{**HEALTHY, **changes}))
    assert [check.name for check in faults(checks)] == bad
    assert all(check.advice for check in faults(checks))
    assert said in dr.render_checks(checks)


def test_store_repairs_are_run_once_each():
    calls = []
    health = StoreHealth(
        **{**HEALTHY, "damage": ("x",), "unindexed": 1, "transcripts_read": 0},
        expiring=1,
        expiring_unread=1,
    )
    checks = dr.check_store(health, lambda: calls.append("rebuild") or "", lambda: "synced")
    results = dr.fix_all(checks)
    assert calls == ["rebuild"]
    assert [result.text for result in results] == ["", "synced"]


# --- The report


def test_report():
    checks = [
        Check("Store", True, "all is well"),
        Check("Index", False, "3 are missing", "Run rebuild.", lambda: "done"),
    ]
    assert dr.render_checks(checks) == (
        "✓ Store  all is well\n"
        "✗ Index  3 are missing\n"
        "         → Run rebuild.\n"
        "To repair what can be repaired: code-memory doctor --fix\n"
    )
    assert dr.render_checks(checks, color=True).count("\x1b[0m") == 2
    assert dr.render_checks([]) == ""


@pytest.mark.parametrize("error", [ConfigError("x is read-only"), OSError("disk full")])
def test_repair_that_fails_is_told_and_the_rest_goes_on(error):
    def fail():
        raise error

    checks = [Check("A", False, "", "do", fail), Check("B", False, "", "", lambda: "done")]
    results = dr.fix_all(checks)
    assert [(result.name, result.ok, result.text) for result in results] == [
        ("A", False, str(error)),
        ("B", True, "done"),
    ]
