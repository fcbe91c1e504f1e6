"""The parts of a bulk job on a cluster: the files that every node sees, the parts of the input, and the finished ones.

    OUT/_vectord.json                    the job; a later start must have the same
    OUT/00002-000000016384.parquet       rows of the third file from the 16,384th on: a part exists completely or not
    OUT/_SUCCESS                         all parts exist

The names sort in the order of the input: files by name, then rows. Readers of Parquet folders skip the other files. The
driver and each part_embedder have a SharedStorage of their own, in their main thread.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from vectord.bulk.job import BulkJob
from vectord.errors import ConfigError

VERSION = 2
HEADER, SUCCESS = "_vectord.json", "_SUCCESS"
FACTS = b"vectord"  # of the model, in the metadata of a part
HIDDEN = ("_", ".")  # prefixes of files that readers of Parquet skip
TEMPORARY = "_tmp-"
COPY_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class ParquetFile:
    """identity: changes with its name, size or time."""

    path: str
    rows: int
    identity: str


class SharedStorage:
    """A path on a shared mount, or a URI of pyarrow (s3://, gs://, hdfs://). root: a file or a folder."""

    def __init__(self, where: str) -> None:
        """Raises ConfigError for a URI that pyarrow cannot open."""
        try:
            if "://" in where:
                self._files, self.root = pafs.FileSystem.from_uri(where)
            else:
                self._files, self.root = pafs.LocalFileSystem(), os.fspath(Path(where).absolute())
        except (pa.ArrowException, OSError, ValueError) as cause:
            raise ConfigError(f"{where} cannot be opened: {cause}") from None

    def parquet_files(self) -> list[ParquetFile]:
        """The files below root, by name. Raises ConfigError if there are none, or one is not Parquet."""
        found = self._files.get_file_info(self.root)
        if found.type == pafs.FileType.NotFound:
            raise ConfigError(f"IN: {self.root} does not exist")
        infos = [found]
        if found.type != pafs.FileType.File:
            below = self._files.get_file_info(pafs.FileSelector(self.root, recursive=True))
            infos = [info for info in below if info.type == pafs.FileType.File and self._is_input(info.path)]
        if not infos:
            raise ConfigError(f"IN: {self.root} contains no .parquet file")
        return [self._stored(info) for info in sorted(infos, key=lambda info: str(info.path))]

    def names(self) -> set[str]:
        """The names of the files in root itself; empty if root does not exist."""
        selector = pafs.FileSelector(self.root, allow_not_found=True)
        return {info.base_name for info in self._files.get_file_info(selector) if info.type == pafs.FileType.File}

    def make(self) -> None:
        self._files.create_dir(self.root, recursive=True)

    def read(self, name: str) -> bytes:
        with self._files.open_input_stream(self._path(name)) as file:
            return bytes(file.read())

    def write(self, name: str, data: bytes) -> None:
        """Atomic."""
        self._put(name, lambda file: file.write(data))

    def upload(self, local: Path, name: str) -> None:
        """Atomic; can be repeated."""

        def copy(file: Any) -> None:
            with local.open("rb") as source:
                while data := source.read(COPY_BYTES):
                    file.write(data)

        self._put(name, copy)

    def remove(self, name: str) -> None:
        self._files.delete_file(self._path(name))

    def metadata(self, name: str) -> Any | None:
        """The footer of a Parquet file in root; None if it is incomplete."""
        try:
            with self._files.open_input_file(self._path(name)) as file:
                return pq.read_metadata(file)
        except (pa.ArrowException, OSError):
            return None

    def copy_rows(self, path: str, start: int, stop: int, local: Path) -> None:
        """Copy rows of a Parquet file, at any path of this file system, to a new file."""
        with (
            self._files.open_input_file(path) as raw,
            pq.ParquetFile(raw) as file,
            pq.ParquetWriter(local, file.schema_arrow) as writer,
        ):
            for batch in _rows(file, start, stop):
                writer.write_batch(batch)

    def _put(self, name: str, fill: Callable[[Any], object]) -> None:
        temporary = self._path(f"{TEMPORARY}{uuid4().hex}")
        with self._files.open_output_stream(temporary) as file:
            fill(file)
        self._files.move(temporary, self._path(name))

    def _path(self, name: str) -> str:
        return f"{self.root.rstrip('/')}/{name}"

    def _is_input(self, path: str) -> bool:
        below = PurePosixPath(path).relative_to(PurePosixPath(self.root))
        return below.suffix == ".parquet" and not any(part.startswith(HIDDEN) for part in below.parts)

    def _stored(self, info: Any) -> ParquetFile:
        try:
            with self._files.open_input_file(info.path) as file:
                rows = int(pq.read_metadata(file).num_rows)
        except (pa.ArrowException, OSError) as cause:
            raise ConfigError(f"IN: {info.path}: {cause}") from None
        name = PurePosixPath(info.path).name if info.path == self.root else info.path.removeprefix(self.root)
        return ParquetFile(info.path, rows, f"{name}\0{info.size}\0{info.mtime_ns}\0")


def _rows(file: Any, start: int, stop: int) -> Iterator[Any]:
    """Batches of the rows from `start` up to `stop`. Reads only their row groups."""
    bounds = [0]
    for group in range(file.metadata.num_row_groups):
        bounds.append(bounds[-1] + file.metadata.row_group(group).num_rows)
    groups = [i for i in range(len(bounds) - 1) if bounds[i] < stop and bounds[i + 1] > start]
    position = bounds[groups[0]]
    for batch in file.iter_batches(row_groups=groups, batch_size=2048, use_threads=False):
        first, last = max(start - position, 0), min(stop - position, batch.num_rows)
        if first < last:
            yield batch.slice(first, last - first)
        position += batch.num_rows
        if position >= stop:
            return


# --- the parts ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InputPart:
    name: str
    path: str
    start: int
    stop: int


class ClusterJobHeader(msgspec.Struct):
    version: int
    source: str
    part_rows: int
    options: dict[str, Any]  # BulkJob.options


def parts_of(files: Sequence[ParquetFile], part_rows: int) -> Iterator[InputPart]:
    for index, file in enumerate(files):
        for start in range(0, file.rows, part_rows):
            stop = min(start + part_rows, file.rows)
            yield InputPart(f"{index:05}-{start:012}.parquet", file.path, start, stop)


def begin(out: SharedStorage, job: BulkJob, files: Sequence[ParquetFile], part_rows: int, *, restart: bool) -> None:
    """Start or resume the job in OUT. Raises ConfigError if OUT contains another job, or other files."""
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        digest.update(file.identity.encode("utf-8", "surrogateescape"))
    header = ClusterJobHeader(VERSION, digest.hexdigest(), part_rows, dict(job.options()))
    out.make()
    names = out.names()
    if names and HEADER not in names:
        raise ConfigError(f"OUT: {out.root} contains files of other programs; choose another folder")
    if names and not restart:
        _check_same(out, header)
        return
    for name in sorted(names, key=lambda name: name == HEADER):  # the header last: the folder stays a job until then
        out.remove(name)
    out.write(HEADER, msgspec.json.encode(header))


def finished_parts(out: SharedStorage, parts: Iterable[InputPart]) -> dict[str, Mapping[str, Any]]:
    """The parts that exist with all their rows, and the facts of the model that made each."""
    names = out.names()
    found: dict[str, Mapping[str, Any]] = {}
    for part in parts:
        footer = out.metadata(part.name) if part.name in names else None
        if footer is not None and footer.num_rows == part.stop - part.start:
            found[part.name] = msgspec.json.decode((footer.metadata or {}).get(FACTS, b"{}"))
    return found


def finish(out: SharedStorage, summary: Mapping[str, Any]) -> None:
    out.write(SUCCESS, msgspec.json.encode(summary))
    for name in out.names():
        if name.startswith(TEMPORARY):  # of a node that died while it wrote
            out.remove(name)


def _check_same(out: SharedStorage, now: ClusterJobHeader) -> None:
    try:
        before = msgspec.json.decode(out.read(HEADER), type=ClusterJobHeader)
    except msgspec.DecodeError:
        raise ConfigError(f"OUT: {out.root}/{HEADER} is damaged; --restart starts over") from None
    differences = [name for name in ("version", "part_rows") if getattr(before, name) != getattr(now, name)]
    if before.source != now.source:
        differences.append("another input, or a changed one")
    differences += [name for name, value in now.options.items() if before.options.get(name) != value]
    if differences:
        raise ConfigError(f"OUT: {out.root} belongs to another job ({', '.join(differences)}); --restart starts over")
