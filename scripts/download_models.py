#!/usr/bin/env python3
"""Simple Inference Server's script: `vectord pull` with its profile, and with the hub.

Stores the models that MODELS names where `vectord serve --profile simple-inference-server` looks for them: in
./models, or in HF_HOME. Further options are those of `vectord pull`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from vectord.cli.main import run

if __name__ == "__main__":
    Path("models").mkdir(exist_ok=True)  # the profile uses it if it exists
    sys.exit(run(["pull", "--profile", "simple-inference-server", "--no-offline", *sys.argv[1:]]))
