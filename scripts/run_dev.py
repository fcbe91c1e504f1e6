#!/usr/bin/env python3
"""Simple Inference Server's script: `vectord serve` with its profile, in this repository's folder, which has its .env,
configs/ and models/. Does not reload changed code."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from vectord.cli.main import run


def options() -> list[str]:
    """The options of `vectord serve`. Its --config is another file: here it is the catalogue of models."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description="Serve the models of a catalogue. Further options: vectord serve."
    )
    parser.add_argument("--config", help="catalogue of models; default: MODEL_CONFIG, else configs/model_config.yaml")
    known, others = parser.parse_known_args()
    if known.config is None:
        return others
    return ["--model-catalogue", str(Path(known.config).resolve()), *others]


if __name__ == "__main__":
    serve = ["serve", "--profile", "simple-inference-server", *options()]
    os.chdir(Path(__file__).resolve().parents[1])
    sys.exit(run(serve))
