"""The Windows program and its installer, from freezing to removal, on a Windows made by Wine.

The tests are one story and run in this order. What they need, windows_machine.py makes in the
folder that CODE_MEMORY_WINE_FOLDER names, or in one that goes with the tests; without Debian on x86-64 they are skipped.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import WAIT, wait_until

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
for folder in (HERE, ROOT / "build", ROOT / "installers" / "windows"):
    sys.path.insert(0, str(folder))

import build_windows
import freeze
import trial
import windows_machine
from windows_machine import WindowsMachine

UNFIT = windows_machine.explain_unfit()
pytestmark = [
    pytest.mark.wine,
    pytest.mark.skipif(UNFIT is not None, reason=str(UNFIT)),
]

MOST_MEGABYTES = 45
UNINSTALL_KEY = r"HKCU\Software\Microsoft\Windows\CurrentVersion\Uninstall\code-memory"
CLASSIC = "AppData/Roaming/Claude"
PACKAGED = "AppData/Local/Packages/Claude_test/LocalCache/Roaming/Claude"
CONFIGS = {  # place below the home folder -> what another program and the person put there
    f"{CLASSIC}/claude_desktop_config.json": {
        "mcpServers": {"기억": trial.OTHER_SERVER},
        "globalShortcut": "Ctrl+Space",
    },
    f"{PACKAGED}/claude_desktop_config.json": {"mcpServers": {"other": trial.OTHER_SERVER}},
}
MENU = {"Browse memories", "Check that it works", "Forget memories", "Remove code-memory"}
NEWER_VERSION = "9.9.9"


@pytest.fixture(scope="module")
def machine() -> Iterator[WindowsMachine]:
    with contextlib.ExitStack() as stack:
        named = os.environ.get(windows_machine.FOLDER_VARIABLE)
        # else one of this run alone: another run may make its Windows at the same time
        folder = named or stack.enter_context(
            tempfile.TemporaryDirectory(prefix="code-memory-wine-", ignore_cleanup_errors=True)
        )
        made = WindowsMachine(Path(folder).resolve())
        shutil.rmtree(made.prefix, ignore_errors=True)
        stack.callback(made.stop)
        made.make()
        yield made


@pytest.fixture(scope="module")
def dist(machine: WindowsMachine) -> Path:
    """Freeze on that Windows; freeze.py tries both programs there itself."""
    dist = machine.folder / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    _, out, err = machine.run(
        machine.python / "python.exe",
        ROOT / "build" / "freeze.py",
        *("--here", "--work", r"C:\freeze", "--dist", dist),
        timeout=20 * WAIT,
    )
    print(out, err)
    assert out.count("✓") == 2 * len(trial.STEPS), out  # folder and single file
    return dist


@pytest.fixture(scope="module")
def setup(dist: Path) -> Path:
    return build_windows.build_installer(dist / "code-memory", dist)


@pytest.fixture(scope="module")
def home(machine: WindowsMachine, setup: Path) -> Path:
    """A person's home with transcripts, two places of Claude Desktop, and our program installed."""
    home = machine.home
    trial.write_corpus(home)
    for place, config in CONFIGS.items():
        (home / place).parent.mkdir(parents=True)
        (home / place).write_text(json.dumps(config, ensure_ascii=False, indent=2), "utf-8")
    (machine.folder / "before.txt").write_text("\n".join(list_files(home)), "utf-8")
    code, out, err = machine.run(setup, "/S", check=False)
    report = find_program(home).with_name("install.log")
    told = report.read_text("utf-8", "replace") if report.exists() else "no install.log"
    print(told)
    assert code == 0, (out, err, told)
    return home


def find_program(home: Path) -> Path:
    return home / "AppData/Local/Programs/code-memory/code-memory.exe"


