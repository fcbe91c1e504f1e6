"""How fast this machine multiplies matrices: the rate no forward can beat. A child process; torch lives here only.

The shapes are all-MiniLM-L6-v2's, weighted as its forward uses them: four 384 x 384 products a layer, one 384 x 1536
and one 1536 x 384, six layers, 21.2 MFLOP a token. float32 is MKL's here, which is slow on AMD; OpenVINO uses oneDNN's,
so a float32 forward may pass this mark. bfloat16 is oneDNN's in both.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from bench.child import answer

ROWS = 4096
LAYERS = 6
RUN_S = 0.3
WARM_PRODUCTS = 20
SHAPES = {(384, 384): 4, (384, 1536): 1, (1536, 384): 1}  # (in, out): products a layer
FLOP_PER_TOKEN = LAYERS * sum(2 * width * out * count for (width, out), count in SHAPES.items())


def tokens_per_s(flop_per_s: dict[tuple[int, int], float]) -> float:
    """What a forward of nothing but its matrix products would reach, given the rate of each shape."""
    return 1 / sum(LAYERS * count * 2 * width * out / flop_per_s[width, out] for (width, out), count in SHAPES.items())


def measure(threads: int, dtype: str) -> dict[str, Any]:
    """One round: each shape for RUN_S. dtype: "bfloat16" or "float32"."""
    torch.set_num_threads(threads)
    rates = {shape: _flop_per_s(*shape, getattr(torch, dtype)) for shape in SHAPES}
    tokens = tokens_per_s(rates)
    shapes = {f"{width} x {out}": rate / 1e9 for (width, out), rate in rates.items()}
    return {"tokens_per_s": tokens, "gflop_per_s": tokens * FLOP_PER_TOKEN / 1e9, "shapes_gflop_per_s": shapes}


def _flop_per_s(width: int, out: int, dtype: torch.dtype) -> float:
    """Sustained, not the luckiest single product: the forward it bounds is measured over seconds too."""
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
