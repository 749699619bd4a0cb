"""On the benchmark's own set: search may not get worse unnoticed.

The floors lie a little below what tests/bench/SEARCH.md reports for the quick run. Where search
got better, raise them; where a change costs something on purpose, lower them in the same commit.
"""

from __future__ import annotations

import pytest
from bench import make_retrieval_set, retrieval

import code_memory as cm

# Least percentages of a quick run: turn R@1, R@5, R@10, session R@5.
FLOORS = {
    "exact": (87, 91, 91, 95),
    "sense": (47, 71, 80, 95),
    "one language": (66, 83, 91, 95),
    "across languages": (16, 50, 58, 58),
    "all": (62, 75, 81, 87),
}


@pytest.fixture(scope="module")
def outcomes() -> list[retrieval.Outcome]:
    """The quick run's questions, asked with the bundled model."""
    sessions, questions = retrieval.read_set()
    quick = [question for question in questions if question.get("quick")]
    with retrieval.filled_memories(sessions) as memories:
        assert memories.load_embedder() is not None, memories.model_problem
        return retrieval.ask_all(memories, sessions, quick)


@pytest.mark.parametrize("group", FLOORS)
def test_search_stays_as_good(group: str, outcomes: list[retrieval.Outcome]) -> None:
    kinds = retrieval.GROUPS.get(group)
    figures = retrieval.count([o for o in outcomes if not kinds or o.question["kind"] in kinds])
    measured = (figures.turn_1, figures.turn_5, figures.turn_10, figures.session_5)
    assert all(m >= floor for m, floor in zip(measured, FLOORS[group], strict=True)), figures


def test_every_turn_is_remembered() -> None:
    sessions, _ = retrieval.read_set()
    with retrieval.filled_memories(sessions[:12]) as memories, memories.borrow_store() as store:
        refs = {memory.source_ref for _, memory in store.every_memory(cm.Filter())}
    turns = [turn for session in sessions[:12] for turn in session["turns"]]
    assert refs >= {retrieval.make_ref(turn) for turn in turns}


def test_set_is_what_the_talks_say() -> None:
    made = make_retrieval_set.render_set(make_retrieval_set.make_set())
    assert retrieval.SET_FILE.read_text("utf-8") == made


def test_groups_hold_every_kind_once() -> None:
    kinds = [kind for group in retrieval.GROUPS.values() for kind in group]
    assert sorted(kinds) == sorted(make_retrieval_set.KINDS)
