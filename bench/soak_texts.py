"""Difficult texts for a soak test and their expected vectors, made once before the load.

A runtime that keeps a plan for each shape grows with new lengths. So a third of the texts covers every length, a third
is hard for tokenizers, and the rest is real. The vectors come from the backend in float32, one text at a time.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

import numpy as np

from bench.corpus import MAX_TOKENS, Corpus
from bench.in_process import pack
from bench.subject import Subject
from vectord.checkpoints.hub import resolve
from vectord.checkpoints.reader import read_spec
from vectord.compute.backends.base import BackendOptions
from vectord.config import DEFAULT_MODEL
from vectord.schema import TextOptions
from vectord.text.sequence import ReadRequest
from vectord.text.tokenizer import TextEncoder

REAL = 400
HARD = (
    "x" * 20_000,
    "-" * 5_000,
    "a " * 5_000,
    " \n\t " * 500 + "a",
    "🙂" * 3_000,
    "漢字かな交じり文" * 400,
    "한국어 문장" * 400,
    "e\u0301" * 3_000,
    "\ufdfa" * 2_000,
    "\x00\x01\x02 control",
    "[CLS] [SEP] [MASK] [PAD]",
    "https://example.org/" + "a/" * 1_000,
    "0123456789" * 1_000,
    "\u202ertl \u200bzero\u200d width",
)


@dataclass(frozen=True, slots=True)
class Pool:
    texts: Sequence[str]
    tokens: Sequence[int]  # as the model reads them, truncated
    vectors: np.ndarray  # (texts, D) float32, of length 1


def make_pool(subject: Subject) -> Pool:
    """Takes 15 s: about 700 texts in float32, one by one."""
    texts = [*subject.corpus.texts[:REAL], *every_length(subject.corpus), *HARD]
    spec = read_spec(resolve(DEFAULT_MODEL, offline=True))
    encoded = TextEncoder(spec).read(ReadRequest(inputs=texts, options=TextOptions(), truncate=True))
    backend = import_module(f"vectord.compute.backends.{subject.backend}").load(spec, BackendOptions(dtype="float32"))
    try:
        rows = [backend.forward(pack([text.ids.tolist()], alone=True), 0)["dense"][0].copy() for text in encoded]
    finally:
        backend.close()
    vectors = np.stack(rows).astype(np.float32)
    return Pool(texts, [len(text.ids) for text in encoded], vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def every_length(corpus: Corpus) -> list[str]:
    """Texts of 1 to MAX_TOKENS words; the longest must be truncated."""
    words = " ".join(corpus.texts).split()
    chance = random.Random(0)
    starts = [chance.randrange(len(words) - MAX_TOKENS) for _ in range(MAX_TOKENS)]
    return [" ".join(words[start : start + length]) for length, start in enumerate(starts, start=1)]
