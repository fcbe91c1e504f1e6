"""The command `vectord`: serve, models, key. Reads the command line, prints, and turns a StartError into exit code 2.

What a command needs is imported when it runs: the server must answer one second after exec, help at once.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vectord import __version__, help_text
from vectord.config import ModelConfig
from vectord.config.hub import tell_hub
from vectord.config.layer import nearest
from vectord.config.settings import SETTINGS
from vectord.config.sources import Loaded, load
from vectord.errors import ConfigError, ModelUnavailable, StartError

EXIT_FAILED = 1
EXIT_BAD_START = 2
EXIT_INTERRUPTED = 130


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
        return EXIT_BAD_START
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # `vectord models | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED


def _command(words: list[str]) -> int:
    if not words:
        sys.stderr.write(help_text.MAIN)
        return EXIT_BAD_START
    if words[0] in {"--help", "-h", "help"}:
        return _print(help_text.MAIN)
    if words[0] in {"--version", "-V"}:
        return _print(f"vectord {__version__}\n")
    if words[0] not in COMMANDS:
        known = ", ".join(COMMANDS)
        raise ConfigError(f"unknown command {words[0]!r}{nearest(words[0], COMMANDS)} (there are: {known}; try --help)")
    command, text = COMMANDS[words[0]]
    if {"--help", "-h"} & set(words):
        return _print(text())
    return command(words[1:])


def _print(text: str) -> int:
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()
    return 0


# --- vectord serve --------------------------------------------------------------------------------------------


def _serve(words: Sequence[str]) -> int:
    loaded = load(words, os.environ, Path.cwd(), switches=("--print-config", "--json"))
    if "--print-config" in loaded.switches:
        return _print_config(loaded, as_json="--json" in loaded.switches)
    if "--json" in loaded.switches:
        raise ConfigError("--json (command line): goes with --print-config")
    from vectord import compose  # noqa: PLC0415 - everything that serves, imported to serve
    from vectord.telemetry import logs  # noqa: PLC0415

    logs.configure(loaded.config.telemetry)
    loaded.tell()
    return compose.serve(loaded.config)


def _print_config(loaded: Loaded, *, as_json: bool) -> int:
    for note in loaded.notes:
        sys.stderr.write(f"vectord: {note}\n")
    sections = dataclasses.asdict(loaded.config)
    rows = [
        (setting.section, setting.name, _masked(sections[setting.section][setting.name], setting.secret))
        for setting in SETTINGS
    ]
    if as_json:
        return _print(_config_json(rows, loaded))
    from rich.table import Table  # noqa: PLC0415

    table = Table(title=f"profile {loaded.profile}", title_justify="left", box=None, pad_edge=False)
    table.add_column("setting", no_wrap=True)
    table.add_column("value", overflow="fold")
    table.add_column("from", overflow="fold")
    for section, name, value in rows:
        table.add_row(f"{section}.{name}", _shown(value), str(loaded.origins[name]))
    return _print_table(table)


def _masked(value: Any, secret: bool) -> Any:
    return "***" if secret and value is not None else value


def _shown(value: Any) -> str:
    """A value as one would write it."""
    if isinstance(value, list | tuple):
        return ", ".join(value)
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def _config_json(rows: Sequence[tuple[str, str, Any]], loaded: Loaded) -> str:
    found: dict[str, Any] = {"profile": loaded.profile}
    for section, name, value in rows:
        origin = loaded.origins[name]
        found.setdefault(section, {})[name] = {"value": value, "source": origin.source, "name": origin.name}
    return json.dumps(found, indent=2)


def _print_table(table: Any) -> int:
    from rich.console import Console  # noqa: PLC0415

    # A pipe has no width: long paths stay whole for whoever reads the lines.
    Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 240).print(table)
    return 0


# --- vectord models -------------------------------------------------------------------------------------------


def _models(words: Sequence[str]) -> int:
    from vectord.artifacts.catalogue import CATALOGUE  # noqa: PLC0415
    from vectord.models.wanted import wanted_models  # noqa: PLC0415

    loaded = load(words, os.environ, Path.cwd(), switches=("--json",))
    config = loaded.config.model
    tell_hub(config, os.environ)
    configured = {one.name or one.model: one.model for one in wanted_models(config)}
    known = [entry.hub_id for entry in CATALOGUE if entry.hub_id not in configured]
    rows = [_model_row(name, at, True, config) for name, at in configured.items()]
    rows += [_model_row(name, name, False, config) for name in known]
    if "--json" in loaded.switches:
        return _print(json.dumps(rows, indent=2))
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, pad_edge=False)
    for heading in ("model", "served", "files", "size", "where"):
        table.add_column(heading, overflow="fold", justify="right" if heading == "size" else "left")
    for row in rows:
        size = f"{row['bytes'] / 1e6:.0f} MB" if row["bytes"] else ""
        where = row["folder"] or row["problem"]
        table.add_row(row["model"], "yes" if row["configured"] else "", row["source"] or "missing", size, where)
    return _print_table(table)


def _model_row(name: str, at: str, configured: bool, config: ModelConfig) -> dict[str, Any]:
    """What is known of one model on this machine. at: where its files are looked for. Never asks the hub."""
    from vectord.artifacts.hub import resolve  # noqa: PLC0415

    row = {"model": name, "configured": configured, "source": None, "revision": None, "folder": None}
    try:
        located = resolve(at, revision=config.revision, offline=True, hf_home=config.hf_home, token=None)
    except ModelUnavailable as problem:
        return {**row, "bytes": 0, "problem": problem.message}
    size_bytes = sum(file.stat().st_size for file in located.folder.rglob("*") if file.is_file())
    found = {"source": located.source, "revision": located.revision, "folder": str(located.folder)}
    return {**row, **found, "bytes": size_bytes, "problem": None}


# --- vectord key ----------------------------------------------------------------------------------------------


def _key(words: Sequence[str]) -> int:
    """The stanza alone goes to standard output, so that it can be appended to the file without the key."""
    from vectord.server.keys import new_key  # noqa: PLC0415

    if len(words) != 1 or words[0].startswith("-"):
        raise ConfigError("vectord key NAME: takes one name; try vectord key --help")
    key, stanza = new_key(words[0])
    sys.stderr.write(f"The key of {words[0]}, which is shown this once and kept nowhere:\n\n    {key}\n\n")
    return _print(stanza)


COMMANDS: Mapping[str, tuple[Callable[[Sequence[str]], int], Callable[[], str]]] = {
    "serve": (_serve, help_text.serve),
    "models": (_models, help_text.models),
    "key": (_key, help_text.key),
}
