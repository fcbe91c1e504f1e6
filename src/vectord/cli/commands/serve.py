"""`vectord serve`: serve models until a signal, or print the settings with --print-config."""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vectord.cli.commands import command_with_settings, load_settings
from vectord.cli.printing import print_json, print_table, print_text
from vectord.config import Config
from vectord.config.command_line import flag, pass_command_line
from vectord.config.sources import CommandLine, Loaded
from vectord.errors import ConfigError

THREADS = 16  # that a process starts in all, besides those for each CPU
THREADS_PER_CPU = 4  # of the device, of the tokenizer and of the event loop's pool
THREADS_PER_FRONT_END = 8
GPU_DRIVERS = ("/dev/nvidiactl", "/dev/dxg")  # Linux; Windows' subsystem for Linux
LEAST_CORES = 4  # for an engine and two front-ends
MAX_THREADS_TRIED = 256
TOO_FEW_THREADS = (
    "this process may start only {given} more threads, and serving needs {limit}: raise the limit of processes "
    "(`ulimit -u`, or the container's limit of pids) or of address space (`ulimit -v`)"
)

HELP = """\
Serve each MODEL (a hub id, a folder, a GGUF file, ollama:NAME or a package) over HTTP until SIGINT or SIGTERM.

The command line wins over the environment, then --env-file, then the config file, then the profile. Brackets after an
option list its environment variables, of which the first wins. Names without VECTORD_, such as PORT, count with
--env-compat or another product's profile, and that product's own names under its profile (docs/migrating/). A list is
separated by , or ;. A switch may stand alone or take true or false; --no-NAME turns it off."""


@command_with_settings(
    list_settings=True,
    help=HELP,
    short_help="Serve models over HTTP.",
    params=[
        flag("--print-config", help="Print the settings that are set, each with its value and source, then exit."),
        flag("--all", "every", help="With --print-config: also print the defaults."),
        flag("--json", "as_json", help="With --print-config: print all settings as JSON."),
    ],
)
@pass_command_line
def command(line: CommandLine, print_config: bool, every: bool, as_json: bool) -> int:
    if (every or as_json) and not print_config:
        raise ConfigError(f"{'--all' if every else '--json'} (command line): requires --print-config")
    loaded = load_settings(line)
    if print_config:
        return _print_config(loaded, every=every, as_json=as_json)
    from vectord.observability import logs  # noqa: PLC0415

    logs.configure(loaded.config.telemetry)
    loaded.log_notes()
    loaded.check_keys()
    config = with_front_ends(loaded.config)
    check_threads(config.server.front_ends)
    if config.server.front_ends > 1:
        from vectord.cluster.processes.supervisor import supervise  # noqa: PLC0415

        return supervise(config)
    from vectord.compute.processor import prepare_process  # noqa: PLC0415
    from vectord.engine.models.opening import load_ahead  # noqa: PLC0415
    from vectord.server.http.listener import check_server  # noqa: PLC0415

    check_server(config.server)
    prepare_process()
    gc.disable()  # imports make many objects and hardly any garbage
    try:
        models = load_ahead(config)
        from vectord import compose  # noqa: PLC0415 - the server and the products, while the model loads
    finally:
        gc.freeze()
        gc.enable()
    return compose.serve(config, models)


def with_front_ends(config: Config) -> Config:
    """The configuration with a number of front-ends. 0 chooses it: 1, or with an NVIDIA GPU 2 or 4, by the cores.

    A thread that launches kernels waits for the interpreter after each of them if it shares a process with a busy event
    loop (docs/operations.md). Neither this process nor the choice imports torch, which takes seconds.
    """
    server, device = config.server, config.device
    cores = os.cpu_count() or 1
    if server.front_ends or os.name != "posix" or server.batch_dir is not None or cores < LEAST_CORES:
        return config
    launches = device.backend in ("auto", "torch", "transformers") and device.device.startswith(("auto", "cuda"))
    if not launches or find_spec("torch") is None or not any(Path(driver).exists() for driver in GPU_DRIVERS):
        return config
    chosen = 4 if cores >= 4 * LEAST_CORES else 2
    logging.getLogger("vectord").info("an NVIDIA GPU: %d front-ends (set front_ends to 1 for one process)", chosen)
    return replace(config, server=replace(server, front_ends=chosen))


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


def _print_config(loaded: Loaded, *, every: bool, as_json: bool) -> int:
    for note in loaded.notes:
        sys.stderr.write(f"vectord: {note}\n")
    if as_json:
        printed: dict[str, Any] = {"profile": loaded.profile}
        for setting, value, origin in loaded.printable():
            shown = {"value": value, "source": origin.source, "name": origin.name}
            printed.setdefault(setting.section, {})[setting.name] = shown
        return print_json(printed)
    rows = [
        # In a config file and a profile, the key has the setting's own name.
        (
            f"{setting.section}.{setting.name}",
            _text(value),
            origin.source if origin.name.startswith("[") else str(origin),
        )
        for setting, value, origin in loaded.printable()
        if every or origin.source != "default"
    ]
    which = "all settings" if every else "the settings that are set (--all: also the defaults)"
    print_text(f"profile {loaded.profile}, {which}:{'' if rows else ' none'}")
    return print_table(rows) if rows else 0


def _text(value: Any) -> str:
    """A value in the form that the command line accepts."""
    if isinstance(value, list | tuple):
        return ", ".join(value)
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
