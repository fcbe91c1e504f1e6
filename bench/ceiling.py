"""The rate of matrix products on this machine, which bounds every forward. A child process; only this file uses torch.

The shapes are a model's linear layers, weighted by their use in a forward. float32 uses MKL here, which is slow on AMD;
OpenVINO uses oneDNN, so its float32 forward may exceed this rate. bfloat16 uses oneDNN in both.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from bench.child import answer

ROWS = 4096
RUN_S = 0.3
WARM_PRODUCTS = 20

Shape = tuple[int, int]  # (in, out)


@dataclass(frozen=True, slots=True)
class Products:
    """The matrix products of a token: the number of layers, and of products of each shape in a layer."""

    layers: int
    shapes: Mapping[Shape, int]

    @property
    def flop_per_token(self) -> int:
        return self.layers * sum(2 * width * out * count for (width, out), count in self.shapes.items())

    def tokens_per_s(self, flop_per_s: Mapping[Shape, float]) -> float:
        """The rate of a forward that consists of its matrix products, from the rate of each shape."""
        return 1 / sum(
            self.layers * count * 2 * width * out / flop_per_s[width, out]
            for (width, out), count in self.shapes.items()
        )


MODELS = {
    "minilm": Products(6, {(384, 384): 4, (384, 1536): 1, (1536, 384): 1}),
    "bge-m3": Products(24, {(1024, 1024): 4, (1024, 4096): 1, (4096, 1024): 1}),
    # 16 query heads and 8 key and value heads of 128: queries are twice as wide as the model.
    "qwen3": Products(28, {(1024, 2048): 1, (1024, 1024): 2, (2048, 1024): 1, (1024, 3072): 2, (3072, 1024): 1}),
}


def measure(threads: int, dtype: str, model: str = "minilm") -> dict[str, Any]:
    """One round: run each of the model's shapes for RUN_S. dtype: "bfloat16" or "float32"."""
    torch.set_num_threads(threads)
    products = MODELS[model]
    rates = {shape: _flop_per_s(*shape, getattr(torch, dtype)) for shape in products.shapes}
    tokens = products.tokens_per_s(rates)
    shapes = {f"{width} x {out}": rate / 1e9 for (width, out), rate in rates.items()}
    gflop_per_s = tokens * products.flop_per_token / 1e9
    return {"tokens_per_s": tokens, "gflop_per_s": gflop_per_s, "shapes_gflop_per_s": shapes}


def _flop_per_s(width: int, out: int, dtype: torch.dtype) -> float:
    """The sustained rate, not the best single product, since forwards are measured over seconds too."""
    x = torch.randn(ROWS, width).to(dtype)
    weight = torch.randn(out, width).to(dtype)
    with torch.inference_mode():
        for _ in range(WARM_PRODUCTS):
            torch.nn.functional.linear(x, weight)
        products = 0
        start = time.perf_counter()
        while (elapsed_s := time.perf_counter() - start) < RUN_S:
            torch.nn.functional.linear(x, weight)
            products += 1
    return 2 * ROWS * width * out * products / elapsed_s


if __name__ == "__main__":
    answer(measure)
