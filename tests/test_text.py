"""Folding, index tokens, query parsing, passages; against a real FTS5."""

from __future__ import annotations

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from code_memory import (
    MAX_QUERY_TERMS,
    MAX_TOKEN_CHARS,
    best_passage,
    fold,
    fts_query,
    grammar_words,
    index_text,
    match_phrases,
    match_terms,
    parse_query,
)


def make_index(*texts: str) -> apsw.Connection:
    """Return an index like the store's, with the texts as rows 0, 1, ..."""
    db = apsw.Connection(":memory:")
    db.execute(
        "CREATE VIRTUAL TABLE f USING fts5(tokens, content='', contentless_delete=1,"
        " tokenize='unicode61 remove_diacritics 0')"
    )
    db.executemany(
        "INSERT INTO f(rowid, tokens) VALUES (?, ?)",
        [(row, index_text(text)) for row, text in enumerate(texts)],
    )
    return db


def search(db: apsw.Connection, text: str) -> list[int]:
    """Return the rows that a query finds, best first."""
    match = fts_query(parse_query(text))
    if not match:
        return []
    found = db.execute("SELECT rowid FROM f WHERE f MATCH ? ORDER BY rank, rowid", (match,))
    return [row for (row,) in found]


OTHERS = ("the weather is fine", "오늘 날씨", "今日は晴れ", "another note about nothing", "x")


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        pytest.param("Café NAÏVE", "cafe naive", id="case and accents"),
        pytest.param("cafe\u0301", "cafe", id="decomposed accent"),
        pytest.param("ＡＢＣ１２３", "abc123", id="full width"),
        pytest.param("ｶﾞｲﾄﾞ", "ガイド", id="half-width kana"),
        pytest.param("かが", "かが", id="kana keep their dots"),
        pytest.param("\u1109\u1165\u11af\u1100\u1168", "설계", id="Hangul in letters"),
        pytest.param("Straße ﬁne", "strasse fine", id="sharp s and ligature"),
        pytest.param("İstanbul", "istanbul", id="dotted capital I"),
        pytest.param("", "", id="empty"),
        pytest.param("a\udc80b", "a\udc80b", id="lone surrogate"),
    ],
)
def test_fold(text: str, folded: str) -> None:
    assert fold(text) == folded


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        pytest.param("Caches were cached", "cach were cach", id="inflection"),
        pytest.param("She went and wrote", "she go and write", id="irregular verbs"),
        pytest.param("登录问题", "登录 录问 问题 题", id="pairs, and the last character"),
        pytest.param("猫", "猫", id="one character"),
        pytest.param("重跑job7后", "重跑 job7 后 跑", id="glued to CJK"),
        pytest.param("DuckDB를", "duckdb 를 duck db", id="glued to Hangul"),
        pytest.param("rotate_keys()", "rotat kei rotatekeys", id="snake_case"),
        pytest.param("retry-queue", "retri queue retryqueue", id="kebab-case"),
        pytest.param("parseURLList", "parseurllist pars url list", id="CamelCase"),
        pytest.param("src/a_b.py", "src a b py abpy ab", id="path"),
        pytest.param("v1.3.7", "v1 3 7 v1x3x7", id="version"),
        pytest.param("2026-01-30", "2026 01 30 2026x01x30", id="date"),
        pytest.param(
            "left-pad-7@1.3.7",
            "leav pad 7 1 3 7 leftpad7x1x3x7 leftpad7 1x3x7",
            id="package@version",
        ),
        pytest.param("std::vec::Vec", "std vec vec stdvecvec", id="colons"),
        pytest.param("C++ and C#", "c and c cplus csharp", id="signs"),
        pytest.param("\u00e0 la carte\u0301 ＡＰＩ", "a la cart api", id="folded"),
        pytest.param("", "", id="empty"),
        pytest.param("--- *** \n", "", id="no words"),
    ],
)
def test_index_text(text: str, tokens: str) -> None:
    assert index_text(text) == tokens


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("QUJD+/" * 170_000, id="base64"),
        pytest.param("a" * 1_000_000, id="one word"),
        pytest.param("0123456789abcdef" * 60_000, id="hexadecimal"),
        pytest.param("a_" * 500_000, id="one identifier"),
    ],
)
def test_index_text_cuts_data(text: str) -> None:
    tokens = index_text(f"before {text} after").split()
    assert tokens[0] == "befor"
    assert "after" in tokens
    assert len(tokens) < 70
    assert max(map(len, tokens)) <= MAX_TOKEN_CHARS


