"""`vectord.lock`: which commit of each model, and the sha256 of each of its files.

`vectord pull` writes it, after it has seen every byte. `vectord serve --lock-file` takes the commits from it as
revisions, and models/facts.py refuses a model whose files are not those. Read and written on the main thread, at start.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from vectord.checkpoints import catalogue
from vectord.checkpoints.snapshot import DOWNLOADED
from vectord.errors import ConfigError, ModelUnavailable

LOCK_FILE = "vectord.lock"

_VERSION = 1
_MOST_BYTES = 4 * 2**20
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_HEAD = "# Written by `vectord pull`; read by `vectord pull --locked` and `vectord serve --lock-file`.\n"


@dataclass(frozen=True, slots=True)
class LockedFile:
    path: str  # below the model's folder, with /
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class LockedModel:
    model: str  # the hub id
    commit: str
    files: tuple[LockedFile, ...]


Lock = Mapping[str, LockedModel]  # by hub id


def read_lock(path: Path) -> Lock:
    """Raises ConfigError, naming the file: not there, too large, or not one that `vectord pull` has written."""
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"lock file {path}: {error.strerror}; `vectord pull` writes one") from error
    if len(content) > _MOST_BYTES:
        raise ConfigError(f"lock file {path}: over {_MOST_BYTES // 2**20} MiB")
    try:
        said = tomllib.loads(content.decode())
        if said["version"] != _VERSION:
            raise ValueError(f"version {said['version']} is not {_VERSION}")
        models = [_model(one) for one in said.get("models", [])]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"lock file {path}: not one that `vectord pull` has written ({error})") from error
    return {one.model: one for one in models}


def write_lock(path: Path, models: Iterable[LockedModel]) -> None:
    """Whole or not at all, however the process ends. Raises ConfigError for a folder that cannot be written."""
    text = _HEAD + f"version = {_VERSION}\n" + "".join(map(_stanza, sorted(models, key=lambda one: one.model)))
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise ConfigError(f"lock file {path}: cannot be written ({error.strerror})") from error


def locked(lock: Lock, name: str) -> LockedModel | None:
    """What is locked of the model of this name, as the operator says it."""
    entry = catalogue.find(name)
    return lock.get(entry.hub_id if entry is not None else name)


def check_folder(folder: Path, model: LockedModel, read: Iterable[Path] = ()) -> None:
    """Every locked file is in `folder` as it was, and what is read of it is locked.

    read: files that will be opened, beside those that are always looked for. Reads every byte: some seconds for
    gigabytes. Raises ModelUnavailable, naming the file.
    """
    for one in model.files:
        path = folder / one.path
        if not path.is_file():
            raise ModelUnavailable(f"{model.model}: {one.path} is in the lock file and not in {folder}")
        if path.stat().st_size != one.size_bytes or file_sha256(path) != one.sha256:
            raise ModelUnavailable(f"{model.model}: {path} is not the file that the lock file has; fetch it again")
    names = {one.path for one in model.files}
    for path in (*_looked_for(folder), *read):
        name = PurePosixPath(path.relative_to(folder)).as_posix()
        if name not in names:
            raise ModelUnavailable(f"{model.model}: {name} would be read and is not in the lock file")


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _looked_for(folder: Path) -> Iterator[Path]:
    return (path for pattern in DOWNLOADED for path in folder.glob(pattern) if path.is_file())


def _model(said: Any) -> LockedModel:
    if not isinstance(said["model"], str) or not _COMMIT.fullmatch(said["commit"]):
        raise ValueError("a model's commit is 40 hex digits")
    return LockedModel(said["model"], said["commit"], tuple(_file(one) for one in said["files"]))


def _file(said: Any) -> LockedFile:
    path = PurePosixPath(said["path"])
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError("a file's path lies outside its model's folder")
    if not _SHA256.fullmatch(said["sha256"]) or type(said["size_bytes"]) is not int:
        raise ValueError("a file has a size_bytes and a sha256 of 64 hex digits")
    return LockedFile(said["path"], said["size_bytes"], said["sha256"])


def _stanza(model: LockedModel) -> str:
    files = "".join(
        f"  {{ path = {json.dumps(one.path)}, size_bytes = {one.size_bytes}, sha256 = {json.dumps(one.sha256)} }},\n"
        for one in sorted(model.files, key=lambda one: one.path)
    )
    return (
        f"\n[[models]]\nmodel = {json.dumps(model.model)}\ncommit = {json.dumps(model.commit)}\nfiles = [\n{files}]\n"
    )
