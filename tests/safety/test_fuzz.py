"""A small part of `make fuzz`: every parser receives random inputs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from tests.safety.parsers import PARSERS, Parser, feed

INPUTS = 40  # per parser; make fuzz runs more than 100,000 in total


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)
def test_any_input_is_parsed_or_rejected(parser: Parser, tmp_path: Path) -> None:
    """A parser raises only VectordError, never crashes, and never repeats the input in a message."""

    @settings(
        max_examples=INPUTS * min(parser.share, 5),
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(parser.inputs)
    def check(given_: object) -> None:
        feed(parser, given_, tmp_path)

    check()