def list_files(folder: Path) -> list[str]:
    """Every file below the folder, but those of the temporary folder, in which Windows keeps the
    uninstaller's copy of itself until the next start."""
    names = (p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    return sorted(name for name in names if not name.startswith(("Temp/", "AppData/Local/Temp/")))


def read_registry(machine: WindowsMachine) -> dict[str, str]:
    """The values of our entry in Apps & features; empty when there is none."""
    code, out, _ = machine.run("reg", "query", UNINSTALL_KEY, check=False)
    rows = [line.split(None, 2) for line in out.splitlines() if " REG_" in line]
    return {row[0]: row[2].strip() for row in rows} if code == 0 else {}


def read_config(home: Path, place: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((home / place).read_text("utf-8"))
    return config


def talk(server: subprocess.Popen[bytes], *messages: dict[str, Any]) -> list[bytes]:
    """Send messages as they are and return one raw line for each that has an id."""
    assert server.stdin
    assert server.stdout
    lines = []
    for message in messages:
        text = json.dumps({"jsonrpc": "2.0", **message}, ensure_ascii=False) + "\n"
        server.stdin.write(text.encode("utf-8"))
        server.stdin.flush()
        if "id" in message:
            lines.append(server.stdout.readline())
    return lines


HELLO = {
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}


def test_the_program_says_who_it_is_to_windows(dist: Path) -> None:
    import pefile  # comes with the Windows Python's packages

    for exe in (dist / "code-memory/code-memory.exe", dist / "portable/code-memory.exe"):
        pe = pefile.PE(str(exe))
        strings = pe.FileInfo[0][0].StringTable[0].entries
        assert strings[b"ProductName"] == b"code-memory"
        assert strings[b"FileVersion"].decode() == freeze.read_version()
        kinds = {entry.id for entry in pe.DIRECTORY_ENTRY_RESOURCE.entries}
        assert {3, 14, 16} <= kinds, "icon, group of icons, version"


def test_the_installer_is_small_and_64_bit(setup: Path) -> None:
    import pefile  # comes with the Windows Python's packages

    megabytes = setup.stat().st_size / 1e6
    print(f"{setup.name}: {megabytes:.1f} MB")
    assert megabytes <= MOST_MEGABYTES
    assert pefile.PE(str(setup), fast_load=True).FILE_HEADER.Machine == 0x8664


def test_it_installs_for_one_person(machine: WindowsMachine, home: Path) -> None:
    program = find_program(home)
    assert program.is_file()
    assert (program.parent / "_internal/model/model.safetensors").is_file()
    assert (program.parent / "_internal/THIRD_PARTY_LICENSES.txt").is_file()
    entry = read_registry(machine)
    assert entry["DisplayName"] == "code-memory"
    assert entry["DisplayVersion"] == freeze.read_version()
    assert entry["UninstallString"] == f'"{machine.path(program.with_name("uninstall.exe"))}"'
    assert int(entry["EstimatedSize"], 16) > 10_000
    menu = home / "AppData/Roaming/Microsoft/Windows/Start Menu/Programs/code-memory"
    assert {link.stem for link in menu.iterdir()} == MENU
    browse = (menu / "Browse memories.lnk").read_bytes()
    assert "menu.cmd".encode("utf-16-le") in browse
    assert any((home / ".claude-code/memory").iterdir())


@pytest.mark.parametrize("place", CONFIGS)
def test_every_place_of_claude_desktop_is_set_up(
    machine: WindowsMachine, home: Path, place: str
) -> None:
    config = read_config(home, place)
    entry = config["mcpServers"].pop("code-memory")
    assert entry["command"].lower() == machine.path(find_program(home)).lower()
    assert entry["args"] == ["mcp", "serve"]
    assert config == CONFIGS[place]


def test_korean_and_emoji_pass_both_ways(machine: WindowsMachine, home: Path) -> None:
    question, (_, answer) = trial.KOREAN
    call = {"name": "mem-search", "arguments": {"query": question}}
    server = machine.start(find_program(home), "mcp", "serve")
    with contextlib.ExitStack() as stack:
        stack.callback(server.kill)
        lines = talk(
            server,
            HELLO,
            {"method": "notifications/initialized"},
            {"id": 2, "method": "tools/call", "params": call},
        )
        for line in lines:
            assert line.endswith(b"}\n"), "lines end in LF alone"
            json.loads(line.decode("utf-8"))
        result = json.loads(lines[1])["result"]
        text = "".join(part["text"] for part in result["content"])
        assert answer[:8] in text
        assert "🎉" in text
        assert server.stdin
        server.stdin.close()
        assert server.wait(WAIT) == 0


def test_menu_entries_stay_open_until_a_key(machine: WindowsMachine, home: Path) -> None:
    menu = find_program(home).with_name("menu.cmd")
    _, out, err = machine.run("cmd", "/c", menu, "doctor", stdin=b"\r\n")
    print(out, err)
    assert "code-memory" in out
    assert "echo" not in out, "the file is read as commands, not shown"


def test_it_upgrades_while_a_server_runs(machine: WindowsMachine, dist: Path, home: Path) -> None:
    newer = build_windows.build_installer(
        dist / "code-memory", dist, version=NEWER_VERSION, quick=True, name="newer.exe"
    )
    program = find_program(home)
    stale = program.parent / "_internal" / "stale.dll"
    stale.write_bytes(b"of an older version")
    server = machine.start(program, "mcp", "serve")
    other = machine.start(machine.python / "python.exe", "-c", "import sys; sys.stdin.read()")
    with contextlib.ExitStack() as stack:
        stack.callback(server.kill)
        stack.callback(other.kill)
        assert b'"result"' in talk(server, HELLO)[0]
        machine.run(newer, "/S")
        server.wait(WAIT)
        assert other.poll() is None, "a program that is not ours was ended"
        other.communicate(b"", timeout=WAIT)
    assert not stale.exists()
    assert read_registry(machine)["DisplayVersion"] == NEWER_VERSION
    for place in CONFIGS:
        assert list(read_config(home, place)["mcpServers"]).count("code-memory") == 1
    _, out, _ = machine.run(program, "search", "연결 풀", "--json")
    assert json.loads(out)


def test_a_config_that_cannot_be_read_is_left_and_told(
    machine: WindowsMachine, dist: Path, home: Path
) -> None:
    damaged = home / CLASSIC / "claude_desktop_config.json"
    good = damaged.read_bytes()
    damaged.write_bytes(b'{"mcpServers": {')
    try:
        code, _, _ = machine.run(dist / "newer.exe", "/S", check=False)
        assert code == 3
        assert damaged.read_bytes() == b'{"mcpServers": {'
        report = find_program(home).with_name("install.log").read_text("utf-8")
        assert "claude_desktop_config.json" in report
        assert find_program(home).is_file()
    finally:
        damaged.write_bytes(good)


def test_nothing_is_left_but_the_memories(machine: WindowsMachine, home: Path) -> None:
    program = find_program(home)
    machine.run(program.with_name("uninstall.exe"), "/S")
    # it goes on in a copy of itself
    wait_until(lambda: not program.parent.exists(), "the end of the program's folder")
    wait_until(lambda: read_registry(machine) == {}, "the end of the entry")
    menu = home / "AppData/Roaming/Microsoft/Windows/Start Menu/Programs/code-memory"
    assert not menu.exists()
    for place, config in CONFIGS.items():
        assert read_config(home, place) == config
    before = set((machine.folder / "before.txt").read_text("utf-8").splitlines())
    added = [name for name in list_files(home) if name not in before]
    memories = [name for name in added if name.startswith(".claude-code/memory/")]
    # the copies that `mcp install` makes of a config before it changes it
    backups = [name for name in added if "/claude_desktop_config" in name]
    assert memories
    assert sorted(memories + backups) == added
