"""Checked facts of a config.json. Architecture files read theirs through these functions, once, at load."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from vectord.errors import ModelUnavailable
from vectord.ops.base import Activation

MAX_SIZE = 2**24  # more than any vocabulary or width there is: a larger figure is a broken file

# transformers' names (transformers/activations.py, ACT2CLS) for what the ops can do.
ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}


def size(config: Mapping[str, Any], key: str, *, at_most: int = MAX_SIZE) -> int:
    """The whole number at `key`, from 1 to `at_most`. Raises ModelUnavailable."""
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= at_most:
        raise _wrong(key, f"a whole number from 1 to {at_most}", value)
    return value


def epsilon(config: Mapping[str, Any], key: str) -> float:
    """The small positive number at `key` that keeps a norm from dividing by zero. Raises ModelUnavailable."""
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or not 0 < value < 1:
        raise _wrong(key, "a number between 0 and 1", value)
    return float(value)


def activation(config: Mapping[str, Any], key: str) -> Activation:
    """The op for the activation named at `key`. Raises ModelUnavailable."""
    value = config.get(key)
    if not isinstance(value, str) or value not in ACTIVATIONS:
        raise _wrong(key, f"one of {', '.join(ACTIVATIONS)}", value)
    return ACTIVATIONS[value]


def require(config: Mapping[str, Any], key: str, expected: object) -> None:
    """Pass if `key` is absent or as expected: for options that would change the network. Raises ModelUnavailable."""
    value = config.get(key, expected)
    if value != expected:
        raise _wrong(key, repr(expected), value)


def _wrong(key: str, expected: str, value: object) -> ModelUnavailable:
    found = "nothing" if value is None else repr(value)[:80]
    return ModelUnavailable(f"config.json: {key} must be {expected}; found {found}")
