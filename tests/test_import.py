"""What is new is read once, whatever happens to the files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROOT, WAIT, Transcript, clean_environment, stored, sync

import code_memory as cm

Begin = Callable[..., Transcript]


def texts(memories: cm.Memories, type: str = "") -> list[str]:
    return [m.content for m in stored(memories, type)]


def test_second_sync_adds_nothing(transcript: Begin, memories: cm.Memories) -> None:
    t = transcript()
    t.prompt("one")
    t.response("two")
    assert sync(memories).memories == 2
    again = sync(memories)
    assert (again.files, again.memories, again.duplicates) == (0, 0, 0)


def test_appended_lines_are_read_from_where_it_stopped(
    transcript: Begin, memories: cm.Memories
) -> None:
    t = transcript()
    t.prompt("one")
    sync(memories)
    size = t.path.stat().st_size
    t.prompt("two")
    report = sync(memories)
    assert texts(memories) == ["one", "two"]
    assert report.bytes == t.path.stat().st_size - size


def test_half_written_line_is_read_later(transcript: Begin, memories: cm.Memories) -> None:
    t = transcript()
    t.prompt("one")
    line = json.dumps(t.line("user", message={"role": "user", "content": "two"}))
    with open(t.path, "a") as file:
        file.write(line[:60])
    report = sync(memories)
    assert (texts(memories), report.skipped.total()) == (["one"], 0)
    with open(t.path, "a") as file:
        file.write(line[60:] + "\n")
    sync(memories)
    assert texts(memories) == ["one", "two"]


def test_response_and_result_that_come_later_join_what_is_stored(
    transcript: Begin, memories: cm.Memories
) -> None:
    t = transcript()
    t.response("first half", "msg_1")
    t.tool("Bash", "toolu_1", {"command": "sleep 9"}, "msg_1")
    sync(memories)
    t.result("toolu_1", "woke up")
    t.response("second half", "msg_1")
    report = sync(memories)
    assert texts(memories) == ["first half\n\nsecond half", "Bash: sleep 9\nwoke up"]
    assert (report.memories, report.continued) == (0, 2)
    assert next(h.memory.content for h in memories.search(cm.SearchQuery("woke")).hits).startswith(
        "Bash"
    )


def test_bad_line_in_the_middle_is_counted(transcript: Begin, memories: cm.Memories) -> None:
    t = transcript()
    t.prompt("one")
    t.prompt("two")
    t.write('{"type":"user","message":{"role":"us')
    t.prompt("three")
    t.prompt("four")
    report = sync(memories)
    assert texts(memories) == ["one", "two", "three", "four"]
    assert dict(report.skipped) == {"broken JSON": 1}


def test_lone_surrogate_does_not_stop_the_file(transcript: Begin, memories: cm.Memories) -> None:
    t = transcript()
    line = json.dumps(t.line("user", message={"role": "user", "content": "cut here X"}))
    t.write(line.replace("X", "\\ud83d"))
    t.prompt("the rest")
    sync(memories)
    assert texts(memories) == ["cut here \ufffd", "the rest"]


def test_line_separators_inside_a_record(transcript: Begin, memories: cm.Memories) -> None:
    transcript().prompt("a\u2028b\u0085c")
    sync(memories)
    assert texts(memories) == ["a\u2028b\u0085c"]


def test_picture_of_three_megabytes_between_two_texts(
    transcript: Begin, memories: cm.Memories
) -> None:
    t = transcript()
    t.prompt("before")
    picture = {"type": "image", "source": {"type": "base64", "data": "iVBOR" + "A" * 3_000_000}}
    t.prompt([picture, {"type": "text", "text": "what is this?"}])
    t.prompt("after")
    sync(memories)
    assert texts(memories) == ["before", "what is this?", "after"]
    assert memories.places.store_path.stat().st_size < 1_000_000


def test_fork_copies_are_not_added_again(transcript: Begin, memories: cm.Memories) -> None:
    a = transcript("a")
    for number in range(12):
        a.prompt(f"turn {number}")
    b = transcript("b")
    b.path.write_bytes(a.path.read_bytes())  # the copied rows keep session id and uuid
    b.minute = 500
    for number in range(3):
        b.prompt(f"new {number}")
    sync(memories)
    assert len(texts(memories)) == 15


def test_branch_rows_written_twice_are_once(transcript: Begin, memories: cm.Memories) -> None:
    t = transcript()
    for text in ("one", "two"):
        line = t.line("user", message={"role": "user", "content": text})
        t.write(line | {"forkedFrom": {"sessionId": "old", "messageUuid": f"old-{text}"}}, line)
    sync(memories)
    assert texts(memories) == ["one", "two"]


def test_branch_with_new_uuids_is_known_by_what_it_was_forked_from(
    transcript: Begin, memories: cm.Memories
) -> None:
    a = transcript("a")
    old = a.prompt("the same words")
    b = transcript("b")
    b.minute = 700
    b.prompt("the same words", forkedFrom={"sessionId": "a", "messageUuid": old["uuid"]})
    b.prompt("new words")
    sync(memories)
    assert sorted(texts(memories)) == ["new words", "the same words"]


def test_copied_rows_with_new_ids_are_known_by_their_words_and_time(
    transcript: Begin, memories: cm.Memories
) -> None:
    a, b = transcript("a"), transcript("b")
    a.prompt("look at the crane")
    b.prompt("look at the crane")  # same minute, another session and uuid
    sync(memories)
    assert texts(memories) == ["look at the crane"]


def test_deleted_file_keeps_its_memories(transcript: Begin, memories: cm.Memories) -> None:
    t = transcript()
    t.prompt("keep me")
    sync(memories)
    t.path.unlink()
    sync(memories)
    assert texts(memories) == ["keep me"]
    assert memories.stats().kept_only_here == 1
    memory = memories.details([stored(memories)[0].id]).found[0]
    assert isinstance(memory, cm.Memory)
    assert memory.kept_only_here
    t.prompt("keep me")
    sync(memories)
    assert memories.stats().kept_only_here == 0


def test_shrunk_and_replaced_files_are_read_again(transcript: Begin, memories: cm.Memories) -> None:
    t = transcript()
    for number in range(5):
        t.prompt(f"old {number}")
    sync(memories)
    t.path.unlink()
    t.minute = 900
    t.prompt("new, and shorter")
    sync(memories)
    assert texts(memories)[-1] == "new, and shorter"
    size = t.path.stat().st_size
    t.path.unlink()
    t.prompt("another, and longer than it was before " + "x" * size)
    sync(memories)
    assert texts(memories)[-1].startswith("another, and longer")


def test_two_projects_that_share_a_folder_name(transcript: Begin, memories: cm.Memories) -> None:
    transcript("a", folder="-w-foo-bar", cwd="/w/foo-bar").prompt("in one")
    transcript("b", folder="-w-foo-bar", cwd="/w/foo/bar").prompt("in the other")
    sync(memories)
    assert {m.project for m in stored(memories)} == {"/w/foo-bar", "/w/foo/bar"}
    assert memories.stats().projects == 2


def test_windows_project_is_its_cwd(transcript: Begin, memories: cm.Memories) -> None:
    transcript("a", folder="C--Users-me-my-app", cwd="C:\\Users\\me\\my-app").prompt("x")
    transcript("b", folder="C--Users-me-my-app", cwd="C:\\Users\\me\\my-app").prompt("y")
    sync(memories)
    assert {(m.project, m.project_name) for m in stored(memories)} == {
        ("C:\\Users\\me\\my-app", "my-app")
    }


def test_chosen_config_folder_is_found(home: Path, memories: cm.Memories) -> None:
    t = Transcript(home / "x" / "y" / "projects" / "-p" / "s.jsonl", "s")
    t.prompt("hidden place")
    places = cm.Places(
        memories.places.folder, home, {"CLAUDE_CONFIG_DIR": str(home / "x" / "y")}, "linux"
    )
    other = cm.Memories(places, cm.Settings())
    sync(other)
    assert texts(other) == ["hidden place"]


def test_cowork_session_has_the_title_and_folder_of_its_file(
    home: Path, memories: cm.Memories
) -> None:
    base = home / ".config/Claude/local-agent-mode-sessions/a/b"
    t = Transcript(base / "local_1/.claude/projects/-sessions-x/c1.jsonl", "c1", cwd="/sessions/x")
    t.prompt("sort my papers")
    (base / "local_1.json").write_text(
        json.dumps({"title": "Papers", "userSelectedFolders": ["/Users/dana/Papers"]})
    )
    (base / "local_1" / "audit.jsonl").write_text(t.path.read_text().replace("sort", "SORT"))
    sync(memories)
    (memory,) = stored(memories, "prompt")
    assert (memory.source, memory.session_title, memory.project) == (
        "cowork",
        "Papers",
        "/Users/dana/Papers",
    )


def test_what_is_no_regular_file_is_passed_over(
    transcript: Begin, home: Path, memories: cm.Memories
) -> None:
    t = transcript()
    t.prompt("here")
    os.mkfifo(t.path.with_name("pipe.jsonl"))
    t.path.with_name("folder.jsonl").mkdir()
    t.path.with_name("dangling.jsonl").symlink_to(home / "nowhere")
    t.path.with_name("loop").symlink_to(home / ".claude")
    for name in ("journal.jsonl", "agent-acompact-1.jsonl"):
        t.path.with_name(name).write_text(t.path.read_text().replace("here", name))
    sync(memories)
    assert texts(memories) == ["here"]


def test_excluded_project_is_not_read(transcript: Begin, home: Path, memories: cm.Memories) -> None:
    transcript("a", folder="-w-open", cwd="/w/open").prompt("open words")
    t = transcript("b", folder="-w-shut", cwd="/w/shut/deep")
    t.prompt("shut words")
    t.write({"type": "ai-title", "aiTitle": "Shut title", "sessionId": "b"})
    other = cm.Memories(memories.places, cm.Settings(excluded_projects=("/w/shut",)))
    sync(other)
    assert texts(other) == ["open words"]
    with other.borrow_store() as store:
        assert store.find_sessions("b") == []


def test_folder_without_permission_is_noted_and_the_rest_read() -> None:
    setpriv = shutil.which("setpriv")
    if os.geteuid() == 0 and not setpriv:
        pytest.skip("setpriv is needed to stop being root")
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        for name in ("open", "shut"):
            Transcript(home / f".claude/projects/-{name}/{name}.jsonl", name).prompt(
                f"{name} words"
            )
        shutil.copy(
            ROOT / "code_memory.py", home
        )  # the checkout may be out of another user's reach
        (home / ".claude/projects/-shut").chmod(0)
        words = [sys.executable, str(home / "code_memory.py"), "sync"]
        if os.geteuid() == 0 and setpriv:
            for path in [home, *home.rglob("*")]:
                os.chown(path, 65534, 65534)
            words = [setpriv, "--reuid=65534", "--regid=65534", "--clear-groups", *words]
        env = clean_environment(home)
        done = subprocess.run(words, env=env, cwd="/", capture_output=True, text=True, timeout=WAIT)
        (home / ".claude/projects/-shut").chmod(0o700)
    if done.returncode in (126, 127) or "encodings" in done.stderr:
        pytest.skip("this interpreter cannot be run by another user")
    assert done.returncode == 0, done.stderr
    assert "1 new memory" in done.stdout
    assert "permission denied" in done.stdout


def test_many_short_lines_need_little_memory(transcript: Begin, memories: cm.Memories) -> None:
    t = transcript()
    with open(t.path, "w") as file:
        for number in range(60_000):
            file.write(
                json.dumps({"type": "progress", "uuid": f"u{number}", "data": "x" * 200}) + "\n"
            )
    t.prompt("at the end")
    sync(memories)  # so that what is loaded once does not count
    t.path.write_bytes(t.path.read_bytes() + b"\n")
    with memories.borrow_store() as store, store.writing():
        store.db.execute("DELETE FROM transcript")
    tracemalloc.start()
    sync(memories)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert t.path.stat().st_size > 14_000_000
    assert peak < 12_000_000
    assert texts(memories) == ["at the end"]


def test_another_writer_is_waited_for(
    transcript: Begin, memories: cm.Memories, monkeypatch: pytest.MonkeyPatch
) -> None:
    import apsw

    transcript().prompt("patient")
    sync(memories)
    transcript("s2").prompt("waited")
    held = apsw.Connection(str(memories.places.store_path))
    held.execute("BEGIN IMMEDIATE")
    real, about_to_write = cm.Store._transaction, threading.Event()

    def begin(store: cm.Store) -> object:
        about_to_write.set()
        return real(store)

    monkeypatch.setattr(cm.Store, "_transaction", begin)
    writer = threading.Thread(target=sync, args=(memories,))
    writer.start()
    assert about_to_write.wait(WAIT)
    writer.join(0.5)
    assert writer.is_alive()  # it waits; were it refused, it would have ended without its memory
    held.execute("COMMIT")
    writer.join(WAIT)
    held.close()
    assert texts(memories) == ["patient", "waited"]


def test_import_lock_is_held_by_one(home: Path) -> None:
    first, second = cm.ImportLock(home), cm.ImportLock(home)
    assert first.acquire()
    assert not second.acquire()
    first.release()
    assert second.acquire()
    second.release()


def test_model_of_another_dimension_is_noticed_and_vectors_made_again(
    transcript: Begin, memories: cm.Memories, monkeypatch: pytest.MonkeyPatch
) -> None:
    t = transcript()
    t.prompt("the lighthouse keeper")
    sync(memories)

    from conftest import FakeEmbedder

    class Wider(FakeEmbedder):
        dim = 128
        fingerprint = "wider"

    monkeypatch.setattr(cm, "load_model", lambda folder: Wider())
    other = cm.Memories(memories.places, cm.Settings())
    assert other.load_embedder()
    found = other.search(cm.SearchQuery("lighthouse keeper"))
    assert found.hits
    assert any("another model" in note for note in found.notes)
    sync(other)
    with other.borrow_store() as store:
        assert store.vector_model() == ("wider", 128)
    found = other.search(cm.SearchQuery("lighthouse keeper"))
    assert "meaning" in found.hits[0].matched
    assert not found.notes
    other.close()


def test_without_a_model_words_are_found_and_vectors_come_later(
    transcript: Begin, memories: cm.Memories, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(folder: Path) -> cm.Embedder:
        raise cm.ModelError("The model is missing. Install code-memory again.")

    t = transcript()
    t.prompt("the lighthouse keeper")
    with monkeypatch.context() as patch:
        patch.setattr(cm, "load_model", missing)
        bare = cm.Memories(memories.places, cm.Settings())
        sync(bare)
        found = bare.search(cm.SearchQuery("lighthouse"))
        assert len(found.hits) == 1
        assert any("model is missing" in note for note in found.notes)
        bare.close()
    sync(memories)
    assert "meaning" in memories.search(cm.SearchQuery("keeper")).hits[0].matched


def test_memory_is_told_once_by_two_sources(memories: cm.Memories, transcript: Begin) -> None:
    t = transcript()
    line = t.prompt("ship it on Friday")
    sync(memories)
    time = cm.parse_time(line["timestamp"])
    draft = cm.Draft("prompt", "ship it  on Friday", time + 900, "claude-mem", "#P7", "s1")
    with memories.borrow_store() as store:
        importer = cm.Importer(store, memories.privacy, None, [], memories.settings)
        report = importer.import_items([draft, cm.Skipped("test row")])
    assert (report.memories, report.duplicates, dict(report.skipped)) == (0, 1, {"test row": 1})
    (found,) = stored(memories, "prompt")
    assert found.source == "claude-code"
    by_alias = memories.details(["#P7", "mem:" + cm.memory_code("claude-mem:#P7")]).found
    assert [m.content for m in by_alias if isinstance(m, cm.Memory)] == ["ship it on Friday"] * 2
