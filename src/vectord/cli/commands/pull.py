"""`vectord pull`: models from the hub into the cache, and what they were into vectord.lock."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vectord.cli.printing import print_table, print_text
from vectord.config.hub import tell_hub
from vectord.config.sources import Loaded, load
from vectord.errors import ConfigError

if TYPE_CHECKING:
    from vectord.checkpoints.lock import LockedModel
    from vectord.checkpoints.pulling import Progress, Pulled

USAGE = "pull [MODEL ...] [options]"
SUMMARY = "fetch models from the hub, and lock them"

_HELP = """\
Usage: vectord pull [MODEL ...] [--locked] [--json] [options of vectord serve]

Fetches each MODEL (a hub id; without one, the models that the settings name) into the cache that
`vectord serve` reads: only the files that are read, torch files and graphs only for want of
safetensors. An interrupted pull goes on where it ended, also after kill -9. Every file is compared
with the checksum that the hub announces, also one that was there already.

What came is written to vectord.lock: each model's commit, and each file's size and sha256.
`vectord serve --lock-file vectord.lock` serves these commits and refuses files that differ.

Options
  --lock-file FILE
        The lock file; default: ./vectord.lock, also where LOCK_FILE is not set.
  --locked, --frozen
        Fetch the commits of the lock file, which must name every MODEL; a file that differs is
        refused, and the lock file stays as it is.
  --json
        Print what was fetched as JSON, and no bar.
  -h, --help
        Print this text.

Of the options of `vectord serve` these matter: --revision, --hf-home, --hub-cache, --hf-endpoint,
--hf-token (HF_TOKEN), --model-catalogue, and --backend onnxruntime with --onnx-file.

Exit codes
  0    all is here and was compared
  2    a model that is not on the hub, a checksum that differs, a lock file that lacks a model
  130  Ctrl-C: the same command goes on

Examples
  vectord pull BAAI/bge-m3 BAAI/bge-reranker-v2-m3
  vectord pull BAAI/bge-m3 --locked --hub-cache /models
  HF_ENDPOINT=https://mirror.example vectord pull intfloat/multilingual-e5-small --json
"""


def help() -> str:
    return _HELP


def run(words: Sequence[str]) -> int:
    from vectord.checkpoints.lock import LOCK_FILE, read_lock, write_lock  # noqa: PLC0415

    loaded = load(words, os.environ, Path.cwd(), switches=("--locked", "--frozen", "--json"))
    config = loaded.config.model
    if config.offline:
        raise ConfigError(f"{loaded.origins['offline']}: pull asks the hub, and that forbids it")
    tell_hub(config, os.environ)
    path = Path(config.lock_file or LOCK_FILE).expanduser()
    is_locked = bool(loaded.switches & {"--locked", "--frozen"})
    lock = dict(read_lock(path)) if is_locked or path.exists() else {}
    pulled = []
    with _progress("--json" in loaded.switches) as progress:
        for hub_id in _hub_ids(loaded):
            held_to = _held_to(lock, hub_id, path) if is_locked else None
            pulled.append(_pull(hub_id, loaded, progress, held_to))
            if not is_locked:  # after each: what was seen of one model does not hang on the next
                lock[hub_id] = pulled[-1].locked
                write_lock(path, lock.values())
    if "--json" in loaded.switches:
        return print_text(json.dumps({"lock_file": str(path), "models": [_row(one) for one in pulled]}, indent=2))
    return print_table(_table(pulled, path, is_locked))


def _hub_ids(loaded: Loaded) -> list[str]:
    """Each once. Raises ConfigError for a folder, which is here already."""
    from vectord.checkpoints import catalogue  # noqa: PLC0415
    from vectord.engine.models.wanted import wanted_models  # noqa: PLC0415

    found: dict[str, None] = {}
    for wanted in wanted_models(loaded.config.model):
        if Path(wanted.model).is_absolute() or wanted.model.startswith((".", "~")):
            raise ConfigError(f"model {wanted.model}: a folder is not fetched; give a hub id such as BAAI/bge-m3")
        entry = catalogue.find(wanted.model)
        found[entry.hub_id if entry is not None else wanted.model] = None
    return list(found)


def _held_to(lock: dict[str, LockedModel], hub_id: str, path: Path) -> LockedModel:
    if hub_id not in lock:
        raise ConfigError(f"--locked: {hub_id} is not in {path}; vectord pull without --locked adds it")
    return lock[hub_id]


def _pull(hub_id: str, loaded: Loaded, progress: Progress, held_to: LockedModel | None) -> Pulled:
    from vectord.checkpoints.hub import cache_folder, check_names  # noqa: PLC0415
    from vectord.checkpoints.pulling import pull  # noqa: PLC0415
    from vectord.engine.models.graphs import wanted_graphs  # noqa: PLC0415

    config = loaded.config.model
    check_names(hub_id, config.revision)
    return pull(
        hub_id,
        revision=config.revision,
        cache=cache_folder(config.hf_home, os.environ),
        token=config.hf_token,
        progress=progress,
        graphs=wanted_graphs(loaded.config.device),
        held_to=held_to,
    )


@contextmanager
def _progress(as_json: bool) -> Iterator[Progress]:
    """A bar a file on a terminal; else a line a file on standard error, and nothing beside JSON."""
    if as_json or not sys.stderr.isatty():
        yield _silent if as_json else _Lines().tell
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn())
    with Progress(*columns, TransferSpeedColumn(), TimeRemainingColumn(), console=Console(stderr=True)) as bars:
        tasks: dict[str, Any] = {}

        def tell(path: str, done: int, total: int | None) -> None:
            if path not in tasks:
                tasks[path] = bars.add_task(path, total=total)
            bars.update(tasks[path], completed=done)

        yield tell


def _silent(path: str, done: int, total: int | None) -> None:
    pass


class _Lines:
    """For a log: when a file begins, and from where."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def tell(self, path: str, done: int, total: int | None) -> None:
        if path not in self._seen:
            self._seen.add(path)
            begins = f", going on from {done:,}" if done else ""
            sys.stderr.write(f"vectord: {path}, {total:,} bytes{begins}\n")


def _row(one: Pulled) -> dict[str, Any]:
    return {**asdict(one.locked), "folder": str(one.folder), "fetched_bytes": one.fetched_bytes}


def _table(pulled: Sequence[Pulled], path: Path, is_locked: bool) -> Any:
    from rich.table import Table  # noqa: PLC0415

    verb = "held to" if is_locked else "written to"
    table = Table(box=None, pad_edge=False, caption=f"{verb} {path}", caption_justify="left")
    for heading in ("model", "commit", "files", "size", "fetched", "where"):
        table.add_column(
            heading, overflow="fold", justify="right" if heading in ("files", "size", "fetched") else "left"
        )
    for one in pulled:
        size_bytes = sum(file.size_bytes for file in one.locked.files)
        table.add_row(
            one.locked.model,
            one.locked.commit[:12],
            str(len(one.locked.files)),
            f"{size_bytes / 1e6:.1f} MB",
            f"{one.fetched_bytes / 1e6:.1f} MB",
            str(one.folder),
        )
    return table
