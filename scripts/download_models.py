#!/usr/bin/env python3
"""`vectord pull` under the name that users of Simple Inference Server know: same words, same settings."""

from __future__ import annotations

import sys

from vectord.cli.main import run

if __name__ == "__main__":
    sys.exit(run(["pull", *sys.argv[1:]]))
