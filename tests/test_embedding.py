"""The embedding model."""

from __future__ import annotations

import functools
import json
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model2vec import StaticModel
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from code_memory import (
    ModelError,
    StaticEmbedder,
    compute_fingerprint,
    find_model,
    load_model,
    pack_bits,
    pack_levels,
    unpack_levels,
)

BUNDLED = Path(__file__).resolve().parent.parent / "model"

WORDS = ["[UNK]", "[PAD]", "the", "search", "index", "is", "slow", "검색", "検索", "retry", "##ing"]
TEXTS = [
    "the search index is slow",
    "the  the\n\tretry search",
    "indexing RETRY",
    "검색 検索 nothing-known-here",
    "",
    "zzz",
]


def write_model(
    folder: Path,
    dtype: str = "float32",
    weights: bool = False,
    mapping: bool = False,
    tokenizer: Tokenizer | None = None,
    dim: int = 12,
) -> Path:
    """Write a small model2vec folder with random vectors."""
    tokenizer = tokenizer or make_wordpiece()
    rows = tokenizer.get_vocab_size()
    choice = np.random.default_rng(1)
    table: NDArray[Any] = choice.normal(size=(4 if mapping else rows, dim)).astype(np.float32)
    table = (table * 40).astype(np.int8) if dtype == "int8" else table.astype(dtype)
    StaticModel(
        table,
        tokenizer,
        normalize=True,
        weights=choice.random(rows).astype(np.float32) if weights else None,
        token_mapping=choice.integers(0, 4, rows) if mapping else None,
    ).save_pretrained(folder)
    return folder


def make_wordpiece() -> Tokenizer:
    vocabulary = {word: i for i, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.enable_padding()
    return tokenizer


def make_unigram() -> Tokenizer:
    pieces = ["<s>", "<unk>", "▁the", "▁", "search", "▁search", "in", "dex", "검색", "slow"]
    tokenizer = Tokenizer(models.Unigram([(p, -float(i)) for i, p in enumerate(pieces)], 1, False))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    return tokenizer


def make_byte_level() -> Tokenizer:
    # A space is part of a piece here, so words must not be read one by one.
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


def make_unsplit() -> Tokenizer:
    # Pieces that reach over white space.
    pieces = ["<unk>", "the search", "the", " ", "search", "slow"]
    return Tokenizer(models.Unigram([(p, -float(i)) for i, p in enumerate(pieces)], 0, False))


def expect(folder: Path, texts: Sequence[str]) -> NDArray[np.float32]:
    model = StaticModel.from_pretrained(folder)
    return model.encode(list(texts), max_length=None, normalize=True).astype(np.float32)


@pytest.mark.parametrize(
    ("make", "tolerance"),
    [
        pytest.param({"dtype": "float32"}, 1e-6, id="float32"),
        pytest.param({"dtype": "float16"}, 2e-3, id="float16, which StaticModel adds up in halves"),
        pytest.param({"dtype": "int8"}, 1e-6, id="int8"),
        pytest.param({"dtype": "int8", "weights": True}, 1e-6, id="int8 with weights"),
        pytest.param({"weights": True}, 1e-6, id="weights"),
        pytest.param({"mapping": True}, 1e-6, id="mapping"),
        pytest.param({"mapping": True, "weights": True}, 1e-6, id="mapping and weights"),
        pytest.param({"tokenizer": make_unigram()}, 1e-6, id="unigram tokenizer"),
        pytest.param({"tokenizer": make_byte_level()}, 1e-6, id="byte-level tokenizer"),
        pytest.param({"tokenizer": make_unsplit()}, 1e-6, id="pieces over white space"),
    ],
)
def test_vectors_are_those_of_static_model(
    tmp_path: Path, make: dict[str, Any], tolerance: float
) -> None:
    folder = write_model(tmp_path, **make)
    found = load_model(folder).embed(TEXTS)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expect(folder, TEXTS), atol=tolerance)
    lengths = np.linalg.norm(found, axis=1)
    assert np.all((np.abs(lengths - 1) < 1e-6) | (lengths == 0))


