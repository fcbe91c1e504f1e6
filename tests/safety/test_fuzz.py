"""A small share of `make fuzz`: every parser gets inputs that no writer of a test would think of."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from tests.safety.parsers import PARSERS, Parser, feed

INPUTS = 40  # of each parser; make fuzz feeds more than 100,000 in all


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)
def test_any_input_is_read_or_refused(parser: Parser, tmp_path: Path) -> None:
    """Never another error than a VectordError, never a crash, never what was sent in an error's words."""

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
