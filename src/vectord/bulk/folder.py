"""OUT.parts: the part files of a job, and the manifest that says which job they belong to.

    OUT.parts/_vectord.json       the manifest; a later start must have the same
    OUT.parts/_lock               held by the processes that work on the job
    OUT.parts/part-000000.SUFFIX  rows 0 to part_rows of IN, with their vectors, in the format of OUT

parts.py writes the parts, and `_SUCCESS` when all exist. The functions here block; the pipeline calls one at a time.
"""

from __future__ import annotations

import fcntl
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import IO, Any

import msgspec

from vectord.bulk.job import BulkFailed, BulkJob
from vectord.bulk.outputs import BulkOutput
from vectord.errors import ConfigError
from vectord.parts import PartFolder, move

VERSION = 3
MANIFEST, LOCK = "_vectord.json", "_lock"


class Manifest(msgspec.Struct):
    version: int
    source: str  # InputSource.identity
    options: dict[str, Any]  # BulkJob.options
    model: str
    space: str  # of the vectors; differs for other weights


class JobFolder:
    """The folder of one job, locked. Shards of a job share the lock. `close` it."""

    def __init__(self, job: BulkJob, parts: PartFolder, lock: IO[bytes]) -> None:
        self.parts = parts
        self._job = job
        self._lock = lock
        self._is_merged = False

    def complete(self, parts: int, output: BulkOutput) -> int:
        """The number of missing parts. If it is 0, marks the folder as complete, and makes OUT of it, unless the job
        keeps its parts.

        parts: the number of parts of IN. Raises BulkFailed.
        """
        found = self.parts.finished()
        if found and found[-1] >= parts:
            raise BulkFailed("IN has fewer rows than at the start of this job; --restart starts over.")
        if len(found) == parts:
            try:
                self.parts.succeed()
                if not self._job.keep_parts:
                    whole = self.parts.temporary()
                    try:
                        output.merge([self.parts.part(index) for index in range(parts)], whole)
                        move(whole, self._job.out)
                    except BaseException:
                        whole.unlink(missing_ok=True)  # as large as OUT, on a disk that may be full
                        raise
                    self._is_merged = True
            except OSError as problem:
                raise BulkFailed(f"OUT cannot be written: {problem.strerror}.") from problem
        return parts - len(found)

    def close(self) -> None:
        """Deletes the folder if OUT was made of it, or if it has no parts and belongs to no shard."""
        if self._is_merged or not (self._job.is_shard or self.parts.finished()):
            _delete(self.parts)
        self._lock.close()


def open_folder(job: BulkJob, suffix: str, manifest: Manifest, *, restart: bool) -> JobFolder:
    """Start or resume a job. Raises ConfigError if OUT exists, another process works on it, or the folder belongs to
    another job or cannot be written."""
    parts = PartFolder(job.folder, suffix)
    if job.out.exists() and not (job.keep_parts or restart or (parts.path / MANIFEST).exists()):
        _delete(parts)  # OUT was made of them
        raise ConfigError(f"OUT: {job.out} exists already; --restart replaces it when the new one is complete")
    try:
        with ExitStack() as stack:
            parts.path.mkdir(exist_ok=True)
            lock = stack.enter_context((parts.path / LOCK).open("ab"))
            fcntl.flock(lock, fcntl.LOCK_NB | (fcntl.LOCK_SH if job.is_shard else fcntl.LOCK_EX))
            _begin(parts, manifest, restart=restart)
            if not job.is_shard:
                parts.delete_unfinished()
            stack.pop_all()  # the lock stays
    except BlockingIOError:
        raise ConfigError(f"OUT: another process is working on {job.out}") from None
    except OSError as problem:
        raise ConfigError(f"OUT: {parts.path} cannot be used: {problem.strerror}") from None
    return JobFolder(job, parts, lock)


def _begin(parts: PartFolder, manifest: Manifest, *, restart: bool) -> None:
    """Write the manifest, or compare it with the one that is there. Only --restart deletes parts: shards that start at
    the same time write equal manifests."""
    path = parts.path / MANIFEST
    if restart:
        path.unlink(missing_ok=True)
        parts.clear()
    has_parts = bool(parts.finished())  # looked up first: a shard writes its manifest, then parts
    if not path.exists():
        if has_parts:
            raise ConfigError(f"OUT: {parts.path} has parts and no {MANIFEST}; --restart starts over")
        written = parts.temporary()
        written.write_bytes(msgspec.json.encode(manifest))
        move(written, path)
    try:
        before = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except msgspec.DecodeError:
        raise ConfigError(f"OUT: {path} is damaged; --restart starts over") from None
    differences = [
        words.format(before=getattr(before, name), now=getattr(manifest, name))
        for name, words in _DIFFERENCES.items()
        if getattr(before, name) != getattr(manifest, name)
    ]
    differences += [
        f"{name} {before.options.get(name)}, now {value}"
        for name, value in manifest.options.items()
        if before.options.get(name) != value
    ]
    if differences:
        found = "; ".join(differences)
        raise ConfigError(f"OUT: {parts.path} belongs to another job ({found}); --restart starts over")


def _delete(parts: PartFolder) -> None:
    """The manifest first: parts without one are never used. Keeps files that are not the job's."""
    (parts.path / MANIFEST).unlink(missing_ok=True)
    parts.clear()
    (parts.path / LOCK).unlink(missing_ok=True)
    with suppress(OSError):
        parts.path.rmdir()


_DIFFERENCES: Mapping[str, str] = {
    "version": "another version of vectord",
    "source": "another input, or a changed one",
    "model": "model {before}, now {now}",
    "space": "other weights: vector space {before}, now {now}",
}
