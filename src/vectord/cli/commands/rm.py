"""`vectord rm`: remove models from the Hugging Face cache."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from vectord.cli.commands import JSON, command_with_settings, load_settings
from vectord.cli.printing import print_json, print_text
from vectord.config.command_line import pass_command_line
from vectord.config.sources import CommandLine, export_hub
from vectord.errors import ConfigError

HELP = """\
Remove each MODEL from the cache of `vectord pull`, with all revisions. A folder of your own and an installed package
are refused. A server that has the model in memory continues until it loads it again.

\b
Exit codes:
  0  the models are removed
  2  a bad option, or a MODEL that is not in the cache; nothing is removed

\b
Examples:
  vectord rm BAAI/bge-m3
  vectord rm nomic-embed-text --hub-cache /models"""


@dataclass(frozen=True, slots=True)
class Removed:
    model: str
    folder: Path
    freed_bytes: int


@command_with_settings(help=HELP, short_help="Remove models from the cache.", params=[JSON])
@pass_command_line
def command(line: CommandLine, as_json: bool) -> int:
    from vectord.checkpoints.hub import cache_folder  # noqa: PLC0415

    if "models" not in line.layer:
        raise ConfigError("name a model; vectord list has them")
    config = load_settings(line).config.model
    export_hub(config, os.environ)
    cache = cache_folder(config.hf_home, os.environ)
    found = list({one.folder: one for one in [_find(name, cache) for name in config.models]}.values())
    for one in found:
        shutil.rmtree(one.folder)
        shutil.rmtree(cache / ".locks" / one.folder.name, ignore_errors=True)
    if as_json:
        return print_json([{"model": one.model, "freed_bytes": one.freed_bytes} for one in found])
    return print_text("\n".join(f"removed {one.model}, {one.freed_bytes / 1e6:,.1f} MB" for one in found))


def _find(name: str, cache: Path) -> Removed:
    """Raises ConfigError for anything but a model in the cache."""
    from vectord.checkpoints import catalogue  # noqa: PLC0415
    from vectord.checkpoints.hub import check_names  # noqa: PLC0415
    from vectord.checkpoints.pulling import repository_folder  # noqa: PLC0415

    entry = catalogue.find(name)
    hub_id = entry.hub_id if entry is not None else name
    check_names(hub_id, None)
    folder = repository_folder(hub_id, cache)
    if not folder.is_dir() or folder.is_symlink():
        raise ConfigError(f"model {hub_id} is not in {cache}; vectord list shows where it is")
    blobs = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return Removed(hub_id, folder, sum(path.stat().st_size for path in blobs))
