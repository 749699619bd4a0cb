"""The database file, its ids, its migrations, its modes."""

from __future__ import annotations

import random
import stat
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest
from conftest import Transcript, stored, sync

import code_memory as cm

Begin = Callable[..., Transcript]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "short",
        "x" * 500,
        "결제모듈을 새벽 배포로 " * 20,
        "emoji 🚀 " * 9,
        random.Random(1).randbytes(300).hex(),
    ],
    ids=["empty", "short", "long", "Korean", "emoji", "random"],
)
def test_text_survives_packing(text: str) -> None:
    assert cm.unpack_text(cm.pack_text(text)) == text


def test_text_is_smaller_packed() -> None:
    text = "The tests fail because the retry loop sends the invoice again. " * 4
    assert len(cm.pack_text(text)) < len(text) / 2


@pytest.mark.parametrize("text", ["fog", "The tests fail because of the fog. " * 40])
def test_damaged_text_is_a_store_error(text: str) -> None:
    packed = cm.pack_text(text)
    for at in range(len(packed)):
        with pytest.raises(cm.StoreDamagedError):
            cm.unpack_text(packed[:at] + bytes([packed[at] ^ 1]) + packed[at + 1 :])


def test_code_is_of_the_sha256_of_the_reference() -> None:
    # SHA-256 of "abc" begins ba 78 16 bf 8f 01: 186, 120, 22, 191, 143, 1 modulo 62
    assert cm.memory_code("abc") == "".join(
        cm.ALPHABET[n % 62] for n in (0xBA, 0x78, 0x16, 0xBF, 0x8F, 0x01)
    )
    assert cm.memory_code("abc", 8)[:6] == cm.memory_code("abc")


@pytest.mark.parametrize(
    ("source", "ref", "qualified"),
    [
        ("claude-code", "u-1", "u-1"),
        ("claude-memory-layer", "e-1", "e-1"),
        ("claude-mem", "#12", "claude-mem:#12"),
    ],
)
def test_qualified_ref(source: str, ref: str, qualified: str) -> None:
    assert cm.qualified_ref(source, ref) == qualified


def test_colliding_ids_get_longer(
    transcript: Begin, memories: cm.Memories, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = cm.memory_code
    monkeypatch.setattr(
        cm, "memory_code", lambda ref, length=6: "AAAAAA" if length == 6 else real(ref, length)
    )
    t = transcript()
    t.prompt("first")
    t.prompt("second")
    sync(memories)
    ids = [m.id for m in stored(memories)]
    assert ids[0] == "AAAAAA"
    assert len(ids[1]) == 8
    assert [
        m.content for m in (memories.details([i]).found[0] for i in ids) if isinstance(m, cm.Memory)
    ] == ["first", "second"]


def test_modes_are_private(transcript: Begin, memories: cm.Memories) -> None:
    transcript().prompt("x")
    sync(memories)
    folder = memories.places.folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert set(modes.values()) == {0o600}, modes


def test_newer_store_is_refused_with_advice(home: Path) -> None:
    path = home / "x" / cm.STORE_FILE
    cm.Store(path).close()
    db = apsw.Connection(str(path))
    db.pragma("user_version", 99)
    db.close()
    with pytest.raises(cm.StoreError, match=r"schema 99.*Update code-memory"):
        cm.Store(path)


def test_database_of_another_program_is_left_alone(home: Path) -> None:
    path = home / cm.STORE_FILE
    db = apsw.Connection(str(path))
    db.execute("CREATE TABLE theirs (x)")
    db.close()
    before = path.read_bytes()
    with pytest.raises(cm.StoreError, match="another program"):
        cm.Store(path)
    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_said_to_be_damaged(home: Path) -> None:
    path = home / cm.STORE_FILE
    path.write_bytes(b"this is no database at all, only some text" * 100)
    with pytest.raises(cm.StoreDamagedError, match="rebuild"):
        cm.Store(path)


def test_files_of_others_in_the_folder_are_not_touched(
    transcript: Begin, memories: cm.Memories
) -> None:
    folder = memories.places.folder
    folder.mkdir(parents=True)
    (folder / "events.sqlite").write_bytes(b"theirs")
    (folder / "session-registry.json").write_text("{}")
    transcript().prompt("x")
    sync(memories)
    assert (folder / "events.sqlite").read_bytes() == b"theirs"
    cm.purge_store(folder)
    assert sorted(p.name for p in folder.iterdir()) == ["events.sqlite", "session-registry.json"]


def test_text_and_indexes_change_in_one_transaction(
    transcript: Begin, memories: cm.Memories, monkeypatch: pytest.MonkeyPatch
) -> None:
    t = transcript()
    t.prompt("first")
    t.response("second")

    def fail(*_: object) -> None:
        raise RuntimeError("in the middle")

    monkeypatch.setattr(cm.Store, "write_transcript", fail)
    with pytest.raises(RuntimeError):
        sync(memories)
    monkeypatch.undo()
    with memories.borrow_store() as store:
        assert store.count(cm.Filter()) == 0
        assert store.find_rows('"first"', cm.Filter(), 5).tolist() == []
    assert stored(memories) == []


def test_without_shared_memory_the_journal_is_no_wal_and_that_is_said(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = apsw.Connection
    # a file system on which WAL's shared memory cannot be had
    monkeypatch.setattr(
        apsw, "Connection", lambda path, **more: real(path, vfs="unix-none", **more)
    )
    store = cm.Store(home / "s" / cm.STORE_FILE)
    assert not store.uses_wal()
    assert "WAL" in " ".join(store.notes)
    store.close()