def test_sentence_transformers_layout(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    folder = write_model(tmp_path)
    before = load_model(folder).embed(TEXTS)
    nested = folder / "0_StaticEmbedding"
    nested.mkdir()
    table = load_file(folder / "model.safetensors")["embeddings"]
    save_file({"embedding.weight": table}, nested / "model.safetensors")
    (folder / "tokenizer.json").rename(nested / "tokenizer.json")
    (folder / "model.safetensors").unlink()
    np.testing.assert_array_equal(load_model(folder).embed(TEXTS), before)


@functools.cache
def load_bundled() -> StaticEmbedder:
    return load_model(BUNDLED)


@functools.cache
def load_original() -> StaticModel:
    return StaticModel.from_pretrained(BUNDLED)


@pytest.fixture
def bundled() -> StaticEmbedder:
    return load_bundled()


def test_bundled_model_is_that_of_static_model(bundled: StaticEmbedder) -> None:
    texts = [
        "def get_user_name(self): return self._name  # naïve",
        "왜 검색이 안 되나요?\n\nTraceback (most recent call last):",
        "全角ＡＢＣ　と半角ｶﾅ",
        "word " * 700,
        "e\u0301 \u0301x \u200d👩\u200d💻 \x1c\x85\xa0 <unk>",
    ]
    wanted = load_original().encode(texts, max_length=None, normalize=True)
    np.testing.assert_allclose(bundled.embed(texts), wanted, atol=1e-6)


# White space, marks that join to what precedes, and what tokenizers fold or drop.
tricky = st.text(
    "aB_.( \n\r\t\u0301\u200d\x1c\x85\u3000\uff21\uac80\uc0c9\u1100\u1161", max_size=40
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text(max_size=40) | tricky, min_size=1, max_size=5))
def test_any_text_is_read_as_static_model_reads_it(texts: list[str]) -> None:
    wanted = load_original().encode(texts, max_length=None, normalize=True)
    np.testing.assert_allclose(load_bundled().embed(texts), wanted, atol=2e-6)


def test_forgetting_words_changes_nothing(
    bundled: StaticEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"word{i} again and again {i % 7}" for i in range(200)]
    before = bundled.embed(texts)
    monkeypatch.setattr("code_memory._CACHED_WORDS", 10)
    np.testing.assert_array_equal(bundled.embed(texts), before)


