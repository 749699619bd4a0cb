"""Sections 7 and 13: search, timeline, details and stats on a real store."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from conftest import WAIT, Transcript, stored, sync, wait_until

import code_memory as cm

Begin = Callable[..., Transcript]


def find(memories: cm.Memories, text: str, **more: object) -> list[str]:
    return [hit.memory.content for hit in memories.search(cm.SearchQuery(text, **more)).hits]  # type: ignore[arg-type]


def by_words(memories: cm.Memories, text: str) -> list[str]:
    """Return what the word index alone finds."""
    expression = cm.fts_query(cm.parse_query(text))
    if not expression:
        return []
    with memories.borrow_store() as store:
        rows = store.find_rows(expression, cm.Filter(), 10).tolist()
        return [m.content for m in store.memories(rows).values()]


@pytest.mark.parametrize(
    ("text", "query"),
    [
        pytest.param("run retry-queue now", "retry-queue", id="hyphen"),
        pytest.param("see ADR-0042 and acme-api-dev", "ADR-0042", id="ticket"),
        pytest.param("see ADR-0042 and acme-api-dev", "acme-api-dev", id="kebab name"),
        pytest.param("we don't cache", "don't cache", id="apostrophe"),
        pytest.param("call job:start via task_runner", "job:start", id="colon name"),
        pytest.param("call job:start via task_runner", "task_runner", id="snake case"),
        pytest.param("call job:start via task_runner", "runner", id="part of snake case"),
        pytest.param("use parseHarborList here", "harbor", id="part of camel case"),
        pytest.param("我们修复了用户登录问题", "登录问题", id="Chinese, four"),
        pytest.param("我们修复了用户登录问题", "登录", id="Chinese, two"),
        pytest.param("早报配置已完成", "早报", id="Chinese, two at the start"),
        pytest.param("重跑job-abx后通过", "abx", id="glued into Chinese"),
        pytest.param("DuckDB를 쓰지 말자", "DuckDB", id="glued before Korean"),
        pytest.param("결제모듈을 새벽 배포로 옮긴다", "배포", id="Korean, two"),
        pytest.param("認証サーバーの再起動手順", "認証", id="Japanese, two"),
        pytest.param("we decided to repaint the boats", "deciding boat", id="English inflection"),
        pytest.param("pin left-pad@1.3.7 today", "left-pad@1.3.7", id="version"),
        pytest.param("edited src/harbor/moorage.py", "moorage.py", id="file name"),
        pytest.param("edited src/harbor/moorage.py", "src/harbor/moorage.py", id="path"),
        pytest.param("Ｆｕｌｌ　Ｗｉｄｔｈ", "full width", id="full width"),
        pytest.param("le café est fermé", "cafe ferme", id="accents"),
    ],
)
def test_words_find(text: str, query: str, transcript: Begin, memories: cm.Memories) -> None:
    t = transcript()
    t.prompt("something else entirely")
    t.prompt(text)
    sync(memories)
    assert by_words(memories, query) == [text]
    assert find(memories, query)[0] == text


@pytest.mark.parametrize(
    "query",
    [
        "*",
        "**",
        "AND",
        "NOT",
        "OR",
        "NEAR(x y",
        "a AND",
        "cache:hit",
        'say "hi',
        "(python",
        "GB/s",
        "C++",
        "x.py",
        "{a}",
        "-",
        '"',
        "''",
        "^x",
        "a*b",
        "\0",
        "\ud83d",
        "🚀",
        "--",
        '-"',
        "col:umn",
        "x" * 5000,
        "\\",
        ";",
    ],
)
def test_no_query_is_an_error(query: str, transcript: Begin, memories: cm.Memories) -> None:
    transcript().prompt("say hi to python at 3 GB/s, x.py and {a}")
    sync(memories)
    memories.search(cm.SearchQuery(query))


def test_exact_identifier_ranks_first(transcript: Begin, memories: cm.Memories) -> None:
    t = transcript()
    for number in range(20):
        t.response(f"The retry queue of harbor {number} was full, so retry the queue later.")
    t.response("It was ERR_QZX_17 in the ledger.")
    t.response("It was ERR_QZX_18 in the ledger.")
    sync(memories)
    assert find(memories, "ERR_QZX_18")[0] == "It was ERR_QZX_18 in the ledger."


def test_word_at_the_end_of_a_long_answer_is_found_and_shown(
    transcript: Begin, memories: cm.Memories
) -> None:
    t = transcript()
    for number in range(30):
        t.response(f"pin numpy number {number}")
    t.response("Filler about harbours and piers. " * 900 + "Finally zeppelin is the answer.")
    sync(memories)
    hit = memories.search(cm.SearchQuery("zeppelin pin numpy")).hits[0]
    assert "zeppelin" in hit.snippet
    assert len(hit.snippet) < 400


@pytest.fixture
def filled(transcript: Begin, memories: cm.Memories) -> cm.Memories:
    a = transcript("aaaa-1", folder="-w-harbor", cwd="/w/harbor")
    a.prompt("why does the crane stop")
    a.tool("Read", "toolu_1", {"file_path": "/w/harbor/src/crane.py"})
    a.result("toolu_1", "def stop(): the crane")
    a.response("The crane stops because of the fuse.")
    b = transcript("bbbb-1", folder="-w-ferry", cwd="/w/ferry")
    b.minute = 3000
    b.prompt("does the ferry have a crane")
    b.response("No, the ferry has no crane.")
    sync(memories)
    return memories


@pytest.mark.parametrize(
    ("filter", "count"),
    [
        pytest.param({}, 5, id="none"),
        pytest.param({"type": "prompt"}, 2, id="type"),
        pytest.param({"session_id": "aaaa"}, 3, id="beginning of a session id"),
        pytest.param({"session_id": "a_aa"}, 0, id="wildcard is text"),
        pytest.param({"project": "ferry"}, 2, id="project name"),
        pytest.param({"project": "/w/harbor"}, 3, id="project path"),
        pytest.param({"project": "%"}, 0, id="percent is text"),
        pytest.param({"tool": "Read"}, 1, id="tool"),
        pytest.param({"file": "src/crane"}, 1, id="part of a file's path"),
        pytest.param({"file": "nothing.py"}, 0, id="no such file"),
        pytest.param({"concept": "gotcha"}, 0, id="no such concept"),
        pytest.param({"until": 1772500000000}, 3, id="until"),
        pytest.param({"since": 1772500000000}, 2, id="since"),
    ],
)
def test_filters(filter: dict[str, object], count: int, filled: cm.Memories) -> None:
    assert len(find(filled, "crane", **filter)) == count
    if filter:
        assert len(find(filled, "", **filter)) == count


def test_order_by_time(filled: cm.Memories) -> None:
    newest = filled.search(cm.SearchQuery("crane", order="newest")).hits
    oldest = filled.search(cm.SearchQuery("crane", order="oldest")).hits
    times = [hit.memory.time for hit in newest]
    assert times == sorted(times, reverse=True)
    assert [h.memory.time for h in oldest] == sorted(times)


def test_offset_goes_on_where_the_first_page_ended(filled: cm.Memories) -> None:
    everything = [h.memory.id for h in filled.search(cm.SearchQuery("crane", limit=5)).hits]
    pages = [filled.search(cm.SearchQuery("crane", limit=2, offset=n)).hits for n in (0, 2, 4)]
    assert [h.memory.id for page in pages for h in page] == everything


def test_scores_fall_with_rank(filled: cm.Memories) -> None:
    scores = [hit.score for hit in filled.search(cm.SearchQuery("why does the crane stop")).hits]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)


def test_timeline_is_around_the_anchor(filled: cm.Memories) -> None:
    anchor = filled.search(cm.SearchQuery("fuse", limit=1)).hits[0].memory
    (timeline,), unknown = filled.timeline([f"[mem:{anchor.id}]"], "", 5, 5)
    assert [m.type for m in timeline.rows] == ["prompt", "tool", "response"]
    assert (timeline.anchor, unknown) == (anchor.id, [])
    (by_query,), _ = filled.timeline([], "the fuse of the crane", 1, 0)
    assert [m.type for m in by_query.rows] == ["tool", "response"]


def test_unknown_ids_are_named_and_the_others_answered(filled: cm.Memories) -> None:
    known = stored(filled)[0]
    details = filled.details(["ZZZZZZ", f"mem:{known.id}", known.source_ref, "mem:"])
    assert details.unknown == ("ZZZZZZ", "mem:")
    assert {m.id for m in details.found if isinstance(m, cm.Memory)} == {known.id}


def test_session_details(filled: cm.Memories) -> None:
    (digest,) = filled.details(["bbbb-1"]).found
    assert isinstance(digest, cm.SessionDigest)
    assert [m.content for m in digest.memories] == ["does the ferry have a crane"]
    assert digest.project == "/w/ferry"


def test_stats_count(filled: cm.Memories) -> None:
    stats = filled.stats()
    assert stats.by_type == {"prompt": 2, "response": 2, "tool": 1, "insight": 0}
    assert (stats.memories, stats.sessions, stats.projects) == (5, 2, 2)
    assert (stats.transcripts_read, stats.transcripts_found) == (2, 2)
    assert filled.stats("ferry").memories == 2


def test_days_are_local_days(
    transcript: Begin, memories: cm.Memories, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Seoul")
    time.tzset()
    try:
        now = datetime.now(UTC)
        t = transcript()
        line = t.line("user", message={"role": "user", "content": "late work"})
        line["timestamp"] = now.strftime("%Y-%m-%dT15:50:20.000Z")
        t.write(line)
        sync(memories)
        (day,) = memories.stats().days
        moment = datetime.fromisoformat(line["timestamp"]).astimezone()
        assert day == moment.strftime("%Y-%m-%d") != now.strftime("%Y-%m-%d")
    finally:
        monkeypatch.undo()
        time.tzset()


def test_line_appended_while_serving_is_found(transcript: Begin, memories: cm.Memories) -> None:
    t = transcript()
    t.prompt("the first words")
    memories.start()
    wait_until(lambda: find(memories, "first words"), "the line")
    t.prompt("freshly appended QUOKKA")
    wait_until(lambda: any("QUOKKA" in text for text in find(memories, "QUOKKA")), "the line")


def test_store_deleted_while_open_is_made_again(transcript: Begin, memories: cm.Memories) -> None:
    transcript().prompt("come back")
    sync(memories)
    assert find(memories, "come back")
    for path in memories.places.folder.glob(cm.STORE_FILE + "*"):
        path.unlink()
    sync(memories)
    assert find(memories, "come back") == ["come back"]


def test_damaged_store_is_said_and_rebuilt_from_text(
    transcript: Begin, memories: cm.Memories
) -> None:
    t = transcript()
    for number in range(400):
        t.response(
            f"The harbour of berth {number} was dredged in spring, and again in autumn {number * 7}."
        )
    sync(memories)
    memories.close()
    path = memories.places.store_path
    data = bytearray(path.read_bytes())
    data[4096:8192] = bytes(4096)  # page 2
    path.write_bytes(data)
    again = cm.Memories(memories.places, cm.Settings())
    try:
        problem = ""
        again.search(cm.SearchQuery("harbour"))
    except cm.StoreDamagedError as error:
        problem = str(error)
    with again.borrow_store() if not problem else pytest.raises(cm.StoreError) as store:
        if isinstance(store, cm.Store):
            assert store.check()
        else:
            again.details(["x"])
    cm.rebuild(again, False, lambda what, done, total: None)
    sync(again)
    assert len(find(again, "harbour berth", limit=5)) == 5
    assert len(stored(again)) == 400
    assert list(path.parent.glob("*.damaged-*"))
    again.close()


def test_cancelled_search_ends_with_a_plain_error(filled: cm.Memories) -> None:
    token = cm.CancelToken()
    token.cancel()
    with pytest.raises(cm.CodeMemoryError):
        filled.search(cm.SearchQuery("crane"), token)


def test_searches_go_on_while_an_import_writes(
    transcript: Begin, memories: cm.Memories, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(60):
        t = transcript(f"s{number}")
        for turn in range(20):
            t.response(f"session {number} turn {turn} about the quay wall")
    real, go_on = cm.Store.write_transcript, threading.Semaphore(0)
    written: list[bool] = []  # one for each batch, in the transaction that holds its memories

    def write(store: cm.Store, *args: Any) -> None:
        real(store, *args)
        written.append(store.db.in_transaction)
        assert go_on.acquire(timeout=WAIT), "a search waited for the import"

    monkeypatch.setattr(cm.Store, "write_transcript", write)
    sync_thread = threading.Thread(target=sync, args=(memories,))
    sync_thread.start()
    found: list[int] = []
    while wait_until(lambda: len(written) > len(found) or not sync_thread.is_alive()):
        if not sync_thread.is_alive():
            break
        found.append(len(find(memories, "quay wall")))
        go_on.release()
    sync_thread.join(WAIT)
    assert len(stored(memories)) == 1200
    assert all(written)
    assert len(found) == len(written) > 1
    assert found[0] == 0 < found[-1]


def test_meaning_is_searched_within_a_filter(transcript: Begin, memories: cm.Memories) -> None:
    t = transcript("a", folder="-w-many", cwd="/w/many")
    for number in range(300):
        t.response(f"the harbour crane lifts box {number}")
    transcript("b", folder="-w-few", cwd="/w/few").prompt("a lonely walrus")
    sync(memories)
    assert find(memories, "the harbour crane", project="few") == ["a lonely walrus"]


def test_nearest_signs_are_found_with_all_that_are_as_near() -> None:
    words = np.array([[0b1, 0b11, 0b111, 0b11, 0b11], [0, 0, 0, 0, 2**63]], np.uint64)
    rows = np.array([10, 20, 30, 40, 50])
    find = functools.partial(cm.find_nearest_signs, rows, words, bytes(16))
    assert find(1) == [10]
    assert find(2) == [10, 20, 40]
    assert find(4) == [10, 20, 40, 30, 50]
    assert find(9) == [10, 20, 40, 30, 50]
    assert cm.find_nearest_signs(rows[:0], words[:, :0], bytes(16), 9) == []


def test_signs_of_what_is_stored_are_loaded(transcript: Begin, memories: cm.Memories) -> None:
    t = transcript("a")
    for number in range(1500):  # more than sqlite-vec has in one chunk
        t.prompt(f"the harbour crane lifts box {number}")
    sync(memories)
    with memories.borrow_store() as store:
        with store.writing():
            store.forget([3, 1100])
        rows, words = store.load_signs()
        assert rows.tolist() == sorted(set(rows.tolist()))
        assert len(rows) == words.shape[1] == store.count(cm.Filter())
        assert not {3, 1100} & set((rows // cm.PARTS_PER_MEMORY).tolist())
        assert memories.embedder is not None
        asked = cm.pack_bits(memories.embedder.embed(["the harbour crane lifts box 700"]))[0]
        near = cm.find_nearest_signs(rows, words, asked, 5)
        assert set(near) & set(store.ask_for_nearest(asked, 1))


def test_a_project_of_just_that_name_wins(transcript: Begin, memories: cm.Memories) -> None:
    transcript("a", folder="-a", cwd="/w/user3/app").prompt("in the app")
    transcript("b", folder="-b", cwd="/w/3").prompt("in the third")
    sync(memories)
    assert find(memories, "", project="3") == ["in the third"]
    assert len(find(memories, "", project="/w/")) == 2
