"""`make fuzz`: sends many random inputs to every parser, different ones in each run.

    python -m tests.safety.fuzz --inputs 120000 --seed 7 --only tokenizer

Exits with code 1 at the first input that is neither parsed nor rejected, minimized by hypothesis.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import tempfile
import time
from pathlib import Path

from hypothesis import HealthCheck, given, seed, settings
from tests.safety.parsers import PARSERS, Parser, feed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.safety.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=120_000, help="in all (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32), help="to have the same inputs again")
    parser.add_argument("--only", default="", help="parsers whose name has this in it")
    options = parser.parse_args()
    chosen = [one for one in PARSERS if options.only in one.name]
    print(f"{options.inputs:,} inputs for {len(chosen)} parsers, seed {options.seed}", flush=True)
    share = options.inputs / sum(one.share for one in chosen)
    fed = [_fuzz(one, max(1, round(share * one.share)), options.seed) for one in chosen]
    print(f"{sum(fed):,} inputs in all; every one was read or refused")
    return 0


def _fuzz(parser: Parser, inputs: int, number: int) -> int:
    fed = taken = 0
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="vectord-fuzz-") as folder, _quiet_panics():

        @seed(number)
        @settings(max_examples=inputs, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(parser.inputs)
        def check(given_: object) -> None:
            nonlocal fed, taken
            fed += 1
            taken += feed(parser, given_, Path(folder))

        check()
    # hypothesis stops early if it has tried all inputs.
    print(f"{parser.name:48} {fed:8,} inputs  {taken:8,} read  {time.monotonic() - began_s:6.1f} s", flush=True)
    return fed


class _quiet_panics:
    """tokenizers prints a trace of each panic directly to stderr, so the report goes to stdout."""

    def __enter__(self) -> None:
        sys.stderr.flush()
        self._kept = os.dup(2)
        with Path(os.devnull).open("w") as nothing:
            os.dup2(nothing.fileno(), 2)

    def __exit__(self, *_: object) -> None:
        os.dup2(self._kept, 2)
        os.close(self._kept)


if __name__ == "__main__":
    sys.exit(main())