@pytest.mark.parametrize(
    ("stored", "query"),
    [
        pytest.param("run retry-queue now", "retry-queue", id="hyphen"),
        pytest.param("see ADR-0042 and acme-api-dev", "ADR-0042", id="ticket"),
        pytest.param("see ADR-0042 and acme-api-dev", "acme-api-dev", id="crate"),
        pytest.param("we don't cache", "don't cache", id="apostrophe"),
        pytest.param("call job:start via task_runner", "job:start", id="colon"),
        pytest.param("call job:start via task_runner", "task_runner", id="snake_case"),
        pytest.param("call taskRunner", "task_runner", id="another spelling"),
        pytest.param("call task_runner", "taskRunner", id="another spelling, back"),
        pytest.param("我们修复了用户登录问题", "登录问题", id="Chinese, four characters"),
        pytest.param("我们修复了用户登录问题", "登录", id="Chinese, two characters"),
        pytest.param("我们修复了用户登录问题", "题", id="Chinese, one, last of its run"),
        pytest.param("我们修复了用户登录问题", "登", id="Chinese, one, inside"),
        pytest.param("早报配置已完成", "早报", id="Chinese, two, first"),
        pytest.param("重跑job-abx后通过", "abx", id="glued to Chinese"),
        pytest.param("결제모듈7를 새벽 배포로", "결제모듈7 배포", id="Korean"),
        pytest.param("설계7는 이벤트 소싱으로", "설계7", id="Korean, two letters"),
        pytest.param("認証サーバー7の再起動", "認証サーバー7", id="Japanese"),
        pytest.param("ｻｰﾊﾞｰを再起動", "サーバー", id="half-width kana"),
        pytest.param("DuckDB7를 쓰지 말고", "DuckDB7", id="glued to Korean"),
        pytest.param("I edited src/harbor7/moorage_7.py", "moorage_7.py", id="file"),
        pytest.param("Call rotate_wombat7_keys() nightly.", "wombat7", id="part"),
        pytest.param('said "never NEAR kumquat7 OR fig*"', 'AND "kumquat7" OR -NEAR(', id="mixed"),
        pytest.param("released on 2026-01-30 at noon", "2026-01-30", id="date"),
        pytest.param("naïve café", "NAIVE CAFE", id="accents and case"),
        pytest.param("we chose Postgres", "why did we choose postgres?", id="irregular verb"),
        pytest.param("KeyError: 'abc_def'", "Traceback:\n  x\nKeyError: 'abc_def'", id="trace"),
    ],
)
def test_found(stored: str, query: str) -> None:
    db = make_index(*OTHERS, stored)
    assert search(db, query)[:1] == [len(OTHERS)]


HOSTILE = """* ** " "" ' AND OR NOT NEAR NEAR(x NEAR(x,2) a* ^a -a +a a:b {a} (a) ( ) [a] a"b "a b"
"a -- ; % _ \\ / | & ! ? # $ @ ~ ` = < > , . a.b a-b cache:hit GB/s C++ (python don't -NEAR(
-"a -"a b" "" "*" \x00 a\x00b \ud800 tokens:a f 🙂 ａ""".split(" ")


@pytest.mark.parametrize("query", [*HOSTILE, "a AND", "NEAR(x y", 'say "hi', "a OR OR b", "NOT a"])
def test_operators_are_plain_words(query: str) -> None:
    db = make_index("hi python x.py cache hit GB/s a b", *OTHERS)
    search(db, query)


@settings(max_examples=300, deadline=None)
@given(st.text() | st.lists(st.sampled_from(HOSTILE)).map(" ".join))
def test_any_text_is_a_query(query: str) -> None:
    db = make_index("a b c", query)
    parsed = parse_query(query)
    for match in (
        fts_query(parsed),
        fts_query(parsed, phrases=False),
        match_terms(parsed.terms, every=True),
        match_phrases([*parsed.phrases, *parsed.excluded]),
    ):
        if match:
            list(db.execute("SELECT rowid FROM f WHERE f MATCH ?", (match,)))
    best_passage(query, parsed)
    assert len(parsed.terms) <= MAX_QUERY_TERMS


@settings(max_examples=200, deadline=None)
@given(st.text(min_size=1))
def test_every_text_finds_itself(text: str) -> None:
    parsed = parse_query(text)
    if not parsed.excluded and fts_query(parsed):
        assert 0 in search(make_index(text), text)


@pytest.mark.parametrize(
    ("query", "match"),
    [
        pytest.param("", "", id="empty"),
        pytest.param("retry NOT", '"retri"', id="operators are stop-words"),
        pytest.param("NOT", '"not"', id="nothing but stop-words"),
        pytest.param('say "hi', '"sai" OR "hi"', id="unbalanced quote"),
        pytest.param('"retry queue"', '"retri queue" AND ("retri" OR "queue")', id="phrase"),
        pytest.param("“retry queue”", '"retri queue" AND ("retri" OR "queue")', id="curly quotes"),
        pytest.param("cache -redis", '("cach") NOT ("redi")', id="exclusion"),
        pytest.param('cache -"in memory"', '("cach") NOT ("in memori")', id="excluded phrase"),
        pytest.param("-redis", '"redi"', id="only an exclusion"),
        pytest.param("git push -force", '"git" OR "push" OR "forc"', id="options of a command"),
        pytest.param("run --dry -redis", '"run" OR "dry" OR "redi"', id="other options"),
        pytest.param("well-known", '"wellknown" OR "well" OR "know"', id="dash inside a word"),
        pytest.param("登", '"登"*', id="one character"),
        pytest.param("登录是什么", '"登录"', id="Chinese function words"),
        pytest.param("登録はどのように", '"登録" OR "録は"', id="Japanese function words"),
        pytest.param("배포 어떻게", '"배포"', id="Korean function words"),
    ],
)
def test_fts_query(query: str, match: str) -> None:
    assert fts_query(parse_query(query)) == match


