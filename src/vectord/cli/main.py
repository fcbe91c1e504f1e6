"""Runs a command of `vectord` and returns its exit code. Each module in the folder commands/ is a command."""

from __future__ import annotations

import errno
import io
import logging
import os
import pkgutil
import sys
import threading
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import click

from vectord import __version__
from vectord.cli import commands
from vectord.cli.printing import print_text
from vectord.config.command_line import usage_line
from vectord.config.sources import nearest, quoted
from vectord.errors import ConfigError, ExitCode, StartError
from vectord.observability.log_stream import drain_logs
from vectord.observability.progress import terminal_handler

PROGRAM = "vectord"
STANDARD_ERROR = 2  # the last descriptor of the standard streams
OTHER_COMMANDS = {  # of other servers, and removed ones
    "run": "serve",
    "start": "serve",
    "v2": "serve",
    "download": "pull",
    "check": "doctor",
    "verify": "doctor",
}
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})  # the disk, a quota, or the limit of a file's size
COMPLETE = "_VECTORD_COMPLETE"  # click's scripts for shells set it (commands/completion.py)


# Command -> the module that has it, as `NAME_command`.
FURTHER = {"list": "models", "rerank": "embed", "show": "models", "stop": "ps"}


class Commands(click.Group):
    """The modules of commands/, each imported when it is needed. A module's `command` is the click command."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        names = sorted([*FURTHER, *(module.name for module in pkgutil.iter_modules(commands.__path__))])
        return sorted(names, key=lambda name: name != "serve")

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        names = self.list_commands(ctx)
        if cmd_name in names:
            module = import_module(f"{commands.__name__}.{FURTHER.get(cmd_name, cmd_name)}")
            command = getattr(module, f"{cmd_name}_command" if cmd_name in FURTHER else "command")
            assert isinstance(command, click.Command)
            return command
        if ctx.resilient_parsing:
            return None
        meant = OTHER_COMMANDS.get(cmd_name)
        hint = f"; did you mean {meant}?" if meant else nearest(cmd_name, names)
        raise ConfigError(f"unknown command {quoted(cmd_name)}{hint} (there are: {', '.join(names)}; try --help)")


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.exit(print_text(f"{PROGRAM} {__version__}"))


vectord = Commands(
    name=PROGRAM,
    help="A self-hosted server for retrieval models.",
    epilog='\b\nTry:\n  vectord serve\n  curl localhost:8000/v1/embeddings -d \'{"input": "Hello, world"}\'',
    no_args_is_help=False,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    params=[
        click.Option(
            ["-v", "-V", "--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_print_version,
            help="Print the version and exit.",
        )
    ],
)


def main() -> int:
    """Run this process's command line and return its exit code."""
    _open_standard_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as on standard error: names on a terminal without UTF-8
    if instruction := os.environ.get(COMPLETE):
        from click.shell_completion import shell_complete  # noqa: PLC0415 - a shell asks for completions

        return shell_complete(vectord, {}, PROGRAM, COMPLETE, instruction)
    code = run(sys.argv[1:])
    if threading.active_count() > 1:
        # A thread may still be loading a model in native code, which crashes when the interpreter ends normally
        # (seen as exit codes 134 and 139).
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _open_standard_streams() -> None:
    """Open the null device in place of closed ones (`vectord serve 2>&-`), for this process and those that it starts:
    a socket would take their descriptors, and what a library prints would be sent on it."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= STANDARD_ERROR:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - open until the process ends


def run(words: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    if not words:
        with vectord.make_context(PROGRAM, []) as context:
            sys.stderr.write(context.get_help() + "\n")
        return ExitCode.BAD_START
    if words[0] == "help":
        words = [*words[1:], "--help"]
    try:
        with vectord.make_context(PROGRAM, list(words)) as context:
            return int(vectord.invoke(context) or 0)
    except click.exceptions.Exit as done:
        return done.exit_code
    except StartError as problem:
        _write_error(problem.message)
        return ExitCode.BAD_START
    except click.UsageError as problem:
        hint = ""
        if (
            isinstance(problem, click.NoSuchOption)
            and words[0].startswith("-")
            and not nearest(problem.option_name, problem.possibilities or ())
        ):
            hint = f"; options of the server follow its command: {PROGRAM} serve {problem.option_name}"
        _write_error(f"{usage_line(problem)}{hint}")
        return ExitCode.BAD_START
    except KeyboardInterrupt:
        _write_error("interrupted")
        return ExitCode.INTERRUPTED
    except OSError as problem:
        if isinstance(problem, PermissionError) and problem.filename:
            _write_error(f"{problem.filename} cannot be used: {problem.strerror}")
            return ExitCode.BAD_START
        if problem.errno in FULL:
            _write_error(f"{problem.filename or 'the output'} cannot be written: {problem.strerror}")
        elif not isinstance(problem, BrokenPipeError):  # `vectord models | head`
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python writes when it ends
        return ExitCode.FAILED


def _write_error(line: str) -> None:
    """Ends the bars of an unfinished download first, whose line the error would continue."""
    if (handler := terminal_handler()) is not None:
        handler.end_bars()
    drain_logs()
    sys.stderr.write(f"{PROGRAM}: {line}\n")
