"""Rotary positions: tables of cosines and sines, made once per model and gathered by position once per batch.

Encoders and decoders share it. A backend that computes in bfloat16 would take the cosine of a rounded angle; a
rounded cosine from a table is accurate to three digits.
Source: transformers/modeling_rope_utils.py, which names the kinds of scaling.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, Generic

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from vectord.compute.networks import facts
from vectord.compute.networks.weights import WeightReader
from vectord.compute.ops.base import Ops, T, Tokens
from vectord.errors import ModelUnavailable

LAYER_KINDS = ("full_attention", "sliding_attention")  # transformers' names
# Published factors are above 1. Angles of a tiny one are so large that float32, in which transformers computes them,
# has no digit of their turn left.
LEAST_FACTOR = 0.1
MAX_TABLE_SIZE = 2**25  # positions times head size: 262,144 positions of 128, 64 MB a table

# The kinds of scaling, each with its further keys. "dynamic" changes nothing up to max_position_embeddings, and no
# text is longer. Neither it nor "linear" uses original_max_position_embeddings, which many configs have.
_TRAINED = "factor original_max_position_embeddings"
_SCALINGS: Mapping[str, str] = {
    "default": "",
    "dynamic": _TRAINED,
    "linear": _TRAINED,
    "longrope": f"{_TRAINED} attention_factor short_factor long_factor",
    "llama3": f"{_TRAINED} low_freq_factor high_freq_factor",
    "yarn": f"{_TRAINED} attention_factor beta_fast beta_slow mscale mscale_all_dim",
}
_MAY_BE_NULL = frozenset({"attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"})


class Interpolated(msgspec.Struct, frozen=True):
    """High frequencies are kept, low ones are divided, and those between are interpolated: by the frequency's index
    (YaRN), or by its number of turns within the trained positions (Llama 3)."""

    factor: float
    trained_positions: int
    fast_turns: float  # within the trained positions: frequencies with more turns are kept
    slow_turns: float  # frequencies with fewer turns are divided by the whole factor
    by_index: bool
    amplitude: float = 1.0  # factor of cosines and sines


class LongRope(msgspec.Struct, frozen=True):
    """Each frequency is divided by a factor of its own, of `long` in texts longer than the trained positions."""

    short: tuple[float, ...]  # (head_size / 2,)
    long: tuple[float, ...]
    trained_positions: int
    amplitude: float  # factor of cosines and sines


class Rotary(msgspec.Struct, frozen=True):
    """Values of the config. A frequency is theta ** (-2 i / head_size)."""

    theta: float
    factor: float = 1.0  # linear scaling: positions are divided by it
    scaling: Interpolated | LongRope | None = None


class CosSin(msgspec.Struct, Generic[T], frozen=True):
    """The cosines and sines of all positions (P = positions), or of one batch's rows (P = T)."""

    cos: T  # (P, head_size / 2)
    sin: T
    long: LongTables[T] | None = None  # None: texts of any length have the same
    # (1, head_size / 2) each: 1 for pairs that turn by the i-th place of a row; (): all turn by its position.
    axes: tuple[T, ...] = ()
    in_plane: bool = False  # the places are an image's, type_ids and ids; False: the position plus each coordinate


class LongTables(msgspec.Struct, Generic[T], frozen=True):
    """The cosines and sines of long texts, and which texts are long, by their length."""

    cos: T  # (P, head_size / 2)
    sin: T
    is_long: T  # (P + 1, 1) 0 or 1
    is_short: T


def read_plain_rotary(config: Mapping[str, Any], *, theta: float, positions: int) -> Rotary:
    """Read the rotation of a model whose layers share one: rope_theta next to rope_scaling or, since transformers 5,
    both in rope_parameters."""
    section = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    return read_rotary(config, (section,), theta=facts.number(config, "rope_theta", theta), positions=positions)