def test_threads_share_a_model() -> None:
    model = load_model(BUNDLED)
    texts = [f"thread safety of word{i}" for i in range(300)]
    wanted = load_model(BUNDLED).embed(texts)
    found: list[NDArray[np.float32]] = []
    workers = [threading.Thread(target=lambda: found.append(model.embed(texts))) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(found) == 4
    for vectors in found:
        np.testing.assert_array_equal(vectors, wanted)


def test_token_rows_average_to_the_vector(bundled: StaticEmbedder) -> None:
    texts = ["the retry is slow", "", "the the the"]
    ids, rows = bundled.embed_tokens(texts)
    assert [len(found) for found in ids][1] == 0
    assert len(set(ids[2].tolist())) == 1
    vector = rows[ids[0]].mean(axis=0)
    np.testing.assert_allclose(vector / np.linalg.norm(vector), bundled.embed(texts)[0], atol=1e-6)


def test_rows_of_tokens_are_each_piece_once(bundled: StaticEmbedder) -> None:
    long = "x" * 60  # longer than what is remembered between calls
    texts = ["one the retry", f"the {long} one", "the retry one", f"{long} {long}"]
    for _ in range(2):
        ids, rows = bundled.embed_tokens(texts)
        assert len(np.unique(rows, axis=0)) == len(rows)
        assert sorted(ids[0]) == sorted(ids[2])
        assert ids[3].tolist() == ids[1].tolist()[1:-1] * 2


def test_nothing_to_embed(bundled: StaticEmbedder) -> None:
    assert bundled.embed([]).shape == (0, bundled.dim)
    ids, rows = bundled.embed_tokens([])
    assert ids == []
    assert rows.shape == (0, bundled.dim)


def test_other_languages_meet(bundled: StaticEmbedder) -> None:
    texts = ["The database connection failed", "데이터베이스 연결 실패", "사진 보정 방법"]
    english, korean, other = bundled.embed(texts)
    assert english @ korean > english @ other + 0.2


# --- Damaged and missing files ---


def damage(folder: Path, how: str) -> None:
    table = folder / "model.safetensors"
    data = table.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    match how:
        case "no table":
            table.unlink()
        case "no tokenizer":
            (folder / "tokenizer.json").unlink()
        case "empty":
            table.write_bytes(b"")
        case "cut":
            table.write_bytes(data[:-100])
        case "not JSON":
            table.write_bytes(data[:8] + b"x" * length + data[8 + length :])
        case "huge header":
            table.write_bytes(struct.pack("<Q", 1 << 60) + data[8:])
        case "other tensors":
            table.write_bytes(data.replace(b"embeddings", b"embeddingz"))
        case "unknown type":
            table.write_bytes(data.replace(b'"F32"', b'"F8_"'))
        case "tokenizer is not JSON":
            (folder / "tokenizer.json").write_text("{")
        case "too few rows":
            tokenizer = json.loads((folder / "tokenizer.json").read_text("utf-8"))
            tokenizer["model"]["vocab"]["more"] = len(WORDS)
            (folder / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")


@pytest.mark.parametrize(
    "how",
    [
        "no table",
        "no tokenizer",
        "empty",
        "cut",
        "not JSON",
        "huge header",
        "other tensors",
        "unknown type",
        "tokenizer is not JSON",
        "too few rows",
    ],
)
def test_damaged_model_says_so(tmp_path: Path, how: str) -> None:
    folder = write_model(tmp_path)
    damage(folder, how)
    with pytest.raises(ModelError) as caught:
        load_model(folder).embed(["text"])
    message = str(caught.value)
    assert str(folder) in message
    assert message.endswith(".")
    assert "\n" not in message


# --- Fingerprints ---


def test_fingerprint_follows_the_files(tmp_path: Path) -> None:
    one = load_model(write_model(tmp_path / "one"))
    same = load_model(write_model(tmp_path / "same"))
    other = load_model(write_model(tmp_path / "other", dim=8))
    assert one.fingerprint == same.fingerprint != other.fingerprint
    assert len(one.fingerprint) == 64


def test_fingerprint_of_a_large_file_sees_a_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("code_memory._WHOLE_HASH_BYTES", 1000)
    monkeypatch.setattr("code_memory._SAMPLE_BYTES", 100)
    file = tmp_path / "large"
    data = bytearray(100_000)
    file.write_bytes(data)
    before = compute_fingerprint([file])
    data[-1] = 1
    file.write_bytes(data)
    assert compute_fingerprint([file]) != before


# --- Where the model is ---


@pytest.mark.parametrize(
    ("present", "setting", "frozen", "wanted"),
    [
        pytest.param(["app/model"], None, None, "app/model", id="checkout"),
        pytest.param(["app/code_memory_model"], None, None, "app/code_memory_model", id="wheel"),
        pytest.param(["meipass/model", "app/model"], None, "meipass", "meipass/model", id="frozen"),
        pytest.param(["app/model", "mine"], "mine", None, "mine", id="setting wins"),
        pytest.param(["app/model"], "mine", None, None, id="setting without a model"),
        pytest.param([], None, None, None, id="none"),
    ],
)
def test_find_model(
    tmp_path: Path,
    present: list[str],
    setting: str | None,
    frozen: str | None,
    wanted: str | None,
) -> None:
    for name in present:
        write_model(tmp_path / name)
    arguments = (
        tmp_path / setting if setting else None,
        tmp_path / "app" / "code_memory.py",
        tmp_path / frozen if frozen else None,
    )
    if wanted is None:
        with pytest.raises(ModelError, match="words"):
            find_model(*arguments)
    else:
        assert find_model(*arguments) == (tmp_path / wanted)


# --- Packing ---


@pytest.mark.parametrize("dim", [256, 33])
def test_pack_levels_keeps_directions_and_signs(dim: int) -> None:
    vectors = np.random.default_rng(2).normal(size=(50, dim)).astype(np.float32)
    vectors[7, :5] = 0
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    packed = pack_levels(vectors)
    assert {len(blob) for blob in packed} == {(dim + 1) // 2}
    rows = unpack_levels(packed, dim)
    assert np.allclose(np.linalg.norm(rows, axis=1), 1)
    assert np.min(np.sum(rows * vectors, axis=1)) > 0.98
    assert pack_bits(rows) == pack_bits(vectors)


def test_packing_zeros() -> None:
    zeros = np.zeros((1, 16), np.float32)
    assert pack_levels(zeros) == [b""]
    assert pack_bits(zeros) == [bytes(2)]
    assert pack_bits(np.zeros((0, 16), np.float32)) == []


@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        pytest.param([1, -1, 1, 1, -1, -1, -1, 0.1], b"\x8d", id="lowest bit first"),
        pytest.param([1, 1, 1], b"\x07", id="filled up"),
        pytest.param([-1] * 8 + [1], b"\x00\x01", id="two bytes"),
    ],
)
def test_pack_bits(row: list[float], wanted: bytes) -> None:
    assert pack_bits(np.array([row], np.float32)) == [wanted]


# --- What loading costs ---

MEASURE = """
import sys, time
from pathlib import Path
import numpy, model2vec, tokenizers
from code_memory import load_model

def memory():
    text = Path("/proc/self/status").read_text()
    return next(int(l.split()[1]) for l in text.splitlines() if l.startswith("VmRSS")) / 1024

before = memory()
load_model(Path(sys.argv[1])).embed(["one query"])
print(memory() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_loading_adds_little_memory() -> None:
    found = subprocess.run(
        [sys.executable, "-c", MEASURE, str(BUNDLED)],
        check=True,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert float(found.stdout) < 60  # measured: 26 MB
