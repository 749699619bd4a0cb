"""Ways in which something private could have stayed or come out, each closed."""

from __future__ import annotations

import base64
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Transcript

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


def every_byte(memories: cm.Memories) -> bytes:
    """Return the bytes of all files of the store, and what its packed texts and words hold."""
    folder = memories.places.folder
    data = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    with memories.borrow_store() as store:
        data += [m.content.encode() for _, m in store.every_memory(cm.Filter())]
        store.count_terms(["x"])
        data += [str(term).encode() for (term,) in store.db.execute("SELECT term FROM temp.words")]
    return b"\n".join(data).lower()


@pytest.mark.parametrize("lead", [0, 1_190, 2_990, 7_000], ids="{} characters before it".format)
def test_no_planted_key_is_in_any_byte(
    lead: int, home: Path, memories: Callable[..., cm.Memories]
) -> None:
    t = Transcript(home / ".claude/projects/-p/s.jsonl", "s")
    t.response("word " * (lead // 5) + f"the token is {TOKEN} and more")
    t.tool("Bash", "toolu_1", {"command": f"curl -H 'Authorization: Bearer {TOKEN}' x"})
    t.result("toolu_1", "x" * lead + f"\nGITHUB_TOKEN={TOKEN}\n")
    made = memories()
    cm.sync(made, quiet=True)
    data = every_byte(made)
    forms = [TOKEN.encode(), base64.b64encode(TOKEN.encode()), TOKEN.encode().hex().encode()]
    for form in forms:
        form = form.lower()
        assert not any(form[at : at + 10] in data for at in range(6, len(form) - 10))
    made.close()


def test_after_forgetting_no_eight_bytes_are_left(
    home: Path, memories: Callable[..., cm.Memories]
) -> None:
    t = Transcript(home / ".claude/projects/-p/s.jsonl", "s")
    kept = "The harbour crane was painted green in spring, and the ferry in autumn."
    gone = "Zephyrine Quibblewick lent umbrellas to nineteen bewildered porcupines yesterday. " * 3
    t.prompt(kept)
    t.response(gone)
    t.prompt(kept + " Again.")
    made = memories(keep_lines=True)
    cm.sync(made, quiet=True)
    with made.borrow_store() as store:
        (found,) = [m for _, m in store.every_memory(cm.Filter()) if "porcupines" in m.content]
        doomed = cm.find_doomed(store, cm.ForgetChoice(ids=(found.id,)))
    assert b"porcupin" in every_byte(made)
    cm.forget(made, doomed)
    data = every_byte(made)
    folded = gone.lower().encode()
    runs = {folded[at : at + 8] for at in range(len(folded) - 8)}
    runs -= {kept.lower().encode()[at : at + 8] for at in range(len(kept) - 8)}
    assert [run for run in runs if run in data] == []
    cm.sync(made, quiet=True)
    cm.rebuild(made, False, lambda what, done, total: None)
    assert b"porcupin" not in every_byte(made)
    made.close()
