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
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from vectord.schema import Float32

logger = logging.getLogger(__name__)

FILE_LIMIT_BYTES = 64 * 2**20
WIDTH_LIMIT = 2**17


class QuantizedPlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """x is divided by `smooth` and then rounded to one of 256 steps from `low` to `high`."""

    smooth: Float32  # (H,) above 0: the weights are multiplied by it; in the file: little-endian float32 in base64
    low: float  # at most 0
    high: float  # above 0


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    places: Mapping[int, QuantizedPlace]  # those in int8; all others are unchanged
    weight_steps: int  # weights are whole numbers from -this to this
    linears: int  # number in int8
    all_linears: int
    mean_cosine: float  # against float32, of the sample's texts
    least_cosine: float
    same_ten: float  # see fit.Kept
    speed: float  # tokens per second as a multiple of those without int8


class _RecipeFile(Recipe, frozen=True, forbid_unknown_fields=True):
    key: str


def keep_recipe(folder: Path, key: str, recipe: Recipe) -> None:
    """Write the recipe for read_recipe; an unwritable folder is logged."""
    file = _RecipeFile(**msgspec.structs.asdict(recipe), key=key)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor, written = tempfile.mkstemp(dir=folder, prefix=".int8-")
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(msgspec.json.encode(file, enc_hook=_encode_row))
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
    file = msgspec.json.decode(data, type=_RecipeFile, dec_hook=_decode_row)
    if file.key != key:
        raise ValueError("it belongs to another model")
    if not 1 <= file.weight_steps <= 127:
        raise ValueError("weight_steps is not from 1 to 127")
    for place in file.places.values():
        if not (np.isfinite((place.low, place.high)).all() and place.low <= 0 < place.high):
            raise ValueError("low and high are not a range around 0")
    return file


def _encode_row(numbers: Float32) -> str:
    return b64encode(numbers.astype("<f4").tobytes()).decode()


def _decode_row(kind: type, text: Any) -> Float32:
    numbers = np.frombuffer(b64decode(text, validate=True), "<f4").astype(np.float32)
    if not (0 < numbers.size <= WIDTH_LIMIT and np.isfinite(numbers).all() and (numbers > 0).all()):
        raise ValueError("smooth is not a row of numbers above 0")
    return numbers
