"""How fast the privacy filter is: MB of ordinary conversation a second of processor time.

bench_privacy.py [FOLDER]   FOLDER: transcripts (*.jsonl); without it, a made-up conversation
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from code_memory import RULES, redact

# Ordinary talk about code: about one word in 150 is one that may name a secret.
WORDS = (
    "the of to and a in is it you that for on are with as this be at or have from not by we can so "
    "function returns a list when the file changes; then `sync()` reads config.toml and tests/test_a.py "
    "again. Error: ValueError 'name' at line 42 in read_all(path, limit=10) def main(argv): return 0 {\n} "
    "I will now look at how the parser handles empty lines, because the last run failed there. First the "
    "reader opens src/core/event_store.py and walks over its rows; a half-written row is kept for later. "
    "commit 4dfaeeb adds a counter: max_tokens=4096, see https://docs.example.com/guide#start and then "
    "we run it again with pytest -q; 3 passed in 0.41s. That is all for today, thank you very much indeed."
).split(" ")


def made_up(size: int) -> list[str]:
    draw = random.Random(7)
    texts = []
    while size > 0:
        text = " ".join(draw.choices(WORDS, k=draw.randint(20, 600)))
        texts.append(text)
        size -= len(text)
    return texts


def strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from strings(part)


def read_texts(folder: Path) -> list[str]:
    texts = []
    for path in sorted(folder.rglob("*.jsonl")):
        for line in path.read_text("utf-8", errors="replace").splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            texts += [text for text in strings(record) if len(text) > 100]
    return texts


def measure(name: str, texts: list[str]) -> None:
    size = sum(map(len, texts))
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        hidden = sum(redact(text).count("[REDACTED:") for text in texts)
        best = min(best, time.process_time() - start)
    print(f"{name:28} {size / 1e6:6.1f} MB {size / 1e6 / best:7.1f} MB/s {hidden:7} hidden")


if __name__ == "__main__":
    texts = read_texts(Path(sys.argv[1])) if len(sys.argv) > 1 else made_up(4_000_000)
    examples = [rule.example for rule in RULES]
    redact("warm up")
    measure("message by message", texts)
    whole = ["\n".join(texts)]
    measure("as one text", whole)
    step = 10_000
    salted = [
        "".join(
            text[at : at + step] + f" {examples[(at // step + n) % len(examples)]} "
            for at in range(0, len(text), step)
        )
        for n, text in enumerate(texts)
    ]
    measure("a hit in every message", salted)
