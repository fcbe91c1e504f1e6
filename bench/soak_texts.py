"""Difficult texts for a soak test and their expected vectors, made once before the load.

A runtime that keeps a plan for each shape grows with new lengths. So a third of the texts covers every length, a third
is hard for tokenizers, and the rest is real. The vectors come from the backend in float32, one text at a time.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from bench.corpus import MAX_TOKENS, Corpus
from bench.in_process import pack
from bench.subject import Subject
from vectord.checkpoints.hub import model_id_of, resolve
from vectord.checkpoints.reader import read_spec
from vectord.compute.backends.base import BackendOptions
from vectord.config import DEFAULT_MODEL
from vectord.schema import TextOptions
from vectord.text.sequence import ReadRequest
from vectord.text.tokenizer import TextEncoder

REAL = 400
LONG_TEXTS = 24
LONG_CONFIG: dict[str, Any] = {  # a small model that reads as many tokens as BGE-M3
    "model_type": "bert",
    "vocab_size": 2000,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 8192,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
}
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
    """Texts of one model."""

    texts: Sequence[str]
    tokens: Sequence[int]  # as the model reads them, truncated
    vectors: np.ndarray  # (texts, D) float32, of length 1
    model: str = DEFAULT_MODEL  # its name for clients


def make_pool(subject: Subject) -> Pool:
    """Takes 15 s: about 700 texts in float32, one by one."""
    return _pool_of(subject, DEFAULT_MODEL, [*subject.corpus.texts[:REAL], *every_length(subject.corpus), *HARD])


def make_long_pool(subject: Subject) -> Pool:
    """Texts of up to 8,192 tokens, and a random model that reads them: after each, the backend frees its memory."""
    from bench import random_models  # noqa: PLC0415 - imports torch

    folder = random_models.bert(subject.folder / "long", LONG_CONFIG)
    chance = random.Random(0)
    lengths = [chance.randint(100, LONG_CONFIG["max_position_embeddings"] + 500) for _ in range(LONG_TEXTS)]
    texts = [" ".join(f"w{chance.randrange(1900)}" for _ in range(length)) for length in lengths]
    return _pool_of(subject, str(folder), texts)


def _pool_of(subject: Subject, model: str, texts: Sequence[str]) -> Pool:
    spec = read_spec(resolve(model, offline=True))
    encoded = TextEncoder(spec).read(ReadRequest(inputs=texts, options=TextOptions(), truncate=True))
    backend = import_module(f"vectord.compute.backends.{subject.backend}").load(spec, BackendOptions(dtype="float32"))
    try:
        rows = [backend.forward(pack([text.ids.tolist()], alone=True), 0)["dense"][0].copy() for text in encoded]
    finally:
        backend.close()
    vectors = np.stack(rows).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return Pool(texts, [len(text.ids) for text in encoded], vectors, model_id_of(model))


def every_length(corpus: Corpus) -> list[str]:
    """Texts of 1 to MAX_TOKENS words; the longest must be truncated."""
    words = " ".join(corpus.texts).split()
    chance = random.Random(0)
    starts = [chance.randrange(len(words) - MAX_TOKENS) for _ in range(MAX_TOKENS)]
    return [" ".join(words[start : start + length]) for length, start in enumerate(starts, start=1)]
