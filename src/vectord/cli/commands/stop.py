"""`vectord stop`: unload models of a running server."""

from __future__ import annotations

from vectord.cli.commands import CACERT, TOKEN, URL, answers_about, command_with_settings, running_server
from vectord.cli.printing import print_text
from vectord.config.command_line import pass_command_line
from vectord.config.sources import CommandLine
from vectord.errors import ConfigError, ExitCode

HELP = """\
Remove each MODEL from the memory of a running server: the one at --url, or the one on this machine with the same
options, such as --port or --profile. Running requests finish first, and the next request loads the model again. The
server needs an --admin-key, which this command reads from --token or, without --url, from ADMIN_KEY or .env.
Ctrl-C or SIGTERM stops the server itself.

\b
Exit codes:
  0  the models are unloaded
  1  the server refused; a line on standard error has its reason
  2  a bad option, or no server

\b
Examples:
  vectord stop bge-m3
  vectord stop bge-m3 --url http://gpu-box:8000 --token "$ADMIN_KEY\""""


@command_with_settings(help=HELP, short_help="Unload models of a running server.", params=[URL, TOKEN, CACERT])
@pass_command_line
def command(line: CommandLine, url: str | None, token: str | None) -> int:
    names, _ = line.layer.pop("models", ([], None))
    if not names or not isinstance(names, list):
        raise ConfigError("name the models to unload; vectord ps lists them")
    unloaded = 0
    with running_server(line, url, token) as server:
        for name, _ in answers_about(server, names, "POST", "/unload"):
            print_text(f"{name} is unloaded")
            unloaded += 1
    return 0 if unloaded == len(names) else ExitCode.FAILED
