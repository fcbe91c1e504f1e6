#!/usr/bin/env python3
"""Smart Embedder's script: `vectord check`, with the 17 tests of that product, and one more with --token."""

from __future__ import annotations

import sys

from vectord.cli.main import run

if __name__ == "__main__":
    sys.exit(run(["check", "--suite", "smart-embedder", *sys.argv[1:]]))
