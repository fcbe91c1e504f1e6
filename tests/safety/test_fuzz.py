"""Every parser receives random inputs. `make fuzz` sets FUZZ_INPUTS to more of them, different ones in each run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from tests.safety.parsers import PARSERS, Parser, feed

INPUTS = int(os.environ.get("FUZZ_INPUTS", "40"))  # for a parser with one share


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)
def test_any_input_is_parsed_or_rejected(parser: Parser, tmp_path: Path) -> None:
    """A parser raises only VectordError, never crashes, and never repeats the input in a message."""

    @settings(
        max_examples=INPUTS * min(parser.share, 5),
        deadline=None,
        derandomize="FUZZ_INPUTS" not in os.environ,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(parser.inputs)
    def check(given_: object) -> None:
        feed(parser, given_, tmp_path)

    check()