def read_layer_rotary(config: Mapping[str, Any], kind: str, *, theta: float, positions: int) -> Rotary:
    """Read rope_parameters of one kind of layers, for a model with several."""
    if unknown := facts.section(config, "rope_parameters").keys() - set(LAYER_KINDS):
        raise ModelUnavailable(
            f"config.json: rope_parameters.{min(unknown)[:80]} is not one of {', '.join(LAYER_KINDS)}"
        )
    return read_rotary(config, ("rope_parameters", kind), theta=theta, positions=positions)


def read_sliding(config: Mapping[str, Any], usual: Sequence[bool]) -> tuple[bool, ...]:
    """Return which layers attend to a window: by layer_types, else `usual`."""
    kinds = config.get("layer_types")
    if kinds is None:
        return tuple(usual)
    if not isinstance(kinds, list) or len(kinds) != len(usual) or any(kind not in LAYER_KINDS for kind in kinds):
        raise ModelUnavailable(f"config.json: layer_types must be {len(usual)} times one of {', '.join(LAYER_KINDS)}")
    return tuple(kind == "sliding_attention" for kind in kinds)


def read_rotary(config: Mapping[str, Any], section: Sequence[str], *, theta: float, positions: int) -> Rotary:
    """Read the mapping that the keys `section` lead to, if there is one. theta: used if it has no rope_theta.
    positions: max_position_embeddings."""
    name, entries = ".".join(section), config
    for key in section:
        entries = facts.section(entries, key)
    for key, value in entries.items():
        if value is None and key not in _MAY_BE_NULL:
            raise ModelUnavailable(f"config.json: {name}.{key[:80]} null is not supported; remove it")
    found = {f"{name}.{key}": value for key, value in entries.items() if value is not None}  # by their full names
    old_kind = facts.choice(found, f"{name}.type", tuple(_SCALINGS), "default")
    kind = facts.choice(found, f"{name}.rope_type", tuple(_SCALINGS), old_kind)
    known = {f"{name}.{key}" for key in ("rope_type", "type", "rope_theta", *_SCALINGS[kind].split())}
    if unknown := found.keys() - known:
        raise ModelUnavailable(f"config.json: {min(unknown)[:80]} is not supported with rope_type {kind}")
    if kind not in ("default", "longrope") and f"{name}.factor" not in found:
        raise ModelUnavailable(f"config.json: {name}.factor is missing, which rope_type {kind} needs")
    theta = facts.number(found, f"{name}.rope_theta", theta)
    if theta <= 1:
        raise ModelUnavailable(f"config.json: {name}.rope_theta must be above 1; found {theta:g}")
    if kind in _READERS:
        return Rotary(theta, scaling=_READERS[kind](name, found, positions))
    factor = 1.0 if kind == "default" else _factor(found, name)  # transformers refuses a broken one of "dynamic" too
    return Rotary(theta, factor=factor if kind == "linear" else 1.0)


def rotary_table(
    weights: WeightReader[T],
    rotary: Rotary,
    head_size: int,
    positions: int,
    factors: npt.NDArray[np.float64] | None = None,
) -> CosSin[T]:
    """Return the table of all positions, computed in float64. factors: (positions,) by which a row turned at that
    position is multiplied."""
    if head_size % 2:
        raise ModelUnavailable(f"config.json: rotary positions turn pairs, and heads are {head_size} wide")
    if positions * head_size > MAX_TABLE_SIZE:
        raise ModelUnavailable(
            f"config.json: {positions} positions times a head size of {head_size} is above the limit, {MAX_TABLE_SIZE}"
        )

    def table_of(rotary: Rotary) -> tuple[T, T]:
        frequencies, amplitude = _frequencies(rotary, head_size)
        angles = np.arange(positions)[:, None] * frequencies  # (positions, head_size / 2)
        scale = amplitude if factors is None else amplitude * factors[:, None]
        tables = []
        for name, turn in (("rotary.cos", np.cos), ("rotary.sin", np.sin)):
            numbers = turn(angles)
            numbers *= scale  # in place: for the largest allowed table each copy takes 128 MB
            tables.append(weights.constant(name, numbers.astype(np.float32)))
        return tables[0], tables[1]

    scaling = rotary.scaling
    if not isinstance(scaling, LongRope) or scaling.trained_positions >= positions:
        return CosSin(*table_of(rotary))
    is_long = (np.arange(positions + 1) > scaling.trained_positions)[:, None].astype(np.float32)
    flags = weights.constant("rotary.long", is_long), weights.constant("rotary.short", 1 - is_long)
    in_long = replace(rotary, scaling=replace(scaling, short=scaling.long))
    return CosSin(*table_of(rotary), LongTables(*table_of(in_long), *flags))


