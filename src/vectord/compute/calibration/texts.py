"""The texts that int8 is fitted to, built-in ones or the operator's, and the same as tokens: `Sample`.

engine/models reads them at start, on the main thread, if int8 is requested.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from vectord.checkpoints.files.read import read_operators_file
from vectord.errors import ConfigError
from vectord.schema import Int32

HELD_OUT = 4  # every n-th text is held out of the fit, to measure the loss
FILE_LIMIT_BYTES = 4 * 2**20
TEXTS_LEAST, TEXTS_MOST = 16, 512
TEXT_LIMIT_CHARACTERS = 4000  # a longer one is cut: ranges depend on words, not on length


@dataclass(frozen=True, slots=True)
class CalibrationTexts:
    texts: tuple[str, ...]
    source: str  # "built-in" or "own"
    digest: str  # 16 hex digits
    folder: Path | None  # for stored recipes; None: nothing is stored


@dataclass(frozen=True, slots=True)
class Sample:
    ids: tuple[Int32, ...]  # (L,) of each text, specials included
    source: str
    digest: str
    folder: Path | None  # as in CalibrationTexts

    @property
    def fitted(self) -> Sequence[Int32]:
        return [ids for i, ids in enumerate(self.ids) if i % HELD_OUT]

    @property
    def held_out(self) -> Sequence[Int32]:
        return self.ids[::HELD_OUT]


def read_calibration_texts(path: str | None, folder: Path | None = None) -> CalibrationTexts:
    """Return the operator's texts, one per line, or the built-in ones. Raises ConfigError with file and limit."""
    if path is None:
        from importlib.resources import files  # noqa: PLC0415  only int8 needs it

        return _split("built-in", files("vectord.compute.calibration").joinpath("texts.txt").read_bytes(), folder)
    data = read_operators_file("calibration_file", path, FILE_LIMIT_BYTES)
    try:
        return _split("own", data, folder)
    except UnicodeDecodeError as error:
        raise ConfigError(f"calibration_file: {Path(path).expanduser()} is not UTF-8 at byte {error.start}") from error
    except ValueError as error:
        raise ConfigError(f"calibration_file: {Path(path).expanduser()}: {error}") from error


def _split(source: str, data: bytes, folder: Path | None) -> CalibrationTexts:
    lines = [line.strip() for line in data.decode().split("\n")]
    texts = tuple(line[:TEXT_LIMIT_CHARACTERS] for line in lines if line)
    if not TEXTS_LEAST <= len(texts) <= TEXTS_MOST:
        raise ValueError(f"expected {TEXTS_LEAST} to {TEXTS_MOST} texts, one per line, got {len(texts):,}")
    return CalibrationTexts(texts, source, sha256("\n".join(texts).encode()).hexdigest()[:16], folder)
