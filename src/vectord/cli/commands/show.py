"""`vectord show`: all facts of models on this machine, or of a running server."""

from __future__ import annotations

from vectord.cli.commands import CACERT, INSTEAD_URL, JSON, TOKEN, command_with_settings, names_for_server
from vectord.cli.commands.models import list_models, list_served
from vectord.config.command_line import pass_command_line
from vectord.config.sources import CommandLine
from vectord.errors import ConfigError

HELP = """\
Print the facts of a MODEL on this machine: its folder, vectors, limits, prompts and fingerprint. Several MODELs get a
table. Contacts no network, except for a running server with --url, which then states the facts of its MODEL.

\b
Exit codes:
  0  the facts were printed
  1  a MODEL is not on this machine, or cannot be served; with --url, it is not served
  2  a bad option, or no MODEL; with --url, no server or a wrong key

\b
Examples:
  vectord show all-minilm
  vectord show BAAI/bge-m3 --json
  vectord show bge-m3 --url http://gpu-box:8000"""


@command_with_settings(help=HELP, short_help="Print the facts of a model.", params=[INSTEAD_URL, TOKEN, CACERT, JSON])
@pass_command_line
def command(line: CommandLine, url: str | None, token: str | None, as_json: bool) -> int:
    if "models" not in line.layer:
        raise ConfigError("name a model; vectord list has them")
    names = names_for_server(line, url, token)
    if names is not None:
        return list_served(line, url, token, names, as_json=as_json)
    return list_models(line, show_all=False, as_json=as_json)