def read_plane_rotary(
    config: Mapping[str, Any], weights: WeightReader[T], head_size: int, places: int, *, theta: float
) -> CosSin[T]:
    """Return the rotation of an image's patches: the first half of the pairs turns by the line, the second by the
    column, or the other way round. places: of a line or column. theta: used if rope_parameters has no rope_theta."""
    section = facts.section(config, "rope_parameters")
    if unknown := section.keys() - {"rope_type", "rope_theta"}:
        raise ModelUnavailable(f"config.json: vision_config.rope_parameters.{min(unknown)[:80]} is not supported")
    facts.choice(section, "rope_type", ("axial",), "axial")
    if head_size % 4:
        raise ModelUnavailable(f"config.json: heads are {head_size} wide, which is not a multiple of 4")
    quarter = head_size // 4
    frequencies = facts.number(section, "rope_theta", theta) ** -(np.arange(quarter) / quarter)
    angles = np.tile(np.arange(places)[:, None] * frequencies, 2)  # (places, head_size / 2)
    halves = np.repeat(np.eye(2), quarter, axis=1)  # (2, head_size / 2)
    cos, sin = (weights.constant(f"rotary.{turn.__name__}", turn(angles)) for turn in (np.cos, np.sin))
    axes = tuple(weights.constant(f"rotary.axis{i}", half[None]) for i, half in enumerate(halves))
    return CosSin(cos, sin, axes=axes, in_plane=True)


def cos_sin_of(ops: Ops[T], table: CosSin[T], tokens: Tokens[T]) -> CosSin[T]:
    if table.axes and (table.in_plane or tokens.coordinates):
        image = [tokens.type_ids, tokens.ids]
        places = image if table.in_plane else [ops.add(tokens.positions, at) for at in tokens.coordinates]
        return CosSin(_by_axes(ops, table.cos, table.axes, places), _by_axes(ops, table.sin, table.axes, places))
    cos, sin, long = ops.embed(table.cos, tokens.positions), ops.embed(table.sin, tokens.positions), table.long
    if long is None:
        return CosSin(cos, sin)
    lengths = ops.text_lengths(tokens)
    is_long, is_short = ops.embed(long.is_long, lengths), ops.embed(long.is_short, lengths)  # (T, 1)

    def chosen(short: T, table: T) -> T:
        return ops.add(ops.multiply(short, is_short), ops.multiply(ops.embed(table, tokens.positions), is_long))

    return CosSin(chosen(cos, long.cos), chosen(sin, long.sin))


def _by_axes(ops: Ops[T], table: T, axes: Sequence[T], places: Sequence[T]) -> T:
    """(T, head_size / 2) the rows of a table by several places."""
    parts = zip(places, axes, strict=True)
    return reduce(ops.add, [ops.multiply(ops.embed(table, at), axis) for at, axis in parts])


def _factor(found: Mapping[str, Any], name: str) -> float:
    return facts.number(found, f"{name}.factor", 1.0, at_least=LEAST_FACTOR)