def test_phrases_and_exclusions_are_honoured() -> None:
    db = make_index("the retry queue stalls", "queue the retry", "retry queue in redis")
    assert search(db, '"retry queue"') == [0, 2]
    assert search(db, '"retry queue" -redis') == [0]
    assert sorted(search(db, "retry queue")) == [0, 1, 2]


def test_a_pasted_log_keeps_its_rare_words() -> None:
    log = "\n".join(f"INFO request {n} served from the pool in worker" for n in range(400))
    parsed = parse_query(log[:2000] + "\nE_WIDGET_77 raised in reconcile_ledger\n" + log[:900])
    assert len(parsed.terms) <= MAX_QUERY_TERMS
    assert "ewidget77" in parsed.compounds
    assert "reconcileledger" in parsed.compounds


LONG = "We talked a lot. " * 60 + "The walrus exporter drops the comma. " + "Then lunch. " * 60
FLAG = "\U0001f1f0\U0001f1f7"
FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"


@pytest.mark.parametrize(
    ("text", "query", "passage"),
    [
        pytest.param("I went home.", "going", "I **went** home.", id="inflected"),
        pytest.param("a `b` | c\nretry_queue", "queue", "a b | c **retry_queue**", id="one line"),
        pytest.param("2 ** 3 queue", "queue", r"2 \*\* 3 **queue**", id="its own asterisks"),
        pytest.param("## Plan\nqueue", "queue", "Plan **queue**", id="heading"),
        pytest.param("修复了登录问题。", "登录", "修复了**登录**问题。", id="Chinese"),
        pytest.param("사용자 배포는", "배포", "사용자 **배포**는", id="Korean"),
        pytest.param(
            "use left-pad@1.3 now", "left-pad@1.3", "use **left-pad@1.3** now", id="whole"
        ),
        pytest.param("naïve Café", "cafe", "naïve **Café**", id="accents"),
        pytest.param("xtest testx tést's", "test", "xtest testx **tést**'s", id="within"),
        pytest.param("жtest testж test。", "test", "жtest testж **test**。", id="within, Cyrillic"),
        pytest.param("를test를 테스트", "test", "를**test**를 테스트", id="between Korean"),
        pytest.param("", "x", "", id="empty"),
        pytest.param("Nothing of it.", "x", "Nothing of it.", id="no match"),
    ],
)
def test_best_passage(text: str, query: str, passage: str) -> None:
    assert best_passage(text, parse_query(query)) == passage


def test_best_passage_shows_whole_sentences() -> None:
    shown = best_passage(LONG, parse_query("walrus exporter"), 60)
    assert shown == "…The **walrus** **exporter** drops the comma. Then lunch. Then lunch.…"


def test_best_passage_prefers_all_the_words_together() -> None:
    text = "The queue. " * 30 + "x. " * 100 + "The retry queue stalls. " + "y. " * 100
    assert "**retry** **queue** stalls" in best_passage(text, parse_query("retry queue"), 80)


def test_best_passage_by_meaning() -> None:
    text = "First one here. " * 20 + "The best one is here. " + "Last one here. " * 20

    def score(sentences: list[str]) -> list[float]:
        return [float("best" in sentence) for sentence in sentences]

    assert "best one" in best_passage(text, parse_query("zebra"), 60, score)


@pytest.mark.parametrize("unit", ["漢字", FAMILY, FLAG, "x\u0323\u0302", "\u0e19\u0e49"])
@pytest.mark.parametrize("room", [20, 21, 22, 23, 40])
def test_best_passage_cuts_between_characters(unit: str, room: int) -> None:
    shown = best_passage(unit * 90 + "queue" + unit * 90, parse_query("queue"), room)
    rest = shown.replace("**", "").replace("queue", "").strip("…")
    assert len(rest) <= 2 * room + len(unit)
    assert rest.replace(unit, "") in ("", "漢", "字", "字漢")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("왜 connection이 끊어졌나", "했습니다"),
        ("接続が切れた原因", "でした"),
        ("连接为什么断开", "因为"),
    ],
)
def test_grammar_words_are_of_the_language_of_the_text(text: str, word: str) -> None:
    assert word in grammar_words(text)


def test_english_has_no_grammar_words() -> None:
    assert grammar_words("why was the connection closed? Étude") == ""
