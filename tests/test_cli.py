"""The command line as a person meets it: a process with arguments, output and an exit code."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROOT, Transcript

import code_memory as cm

Begin = Callable[..., Transcript]
Run = Callable[..., subprocess.CompletedProcess[str]]

KEY = "sk-proj-" + "aB3xK9mQ2z" * 4


@pytest.fixture
def filled(transcript: Begin, run_cli: Run) -> Run:
    t = transcript("aaaa-1")
    t.prompt("why does the harbour crane stop?")
    t.response(f"Because of the fuse. export OPENAI_API_KEY={KEY}")
    transcript("bbbb-1", folder="-home-dana-ferry", cwd="/home/dana/ferry").prompt(
        "paint the ferry green"
    )
    assert run_cli("sync").returncode == 0
    return run_cli


def all_commands(parser: argparse.ArgumentParser | None = None, before: str = "") -> list[str]:
    found = []
    for action in (parser or cm.build_parser())._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, part in action.choices.items():
                below = all_commands(part, f"{before}{name} ")
                found += below or [before + name]
    return found


@pytest.mark.parametrize("command", all_commands())
def test_every_command_has_help_and_is_in_the_readme(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as done:
        cm.main([*command.split(), "--help"])
    assert done.value.code == 0
    assert "usage: code-memory" in capsys.readouterr().out
    assert f"code-memory {command}" in (ROOT / "README.md").read_text("utf-8")


def test_contents_list_is_the_banners() -> None:
    text = (ROOT / "code_memory.py").read_text("utf-8")
    banners = re.findall(r"(?m)^# === (\d+)\. (.+?) =+$", text)
    listed = re.findall(r"(?m)^    +(\d+)\. (.+)$", cm.__doc__ or "")
    assert banners == listed
    assert [int(number) for number, _ in banners] == list(range(1, len(banners) + 1))


def test_version(run_cli: Run) -> None:
    assert run_cli("--version").stdout == f"code-memory {cm.VERSION}\n"


def test_importing_the_module_loads_nothing_heavy() -> None:
    code = (
        "import sys, code_memory; print([m for m in ('numpy', 'mcp', 'apsw', 'model2vec',"
        " 'pydantic', 'tokenizers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_sync_says_what_it_did(transcript: Begin, run_cli: Run, home: Path) -> None:
    t = transcript()
    t.prompt("one")
    t.write("{broken")
    done = run_cli("sync")
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 new memory" in done.stdout
    assert "Skipped 1 line: broken JSON." in done.stdout
    assert (home / ".claude-code/memory/settings.toml").read_text("utf-8") == cm.SETTINGS_TEMPLATE
    assert json.loads(run_cli("sync", "--json").stdout)["memories"] == 0
    assert run_cli("sync", "--quiet").stdout == ""


def test_search_json_has_the_documented_fields(filled: Run) -> None:
    (hit,) = json.loads(
        filled("search", "harbour crane fuse", "--json", "--type", "response").stdout
    )
    assert set(hit) == {
        "id", "type", "time", "session_id", "session_title", "project", "project_name", "source",
        "source_ref", "agent_id", "content", "files", "tools", "score", "snippet",
    }  # fmt: skip
    assert hit["id"].startswith("mem:")
    assert re.fullmatch(r"2026-03-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", hit["time"])
    assert KEY not in json.dumps(hit)
    (whole,) = json.loads(filled("details", "--json", hit["id"]).stdout)
    assert whole["content"] == hit["content"]
    assert whole["source_ref"] == hit["source_ref"]


def test_commands_for_people(filled: Run) -> None:
    found = filled("search", "crane")
    id = re.search(r"mem:(\w+)", found.stdout)
    assert found.returncode == 0
    assert id
    assert "fuse" in filled("timeline", id[1]).stdout
    assert "/home/dana" in filled("details", id[1]).stdout
    assert "memories" in filled("stats").stdout
    assert "\x1b[" not in found.stdout


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        pytest.param(
            ["search", "x"],
            1,
            "There is no store at .* Run `code-memory sync` first",
            id="no store yet",
        ),
        pytest.param(["frobnicate"], 2, "invalid choice", id="unknown command"),
        pytest.param(["search", "--limit", "0", "x"], 2, "from 1 to", id="number out of range"),
        pytest.param(
            ["sync", "--memory-path", "/elsewhere"],
            2,
            "not below the home folder",
            id="store outside home",
        ),
        pytest.param(["import", "nowhere"], 2, "There is no .*nowhere", id="nothing to import"),
        pytest.param(["forget"], 2, "Say what to forget", id="forget nothing"),
        pytest.param(["import", ""], 2, "path to import is empty", id="empty path"),
        pytest.param(
            ["search", "--since", "someday", "x"], 2, "--since must be a date", id="no date"
        ),
        pytest.param(
            ["forget", "--before", "nope"], 2, "--before must be a date", id="no date to forget"
        ),
        pytest.param(
            ["search", "--frob", "x"], 2, "unrecognized arguments: --frob", id="unknown option"
        ),
        pytest.param(["timeline"], 2, "Say around what", id="timeline of nothing"),
    ],
)
def test_errors_are_one_line(
    words: list[str], code: int, said: str, run_cli: Run, transcript: Begin
) -> None:
    if words[0] in ("forget", "timeline"):
        run_cli("sync")
    done = run_cli(*words)
    assert done.returncode == code
    assert re.search(said, done.stderr)
    assert "Traceback" not in done.stderr
    assert done.stderr.strip().count("\n") == 0 or "usage:" in done.stderr


def test_unknown_id_is_named(filled: Run) -> None:
    done = filled("details", "ZZZZZZ")
    assert done.returncode == 1
    assert "ZZZZZZ" in done.stdout + done.stderr


def test_unexpected_fault_shows_no_traceback_unless_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("private words")

    monkeypatch.setattr(cm, "find_places", fail)
    assert cm.main(["stats"]) == 1
    said = capsys.readouterr().err
    assert "ZeroDivisionError" in said
    assert "private words" not in said
    assert "Traceback" not in said
    monkeypatch.setenv("CODE_MEMORY_DEBUG", "1")
    assert cm.main(["stats"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_redact_filters_standard_input(run_cli: Run) -> None:
    done = run_cli("redact", input=f"key {KEY}\r\nrest\n")
    assert done.stdout.startswith("key [REDACTED:")
    assert "rest" in done.stdout
    assert KEY not in done.stdout
    assert "1  " in done.stderr
    lines = "".join(json.dumps(text) + "\n" for text in (f"a\n{KEY}", "로그인 🚀", "\ud83d"))
    done = run_cli("redact", "--jsonl", "--quiet", input=lines)
    texts = [json.loads(line) for line in done.stdout.splitlines()]
    assert texts[1:] == ["로그인 🚀", "\ud83d"]
    assert texts[0].startswith("a\n[REDACTED:")
    assert done.stderr == ""
    assert run_cli("redact", "--jsonl", input="7\n").returncode == 2


def test_pause_and_resume(filled: Run, transcript: Begin) -> None:
    assert filled("pause").returncode == 0
    t = transcript("cccc-1")
    t.prompt("said while paused")
    assert filled("sync").returncode == 1
    assert "paused" in filled("search", "paused").stdout
    assert filled("resume").returncode == 0
    filled("sync")
    assert "said while paused" in filled("search", "said while").stdout


def store_bytes(home: Path) -> bytes:
    return b"".join(p.read_bytes() for p in (home / ".claude-code").rglob("*") if p.is_file())


def test_forget_asks_shows_and_never_brings_back(filled: Run, home: Path) -> None:
    assert filled("forget", "--matching", "ferry").returncode == 2  # nobody to ask
    shown = filled("forget", "--matching", "ferry", "--yes")
    assert shown.returncode == 0
    assert "1 prompt" in shown.stdout
    assert "paint" not in shown.stdout
    assert (
        filled("search", "ferry", "--json").stdout.strip() == "[]"
        or "ferry" not in filled("search", "ferry", "--json").stdout
    )
    for path in (home / ".claude").rglob("*.jsonl"):
        path.write_text(path.read_text("utf-8") + "\n", "utf-8")
    filled("sync")
    filled("rebuild")
    filled("import", str(home / ".claude"))
    assert "green" not in filled("search", "ferry", "--json").stdout


def test_forget_a_session_for_good(filled: Run, transcript: Begin) -> None:
    assert filled("forget", "--session", "aaaa-1", "--yes").returncode == 0
    t = transcript("aaaa-1")
    t.minute = 50
    t.prompt("more about the crane")
    filled("sync")
    assert "crane" not in filled("search", "crane", "--json").stdout


def test_forget_unknown_things_changes_nothing(filled: Run) -> None:
    assert filled("forget", "ZZZZZZ", "--yes").returncode == 2
    assert filled("forget", "--session", "nope", "--yes").returncode == 2
    assert filled("forget", "--project", "nope", "--yes").returncode == 2
    assert "Nothing fits" in filled("forget", "--matching", "nowhere to be found", "--yes").stdout


def test_export_and_import_keep_ids(filled: Run, home: Path, tmp_path: Path) -> None:
    out = tmp_path / "all.jsonl"
    assert filled("export", "--out", str(out)).returncode == 0
    lines = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    assert len(lines) == 3
    assert filled("import", str(out), "--memory-path", str(home / "second")).returncode == 0
    again = filled("export", "--memory-path", str(home / "second")).stdout
    assert {json.loads(line)["id"] for line in again.splitlines()} == {line["id"] for line in lines}
    assert (
        "# " in filled("export", "--format", "markdown").stdout
        or "mem:" in filled("export", "--format", "markdown").stdout
    )


def test_rebuild_applies_new_rules(filled: Run, home: Path) -> None:
    settings = home / ".claude-code/memory/settings.toml"
    settings.write_text("[privacy]\npatterns = ['fer+y']\n", "utf-8")
    done = filled("rebuild", "--redact")
    assert done.returncode == 0, done.stderr
    settings.write_text("", "utf-8")
    assert "[REDACTED:" in filled("search", "paint green", "--json").stdout


def test_demo_shows_the_four_tools_and_leaves_nothing(run_cli: Run, home: Path) -> None:
    done = run_cli("demo")
    assert done.returncode == 0, done.stderr
    for part in (
        "## Memory Search Results",
        "## Timeline Context",
        "## Memory Details",
        "## Memory Statistics",
    ):
        assert part in done.stdout
    assert list(home.iterdir()) == []


def test_bare_command_with_piped_input_serves(run_cli: Run) -> None:
    hello = {
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
    }  # fmt: skip
    done = run_cli(input=json.dumps(hello) + "\n")
    assert (
        json.loads(done.stdout.splitlines()[0])["result"]["serverInfo"]["name"] == "code-memory-mcp"
    )


def test_planted_keys_are_in_no_byte_of_the_store(filled: Run, home: Path) -> None:
    data = store_bytes(home).lower()
    for at in range(8, len(KEY) - 10):
        assert KEY[at : at + 10].lower().encode() not in data


def test_transcript_comes_back_when_its_lines_are_kept(
    transcript: Begin, run_cli: Run, home: Path
) -> None:
    t = transcript("aaaa-1")
    t.prompt("one")
    assert run_cli("sync").returncode == 0
    assert (
        "keep_lines" in run_cli("export", "--session", "aaaa-1", "--format", "claude-code").stderr
    )
    (home / ".claude-code/memory/settings.toml").write_text(
        "[sources]\nkeep_lines = true\n", "utf-8"
    )
    t = transcript("bbbb-1")
    t.prompt("paint the pier")
    t.tool("Bash", "toolu_1", {"command": f"export TOKEN={KEY}"})
    t.result("toolu_1", [{"type": "image", "source": {"data": "iVBOR" + "A" * 5000}}])
    t.response("Done.")
    t.write({"type": "ai-title", "aiTitle": "Pier", "sessionId": "bbbb-1"})
    run_cli("sync")
    t.path.unlink()
    done = run_cli("export", "--session", "bbbb-1", "--format", "claude-code")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["type"] for line in lines] == [
        "user",
        "assistant",
        "user",
        "assistant",
        "ai-title",
    ]
    uuids = [line.get("uuid") for line in lines[:4]]
    assert [line["parentUuid"] for line in lines[:4]] == [None, *uuids[:3]]
    assert KEY not in done.stdout
    assert "AAAAAAAA" not in done.stdout
    (home / ".claude/projects/-home-dana-harbor-api/bbbb-1.jsonl").write_text(done.stdout, "utf-8")
    report = json.loads(run_cli("sync", "--json").stdout)
    assert report["memories"] == 0
    assert "kept lines" in run_cli("stats").stdout
    run_cli("forget", "--matching", "pier", "--yes")
    gone = run_cli("export", "--session", "bbbb-1", "--format", "claude-code")
    assert gone.returncode != 0
    assert "pier" not in gone.stdout


def test_exclusions_and_phrases_as_typed(filled: Run) -> None:
    assert "fuse" in filled("search", "crane").stdout
    assert "fuse" not in filled("search", "crane", "-fuse", "--json").stdout
    assert "fuse" in filled("search", '"of the fuse"').stdout


def test_markdown_export_has_headings_and_fences(filled: Run) -> None:
    text = filled("export", "--format", "markdown").stdout
    assert text.startswith("## ")
    assert text.count("```") == 6
    assert filled("export", "--session", "nope").returncode == 2


def test_all_clients_are_those_that_are_there(run_cli: Run, home: Path) -> None:
    (home / ".cursor").mkdir()
    done = run_cli("mcp", "install", "--client", "all")
    assert done.returncode == 0, done.stderr
    assert (home / ".cursor/mcp.json").exists()
    assert not (home / ".lmstudio").exists()
    assert run_cli("mcp", "install", "--client", "cursor", "--session-hook").returncode == 2
