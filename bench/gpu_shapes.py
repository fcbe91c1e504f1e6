"""The shapes of the models of bench/gpu.py, the cost of their tokens, and texts of a given number of tokens.

A token costs 2 FLOP for each weight of the linear layers. Attention costs 4 FLOP for each layer, visible key and
number of a query (scores and sums; a causal model sees half the keys on average). Norms, activations, embedding tables
and heads are not counted.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from bench import random_models
from bench.ceiling import Products
from bench.gpu_options import Options, read_options
from bench.random_models import BERT, MPNET, QWEN3, XLM_ROBERTA, Config

LENGTHS = (512, 50, 16, 8192)  # the most important first
QUERY_TOKENS = 12


@dataclass(frozen=True, slots=True)
class Shape:
    """longest: most tokens in a text; specials: its special tokens."""

    name: str
    config: Config
    write: Callable[[Path, Config], Path]
    longest: int = 512
    specials: int = 2

    @property
    def lengths(self) -> list[int]:
        return [length for length in LENGTHS if length <= self.longest]

    @property
    def products(self) -> Products:
        """Matrix products of a token, by the sizes of the linear layers."""
        width, between = self.config["hidden_size"], self.config["intermediate_size"]
        queries, keys = self._query_width, self._key_width
        shapes = Counter([(width, queries), (width, keys), (width, keys), (queries, width)])
        shapes.update([(width, between), (between, width), *([(width, between)] if self._gated else [])])
        return Products(self.config["num_hidden_layers"], shapes)

    def flop_per_token(self, length: int) -> float:
        """FLOP of a token in a text of `tokens` tokens."""
        keys = length / 2 if self._gated else length
        layers: int = self.config["num_hidden_layers"]
        return self.products.flop_per_token + 4 * layers * keys * self._query_width

    def text(self, length: int, seed: int) -> str:
        """A text of `length` tokens, with words of one token each."""
        rng = random.Random(seed)
        words = min(self.config["vocab_size"] - 8, 20_000)
        return " ".join(f"w{rng.randrange(words)}" for _ in range(length - self.specials))

    @property
    def _gated(self) -> bool:
        """A shape of the Qwen3 family: gated and causal."""
        return "head_dim" in self.config

    @property
    def _query_width(self) -> int:
        heads = int(self.config["num_attention_heads"])
        return heads * int(self.config.get("head_dim", self.config["hidden_size"] // heads))

    @property
    def _key_width(self) -> int:
        heads = int(self.config["num_attention_heads"])
        return self._query_width * int(self.config.get("num_key_value_heads", heads)) // heads


def _bert(width: int, layers: int, heads: int) -> Config:
    sizes = {"hidden_size": width, "intermediate_size": 4 * width}
    return {**BERT, **sizes, "num_hidden_layers": layers, "num_attention_heads": heads}


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("minilm", _bert(384, 6, 12), random_models.bert),
        Shape("bge-base", _bert(768, 12, 12), random_models.bert),
        Shape("mpnet-base", MPNET, random_models.mpnet),
        Shape("bge-large", _bert(1024, 24, 16), random_models.bert),
        Shape("bge-m3", XLM_ROBERTA, random_models.bge_m3, longest=8192),
        Shape("qwen3-embedding-0.6b", QWEN3, random_models.qwen3, longest=8192, specials=1),
    )
}

TINY = {"vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
TINY_HEADS = {"num_attention_heads": 4}
TINY_SHARED = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}


def shape_named(name: str, *, quick: bool) -> Shape:
    """quick: a tiny model of the same kind, with texts of at most 50 tokens."""
    shape = SHAPES[name]
    if not quick:
        return shape
    heads = TINY_SHARED if "head_dim" in shape.config else TINY_HEADS
    return replace(shape, config={**shape.config, **TINY, **heads}, longest=50)


def model_folder(shape: Shape, folder: Path, *, quick: bool) -> Path:
    """The folder with its weights, which the first call writes."""
    return shape.write(folder / (f"tiny-{shape.name}" if quick else shape.name), shape.config)


def write(options: Options, name: str) -> None:
    model_folder(shape_named(name, quick=options.quick), options.models_folder, quick=options.quick)


if __name__ == "__main__":
    options = read_options()
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        list(pool.map(partial(write, options), options.models))
