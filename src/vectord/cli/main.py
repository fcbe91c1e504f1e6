"""The command `vectord`: finds the command, runs it, and turns a StartError into one line and exit code 2.

What commands there are is the folder commands/.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Sequence

from vectord import __version__
from vectord.cli.commands import command_names, load_command
from vectord.cli.printing import print_text
from vectord.config.layer import nearest
from vectord.errors import ConfigError, ExitCode, StartError

_TRY = """\

Try:   vectord serve
       curl localhost:8000/v1/embeddings -d '{"input": "Hello, world"}'
"""


def main() -> int:
    """The process's own command line to its exit code."""
    code = run(sys.argv[1:])
    if threading.active_count() > 1:
        # A model that still loads is inside a vendor's native code, which the interpreter's usual end makes crash
        # (seen: exit codes 134 and 139 in place of ours).
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def run(words: Sequence[str]) -> int:
    """Run one command and return the exit code: 0, 1 when nothing could be served, 2 for a start that cannot be."""
    try:
        return _command(list(words))
    except StartError as problem:
        sys.stderr.write(f"vectord: {problem.message}\n")
        return ExitCode.BAD_START
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:  # `vectord models | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILED


def _command(words: list[str]) -> int:
    if not words:
        sys.stderr.write(_help())
        return ExitCode.BAD_START
    name = words[0]
    if name in {"--help", "-h", "help"}:
        return print_text(_help())
    if name in {"--version", "-V"}:
        return print_text(f"vectord {__version__}")
    names = command_names()
    if name not in names:
        known = ", ".join(names)
        raise ConfigError(f"unknown command {name!r}{nearest(name, names)} (there are: {known}; try --help)")
    command = load_command(name)
    if {"--help", "-h"} & set(words):
        return print_text(command.help())
    return command.run(words[1:])


def _help() -> str:
    names = sorted(command_names(), key=lambda name: name != "serve")  # what a newcomer types comes first
    found = [load_command(name) for name in names]
    width = max(len(command.USAGE) for command in found)
    lines = [f"       vectord {command.USAGE:{width}}   {command.SUMMARY}\n" for command in found]
    head = "vectord: a self-hosted server for retrieval models.\n\nUsage: " + "".join(lines).lstrip()
    return f"{head}       vectord --version\n       vectord COMMAND --help\n{_TRY}"
