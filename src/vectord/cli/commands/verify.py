"""`vectord verify`: compare the vectors of a served model with references."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vectord.cli.commands import CACERT, JSON, command_with_settings, load_settings, require_url, server_here
from vectord.cli.printing import print_json, print_table, print_text, printable
from vectord.config import ModelConfig
from vectord.config.command_line import pass_command_line, value
from vectord.config.sources import CommandLine, export_hub
from vectord.errors import ConfigError, ExitCode, ModelUnavailable

if TYPE_CHECKING:
    from vectord.tools.verify import ReferenceResult, VerifiedModel

HELP = """\
Serve MODEL on a free port, embed golden texts over HTTP, and compare the vectors with every reference that is
available: vectors stored in vectord, numbers that FastEmbed publishes, sentence-transformers, and scores of MTEB tasks.
The last two need the packages sentence-transformers and mteb, and mteb the data of its tasks, which it downloads. A
reference that is not available is "skipped", neither passed nor failed.

The tolerance depends on the dtype: float32 vectors must have a cosine of 0.99999 with the reference, bfloat16 0.999.

Accepts the options of `vectord serve`.

\b
Exit codes:
  0    every compared value is within its tolerance
  1    at least one is not
  2    a bad option, a missing model, no server at --url, or no reference that could be compared
  130  Ctrl-C

\b
Examples:
  vectord verify
  vectord verify ./all-mpnet-base-v2 --dtype float32 --tasks none
  vectord verify --url http://gpu-box:8000 --json"""


@command_with_settings(
    help=HELP,
    short_help="Compare a model's vectors with references.",
    params=[
        value("--url", "URL", "Verify the first model of this server.  [default: a server that is started now]"),
        value("--token", "KEY", "Bearer token of the server at --url.", env=["API_TOKEN", "VECTORD_API_KEY"]),
        value("--timeout", "S", "Seconds for a request.", kind=click.FloatRange(0.1, 3600), default=120.0),
        CACERT,
        value("--tasks", "LIST", "Tasks of MTEB, or `none`.", default="STS12,NFCorpus"),
        JSON,
    ],
)
@pass_command_line
def command(line: CommandLine, url: str | None, token: str | None, timeout: float, tasks: str, as_json: bool) -> int:
    from vectord.tools.verify import open_model, verify  # noqa: PLC0415

    if url is None:
        require_url()
    config = load_settings(line).config
    if len(config.model.models) > 1:
        raise ConfigError(f"vectord verify takes one model, got {len(config.model.models)}")
    export_hub(config.model, os.environ)
    names = [] if tasks == "none" else [name.strip() for name in tasks.split(",") if name.strip()]
    # Tasks have texts of any length, which references truncate.
    with server_here(line, url, token, timeout, further=["--auto-truncate"]) as server:
        server.check_reachable("--url")
        subject = open_model(server)
        name = config.model.models[0] if config.model.models else subject.hub_id
        found = list(verify(subject, _folder(name, config.model), names))
    if as_json:
        print_json({"model": subject.hub_id, "dtype": subject.dtype, "references": found})
    else:
        _print(subject, found)
    if all(one.verdict == "skipped" for one in found):
        raise ConfigError("nothing was compared: no reference is available for this model")
    return ExitCode.FAILED if any(one.verdict == "failed" for one in found) else 0


def _folder(name: str, config: ModelConfig) -> Path | None:
    from vectord.checkpoints.hub import resolve  # noqa: PLC0415

    try:
        return resolve(name, revision=config.revision, offline=True, hf_home=config.hf_home, token=None).folder
    except ModelUnavailable:
        return None


def _print(subject: VerifiedModel, found: Sequence[ReferenceResult]) -> None:
    from rich.text import Text  # noqa: PLC0415

    styles = {"passed": "green", "failed": "bold red", "skipped": "dim"}
    rows = [
        (one.name, Text(printable(one.measured)), one.required, Text(one.verdict, style=styles[one.verdict]))
        for one in found
    ]
    print_table(rows, ("reference", "measured", "required", ""))
    counts = {verdict: sum(one.verdict == verdict for one in found) for verdict in styles}
    summary = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    print_text(f"\n{printable(subject.hub_id)}, {printable(subject.dtype)}: {summary}.")
