#!/usr/bin/env python3
"""Simple Inference Server's script: `vectord serve` with its profile. Does not reload changed code."""

from __future__ import annotations

import argparse
import sys

from vectord.cli.main import run


def options() -> list[str]:
    """The options of `vectord serve`. Its --config is another file: here it is the catalogue of models."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description="Serve the models of a catalogue. Further options: vectord serve."
    )
    parser.add_argument("--config", help="catalogue of models; default: MODEL_CONFIG, else configs/model_config.yaml")
    known, others = parser.parse_known_args()
    return others if known.config is None else ["--model-catalogue", known.config, *others]


if __name__ == "__main__":
    sys.exit(run(["serve", "--profile", "simple-inference-server", *options()]))
