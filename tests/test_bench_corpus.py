"""The made-up history of the benchmarks: the same bytes each time, and as much in it as it says."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from bench import client, corpus

import code_memory as cm

MESSAGES = 1003  # no round number: the last session is cut to fit


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("history")
    corpus.make_history(MESSAGES, folder)
    return folder


@pytest.fixture(scope="module")
def planted(home: Path) -> corpus.Planted:
    return corpus.read_planted(home)


def find_transcripts(home: Path) -> list[Path]:
    return sorted((home / ".claude" / "projects").rglob("*.jsonl"))


def read_lines(home: Path) -> list[tuple[Path, dict[str, Any]]]:
    return [
        (path, json.loads(line))
        for path in find_transcripts(home)
        for line in path.read_bytes().splitlines()
    ]


def hash_history(home: Path) -> str:
    told = hashlib.sha256()
    for path in [home / corpus.PLANTED_FILE, *find_transcripts(home)]:
        told.update(f"{path.relative_to(home)}\n".encode() + path.read_bytes())
    return told.hexdigest()


def test_same_seed_gives_same_bytes(home: Path, tmp_path: Path) -> None:
    corpus.make_history(MESSAGES, tmp_path / "again")
    assert hash_history(tmp_path / "again") == hash_history(home)


def test_other_seed_gives_other_bytes(home: Path, tmp_path: Path) -> None:
    corpus.make_history(MESSAGES, tmp_path / "other", seed=12)
    assert hash_history(tmp_path / "other") != hash_history(home)


def test_as_many_messages_as_asked_for(home: Path, planted: corpus.Planted) -> None:
    kinds = Counter(line["type"] for _, line in read_lines(home))
    assert kinds["user"] + kinds["assistant"] == MESSAGES == planted.messages
    files = find_transcripts(home)
    assert len(files) == planted.files
    assert sum("subagents" not in path.parts for path in files) == planted.sessions
    assert sum(path.stat().st_size for path in files) == planted.size_bytes


def test_lines_are_linked_and_tools_answered(home: Path) -> None:
    lines = [line for _, line in read_lines(home)]
    uuids = [line["uuid"] for line in lines if "uuid" in line]
    assert len(set(uuids)) == len(uuids)
    assert {line["parentUuid"] for line in lines if line.get("parentUuid")} <= set(uuids)
    blocks = [
        block
        for line in lines
        if isinstance(content := line.get("message", {}).get("content"), list)
        for block in content
    ]
    asked = {block["id"] for block in blocks if block["type"] == "tool_use"}
    answered = {block["tool_use_id"] for block in blocks if block["type"] == "tool_result"}
    assert asked == answered != set()


def test_each_planted_text_is_in_its_session_only(home: Path, planted: corpus.Planted) -> None:
    texts = {path: path.read_text("utf-8").lower() for path in find_transcripts(home)}
    marks = [(needle.mark, needle.session_id) for needle in planted.needles]
    marks += [(key.value, key.session_id) for key in planted.keys]
    marks += [(key.query, key.session_id) for key in planted.keys]
    for mark, session_id in marks:
        holders = [path for path, text in texts.items() if mark.lower() in text]
        assert len(holders) == 1, mark
        assert session_id in str(holders[0]), mark


def test_planted_places(planted: corpus.Planted) -> None:
    kinds = Counter(needle.kind for needle in planted.needles)
    assert set(kinds) == {kind for kind, *_ in corpus.NEEDLES}
    assert sum(kinds.values()) == len(corpus.NEEDLES)
    assert len(planted.keys) == len(corpus.KEYS) == len({key.value for key in planted.keys})


def test_every_kind_of_key_is_hidden_by_the_privacy_filter(planted: corpus.Planted) -> None:
    for key in planted.keys:
        assert key.value not in cm.redact(key.text), key.kind


def test_a_large_history_has_ten_of_each_kind() -> None:
    needles = corpus.make_needles(10, corpus.Rare(random.Random(1)))
    assert len({needle.mark for needle in needles}) == 10 * len(corpus.NEEDLES)


def test_too_small_a_history_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="need more messages than 50"):
        corpus.make_history(50, tmp_path)


def test_common_questions_use_words_that_are_everywhere(home: Path) -> None:
    texts = [path.read_text("utf-8") for path in find_transcripts(home)]
    questions = corpus.make_common_questions(100)
    assert len(set(questions)) == 100
    for word in {word for q in questions for word in re.findall(r"\w+", q)} & set(corpus.NOUNS):
        assert sum(bool(re.search(rf"\b{word}\b", text)) for text in texts) > len(texts) / 3, word


def test_appended_prompt_continues_the_session(tmp_path: Path) -> None:
    corpus.make_history(MESSAGES, tmp_path)
    path = next((tmp_path / ".claude" / "projects").glob("*/*.jsonl"))
    before = [json.loads(line) for line in path.read_bytes().splitlines()]
    corpus.append_prompt(path, "one more thing")
    *rest, last = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert rest == before
    assert last["message"] == {"role": "user", "content": "one more thing"}
    assert last["sessionId"] == path.stem
    assert last["parentUuid"] == [line for line in before if "uuid" in line][-1]["uuid"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1234.5, "1,234"), (99.96, "100.0"), (12.34, "12.3"), (1.234, "1.23"), (0.016, "0.02")],
)
def test_show_number(value: float, shown: str) -> None:
    assert client.show_number(value) == shown


def test_figure_shows_median_and_spread() -> None:
    assert client.Figure([3.0, 1.0, 2.0]).show() == "2.00 (1.00–3.00)"
    assert client.Figure([2.0, 2.0]).show() == "2.00"
    assert client.Figure().show() == "–"


def test_clear_home_keeps_what_it_is_told(tmp_path: Path) -> None:
    for name in (".claude/projects/a.jsonl", ".claude/other", ".store/x", "planted.json"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    client.clear_home(tmp_path, (".claude/projects", "planted.json"))
    left = sorted(str(path.relative_to(tmp_path)) for path in client.find_files(tmp_path))
    assert left == [".claude/projects/a.jsonl", "planted.json"]
