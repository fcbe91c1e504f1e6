"""`vectord ps` and `stop`: the models of a running server."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from vectord.cli.commands import (
    CACERT,
    JSON,
    TOKEN,
    URL,
    answers_about,
    command_with_settings,
    refusal,
    running_server,
)
from vectord.cli.printing import print_json, print_table, print_text, printable
from vectord.config.command_line import flag, pass_command_line
from vectord.config.sources import CommandLine
from vectord.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from vectord.tools.probe import ProbedServer

HELP = """\
List the models that a running server has in memory: the server at --url, or the one on this machine with the same
options, such as --port or --profile.

\b
Exit codes:
  0  the list was printed
  2  a bad option, no server, or a wrong key

\b
Examples:
  vectord ps
  vectord ps --all --profile ollama
  vectord ps --url http://gpu-box:8000 --json"""


STOP_HELP = """\
Remove each MODEL from the memory of a running server: the one at --url, or the one on this machine with the same
options, such as --port or --profile. Running requests finish first, and the next request loads the model again. The
server needs an --admin-key, which this command reads from --token or, without --url, from VECTORD_ADMIN_KEY.
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


@command_with_settings(
    help=HELP,
    short_help="List the models that a server has in memory.",
    params=[flag("--all", "show_all", help="Also the served models that are not in memory."), URL, TOKEN, CACERT, JSON],
)
@pass_command_line
def command(line: CommandLine, show_all: bool, url: str | None, token: str | None, as_json: bool) -> int:
    if line.named_models:
        raise ConfigError("vectord ps takes no MODEL; vectord show prints the facts of one")
    with running_server(line, url, token) as server:
        models = served_models(server)
    shown = [model for model in models if show_all or model["state"] != "unloaded"]
    return print_json(shown) if as_json else print_served(shown)


@command_with_settings(help=STOP_HELP, short_help="Unload models of a running server.", params=[URL, TOKEN, CACERT])
@pass_command_line
def stop_command(line: CommandLine, url: str | None, token: str | None) -> int:
    if not line.named_models:
        raise ConfigError("name the models to unload; vectord ps lists them")
    unloaded = 0
    with running_server(line, url, token) as server:
        for name, _ in answers_about(server, line.named_models, "POST", "/unload"):
            print_text(f"{name} is unloaded")
            unloaded += 1
    return 0 if unloaded == len(line.named_models) else ExitCode.FAILED


def served_models(server: ProbedServer) -> list[dict[str, Any]]:
    """Raises ConfigError if the server refuses."""
    reply = server.get("/vectord/models")
    answer = reply.json()
    models = answer.get("models") if isinstance(answer, dict) else None
    if reply.status != 200 or not isinstance(models, list) or not all(isinstance(model, dict) for model in models):
        raise ConfigError(f"{server.url}: {refusal(reply)}")
    return models


def print_served(models: Iterable[dict[str, Any]]) -> int:
    return print_table(map(_row, models), _HEADINGS)


_HEADINGS = ("model", "gives", ">width", ">tokens", "dtype", "device", "state")


def _row(model: dict[str, Any]) -> tuple[str, ...]:
    task = "rerank" if model["reranks"] else "classify" if model["labels"] else ""
    gives = [*(output for output in model["outputs"] if output != "tokens"), *filter(None, [task])]
    cells = (
        model["name"],
        ", ".join(gives),
        str(model["dimensions"] or ""),
        f"{model['max_input_tokens']:,}" if model["max_input_tokens"] else "",
        model["dtype"],
        model["device"],
        f"failed: {model['failure']}" if model.get("failure") else model["state"],
    )
    return tuple(map(printable, cells))
