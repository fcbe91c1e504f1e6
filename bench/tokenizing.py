"""CPU time of tokenization, on one thread: tokenizers, and tokie where the server reads texts with it.

Both read the same texts in calls of one size, in alternating rounds; the best round counts. Without the extra `tokie`,
there are no rows of tokie. No server and no model.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from bench.corpus import Corpus, make_corpus
from bench.report import Row
from vectord.text.wordpiece import FastWordPiece

TEXTS_A_CALL = (1, 16, 64)


def measure(tokenizer_file: Path, texts: int, rounds: int) -> tuple[Corpus, Mapping[str, Sequence[float]]]:
    """The corpus, and by name the microseconds a text in each round."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    corpus = make_corpus(tokenizer_file, texts)
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    fast = FastWordPiece(tokenizer, tokenizer_file)
    fast.load()

    def reference(batch: Sequence[str]) -> tuple[Any, list[int]]:
        rows = [encoding.ids for encoding in tokenizer.encode_batch_fast(batch, add_special_tokens=False)]
        sizes = [*map(len, rows)]
        return np.fromiter(chain.from_iterable(rows), np.int32, sum(sizes)), sizes

    readers: dict[str, Callable[[Sequence[str]], object]] = {"tokenizers": reference}
    if fast.read(corpus.texts) is not None:
        readers["tokie"] = fast.read
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for size in TEXTS_A_CALL:
            for name, read in readers.items():
                begun = time.thread_time()
                for start in range(0, len(corpus.texts), size):
                    read(corpus.texts[start : start + size])
                us = (time.thread_time() - begun) / len(corpus.texts) * 1e6
                found.setdefault(f"{name}, {size} a call", []).append(us)
    return corpus, found


def rows(found: Mapping[str, Sequence[float]]) -> Sequence[Row]:
    return [Row(what=what, value=f"{min(us):.1f} us a text") for what, us in found.items()]
