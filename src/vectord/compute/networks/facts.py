"""Checked values of a config.json. Architecture files read theirs through these functions, once, at load."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from vectord.compute.ops.base import Activation
from vectord.errors import ModelUnavailable

MAX_SIZE = 2**24  # larger than any existing vocabulary or width: a larger number is a broken file

# transformers' names (transformers/activations.py, ACT2CLS) for the activations of the ops.
ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}


def size(
    config: Mapping[str, Any], key: str, default: int | None = None, *, at_least: int = 1, at_most: int = MAX_SIZE
) -> int:
    """Return the whole number at `key`, from `at_least` to `at_most`, or `default`."""
    value = _value(config, key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not at_least <= value <= at_most:
        raise _wrong(key, f"a whole number from {at_least} to {at_most}", value)
    return value


def heads(config: Mapping[str, Any], key: str, width_key: str) -> int:
    """Return the attention heads at `key`, a divisor of the width at `width_key`."""
    count, width = size(config, key), size(config, width_key)
    if width % count:
        raise ModelUnavailable(f"config.json: {width_key} {width} is not a multiple of {key} {count}")
    return count


def key_heads(config: Mapping[str, Any], heads: int, default: int | None) -> int:
    """Return num_key_value_heads, a divisor of `heads`, or `default`."""
    count = size(config, "num_key_value_heads", default)
    if heads % count:
        raise ModelUnavailable(
            f"config.json: num_attention_heads {heads} is not a multiple of num_key_value_heads {count}"
        )
    return count


def number(
    config: Mapping[str, Any], key: str, default: float, *, at_least: float = 0.0, at_most: float = 1e9
) -> float:
    """Return the positive number at `key`, or `default` if there is none."""
    value = _value(config, key, default)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not at_least <= value <= at_most or value == 0:
        bounds = f"from {at_least:g} to {at_most:g}" if at_least else f"above 0 and at most {at_most:g}"
        raise _wrong(key, f"a number {bounds}", value)
    return float(value)


def flag(config: Mapping[str, Any], key: str, default: bool) -> bool:
    """Return the boolean at `key`, or `default` if there is none."""
    value = _value(config, key, default)
    if not isinstance(value, bool):
        raise _wrong(key, "true or false", value)
    return value


def epsilon(config: Mapping[str, Any], key: str) -> float:
    """Return the small positive number at `key` that keeps a norm from dividing by zero."""
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or not 0 < value < 1:
        raise _wrong(key, "a number between 0 and 1", value)
    return float(value)


def activation(
    config: Mapping[str, Any], key: str, kinds: Mapping[str, Activation] = ACTIVATIONS, *, default: str | None = None
) -> Activation:
    """Return the activation named at `key`, one of `kinds`, or that of `default`."""
    return kinds[choice(config, key, tuple(kinds), default)]


def choice(config: Mapping[str, Any], key: str, options: Sequence[str], default: str | None = None) -> str:
    """Return the name at `key`, one of `options`, or `default` if there is none."""
    value = _value(config, key, default)
    if not isinstance(value, str) or value not in options:
        raise _wrong(key, f"one of {', '.join(options)}", value)
    return value


def section(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the object at `key`, empty if there is none."""
    value = _value(config, key, {})
    if not isinstance(value, dict):
        raise _wrong(key, "an object", value)
    return value


def require(config: Mapping[str, Any], key: str, expected: object) -> None:
    """Check that `key` is absent or as expected, for options that would change the network."""
    value = config.get(key)
    wrong_type = isinstance(value, bool) is not isinstance(expected, bool)  # false is not 0
    if value is not None and (value != expected or wrong_type):
        raise _wrong(key, repr(expected), value)


def _value(config: Mapping[str, Any], key: str, default: object) -> Any:
    value = config.get(key)
    return default if value is None else value


def _wrong(key: str, expected: str, value: object) -> ModelUnavailable:
    found = "nothing" if value is None else repr(value)[:80]
    return ModelUnavailable(f"config.json: {key} must be {expected}; found {found}")
