"""Stores of every released schema open, are upgraded after a backup, and answer as before."""

from __future__ import annotations

import multiprocessing
import shutil
from pathlib import Path

import apsw
import pytest
from conftest import WAIT, FakeEmbedder, Transcript, stored, sync

import code_memory as cm

FIXTURES = sorted((Path(__file__).parent / "fixtures").glob("store-schema-*.db"))
# What some later version may do: a column, a table, and a change of what is there.
LATER = (
    "ALTER TABLE memory ADD COLUMN mood TEXT; CREATE TABLE later (x);"
    " UPDATE session SET title = title || '!';"
)
BROKEN = "CREATE TABLE half (x); INSERT INTO nowhere VALUES (1);"


def open_copy(fixture: Path, home: Path) -> cm.Memories:
    places = cm.Places(home / ".claude-code" / "memory", home, {}, "linux")
    places.folder.mkdir(parents=True)
    shutil.copy(fixture, places.store_path)
    memories = cm.Memories(places, cm.Settings())
    memories.embedder = FakeEmbedder()
    memories._model_ready.set()
    return memories


def test_there_is_a_store_of_every_schema() -> None:
    assert [path.name for path in FIXTURES] == [
        f"store-schema-{number}.db" for number in range(1, len(cm.MIGRATIONS) + 1)
    ]


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda path: path.stem)
def test_released_store_is_opened_and_answers(fixture: Path, home: Path) -> None:
    memories = open_copy(fixture, home)
    found = stored(memories)
    assert sorted({m.type for m in found}) == ["insight", "prompt", "response", "tool"]
    assert len(found) == 8
    assert "The harbour clock is read twice.\n\nBoth reads are now one." in {
        m.content for m in found
    }
    hits = memories.search(cm.SearchQuery("harbour clock")).hits
    assert "harbour clock" in hits[0].memory.content
    assert {"words", "meaning"} <= {lane for hit in hits for lane in hit.matched}
    with memories.borrow_store() as store:
        assert store.db.pragma("user_version") == len(cm.MIGRATIONS)
        assert store.check() == []
    # ids are what they were, and what was forgotten stays forgotten
    (memory,) = (m for m in found if m.content.startswith("Why does the harbour"))
    assert memory.id == cm.memory_code(memory.source_ref)
    t = Transcript(home / ".claude/projects/-home-dana-pier/harbour.jsonl", "harbour")
    t.minute = 6
    t.prompt("Forget this about the harbour, please")
    sync(memories)
    assert len(stored(memories)) == 8
    memories.close()


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda path: path.stem)
def test_store_is_upgraded_after_a_backup(
    fixture: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memories = open_copy(fixture, home)
    path, known = memories.places.store_path, len(cm.MIGRATIONS)
    was = int(fixture.stem.rpartition("-")[2])
    with monkeypatch.context() as patch:
        patch.setattr(cm, "MIGRATIONS", (*cm.MIGRATIONS, LATER))
        titles = {m.session_title for m in stored(memories)}
        assert titles == {"The harbour!", "The lighthouse!"}
        with memories.borrow_store() as store:
            assert store.db.pragma("user_version") == known + 1
            assert store.check() == []
        memories.close()
    (backup,) = path.parent.glob("*.backup")
    assert backup.name == f"{path.name}.schema-{was}.backup"
    assert backup.stat().st_mode & 0o077 == 0
    db = apsw.Connection(str(backup))
    assert db.pragma("user_version") == was
    assert db.execute("SELECT count(*) FROM memory").fetchall() == [(8,)]
    assert {t for (t,) in db.execute("SELECT title FROM session")} == {
        "The harbour",
        "The lighthouse",
    }
    db.close()
    with pytest.raises(cm.StoreError, match=f"schema {known + 1}"):  # the older program again
        cm.Store(path)


def test_upgrade_that_fails_changes_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memories = open_copy(FIXTURES[-1], home)
    path = memories.places.store_path
    with monkeypatch.context() as patch:
        patch.setattr(cm, "MIGRATIONS", (*cm.MIGRATIONS, BROKEN))
        with pytest.raises(cm.StoreError):
            cm.Store(path)
    assert len(stored(memories)) == 8
    with memories.borrow_store() as store:
        assert store._one("SELECT count(*) FROM sqlite_master WHERE name = 'half'") == 0
    memories.close()


def test_backup_that_was_not_finished_is_made_again(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memories = open_copy(FIXTURES[-1], home)
    path = memories.places.store_path
    backup = path.with_name(f"{path.name}.schema-{len(cm.MIGRATIONS)}.backup")
    backup.touch()
    monkeypatch.setattr(cm, "MIGRATIONS", (*cm.MIGRATIONS, LATER))
    cm.Store(path).close()
    db = apsw.Connection(str(backup))
    assert db.execute("SELECT count(*) FROM memory").fetchall() == [(8,)]
    db.close()


def test_damaged_store_of_an_older_schema_is_saved(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memories = open_copy(FIXTURES[-1], home)
    path = memories.places.store_path
    data = bytearray(path.read_bytes())
    data[:100] = bytes(100)
    path.write_bytes(data)
    monkeypatch.setattr(cm, "MIGRATIONS", (*cm.MIGRATIONS, "ALTER TABLE memory ADD COLUMN mood"))
    cm.rebuild(memories, False, lambda what, done, total: None)
    assert len(stored(memories)) == 8
    memories.close()


def upgrade(path: Path, number: int) -> None:
    cm.MIGRATIONS = (*cm.MIGRATIONS, LATER)  # type: ignore[misc]
    cm.Store(path).close()


def test_four_at_once_upgrade_once(home: Path) -> None:
    memories = open_copy(FIXTURES[-1], home)
    path = memories.places.store_path
    context = multiprocessing.get_context("spawn")
    jobs = [context.Process(target=upgrade, args=(path, number)) for number in range(4)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join(WAIT)
    assert [job.exitcode for job in jobs] == [0, 0, 0, 0]
    db = apsw.Connection(str(path))
    titles = {title for (title,) in db.execute("SELECT title FROM session")}
    db.close()
    assert titles == {"The harbour!", "The lighthouse!"}  # not "!!"
    assert len(list(path.parent.glob("*.backup"))) == 1
