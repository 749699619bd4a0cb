"""The committed model folder is the one that its card describes."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from pathlib import Path

import pytest

MODEL = Path(__file__).resolve().parent.parent / "model"
CARD = (MODEL / "README.md").read_text("utf-8")
FILES = re.findall(r"(?m)^\| `([\w.]+)` \| ([\d,]+) \| `([0-9a-f]{64})` \|$", CARD)


def test_card_lists_every_file_that_counts() -> None:
    assert [name for name, _, _ in FILES] == ["model.safetensors", "tokenizer.json", "config.json"]


@pytest.mark.parametrize(("name", "size", "digest"), FILES)
def test_file_is_the_one_in_the_card(name: str, size: str, digest: str) -> None:
    data = (MODEL / name).read_bytes()
    assert len(data) == int(size.replace(",", ""))
    assert hashlib.sha256(data).hexdigest() == digest


def test_dimensions_agree() -> None:
    config = json.loads((MODEL / "config.json").read_text("utf-8"))
    data = (MODEL / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    tensors = json.loads(data[8 : 8 + length])
    vocabulary = json.loads((MODEL / "tokenizer.json").read_text("utf-8"))["model"]["vocab"]
    assert tensors["embeddings"]["shape"] == [len(vocabulary), config["hidden_dim"]]
    assert tensors["embeddings"]["dtype"] == "I8"
    assert tensors["weights"]["shape"] == [len(vocabulary)]
    assert config["normalize"] is True


def test_model_is_small() -> None:
    assert sum(file.stat().st_size for file in MODEL.iterdir()) < 14_500_000


@pytest.mark.parametrize(
    ("name", "words"),
    [
        pytest.param("NOTICE", "universal-sentence-encoder-multilingual", id="notice"),
        pytest.param("LICENSE-Apache-2.0.txt", "Apache License", id="Apache"),
        pytest.param("LICENSE-MIT.txt", "Permission is hereby granted", id="MIT"),
    ],
)
def test_licences_are_shipped(name: str, words: str) -> None:
    assert words in (MODEL / name).read_text("utf-8")


def test_card_and_notice_name_every_teacher() -> None:
    notice = (MODEL / "NOTICE").read_text("utf-8")
    for teacher in ("multilingual-e5-small", "encoder-multilingual", "all-MiniLM-L6-v2"):
        assert teacher in notice
