"""The reference op set: float64, one text after another, written to be plainly right.

Every other op set is tested against it, and it against transformers (tests/ops, tests/networks). Nothing is served
by it. Runs in the caller's thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from vectord.artifacts.checkpoint import Weight
from vectord.ops.base import Activation, AttentionSpec, Tokens

Array: TypeAlias = npt.NDArray[Any]
Int32: TypeAlias = npt.NDArray[np.int32]

_erf = np.vectorize(math.erf, otypes=[np.float64])

# Formulas: torch.nn.functional. silu's sigmoid is written as a tanh because exp(-x) overflows.
_ACTIVATIONS: Mapping[Activation, Callable[[Array], Array]] = {
    "gelu": lambda x: x * (1 + _erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x * (1 + np.tanh(x / 2)) / 2,
    "tanh": np.tanh,
    "identity": lambda x: x,
}


@dataclass(frozen=True, slots=True)
class Layout:
    """The rows of each text."""

    texts: tuple[slice, ...]


def pack(ids: Int32, type_ids: Int32, cu_seqlens: Int32) -> Tokens[Array]:
    """A packed batch for NumpyOps. ids, type_ids (T,); cu_seqlens (N + 1,) from 0 to T."""
    texts = tuple(slice(int(start), int(stop)) for start, stop in pairwise(cu_seqlens))
    positions = np.concatenate([np.arange(text.stop - text.start) for text in texts])
    return Tokens(ids, type_ids, positions, Layout(texts))


class NumpyOps:
    """Ops over float64 arrays. Shapes: ops/base.py."""

    def constant(self, weight: Weight) -> Array:
        if weight.dtype == "BF16":  # bfloat16 is the upper half of a float32
            return (weight.array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        return weight.array.astype(np.float64)

    def embed(self, table: Array, ids: Array) -> Array:
        return table[ids]

    def add(self, a: Array, b: Array) -> Array:
        return a + b

    def linear(self, x: Array, weight: Array, bias: Array | None) -> Array:
        y: Array = x @ weight.T
        return y if bias is None else y + bias

    def layer_norm(self, x: Array, weight: Array, bias: Array, eps: float) -> Array:
        centred = x - x.mean(axis=-1, keepdims=True)
        variance = (centred**2).mean(axis=-1, keepdims=True)
        normed: Array = centred / np.sqrt(variance + eps)
        return normed * weight + bias

    def activation(self, x: Array, kind: Activation) -> Array:
        return _ACTIVATIONS[kind](x)

    def attention(self, q: Array, k: Array, v: Array, tokens: Tokens[Array], spec: AttentionSpec) -> Array:
        out = np.empty_like(q)
        for text in tokens.layout.texts:
            out[text] = _attend(q[text], k[text], v[text], spec)
        return out

    def first(self, x: Array, tokens: Tokens[Array]) -> Array:
        return np.stack([x[text.start] for text in tokens.layout.texts])

    def last(self, x: Array, tokens: Tokens[Array]) -> Array:
        return np.stack([x[text.stop - 1] for text in tokens.layout.texts])

    def mean(self, x: Array, tokens: Tokens[Array]) -> Array:
        return np.stack([x[text].mean(axis=0) for text in tokens.layout.texts])


def _attend(q: Array, k: Array, v: Array, spec: AttentionSpec) -> Array:
    """One text of L tokens: (L, heads * head_size) three times, and back."""
    q, k, v = (x.reshape(len(x), spec.heads, spec.head_size).swapaxes(0, 1) for x in (q, k, v))  # (heads, L, head_size)
    scale = spec.head_size**-0.5 if spec.scale is None else spec.scale
    scores = scale * q @ k.swapaxes(1, 2)  # (heads, L, L)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    mixed: Array = shares @ v  # (heads, L, head_size)
    return mixed.swapaxes(0, 1).reshape(-1, spec.heads * spec.head_size)
