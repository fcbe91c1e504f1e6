"""`vectord models`: what can be served, and where its files are."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vectord.cli.printing import print_table, print_text
from vectord.config import ModelConfig
from vectord.config.hub import tell_hub
from vectord.config.sources import load
from vectord.errors import ModelUnavailable

USAGE = "models [MODEL ...] [options]"
SUMMARY = "what can be served, and where its files are"

_HELP = """\
Usage: vectord models [MODEL ...] [--json] [options]

Lists the models that can be served here, whether their files are on this machine, where, and
how large they are. Asks no network.

options:
  --json        the same as JSON
  -h, --help    print this text
  and those of `vectord serve`, of which --models, --hub-cache and the like count

exit codes:
  0    the list was printed
  2    a bad option

examples:
  vectord models
  vectord models BAAI/bge-m3 ./my-model --json
  vectord models --profile smart-embedder
"""


def help() -> str:
    return _HELP


def run(words: Sequence[str]) -> int:
    from vectord.checkpoints.catalogue import CATALOGUE  # noqa: PLC0415
    from vectord.engine.models.wanted import wanted_models  # noqa: PLC0415

    loaded = load(words, os.environ, Path.cwd(), switches=("--json",))
    config = loaded.config.model
    tell_hub(config, os.environ)
    configured = {one.name or one.model: one.model for one in wanted_models(config)}
    known = [entry.hub_id for entry in CATALOGUE if entry.hub_id not in configured]
    rows = [_model_row(name, at, True, config) for name, at in configured.items()]
    rows += [_model_row(name, name, False, config) for name in known]
    if "--json" in loaded.switches:
        return print_text(json.dumps(rows, indent=2))
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, pad_edge=False)
    for heading in ("model", "served", "files", "size", "where"):
        table.add_column(heading, overflow="fold", justify="right" if heading == "size" else "left")
    for row in rows:
        size = f"{row['bytes'] / 1e6:.0f} MB" if row["bytes"] else ""
        where = row["folder"] or row["problem"]
        table.add_row(row["model"], "yes" if row["configured"] else "", row["source"] or "missing", size, where)
    return print_table(table)


def _model_row(name: str, at: str, configured: bool, config: ModelConfig) -> dict[str, Any]:
    """What is known of one model on this machine. at: where its files are looked for. Never asks the hub."""
    from vectord.checkpoints.hub import resolve  # noqa: PLC0415

    row = {"model": name, "configured": configured, "source": None, "revision": None, "folder": None}
    try:
        located = resolve(at, revision=config.revision, offline=True, hf_home=config.hf_home, token=None)
    except ModelUnavailable as problem:
        return {**row, "bytes": 0, "problem": problem.message}
    size_bytes = sum(file.stat().st_size for file in located.folder.rglob("*") if file.is_file())
    found = {"source": located.source, "revision": located.revision, "folder": str(located.folder)}
    return {**row, **found, "bytes": size_bytes, "problem": None}
