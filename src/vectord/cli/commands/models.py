"""`vectord models`: the models that this machine can serve, and where their files are."""

from __future__ import annotations

import os
from typing import Any

from vectord.cli.commands import JSON, command_with_settings, load_settings
from vectord.cli.printing import print_json, print_table
from vectord.config import ModelConfig
from vectord.config.command_line import pass_command_line
from vectord.config.sources import CommandLine, export_hub
from vectord.errors import ModelUnavailable

HELP = """\
List the models that this machine can serve, with the place and size of their files. Contacts no network.

Accepts the options of `vectord serve`; --models, --hub-cache and the like matter here.

\b
Exit codes:
  0  the list was printed
  2  a bad option

\b
Examples:
  vectord models
  vectord models BAAI/bge-m3 ./my-model --json
  vectord models --profile smart-embedder"""


@command_with_settings(
    help=HELP,
    short_help="List models and their files.",
    params=[JSON],
)
@pass_command_line
def command(line: CommandLine, as_json: bool) -> int:
    from vectord.checkpoints.catalogue import CATALOGUE  # noqa: PLC0415
    from vectord.engine.models.requested import requested_models  # noqa: PLC0415

    config = load_settings(line).config.model
    export_hub(config, os.environ)
    configured = {one.name or one.model: one.model for one in requested_models(config)}
    known = [entry.hub_id for entry in CATALOGUE if entry.hub_id not in configured]
    rows = [_row(name, model, True, config) for name, model in configured.items()]
    rows += [_row(name, name, False, config) for name in known]
    if as_json:
        return print_json(rows)
    table = [
        (
            row["model"],
            "yes" if row["configured"] else "",
            row["source"] or "missing",
            f"{row['bytes'] / 1e6:.0f} MB" if row["bytes"] else "",
            row["folder"] or row["problem"],
        )
        for row in rows
    ]
    return print_table(table, ("model", "served", "files", ">size", "where"))


def _row(name: str, model: str, configured: bool, config: ModelConfig) -> dict[str, Any]:
    """One model: the name for clients, and the state of its files."""
    from vectord.checkpoints.hub import resolve  # noqa: PLC0415

    row = {"model": name, "configured": configured, "source": None, "revision": None, "folder": None}
    try:
        located = resolve(model, revision=config.revision, offline=True, hf_home=config.hf_home, token=None)
    except ModelUnavailable as problem:
        return {**row, "bytes": 0, "problem": problem.message}
    size_bytes = sum(file.stat().st_size for file in located.folder.rglob("*") if file.is_file())
    found = {"source": located.source, "revision": located.revision, "folder": str(located.folder)}
    return {**row, **found, "bytes": size_bytes, "problem": None}
