"""`vectord serve`: serve models until a signal, or print the settings with --print-config."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from vectord.cli.commands import command_with_settings, load_settings
from vectord.cli.printing import print_json, print_table
from vectord.config.command_line import flag, pass_command_line
from vectord.config.sources import CommandLine, Loaded
from vectord.errors import ConfigError

THREADS = 16  # that a process starts in all, besides those for each CPU
THREADS_PER_CPU = 4  # of the device, of the tokenizer and of the event loop's pool
THREADS_PER_FRONT_END = 8
MAX_THREADS_TRIED = 256
TOO_FEW_THREADS = (
    "this process may start only {given} more threads, and serving needs {limit}: raise the limit of processes "
    "(`ulimit -u`, or the container's limit of pids) or of address space (`ulimit -v`)"
)

HELP = """\
Serve each MODEL (a hub id, a folder, a GGUF file, ollama:NAME or a package) over HTTP until SIGINT or SIGTERM.

The command line wins over the environment, then .env, then the config file, then the profile. Brackets after an option
list its environment variables, each also with VECTORD_ in front, which then wins. All but the first are names of other
servers, and each is an option too: MODEL_ID is --model-id. Names of other servers without effect here are accepted, and
logged once (docs/configuration.md). A list is separated by , or ;. A switch may stand alone or take true or false;
--no-NAME turns it off."""


@command_with_settings(
    list_settings=True,
    help=HELP,
    short_help="Serve models over HTTP.",
    params=[
        flag("--print-config", help="Print each setting with its value and its source, then exit."),
        flag("--json", "as_json", help="With --print-config: print JSON."),
    ],
)
@pass_command_line
def command(line: CommandLine, print_config: bool, as_json: bool) -> int:
    if as_json and not print_config:
        raise ConfigError("--json (command line): requires --print-config")
    loaded = load_settings(line)
    if print_config:
        return _print_config(loaded, as_json=as_json)
    from vectord.observability import logs  # noqa: PLC0415

    logs.configure(loaded.config.telemetry)
    loaded.log_notes()
    check_threads(loaded.config.server.front_ends)
    if loaded.config.server.front_ends > 1:
        from vectord.cluster.processes.supervisor import supervise  # noqa: PLC0415

        return supervise(loaded.config)
    from vectord import compose  # noqa: PLC0415

    return compose.serve(loaded.config)


def check_threads(front_ends: int) -> None:
    """Raise ConfigError if this user may not start the threads that a loaded server has.

    Libraries start threads on first use. Without them requests would fail, or a library would end the process.
    """
    needed = THREADS + THREADS_PER_CPU * (os.cpu_count() or 1) + THREADS_PER_FRONT_END * front_ends
    needed = min(needed, MAX_THREADS_TRIED)
    release = threading.Event()
    threads = [threading.Thread(target=release.wait) for _ in range(needed)]
    started = 0
    try:
        for thread in threads:
            thread.start()
            started += 1
    except RuntimeError:  # also under a limit of address space, since each thread has a stack
        raise ConfigError(TOO_FEW_THREADS, given=started, limit=needed) from None
    finally:
        release.set()
        for thread in threads[:started]:
            thread.join()


def _print_config(loaded: Loaded, *, as_json: bool) -> int:
    for note in loaded.notes:
        sys.stderr.write(f"vectord: {note}\n")
    if as_json:
        printed: dict[str, Any] = {"profile": loaded.profile}
        for setting, value, origin in loaded.printable():
            shown = {"value": value, "source": origin.source, "name": origin.name}
            printed.setdefault(setting.section, {})[setting.name] = shown
        return print_json(printed)
    rows = [
        (f"{setting.section}.{setting.name}", _text(value), str(origin))
        for setting, value, origin in loaded.printable()
    ]
    return print_table(rows, ("setting", "value", "from"), title=f"profile {loaded.profile}")


def _text(value: Any) -> str:
    """A value in the form that the command line accepts."""
    if isinstance(value, list | tuple):
        return ", ".join(value)
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
