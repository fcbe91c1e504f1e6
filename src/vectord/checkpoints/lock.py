"""`vectord.lock`: the commit of each model and the sha256 of each of its files.

`vectord pull` writes it after reading every byte. `vectord serve --lock-file` takes the commits as revisions, and
refuses a model whose files differ. Read and written on the main thread, at start.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from vectord.checkpoints.files.read import read_operators_file
from vectord.checkpoints.snapshot import DOWNLOADED
from vectord.errors import ConfigError, ModelUnavailable
from vectord.parts import move

LOCK_FILE = "vectord.lock"

_LIMIT_BYTES = 4 * 2**20
_HEAD = "# Written by `vectord pull`; read by `vectord pull --locked` and `vectord serve --lock-file`.\n"


class LockedFile(msgspec.Struct, frozen=True):
    path: str  # below the model's folder, with /
    size_bytes: int
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class LockedModel(msgspec.Struct, frozen=True):
    model: str  # the hub id
    commit: Annotated[str, Meta(pattern="^[0-9a-f]{40}$")]
    files: tuple[LockedFile, ...]


class _LockFile(msgspec.Struct, frozen=True):
    version: Literal[1]
    models: tuple[LockedModel, ...] = ()


Lock = Mapping[str, LockedModel]  # by hub id


def read_lock(path: Path) -> Lock:
    """Raises ConfigError, naming the file: missing, too large, or not in the form that `vectord pull` writes."""
    content = read_operators_file("lock_file", str(path), _LIMIT_BYTES)
    try:
        models = msgspec.toml.decode(content, type=_LockFile).models
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise ConfigError(f"lock file {path}: not a file that `vectord pull` has written ({error})") from error
    return {model.model: model for model in models}


def write_lock(path: Path, models: Iterable[LockedModel]) -> None:
    """Replace the file atomically."""
    lines = [_HEAD, "version = 1\n"]
    for model in sorted(models, key=lambda model: model.model):
        lines.append(
            f"\n[[models]]\nmodel = {json.dumps(model.model)}\ncommit = {json.dumps(model.commit)}\nfiles = [\n"
        )
        for file in sorted(model.files, key=lambda file: file.path):
            digest = json.dumps(file.sha256)
            lines.append(
                f"  {{ path = {json.dumps(file.path)}, size_bytes = {file.size_bytes}, sha256 = {digest} }},\n"
            )
        lines.append("]\n")
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text("".join(lines), "utf-8")
        move(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise ConfigError(f"lock file {path}: cannot be written ({error.strerror})") from error


def check_folder(folder: Path, model: LockedModel, read: Iterable[Path] = ()) -> None:
    """Check that every locked file in `folder` is unchanged, and that every file that will be read is locked.

    read: files that will be opened in addition to those of every model. Reads every byte: seconds for gigabytes.
    """
    for file in model.files:
        path = folder / file.path
        if not path.is_file():
            raise ModelUnavailable(f"{model.model}: {file.path} is in the lock file and not in {folder}")
        if path.stat().st_size != file.size_bytes or file_sha256(path) != file.sha256:
            raise ModelUnavailable(f"{model.model}: {path} differs from the lock file; fetch it again")
    names = {file.path for file in model.files}
    usual = (path for pattern in DOWNLOADED for path in folder.glob(pattern) if path.is_file())
    for path in (*usual, *read):
        name = PurePosixPath(path.relative_to(folder)).as_posix()
        if name not in names:
            raise ModelUnavailable(f"{model.model}: {name} would be read and is not in the lock file")


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
