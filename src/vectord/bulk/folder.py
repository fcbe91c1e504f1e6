"""OUT.parts: the part files of a job, and the manifest that says which job they belong to.

    OUT.parts/_vectord.json       the manifest; a later start must have the same
    OUT.parts/_lock               held by the processes that work on the job
    OUT.parts/part-000000.SUFFIX  rows 0 to part_rows of IN, with their vectors, in the format of OUT

parts.py writes the parts, and `_SUCCESS` when all exist.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import msgspec

from vectord.bulk.inputs import Store, connect_store
from vectord.bulk.job import BulkFailed, BulkJob, Manifest
from vectord.bulk.outputs import BulkOutput, FileFormat
from vectord.bulk.rows import EmbeddedRows, Rows
from vectord.config.sources import without_password
from vectord.errors import ConfigError
from vectord.parts import PartFolder, move

MANIFEST, LOCK = "_vectord.json", "_lock"


class JobFolder(BulkOutput):
    """The folder of one job, locked from `start` to `close`. Shards of a job share the lock."""

    def __init__(self, job: BulkJob, format: FileFormat) -> None:
        """Raises ConfigError if OUT exists, or its folder cannot be reached or written."""
        self.name = str(job.folder) if job.keep_parts else without_password(job.out_url or str(job.out))
        self.parts = PartFolder(job.folder, format.suffix)
        self._job = job
        self._format = format
        self._lock: IO[bytes] | None = None
        self._file: Any = None  # of the unfinished part
        self._temporary: Path | None = None
        self._is_merged = False
        if not (self.parts.path.exists() or os.access(job.out.parent, os.W_OK)):
            raise ConfigError(f"OUT: the folder {job.out.parent} does not exist or cannot be written")
        self._store: Store | None = None
        self._place = ""  # of OUT in the store
        if job.out_url is not None:
            self._store, self._place = connect_store(job.out_url, "OUT")
        try:
            exists = job.out.exists() if self._store is None else self._store.exists(self._place)
        except Exception as cause:  # each store has errors of its own
            raise ConfigError(without_password(f"OUT: {self.name} cannot be reached: {cause}")) from None
        if exists and not (job.keep_parts or job.restart or (self.parts.path / MANIFEST).exists()):
            _delete(self.parts)  # OUT was made of them
            raise ConfigError(f"OUT: {self.name} exists already; --restart replaces it when the new one is complete")

    def begin(self, rows: Iterator[Rows]) -> Iterator[Rows]:
        return self._format.begin(rows)

    def start(self, manifest: Manifest, widths: Mapping[str, int], facts: Mapping[str, Any]) -> frozenset[int]:
        """Raises ConfigError if another process works on the folder, or it belongs to another job or cannot be
        written."""
        self._format.start(widths, facts)
        parts, job = self.parts, self._job
        try:
            with ExitStack() as stack:
                parts.path.mkdir(exist_ok=True)
                lock = stack.enter_context((parts.path / LOCK).open("ab"))
                fcntl.flock(lock, fcntl.LOCK_NB | (fcntl.LOCK_SH if job.is_shard else fcntl.LOCK_EX))
                _begin(parts, manifest, restart=job.restart)
                if not job.is_shard:
                    parts.delete_unfinished()
                stack.pop_all()  # the lock stays
        except BlockingIOError:
            raise ConfigError(f"OUT: another process is working on {job.out}") from None
        except OSError as problem:
            raise ConfigError(f"OUT: {parts.path} cannot be used: {problem.strerror}") from None
        self._lock = lock
        return frozenset(parts.finished())

    def write(self, part: int, rows: Sequence[EmbeddedRows]) -> None:
        with _writing():
            if self._file is None:
                self._temporary = self.parts.temporary()
                self._file = self._format.open(self._temporary)
            self._format.write(self._file, rows)

    def finish(self, part: int) -> None:
        assert self._temporary is not None
        with _writing():
            self._format.close(self._file)
            self.parts.add(self._temporary, part)
        self._file = None

    def complete(self, parts: int) -> int:
        """The number of missing parts. If it is 0, marks the folder as complete, and makes OUT of it, unless the job
        keeps its parts."""
        found = self.parts.finished()
        if found and found[-1] >= parts:
            raise BulkFailed("IN has fewer rows than at the start of this job; --restart starts over.")
        if len(found) == parts:
            with _writing():
                self.parts.succeed()
                if not self._job.keep_parts:
                    self._merge(parts)
        return parts - len(found)

    def _merge(self, parts: int) -> None:
        whole = self.parts.temporary()
        try:
            self._format.merge([self.parts.part(index) for index in range(parts)], whole)
            if self._store is None:
                move(whole, self._job.out)
            else:
                try:
                    self._store.put_file(str(whole), self._place)
                except Exception as cause:  # each store has errors of its own
                    reason = f"OUT cannot be written: {cause}; the same command tries again"
                    raise BulkFailed(without_password(reason)) from cause
        except BaseException:
            whole.unlink(missing_ok=True)  # as large as OUT, on a disk that may be full
            raise
        self._is_merged = True

    def close(self) -> None:
        """Deletes the unfinished part, and the folder if OUT was made of it, or if it has no parts and belongs to no
        shard."""
        if self._file is not None and self._temporary is not None:
            with suppress(Exception):  # such as a disk that is full
                self._format.close(self._file)
            self._temporary.unlink(missing_ok=True)
        if self._lock is not None:
            if self._is_merged or not (self._job.is_shard or self.parts.finished()):
                _delete(self.parts)
            self._lock.close()


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise BulkFailed(f"OUT cannot be written: {problem.strerror or problem}.") from problem


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
