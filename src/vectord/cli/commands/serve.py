"""`vectord serve`: a server until it is told to stop, or, with --print-config, what it would be."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vectord.cli.printing import print_table, print_text
from vectord.cli.settings_help import entry, sections
from vectord.config.files import CONFIG_FILE, profiles
from vectord.config.settings import SETTINGS
from vectord.config.sources import Loaded, load
from vectord.errors import ConfigError

USAGE = "serve [MODEL ...] [options]"
SUMMARY = "serve models over HTTP"

_HELP = """\
Usage: vectord serve [MODEL ...] [options]

Serves each MODEL (a hub id, a folder, an installed package) over HTTP until it is told to stop.

Every option has an environment name, with or without VECTORD_ before it (the longer one wins).
The other names in brackets are those of other servers, and options too: MODEL_ID is --model-id,
INFINITY_BATCH_SIZE is --batch-size. Names of theirs that mean nothing here are accepted, and the
log says so once (docs/configuration.md says why).

Command line beats environment, environment beats .env, .env beats the config file, that beats
the profile. A list takes several names, separated by , or ;. A switch may stand alone, take true
or false, or be turned around: --no-auto-truncate.
"""


def help() -> str:
    own = (
        entry(f"--config FILE  [VECTORD_CONFIG; default: ./{CONFIG_FILE} if there is one]", "Settings as TOML."),
        entry(
            "--profile NAME  [VECTORD_PROFILE; default: default]",
            f"Stand in for another product: {', '.join(profiles())}.",
        ),
        entry("--print-config", "Print each value and where it came from, and stop."),
        entry("--json", "With --print-config: as JSON."),
        entry("-h, --help", "Print this text."),
    )
    return "\n".join((_HELP, "Sources", *own, *sections()))


def run(words: Sequence[str]) -> int:
    loaded = load(words, os.environ, Path.cwd(), switches=("--print-config", "--json"))
    if "--print-config" in loaded.switches:
        return _print_config(loaded, as_json="--json" in loaded.switches)
    if "--json" in loaded.switches:
        raise ConfigError("--json (command line): goes with --print-config")
    from vectord.observability import logs  # noqa: PLC0415

    logs.configure(loaded.config.telemetry)
    loaded.tell()
    if loaded.config.server.front_ends > 1:
        from vectord.cluster.processes.supervisor import supervise  # noqa: PLC0415

        return supervise(loaded.config)
    from vectord import compose  # noqa: PLC0415 - everything that serves, imported to serve

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
        return print_text(_config_json(rows, loaded))
    from rich.table import Table  # noqa: PLC0415

    table = Table(title=f"profile {loaded.profile}", title_justify="left", box=None, pad_edge=False)
    table.add_column("setting", no_wrap=True)
    table.add_column("value", overflow="fold")
    table.add_column("from", overflow="fold")
    for section, name, value in rows:
        table.add_row(f"{section}.{name}", _shown(value), str(loaded.origins[name]))
    return print_table(table)


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
