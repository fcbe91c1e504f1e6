#!/usr/bin/env python3
"""Smart Embedder's script: `vectord bench`, with the same options, variable, table and exit codes."""

from __future__ import annotations

import os
import sys

from vectord.cli.main import run

if __name__ == "__main__":
    if token := os.environ.get("API_TOKEN"):
        os.environ.setdefault("VECTORD_API_KEY", token)
    sys.exit(run(["bench", *sys.argv[1:]]))
