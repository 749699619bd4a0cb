"""Where files live, and what settings.toml says."""

from __future__ import annotations

from pathlib import Path

import pytest

import code_memory as cm


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        pytest.param("~/notes", "{home}/notes", id="tilde"),
        pytest.param("~", "{home}", id="tilde alone"),
        pytest.param("$HOME/notes", "{home}/notes", id="HOME"),
        pytest.param("${HOME}/notes", "{home}/notes", id="HOME in braces"),
        pytest.param("%USERPROFILE%/notes", "{home}/notes", id="USERPROFILE"),
        pytest.param("%userprofile%/notes", "{home}/notes", id="case of USERPROFILE"),
        pytest.param("$DISK/notes", "/mnt/d/notes", id="another variable"),
        pytest.param("/a/$UNKNOWN/b", "/a/$UNKNOWN/b", id="unknown variable stays"),
        pytest.param("~dana/notes", "~dana/notes", id="another user's home is no home"),
    ],
)
def test_expand_path(text: str, expanded: str, home: Path) -> None:
    assert str(cm.expand_path(text, home, {"DISK": "/mnt/d"})) == expanded.format(home=home)


def test_memory_dir_is_below_home_by_default(home: Path) -> None:
    assert cm.find_memory_dir("", home, {}) == (home / ".claude-code" / "memory").resolve()


def test_memory_path_moves_it_and_the_option_wins(home: Path) -> None:
    env = {"MEMORY_PATH": "~/elsewhere"}
    assert cm.find_memory_dir("", home, env) == (home / "elsewhere").resolve()
    assert cm.find_memory_dir("$HOME/third", home, env) == (home / "third").resolve()


@pytest.mark.parametrize("bad", ["/etc/x", "~/../other", "{home}2/x", "~", "~/link/x"])
def test_memory_dir_outside_home_is_refused(bad: str, home: Path) -> None:
    Path(f"{home}2").mkdir()
    (home / "link").symlink_to(f"{home}2")
    with pytest.raises(cm.UsageError, match="not below the home folder"):
        cm.find_memory_dir(bad.format(home=home), home, {})


def test_linked_home_is_still_home(home: Path, tmp_path: Path) -> None:
    link = tmp_path / "linked"
    link.symlink_to(home)
    assert cm.find_memory_dir("", link, {}) == (home / ".claude-code" / "memory").resolve()


def parse(text: str, home: Path) -> cm.Settings:
    return cm.parse_settings(text, "settings.toml", home, {})


def test_template_is_the_defaults(home: Path) -> None:
    assert parse(cm.SETTINGS_TEMPLATE, home) == cm.Settings()


def test_template_without_its_hashes_is_valid(home: Path) -> None:
    text = "\n".join(
        line.removeprefix("# ") if "=" in line else line
        for line in cm.SETTINGS_TEMPLATE.split("\n")
    )
    settings = parse(text, home)
    assert settings.problems == ()
    assert settings.folders == (home / "backup/claude-projects",)
    assert settings.model == home / "models/potion-multilingual-128M"


def test_settings_are_read(home: Path) -> None:
    settings = parse(
        '[sources]\ncodex = false\n[privacy]\ntags = ["off-record"]\npatterns = ["A-[0-9]+"]\n',
        home,
    )
    assert settings.sources_off == {"codex"}
    assert (settings.tags, settings.patterns, settings.problems) == (
        ("off-record",),
        ("A-[0-9]+",),
        (),
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param(
            "[sources]\ncodex = 3\n",
            "line 2: [sources] codex must be true or false",
            id="no boolean",
        ),
        pytest.param(
            "[privacy]\n\npatterns = ['(']\n",
            "line 3: [privacy] patterns holds a bad regular",
            id="bad pattern",
        ),
        pytest.param(
            "[privacy]\ntags = 'x'\n", "line 2: [privacy] tags must be a list", id="no list"
        ),
        pytest.param(
            "[privacy]\nbroken = = 1\ntags = ['kept']\n", "line 2: not understood", id="broken line"
        ),
        pytest.param(
            "[sources]\nclipboard = true\n",
            "line 2: [sources] clipboard is not known",
            id="unknown source",
        ),
        pytest.param(
            "[search]\nmodel = 5\n", "line 2: [search] model must be the path", id="no path"
        ),
        pytest.param("privacy = 1\n", "privacy must be a table", id="no table"),
    ],
)
def test_bad_setting_is_named_with_its_line(text: str, problem: str, home: Path) -> None:
    assert problem in " ".join(parse(text, home).problems)


def test_a_bad_setting_leaves_the_rest(home: Path) -> None:
    settings = parse(
        "[privacy]\nbroken = = 1\ntags = ['kept']\nexcluded_projects = ['~/x']\n[sources]\ncowork = 7\ncodex = false\n",
        home,
    )
    assert settings.tags == ("kept",)
    assert settings.excluded_projects == (f"{home}/x",)
    assert settings.sources_off == {"codex"}


@pytest.mark.parametrize(
    ("project", "excluded"),
    [
        ("/home/dana/secret", True),
        ("/home/dana/secret/sub", True),
        ("/home/dana/secret2", False),
        ("/home/dana", False),
        ("/home/dana/hush/app", True),
        ("C:\\work\\Hush", True),
        ("/home/dana/hushed", False),
        ("", False),
    ],
)
def test_excluded_projects(project: str, excluded: bool) -> None:
    settings = cm.Settings(excluded_projects=("/home/dana/secret", "hush"))
    assert settings.excludes(project) is excluded


def test_transcript_roots(home: Path) -> None:
    for folder in (
        ".claude/projects",
        ".config/claude/projects",
        "own/projects",
        "backup",
        ".config/Claude/local-agent-mode-sessions",
    ):
        (home / folder).mkdir(parents=True)
    settings = cm.Settings(folders=(home / "backup",))
    roots = cm.find_transcript_roots(settings, "linux", home, {"CLAUDE_CONFIG_DIR": "~/own"})
    assert [str(r.path.relative_to(home)) for r in roots] == [
        "own/projects",
        ".claude/projects",
        ".config/claude/projects",
        "backup",
        ".config/Claude/local-agent-mode-sessions",
    ]
    off = cm.Settings(sources_off=frozenset({"claude-code"}))
    assert [r.source for r in cm.find_transcript_roots(off, "linux", home, {})] == ["cowork"]


def test_claude_app_dirs_of_each_system(home: Path) -> None:
    packaged = home / "AppData/Local/Packages/Claude_abc/LocalCache/Roaming/Claude"
    packaged.mkdir(parents=True)
    assert cm.find_claude_app_dirs("darwin", home, {}) == [
        home / "Library/Application Support/Claude"
    ]
    assert cm.find_claude_app_dirs("win32", home, {}) == [packaged, home / "AppData/Roaming/Claude"]
    assert cm.find_claude_app_dirs("linux", home, {}) == [home / ".config/Claude"]
