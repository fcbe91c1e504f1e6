"""calibration/texts.py: enough texts, and not too many."""

from __future__ import annotations

from pathlib import Path

import pytest

from vectord.compute.calibration.texts import (
    FILE_LIMIT_BYTES,
    TEXT_LIMIT_CHARACTERS,
    TEXTS_MOST,
    read_calibration_texts,
)
from vectord.errors import ConfigError


def test_the_built_in_texts_are_many_and_varied() -> None:
    """At least a hundred, without repetitions, some in other scripts."""
    found = read_calibration_texts(None)
    assert found.source == "built-in"
    assert len(set(found.texts)) == len(found.texts) >= 100
    assert sum(not text.isascii() for text in found.texts) >= 20


def test_a_file_has_one_text_a_line(tmp_path: Path) -> None:
    """Empty lines are skipped, and a long line is cut; other texts have another digest."""
    file = tmp_path / "texts"
    file.write_text("\n\n".join(f"text {i} " + "x" * 5000 for i in range(20)))
    found = read_calibration_texts(str(file))
    assert (len(found.texts), found.source) == (20, "own")
    assert {len(text) for text in found.texts} == {TEXT_LIMIT_CHARACTERS}
    assert found.digest != read_calibration_texts(None).digest


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"one\ntwo\n", "expected 16 to 512 texts, one per line, got 2"),
        (b"x\n" * (TEXTS_MOST + 1), "got 513"),
        (b"x\n" * 20 + b"\xff", "not UTF-8 at byte 40"),
        (b"x" * (FILE_LIMIT_BYTES + 1), "more than 4,194,304 bytes"),
    ],
    ids=["few", "many", "bytes", "large"],
)
def test_an_unsuitable_file_stops_the_start(data: bytes, message: str, tmp_path: Path) -> None:
    """The error names the setting and the limit."""
    file = tmp_path / "texts"
    file.write_bytes(data)
    with pytest.raises(ConfigError, match=f"calibration_file: .*{message}"):
        read_calibration_texts(str(file))


def test_a_missing_file_stops_the_start(tmp_path: Path) -> None:
    """As for every setting that names a file."""
    with pytest.raises(ConfigError, match="cannot be read"):
        read_calibration_texts(str(tmp_path / "nothing"))