def read_yarn(name: str, found: Mapping[str, Any], positions: int) -> Interpolated:
    factor = _factor(found, name)
    amplitude = _usual_amplitude(factor)
    if f"{name}.attention_factor" in found:
        amplitude = facts.number(found, f"{name}.attention_factor", 1.0)
    elif f"{name}.mscale" in found and f"{name}.mscale_all_dim" in found:
        above, below = (facts.number(found, f"{name}.{key}", 1.0) for key in ("mscale", "mscale_all_dim"))
        amplitude = _usual_amplitude(factor, above) / _usual_amplitude(factor, below)
    trained = facts.size(found, f"{name}.original_max_position_embeddings", positions)
    fast, slow = facts.number(found, f"{name}.beta_fast", 32.0), facts.number(found, f"{name}.beta_slow", 1.0)
    return Interpolated(factor, trained, fast, slow, by_index=True, amplitude=amplitude)


def read_llama3(name: str, found: Mapping[str, Any], positions: int) -> Interpolated:
    low, high = (facts.number(found, f"{name}.{key}", 0.0) for key in ("low_freq_factor", "high_freq_factor"))
    if low >= high:
        raise ModelUnavailable(f"config.json: {name}.low_freq_factor {low:g} is not below high_freq_factor {high:g}")
    trained = facts.size(found, f"{name}.original_max_position_embeddings", positions)
    return Interpolated(_factor(found, name), trained, high, low, by_index=False)


def read_longrope(name: str, found: Mapping[str, Any], positions: int) -> LongRope:
    trained = facts.size(found, f"{name}.original_max_position_embeddings")
    factor = _factor(found, name) if f"{name}.factor" in found else positions / trained
    usual = 1.0 if factor <= 1 or trained == 1 else math.sqrt(1 + math.log(factor) / math.log(trained))
    lists = []
    for key in ("short_factor", "long_factor"):
        listed = found.get(f"{name}.{key}")
        if not isinstance(listed, list) or not all(
            type(n) in (int, float) and LEAST_FACTOR <= n <= 1e9 for n in listed
        ):
            raise ModelUnavailable(f"config.json: {name}.{key} must be a list of numbers from {LEAST_FACTOR} on")
        lists.append(tuple(map(float, listed)))
    return LongRope(lists[0], lists[1], trained, facts.number(found, f"{name}.attention_factor", usual))


_READERS: Mapping[str, Callable[[str, Mapping[str, Any], int], Interpolated | LongRope]] = {
    "llama3": read_llama3,
    "longrope": read_longrope,
    "yarn": read_yarn,
}


def _usual_amplitude(factor: float, scale: float = 1.0) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _frequencies(rotary: Rotary, head_size: int) -> tuple[npt.NDArray[np.float64], float]:
    """(head_size / 2,) angles a position, and the factor of their cosines and sines."""
    frequencies = rotary.theta ** -(np.arange(0, head_size, 2) / head_size)
    scaling = rotary.scaling
    if scaling is None:
        return frequencies / rotary.factor, 1.0
    if isinstance(scaling, LongRope):
        if {len(scaling.short), len(scaling.long)} != {len(frequencies)}:
            raise ModelUnavailable(
                f"config.json: short_factor and long_factor must have {len(frequencies)} numbers each, half the "
                "width of a head"
            )
        return frequencies / np.array(scaling.short), scaling.amplitude
    if scaling.by_index:
        fast, slow = (
            head_size
            * (math.log(scaling.trained_positions) - math.log(turns) - math.log(2 * math.pi))
            / (2 * math.log(rotary.theta))
            for turns in (scaling.fast_turns, scaling.slow_turns)
        )
        low, high = max(math.floor(fast), 0), min(math.ceil(slow), head_size - 1)
        share = (np.arange(head_size // 2) - low) / (high - low or 0.001)
    else:
        turns = scaling.trained_positions * frequencies / (2 * math.pi)
        share = 1 - (turns - scaling.slow_turns) / (scaling.fast_turns - scaling.slow_turns)
    share = np.clip(share, 0, 1)  # (head_size / 2,) of each frequency: from 0 (kept) at fast_turns to 1 (divided)
    return frequencies * (1 - share + share / scaling.factor), scaling.amplitude
