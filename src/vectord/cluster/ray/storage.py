"""Files where every node sees them: a path on a shared mount, or a URI of pyarrow's (s3://, gs://, hdfs://).

The driver and each part_embedder open their own; both in their main thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from vectord.errors import ConfigError

HIDDEN = ("_", ".")  # how names begin that readers of Parquet pass over
TEMPORARY = "_tmp-"
COPY_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class StoredFile:
    """identity: changes with its name, size or time."""

    path: str
    rows: int
    identity: str


class Storage:
    """One file system, and a path on it: `root`, a file or a folder."""

    def __init__(self, where: str) -> None:
        """Raises ConfigError for a URI that pyarrow cannot open."""
        try:
            if "://" in where:
                self._files, self.root = pafs.FileSystem.from_uri(where)
            else:
                self._files, self.root = pafs.LocalFileSystem(), os.fspath(Path(where).absolute())
        except (pa.ArrowException, OSError, ValueError) as cause:
            raise ConfigError(f"{where} cannot be opened: {cause}") from None

    def parquet_files(self) -> list[StoredFile]:
        """Those below root, by name, with their footers read. Raises ConfigError for none, and for one that is no
        Parquet."""
        found = self._info(self.root)
        if found.type == pafs.FileType.NotFound:
            raise ConfigError(f"IN: there is no {self.root}")
        infos = [found] if found.type == pafs.FileType.File else self._below(self.root)
        if not infos:
            raise ConfigError(f"IN: no .parquet file is in {self.root}")
        return [self._stored(info) for info in infos]

    def names(self) -> set[str]:
        """Of the files in root itself; of none if it is not there."""
        selector = pafs.FileSelector(self.root, allow_not_found=True)
        return {info.base_name for info in self._files.get_file_info(selector) if info.type == pafs.FileType.File}

    def make(self) -> None:
        self._files.create_dir(self.root, recursive=True)

    def read(self, name: str) -> bytes:
        with self._files.open_input_stream(self._path(name)) as file:
            return bytes(file.read())

    def write(self, name: str, data: bytes) -> None:
        """All of it or nothing, under that name."""
        self._put(name, lambda file: file.write(data))

    def upload(self, local: Path, name: str) -> None:
        """As `write`, of a file. Doing it twice is doing it once."""

        def copy(file: Any) -> None:
            with local.open("rb") as source:
                while data := source.read(COPY_BYTES):
                    file.write(data)

        self._put(name, copy)

    def remove(self, name: str) -> None:
        self._files.delete_file(self._path(name))

    def metadata(self, name: str) -> Any | None:
        """The footer of a Parquet file in root; None where it has none that is whole."""
        try:
            with self._files.open_input_file(self._path(name)) as file:
                return pq.read_metadata(file)
        except (pa.ArrowException, OSError):
            return None

    def copy_rows(self, path: str, start: int, stop: int, local: Path) -> None:
        """Rows of a Parquet file, of any path on this file system, to a file of their own."""
        with (
            self._files.open_input_file(path) as raw,
            pq.ParquetFile(raw) as file,
            pq.ParquetWriter(local, file.schema_arrow) as writer,
        ):
            for batch in _rows(file, start, stop):
                writer.write_batch(batch)

    # --- details ----------------------------------------------------------------------------------------------

    def _put(self, name: str, fill: Callable[[Any], object]) -> None:
        temporary = self._path(f"{TEMPORARY}{uuid4().hex}")
        with self._files.open_output_stream(temporary) as file:
            fill(file)
        self._files.move(temporary, self._path(name))

    def _path(self, name: str) -> str:
        return f"{self.root.rstrip('/')}/{name}"

    def _info(self, path: str) -> Any:
        return self._files.get_file_info(path)

    def _below(self, folder: str) -> list[Any]:
        infos = self._files.get_file_info(pafs.FileSelector(folder, recursive=True))
        kept = [info for info in infos if info.type == pafs.FileType.File and self._is_input(info.path)]
        return sorted(kept, key=lambda info: str(info.path))

    def _is_input(self, path: str) -> bool:
        below = PurePosixPath(path).relative_to(PurePosixPath(self.root))
        return below.suffix == ".parquet" and not any(part.startswith(HIDDEN) for part in below.parts)

    def _stored(self, info: Any) -> StoredFile:
        try:
            with self._files.open_input_file(info.path) as file:
                rows = int(pq.read_metadata(file).num_rows)
        except (pa.ArrowException, OSError) as cause:
            raise ConfigError(f"IN: {info.path}: {cause}") from None
        name = PurePosixPath(info.path).name if info.path == self.root else info.path.removeprefix(self.root)
        return StoredFile(info.path, rows, f"{name}\0{info.size}\0{info.mtime_ns}\0")


def _rows(file: Any, start: int, stop: int) -> Iterator[Any]:
    """Batches of the rows from `start` to before `stop`; row groups before and behind are not read."""
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
