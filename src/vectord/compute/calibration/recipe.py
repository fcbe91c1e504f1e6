"""How a model is computed in int8, as a value and as a file: `Recipe`.

A **place** is an input that one or more linear layers share, numbered in the order of the network. A backend finds a
recipe while a model loads, or reads the stored one of an earlier start.
"""

from __future__ import annotations

import logging
import os
import tempfile
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from vectord.schema import Float32

logger = logging.getLogger(__name__)

FILE_LIMIT_BYTES = 64 * 2**20
WIDTH_LIMIT = 2**17


@dataclass(frozen=True, slots=True)
class QuantizedPlace:
    """x is divided by `smooth` and then rounded to one of 256 steps from `low` to `high`."""

    smooth: Float32  # (H,) above 0: the weights are multiplied by it
    low: float  # at most 0
    high: float  # above 0


@dataclass(frozen=True, slots=True)
class Recipe:
    places: Mapping[int, QuantizedPlace]  # those in int8; all others are unchanged
    weight_steps: int  # weights are whole numbers from -this to this
    linears: int  # number in int8
    all_linears: int
    mean_cosine: float  # against float32, of the held-out texts
    least_cosine: float


class _PlaceFile(msgspec.Struct, forbid_unknown_fields=True):
    smooth: str  # little-endian float32 in base64
    low: float
    high: float


class _RecipeFile(msgspec.Struct, forbid_unknown_fields=True):
    key: str
    places: dict[str, _PlaceFile]
    weight_steps: int
    linears: int
    all_linears: int
    mean_cosine: float
    least_cosine: float


def keep_recipe(folder: Path, key: str, recipe: Recipe) -> None:
    """Write the recipe for read_recipe; an unwritable folder is logged."""
    places = {
        str(number): _PlaceFile(b64encode(place.smooth.astype("<f4").tobytes()).decode(), place.low, place.high)
        for number, place in recipe.places.items()
    }
    file = _RecipeFile(
        key, places, recipe.weight_steps, recipe.linears, recipe.all_linears, recipe.mean_cosine, recipe.least_cosine
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor, written = tempfile.mkstemp(dir=folder, prefix=".int8-")
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(msgspec.json.encode(file))
        Path(written).replace(_path(folder, key))
    except OSError as error:
        logger.warning("int8: %s cannot be written to (%s): fitting at each start", folder, error.strerror)


def read_recipe(folder: Path, key: str) -> Recipe | None:
    """Return the recipe of this key; None if there is none, or if the file is damaged, which is logged."""
    path = _path(folder, key)
    try:
        with path.open("rb") as opened:
            data = opened.read(FILE_LIMIT_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        logger.warning("int8: %s cannot be read (%s): fitting again", path, error.strerror)
        return None
    try:
        return _decoded(data, key)
    except (ValueError, msgspec.DecodeError) as error:
        logger.warning("int8: %s is damaged (%s): fitting again", path, error)
        return None


def _path(folder: Path, key: str) -> Path:
    return folder / f"int8-{key}.json"


def _decoded(data: bytes, key: str) -> Recipe:
    """Raises ValueError and msgspec's errors."""
    if len(data) > FILE_LIMIT_BYTES:
        raise ValueError(f"more than {FILE_LIMIT_BYTES:,} bytes")
    file = msgspec.json.decode(data, type=_RecipeFile)
    if file.key != key:
        raise ValueError("it belongs to another model")
    if not 1 <= file.weight_steps <= 127:
        raise ValueError("weight_steps is not from 1 to 127")
    places = {int(number): _place(place) for number, place in file.places.items()}
    return Recipe(places, file.weight_steps, file.linears, file.all_linears, file.mean_cosine, file.least_cosine)


def _place(file: _PlaceFile) -> QuantizedPlace:
    smooth = np.frombuffer(b64decode(file.smooth, validate=True), "<f4").astype(np.float32)
    if not (0 < smooth.size <= WIDTH_LIMIT and np.isfinite(smooth).all() and (smooth > 0).all()):
        raise ValueError("smooth is not a row of numbers above 0")
    if not (np.isfinite((file.low, file.high)).all() and file.low <= 0 < file.high):
        raise ValueError("low and high are not a range around 0")
    return QuantizedPlace(smooth, file.low, file.high)
