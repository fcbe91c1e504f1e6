#!/usr/bin/env python3
"""Simple Inference Server's script: `vectord pull` with its profile, and with the hub.

Stores the models that MODELS names in this repository's folder models/, where scripts/run_dev.py finds them. Further
options are those of `vectord pull`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from vectord.cli.main import run

if __name__ == "__main__":
    os.chdir(Path(__file__).resolve().parents[1])
    Path("models").mkdir(exist_ok=True)  # the profile uses it if it exists
    sys.exit(
        run(["pull", "--profile", "simple-inference-server", "--no-offline", "--hub-cache", "models", *sys.argv[1:]])
    )
