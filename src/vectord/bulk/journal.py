"""OUT.parts/: the bytes that will be OUT, and a journal of how many of them are whole. Survives kill -9 at any moment.

    OUT.parts/data      grows by a part at a time: written, fsynced, and only then
    OUT.parts/journal   gets a line: so many rows are in so many bytes of data
    OUT.parts/lock      held by the process that works here

What lies behind the last whole line, in either file, was never there: the next start cuts it off. Called in a thread,
one call at a time.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec

from vectord.errors import ConfigError

VERSION = 1
DATA, JOURNAL, LOCK = "data", "journal", "lock"


class Begun(msgspec.Struct):
    """The journal's first line."""

    version: int
    source: str  # Source.identity
    asked: dict[str, Any]  # Job.asked
    model: str
    fingerprint: str


class Written(msgspec.Struct):
    """A part. rows, bytes, tokens, cut, failed, seconds: of all up to here; seconds are those spent working."""

    rows: int
    bytes: int
    tokens: int
    cut: int
    failed: int
    seconds: float
    space: str  # of the vectors; "" while there are none
    part_rows: int
    texts: str  # digest of the part's texts
    start: int  # byte of data where the part's rows begin
    crc: int  # of the part's bytes from there


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job is kept until it is whole."""

    out: Path

    @property
    def folder(self) -> Path:
        return self.out.with_name(self.out.name + ".parts")

    @property
    def data(self) -> Path:
        return self.folder / DATA


NOTHING = Written(0, 0, 0, 0, 0, 0.0, "", 0, "", 0, 0)


class Journal:
    """Of one job, from `open_journal` to `close`. written: the parts that are whole."""

    def __init__(self, place: Place, lock: IO[bytes], written: list[Written]) -> None:
        self.place = place
        self.written = written
        self.resumed_rows = self.last.rows
        self._lock = lock
        self._data = place.data.open("ab")
        self._lines = (place.folder / JOURNAL).open("ab")

    @property
    def last(self) -> Written:
        return self.written[-1] if self.written else NOTHING

    def add(self, data: bytes, written: Written) -> None:
        """A part and its line. Both are on the disk when this returns."""
        _write(self._data, data)
        _write(self._lines, msgspec.json.encode(written) + b"\n")
        self.written.append(written)

    def deliver(self, whole: Path) -> None:
        """`whole`, a file in the folder, becomes OUT, and the folder goes."""
        with whole.open("rb") as file:
            os.fsync(file.fileno())
        whole.replace(self.place.out)
        _sync_folder(self.place.out.parent)
        self.close()
        shutil.rmtree(self.place.folder)

    def close(self) -> None:
        """May be called again. Where nothing is written, nothing is left."""
        for file in (self._data, self._lines, self._lock):
            file.close()
        if not self.written:
            shutil.rmtree(self.place.folder, ignore_errors=True)


def open_journal(place: Place, begun: Begun, *, restart: bool) -> Journal:
    """Where to go on. Raises ConfigError: OUT is there, another process works on it, or another job was begun."""
    if place.out.exists() and not restart and not _is_begun(place):
        raise ConfigError(f"OUT: {place.out} is there already; --restart replaces it once the new one is whole")
    try:
        place.folder.mkdir(exist_ok=True)
    except OSError as problem:
        raise ConfigError(f"OUT: {place.folder} cannot be made: {problem.strerror}") from None
    lock = (place.folder / LOCK).open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        written = [] if restart else _written(place, begun)
    except BlockingIOError:
        lock.close()
        raise ConfigError(f"OUT: another process is working on {place.out}") from None
    except BaseException:
        lock.close()
        raise
    if not written:
        _write_new(place.folder / JOURNAL, msgspec.json.encode(begun) + b"\n")
        _write_new(place.data, b"")
        _sync_folder(place.folder)
        _sync_folder(place.out.parent)
    return Journal(place, lock, written)


def _is_begun(place: Place) -> bool:
    """Whether what lies there is to replace OUT. Without data it has done so, and its process ended too early."""
    if place.folder.exists() and not place.data.exists():
        shutil.rmtree(place.folder)
    return (place.folder / JOURNAL).exists()


def _written(place: Place, begun: Begun) -> list[Written]:
    """The parts that are whole, both files cut to them. Raises ConfigError."""
    journal = place.folder / JOURNAL
    lines = journal.read_bytes().splitlines(keepends=True) if journal.exists() else []
    if lines and not lines[-1].endswith(b"\n"):  # the process ended in the middle of it
        lines.pop()
    if len(lines) < 2:
        return []
    try:
        before = msgspec.json.decode(lines[0], type=Begun)
        written = [msgspec.json.decode(line, type=Written) for line in lines[1:]]
    except msgspec.DecodeError:
        raise _damaged(place) from None
    _check_same(place, before, begun)
    with place.data.open("r+b") as data:
        _check_last(place, data, written)
        data.truncate(written[-1].bytes)
    os.truncate(journal, sum(map(len, lines)))
    return written


def _check_same(place: Place, before: Begun, begun: Begun) -> None:
    differs = [
        name for name in ("version", "source", "model", "fingerprint") if getattr(before, name) != getattr(begun, name)
    ]
    differs += [name for name, value in begun.asked.items() if before.asked.get(name) != value]
    if differs:
        words = {
            "version": "another vectord",
            "source": "another input, or it was changed",
            "fingerprint": "other weights",
        }
        told = "; ".join(_told(name, words, before, begun) for name in differs)
        raise ConfigError(f"OUT: {place.folder} holds the begin of another job ({told}); --restart starts anew")


def _told(name: str, words: Mapping[str, str], before: Begun, begun: Begun) -> str:
    if name in words:
        return words[name]
    if name == "model":
        return f"model {before.model}, now {begun.model}"
    return f"{name} {before.asked.get(name)}, now {begun.asked[name]}"


def _check_last(place: Place, data: IO[bytes], written: list[Written]) -> None:
    """Whether the last part is there as it was written."""
    last = written[-1]
    data.seek(last.start)
    found = data.read(last.bytes - last.start)
    if len(found) != last.bytes - last.start or zlib.crc32(found) != last.crc:
        raise _damaged(place)


def _damaged(place: Place) -> ConfigError:
    return ConfigError(f"OUT: {place.folder} is damaged; --restart starts anew")


def _write(file: IO[bytes], data: bytes) -> None:
    file.write(data)
    file.flush()
    os.fsync(file.fileno())


def _write_new(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        _write(file, data)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
