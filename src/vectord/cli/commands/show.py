"""`vectord show`: all facts of models on this machine."""

from __future__ import annotations

from vectord.cli.commands import JSON, command_with_settings
from vectord.cli.commands.models import list_models
from vectord.config.command_line import pass_command_line
from vectord.config.sources import CommandLine
from vectord.errors import ConfigError

HELP = """\
Print the facts of a MODEL on this machine: its folder, vectors, limits, prompts and fingerprint. Several MODELs get a
table. Contacts no network.

\b
Exit codes:
  0  the facts were printed
  1  a MODEL is not on this machine, or cannot be served
  2  a bad option, or no MODEL

\b
Examples:
  vectord show all-minilm
  vectord show BAAI/bge-m3 --json"""


@command_with_settings(help=HELP, short_help="Print the facts of a model.", params=[JSON])
@pass_command_line
def command(line: CommandLine, as_json: bool) -> int:
    if "models" not in line.layer:
        raise ConfigError("name a model; vectord list has them")
    return list_models(line, show_all=False, as_json=as_json)
