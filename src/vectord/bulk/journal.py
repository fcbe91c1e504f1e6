"""The folder OUT.parts: the bytes of OUT, and a journal of the finished parts. Survives kill -9 at any moment.

    OUT.parts/data      grows by one part: written and fsynced, and only then
    OUT.parts/journal   gets a line with the number of rows and bytes
    OUT.parts/lock      is held by the process that works on the job

The next start removes everything after the last complete line, from both files. The functions here run in a thread, one
call at a time.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import shutil
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec

from vectord.bulk.job import BulkFailed, BulkJob
from vectord.bulk.outputs import BulkOutput
from vectord.bulk.rows import EmbeddedRows, InvalidText, Rows, digest_of
from vectord.errors import ConfigError

VERSION = 2
DATA, JOURNAL, LOCK = "data", "journal", "lock"
PART_ROWS = 4096
PART_BYTES = 32 * 2**20  # of vectors and columns, approximately
PART_S = 30.0  # a kill loses at most this much work, and the requests in flight


class JobHeader(msgspec.Struct):
    """The first line of the journal."""

    version: int
    source: str  # InputSource.identity
    options: dict[str, Any]  # BulkJob.options
    model: str
    fingerprint: str


class PartRecord(msgspec.Struct):
    """A finished part. rows, bytes, tokens, cut, failed and seconds are sums from the start of the job."""

    rows: int
    bytes: int
    tokens: int
    cut: int
    failed: int
    seconds: float  # of work
    space: str  # of the vectors; "" as long as there are none
    part_rows: int
    texts: str  # digest of the part's texts
    start: int  # offset of the part's rows in data
    crc: int  # of the part's rows


@dataclass(frozen=True, slots=True)
class JobFolder:
    out: Path

    @property
    def path(self) -> Path:
        return self.out.with_name(self.out.name + ".parts")

    @property
    def data(self) -> Path:
        return self.path / DATA


NO_PART = PartRecord(0, 0, 0, 0, 0, 0.0, "", 0, "", 0, 0)


class Journal:
    """The journal of one job. parts: the finished ones."""

    def __init__(self, folder: JobFolder, lock: IO[bytes], parts: list[PartRecord]) -> None:
        self.folder = folder
        self.parts = parts
        self.resumed_rows = self.last.rows
        self._lock = lock
        self._data = folder.data.open("ab")
        self._lines = (folder.path / JOURNAL).open("ab")

    @property
    def last(self) -> PartRecord:
        return self.parts[-1] if self.parts else NO_PART

    def add(self, data: bytes, part: PartRecord) -> None:
        """Append a part. It is on the disk when this returns. Raises OSError, also if the data file was deleted."""
        if os.fstat(self._data.fileno()).st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, f"{self.folder.data} was deleted")
        _write(self._data, data)
        _write(self._lines, msgspec.json.encode(part) + b"\n")
        self.parts.append(part)

    def deliver(self, whole: Path) -> None:
        """Rename `whole`, a file in the folder, to OUT, and delete the folder."""
        with whole.open("rb") as file:
            os.fsync(file.fileno())
        whole.replace(self.folder.out)
        _sync_folder(self.folder.out.parent)
        self.close()
        shutil.rmtree(self.folder.path)

    def close(self) -> None:
        """Can be repeated. Deletes the folder if it contains no part."""
        for file in (self._data, self._lines, self._lock):
            file.close()
        if not self.parts:
            shutil.rmtree(self.folder.path, ignore_errors=True)


class PartWriter:
    """Groups embedded rows into parts. Lives on the event loop; encoding and writing run in a thread."""

    def __init__(self, job: BulkJob, journal: Journal, output: BulkOutput, dimensions: int) -> None:
        """dimensions: of dense vectors, as the model reports them; used for parts without vectors."""
        self._job = job
        self._journal = journal
        self._output = output
        self._width = dimensions
        self._token_width = 0
        self._part: list[EmbeddedRows] = []
        self._rows = self._bytes = 0
        self._space = journal.last.space
        self._started_s = self._part_started_s = time.monotonic()
        self._seconds_before = journal.last.seconds

    async def add(self, embedded: EmbeddedRows) -> None:
        """The next rows. Raises BulkFailed for another vector space, and with --on-error fail for a failed row."""
        self._check_space(embedded)
        self._learn_widths(embedded)
        if embedded.errors and self._job.on_error == "fail":
            row = min(embedded.errors)
            self._hold(embedded.until(row))
            raise BulkFailed(
                f"Row {self._journal.last.rows + self._rows}, counted from 0: {embedded.errors[row]} "
                "(--on-error null continues without its vectors)"
            )
        self._hold(embedded)
        is_late = time.monotonic() - self._part_started_s >= PART_S
        if self._rows >= PART_ROWS or self._bytes >= PART_BYTES or is_late:
            await self.flush()

    async def flush(self) -> None:
        """Write the held rows as a part."""
        part, self._part = self._part, []
        self._rows = self._bytes = 0
        if part:
            await asyncio.to_thread(self._write, part)
        self._part_started_s = time.monotonic()

    def _hold(self, embedded: EmbeddedRows) -> None:
        if len(embedded.rows):
            self._part.append(embedded)
            self._rows += len(embedded.rows)
            self._bytes += embedded.rows.size_bytes + (embedded.vectors.size_bytes if embedded.vectors else 0)

    def _check_space(self, embedded: EmbeddedRows) -> None:
        space = "" if embedded.vectors is None else embedded.vectors.space
        self._space = self._space or space
        if space and space != self._space:
            raise BulkFailed(
                f"The model has changed: its vectors belong to the space {space}, the earlier ones to {self._space}."
            )

    def _learn_widths(self, embedded: EmbeddedRows) -> None:
        if embedded.vectors is None:
            return
        if embedded.vectors.dense is not None:
            self._width = embedded.vectors.dense.shape[1]
        for rows in embedded.vectors.colbert or ():
            self._token_width = rows.shape[1] or self._token_width

    def _write(self, part: Sequence[EmbeddedRows]) -> None:
        last = self._journal.last
        head, body = self._output.part(part, last.rows, self._width, self._token_width)
        texts = [text for one in part for text in one.rows.texts]
        vectors = [one.vectors for one in part if one.vectors is not None]
        record = PartRecord(
            rows=last.rows + len(texts),
            bytes=last.bytes + len(head) + len(body),
            tokens=last.tokens + sum(one.tokens for one in vectors),
            cut=last.cut + sum(one.cut for one in vectors),
            failed=last.failed + sum(len(one.errors) for one in part),
            seconds=self._seconds_before + time.monotonic() - self._started_s,
            space=self._space,
            part_rows=len(texts),
            texts=digest_of(texts),
            start=last.bytes + len(head),
            crc=zlib.crc32(body),
        )
        try:
            self._journal.add(head + body, record)
        except OSError as problem:  # the next start removes the incomplete part
            raise BulkFailed(f"OUT cannot be written: {problem.strerror}.") from problem


def open_journal(folder: JobFolder, header: JobHeader, *, restart: bool) -> Journal:
    """The journal, after the last finished part. Raises ConfigError if OUT exists, another process works on it, or the
    folder belongs to another job."""
    if folder.out.exists() and not restart and not _is_unfinished(folder):
        raise ConfigError(f"OUT: {folder.out} exists already; --restart replaces it when the new one is complete")
    try:
        folder.path.mkdir(exist_ok=True)
    except OSError as problem:
        raise ConfigError(f"OUT: {folder.path} cannot be made: {problem.strerror}") from None
    lock = (folder.path / LOCK).open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        parts = [] if restart else _finished_parts(folder, header)
    except BlockingIOError:
        lock.close()
        raise ConfigError(f"OUT: another process is working on {folder.out}") from None
    except BaseException:
        lock.close()
        raise
    if not parts:
        for path, data in ((folder.path / JOURNAL, msgspec.json.encode(header) + b"\n"), (folder.data, b"")):
            with path.open("wb") as file:
                _write(file, data)
        _sync_folder(folder.path)
        _sync_folder(folder.out.parent)
    return Journal(folder, lock, parts)


def remaining_rows(parts: Sequence[PartRecord], reader: Iterator[Rows]) -> Iterator[Rows]:
    """The rows of `reader` after the finished parts. Runs in the reading thread.

    Raises BulkFailed if the texts of the finished parts have changed: their vectors would belong to other texts.
    """
    held: Rows | None = None
    for part in parts:
        texts: list[str | InvalidText] = []
        while len(texts) < part.part_rows:
            rows = next(reader, None) if held is None else held
            if rows is None:
                raise BulkFailed("IN has fewer rows than at the start of this job; --restart starts over.")
            count = min(len(rows), part.part_rows - len(texts))
            texts += rows.texts[:count]
            held = rows.slice(count, len(rows)) if count < len(rows) else None
        if digest_of(texts) != part.texts:
            raise BulkFailed("IN has other texts than at the start of this job; --restart starts over.")
    if held is not None:
        yield held
    yield from reader


def _is_unfinished(folder: JobFolder) -> bool:
    """Whether the folder contains a job that will replace OUT. Without data it was delivered, but not deleted."""
    if folder.path.exists() and not folder.data.exists():
        shutil.rmtree(folder.path)
    return (folder.path / JOURNAL).exists()


def _finished_parts(folder: JobFolder, header: JobHeader) -> list[PartRecord]:
    """The finished parts; both files are truncated to them. Raises ConfigError."""
    journal = folder.path / JOURNAL
    lines = journal.read_bytes().splitlines(keepends=True) if journal.exists() else []
    if lines and not lines[-1].endswith(b"\n"):  # the process was killed while it wrote the line
        lines.pop()
    if len(lines) < 2:
        return []
    try:
        before = msgspec.json.decode(lines[0], type=JobHeader)
        parts = [msgspec.json.decode(line, type=PartRecord) for line in lines[1:]]
    except msgspec.DecodeError:
        raise _damaged(folder) from None
    _check_same(folder, before, header)
    last = parts[-1]
    with folder.data.open("r+b") as data:
        data.seek(last.start)
        found = data.read(last.bytes - last.start)
        if len(found) != last.bytes - last.start or zlib.crc32(found) != last.crc:
            raise _damaged(folder)
        data.truncate(last.bytes)
    os.truncate(journal, sum(map(len, lines)))
    return parts


_DIFFERENCES: Mapping[str, str] = {
    "version": "another version of vectord",
    "source": "another input, or a changed one",
    "fingerprint": "other weights",
    "model": "model {before}, now {now}",
}


def _check_same(folder: JobFolder, before: JobHeader, now: JobHeader) -> None:
    differences = [
        words.format(before=getattr(before, name), now=getattr(now, name))
        for name, words in _DIFFERENCES.items()
        if getattr(before, name) != getattr(now, name)
    ]
    differences += [
        f"{name} {before.options.get(name)}, now {value}"
        for name, value in now.options.items()
        if before.options.get(name) != value
    ]
    if differences:
        found = "; ".join(differences)
        raise ConfigError(f"OUT: {folder.path} belongs to another job ({found}); --restart starts over")


def _damaged(folder: JobFolder) -> ConfigError:
    return ConfigError(f"OUT: {folder.path} is damaged; --restart starts over")


def _write(file: IO[bytes], data: bytes) -> None:
    file.write(data)
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
