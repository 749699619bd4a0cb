"""Ways in which something private could have stayed or come out, each closed."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

import code_memory as cm

TOKEN = "ghp_" + "Zk3vQ8mW1xR6tY9pZk3vQ8mW1xR6tY9pAb12"


@pytest.fixture
def memories(home: Path) -> Callable[..., cm.Memories]:
    def make(**settings: object) -> cm.Memories:
        places = cm.Places(home / "memory", home, {}, "linux")  # type: ignore[arg-type]
        return cm.Memories(places, cm.Settings(**settings))  # type: ignore[arg-type]

    return make


@pytest.mark.parametrize(
    "around",
    ["/home/kim/{}/a.md", "mcp__{}", "%22{}%22", "\x1b[32m{}\x1b[0m", "fix/{}", "_{}_"],
)
def test_a_short_prefix_is_found_after_a_joint(around: str) -> None:
    assert TOKEN not in cm.redact(around.format(TOKEN))


@pytest.mark.parametrize(
    "text",
    ['{"name":"API_TOKEN","value":"%s"}', "my_secret: |\n  %s", '"name": "KEY_1", "value": "%s"'],
)
def test_a_name_and_a_value_side_by_side(text: str) -> None:
    assert "q7x2m9" not in cm.redact(text % ("q7x2m9" * 5))


def test_an_excluded_name_in_other_normal_form() -> None:
    settings = cm.Settings(excluded_projects=("/home/kim/고객",))
    assert settings.excludes(unicodedata.normalize("NFD", "/home/kim/고객/a"))
    assert settings.excludes("고객")  # sources that know only names
    assert not settings.excludes("/home/kim/고객2")


def test_a_field_that_only_its_name_tells() -> None:
    fields = {"password": "Harbor" + "_570qwXY", "path": "/a/b.py"}
    assert cm.hide_field(cm.redact, fields, "password") == "[REDACTED:password]"
    assert cm.hide_field(cm.redact, fields, "path") == ""
