#!/usr/bin/env python3
"""Smart Embedder's script: `vectord bench`, with the same options, table and exit codes."""

from __future__ import annotations

import sys

from vectord.cli.main import run

if __name__ == "__main__":
    sys.exit(run(["bench", *sys.argv[1:]]))
