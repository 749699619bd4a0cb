"""Plans for FTS5, surroundings, dates, candidates, and the final order."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from code_memory import (
    LISTED_ROWS,
    SCORED_ROWS,
    DateHint,
    Ranked,
    Surroundings,
    WordRows,
    choose_candidates,
    collect_words,
    compare_pieces,
    find_date,
    lessen_grammar,
    match_dates,
    measure_rarity,
    parse_query,
    plan_words,
    rank,
    read_candidates,
)

NOW = 1_800_000_000_000
NONE = (np.zeros(0, np.int64), np.zeros(0, np.float32))


def embed_tokens(texts: Sequence[str]) -> tuple[list[Any], Any]:
    """Stand in for a model: each word is a piece, and each piece is nearest to itself only."""
    words = sorted({word for text in texts for word in text.lower().split()})
    numbers = {word: i for i, word in enumerate(words)}
    pieces = [np.array([numbers[w] for w in text.lower().split()], np.int64) for text in texts]
    return pieces, np.eye(max(len(words), 1), dtype=np.float32)[: len(words)]


def search(
    texts: Sequence[str],
    query: str,
    sessions: Sequence[int] | None = None,
    tools: frozenset[int] = frozenset(),
    times: Sequence[int] | None = None,
    meaning: tuple[Any, Any] = NONE,
) -> list[Ranked]:
    """Rank memories 1, 2, ... with these texts, as the store would have found them."""
    around = Surroundings()
    rows = [
        (i, sessions[i - 1] if sessions else i, times[i - 1] if times else NOW)
        for i in range(1, len(texts) + 1)
    ]
    around.add(np.array(rows, np.int64).reshape(-1, 3))
    parsed = parse_query(query)
    words = []
    for term in (*parsed.compounds, *parsed.terms):
        rows = [i for i, t in enumerate(texts, 1) if term in parse_query(t).terms]
        rows += [i for i, t in enumerate(texts, 1) if term in parse_query(t).compounds]
        rarity = measure_rarity(len(rows), 1000)
        scores = np.full(len(rows), rarity, np.float32)
        is_name = term in parsed.compounds or not term.isalpha()
        words.append(WordRows(np.array(rows, np.int64), scores, rarity, is_name))
    found = choose_candidates(words, meaning, around, find_date(query), UTC)
    whole = {i: (text, i in tools) for i, text in enumerate(texts, 1)}
    read = read_candidates(found, around, parsed, lambda ids: {i: whole[i] for i in ids})
    return rank(parsed, found, around, read, embed_tokens, NOW)


@pytest.mark.parametrize(
    ("query", "counts", "plan"),
    [
        pytest.param("walrus", {"walru": 3}, [("walru", True)], id="rare"),
        pytest.param("walrus", {"walru": 0}, [], id="nowhere"),
        pytest.param(
            "walrus cache",
            {"walru": 3, "cach": LISTED_ROWS + 1},
            [("walru", True), ("cach", False), ("cach with rare", False)],
            id="rare and common",
        ),
        pytest.param(
            "cache session",
            {"cach": SCORED_ROWS + 1, "session": SCORED_ROWS + 2},
            [("cach", False), ("session", False), ("cach session", False)],
            id="common only",
        ),
        pytest.param("登", {}, [("登", False)], id="one character, not counted"),
    ],
)
def test_plan_words(query: str, counts: dict[str, int], plan: list[tuple[str, bool]]) -> None:
    found = [
        (" ".join(q.terms) + (" with rare" if ") " in q.match + " " else ""), q.scored)
        for q in plan_words(parse_query(query), counts)
    ]
    assert found == plan


def test_plan_words_asks_for_all_and_for_pairs_of_common_words() -> None:
    counts = dict.fromkeys(("cach", "session", "token"), SCORED_ROWS + 1)
    plan = plan_words(parse_query("cache session token"), counts)
    assert [len(query.terms) for query in plan] == [1, 1, 1, 3, 2, 2, 2]


def test_collect_words_keeps_the_best_part_of_a_memory() -> None:
    parsed = parse_query("walrus")
    query = plan_words(parsed, {"walru": 3})[0]
    found = [(query, np.array([7, 7, 5]), np.array([9.0, 11.0, 8.0]))]
    (word,) = collect_words(parsed, found, {"walru": 3}, 1000)
    assert word.memories.tolist() == [5, 7]
    assert word.scores.tolist() == [8.0, 11.0]
    assert not word.is_name


def test_surroundings_follow_a_session_in_time() -> None:
    around = Surroundings()
    around.add(np.array([(1, 10, 300), (2, 20, 100), (3, 10, 100)]))
    around.add(np.array([(4, 10, 200)]))
    places = around.find_places(np.array([3, 4, 1, 2, 99]))
    assert around.memories[places[:4]].tolist() == [3, 4, 1, 2]
    assert places[4] == -1
    after = around.step(places, 1)
    assert [int(around.memories[p]) if p >= 0 else None for p in after] == [4, 1, None, None, None]
    assert around.sizes.tolist() == [3, 1]
    assert around.find_sessions(places[:4]).tolist() == [10, 10, 10, 20]
    assert around.newest == 4
    around.add(np.array([(1 << 40, 10, 400)]))  # what damage may leave
    assert around.newest == 4
    assert around.find_places(np.array([1 << 40])).tolist() == [-1]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        pytest.param("what broke on 2026-01-30?", DateHint(2026, 1, 30), id="ISO"),
        pytest.param("on 9 November, 2022", DateHint(2022, 11, 9), id="day first"),
        pytest.param("since Jan 30th", DateHint(None, 1, 30), id="month first"),
        pytest.param("in March 2024", DateHint(2024, 3, None), id="month and year"),
        pytest.param("camping in June", DateHint(None, 6, None), id="month alone"),
        pytest.param("it may march on", None, id="words like months"),
        pytest.param("2026年1月30日的部署", DateHint(2026, 1, 30), id="Chinese"),
        pytest.param("1월 30일 배포", DateHint(None, 1, 30), id="Korean"),
        pytest.param("version 1.2.3", None, id="a version"),
        pytest.param("2026-13-45", None, id="no such date"),
        pytest.param("", None, id="empty"),
    ],
)
def test_find_date(text: str, hint: DateHint | None) -> None:
    assert find_date(text) == hint


def test_match_dates() -> None:
    times = [datetime(2026, 1, day, 12, tzinfo=UTC).timestamp() * 1000 for day in (29, 30)]
    times.append(datetime(2025, 1, 30, tzinfo=UTC).timestamp() * 1000)
    array = np.array(times, np.int64)
    assert match_dates(array, DateHint(2026, 1, 30), UTC).tolist() == [0, 1, 0]
    assert match_dates(array, DateHint(None, 1, 30), UTC).tolist() == [0, 1, 1]
    assert match_dates(array, DateHint(2026, 1, None), UTC).tolist() == [1, 1, 0]


def test_more_words_rank_higher_and_scores_fall() -> None:
    ranked = search(["retry queue stalls", "retry later", "lunch was good"], "retry queue")
    assert [r.memory for r in ranked][:2] == [1, 2]
    scores = [r.score for r in ranked]
    assert scores == sorted(scores, reverse=True)
    assert all(0 < score <= 1 for score in scores)
    assert ranked[0].matched == ("words",)


def test_the_answer_follows_its_question() -> None:
    texts = ["which port does the gateway use?", "it listens on 8443", "fine, thanks", "bye now"]
    ranked = search(texts, "gateway port", sessions=[1, 1, 1, 1])
    assert {r.memory for r in ranked[:2]} == {1, 2}


def test_an_exact_identifier_wins_over_many_words() -> None:
    texts = ["the colour of the boats and the colour of the sails", "lighthouse7 is turquoise"]
    assert search(texts, "colour of the boats at lighthouse7")[0].memory == 2


def test_tools_come_after_answers_that_say_the_same() -> None:
    texts = ["pytest fails in the parser tests", "pytest fails in the lexer tests"]
    assert search(texts, "pytest fails tests", tools=frozenset({1}))[0].memory == 2


def test_of_two_codes_the_one_that_is_about_it_wins() -> None:
    rest = " ".join(f"step_{n} ( q )" for n in range(40))
    texts = [f"def walrus ( q ) = {{ {rest} }}", "def walrus ( q ) = { q }", "a walrus of a day"]
    ranked = [r.memory for r in search(texts, "walrus")]
    assert ranked.index(2) < ranked.index(1)


def test_of_equals_the_session_with_more_good_hits_comes_first() -> None:
    texts = [
        "walrus exporter stalls",
        "lunch",
        "walrus exporter hangs",
        "the walrus exporter again",
    ]
    assert search(texts, "walrus exporter", sessions=[1, 1, 2, 2])[0].memory != 1


def test_an_english_answer_is_not_lost_behind_noise_in_the_language_of_the_question() -> None:
    meaning = (np.array([1, 2]), np.array([0.5, 0.5], np.float32))
    texts = ["점심은 맛있었다", "the socket was closed"]
    assert search(texts, "연결이 끊어짐", meaning=meaning)[0].memory == 2


def test_lessen_grammar() -> None:
    vectors = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]], np.float32)
    lessened, shares = lessen_grammar(vectors, np.array([0.0, 5.0], np.float32))
    assert shares == pytest.approx([0.0, 0.8, 1.0])
    assert lessened[0] == pytest.approx([1.0, 0.0])
    assert lessened[1] == pytest.approx(np.array([0.6, 0.2]) / np.hypot(0.6, 0.2))
    assert np.linalg.norm(lessened, axis=1) == pytest.approx([1.0, 1.0, 1.0])


def test_near_duplicates_are_folded() -> None:
    long = "please run all of the tests again and tell me which of them fail today"
    ranked = search([long, "run a marathon", long + " ok"], "run tests")
    assert ranked[0].folded
    assert len(ranked) == 2


def test_copies_fold_into_the_first_and_into_no_copy() -> None:
    words = [letter + other for letter in "jkl" for other in "jklmnopqrs"]
    # The first and the second are alike, and the second and the third.
    ranked = search([" ".join(words[at : at + 28]) for at in (2, 1, 0)], "lr ls kk")
    assert [(r.memory, r.folded) for r in ranked] == [(1, (2,)), (3, ())]


def test_other_numbers_make_another_text() -> None:
    text = "pin the left pad package at version {} before the release of the next train"
    assert len(search([text.format(1), text.format(2)], "pin left pad")) == 2


def test_a_day_in_the_query_prefers_that_day() -> None:
    days = [int(datetime(2026, 5, day, 12, tzinfo=UTC).timestamp() * 1000) for day in (1, 2)]
    ranked = search(["we deployed it", "we deployed this"], "deployed on 2 May 2026", times=days)
    assert ranked[0].memory == 2
    assert "date" in ranked[0].matched


def test_one_session_does_not_flood_the_list() -> None:
    texts = [f"walrus exporter note {word}" for word in "abcdefgh"] + ["walrus exporter note i"]
    ranked = search(texts, "walrus exporter note", sessions=[1] * 8 + [2])
    assert 9 in [r.memory for r in ranked[:8]]


def test_meaning_alone_finds_something() -> None:
    meaning = (np.array([2]), np.array([0.8], np.float32))
    ranked = search(["lunch", "the boats"], "vessels", meaning=meaning)
    assert ranked[0].memory == 2
    assert ranked[0].matched == ("meaning",)


def test_nothing_found() -> None:
    assert search(["lunch"], "zebra") == []
    assert search([], "zebra") == []


def test_without_a_model_words_decide() -> None:
    around = Surroundings()
    around.add(np.array([(1, 1, NOW), (2, 2, NOW)]))
    parsed = parse_query("retry")
    words = [WordRows(np.array([2]), np.array([5.0], np.float32), 5.0)]
    found = choose_candidates(words, NONE, around)
    assert [r.memory for r in rank(parsed, found, around, {}, None, NOW)] == [2]


def test_compare_pieces_with_empty_texts() -> None:
    assert compare_pieces("", ["a"], embed_tokens) is None
    compared = compare_pieces("a b", ["", "a", ""], embed_tokens)
    assert compared is not None
    assert compared.nearest.tolist() == [[0, 1, 0], [0, 0, 0]]
    assert compared.focus.tolist() == [0, 1, 0]
