"""parts.py: the parts of an input, and which of them a later start accepts."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vectord.bulk.job import BulkJob
from vectord.cluster.ray.parts import HEADER, SharedStorage, begin, finished_parts, parts_of
from vectord.errors import ConfigError


@pytest.fixture
def source(tmp_path: Path) -> SharedStorage:
    """Two files of 10 and 3 rows in row groups of 4, and files that are no input."""
    folder = tmp_path / "in"
    (folder / "sub").mkdir(parents=True)
    write(folder / "a.parquet", 0, 10)
    write(folder / "sub" / "b.parquet", 10, 13)
    (folder / "_SUCCESS").write_text("")
    (folder / ".hidden.parquet").write_text("")
    return SharedStorage(str(folder))


def write(path: Path, start: int, stop: int) -> None:
    pq.write_table(pa.table({"id": list(range(start, stop))}), path, row_group_size=4)


def job(out: Path) -> BulkJob:
    return BulkJob(source="in", out=out)


def test_every_row_is_in_one_part(source: SharedStorage, tmp_path: Path) -> None:
    """In the order of their names, the parts have the rows of the files in order."""
    parts = list(parts_of(source.parquet_files(), 3))
    assert [part.name for part in parts] == sorted(part.name for part in parts)
    rows: list[int] = []
    for part in parts:
        source.copy_rows(part.path, part.start, part.stop, tmp_path / "part.parquet")
        rows += pq.read_table(tmp_path / "part.parquet")["id"].to_pylist()
    assert rows == list(range(13))


def test_an_incomplete_part_does_not_count(source: SharedStorage, tmp_path: Path) -> None:
    """A truncated file, or one with another number of rows."""
    out = SharedStorage(str(tmp_path / "out"))
    begin(out, job(tmp_path / "out"), source.parquet_files(), 5, restart=False)
    parts = list(parts_of(source.parquet_files(), 5))
    for part in parts:
        write(tmp_path / "out" / part.name, 0, part.stop - part.start)
    cut = tmp_path / "out" / parts[0].name
    cut.write_bytes(cut.read_bytes()[:-10])
    write(tmp_path / "out" / parts[1].name, 0, 4)
    assert list(finished_parts(out, parts)) == [parts[2].name]


def test_another_job_is_not_resumed(source: SharedStorage, tmp_path: Path) -> None:
    """With another input or other options; --restart deletes the old job."""
    out = SharedStorage(str(tmp_path / "out"))
    files = source.parquet_files()
    begin(out, job(tmp_path / "out"), files, 5, restart=False)
    begin(out, job(tmp_path / "out"), files, 5, restart=False)
    with pytest.raises(ConfigError, match="part_rows"):
        begin(out, job(tmp_path / "out"), files, 6, restart=False)
    with pytest.raises(ConfigError, match="another input"):
        begin(out, job(tmp_path / "out"), files[:1], 5, restart=False)
    with pytest.raises(ConfigError, match="normalize"):
        begin(out, BulkJob(source="in", out=tmp_path, normalize=False), files, 5, restart=False)
    write(tmp_path / "out" / "00000-000000000000.parquet", 0, 5)
    begin(out, job(tmp_path / "out"), files, 6, restart=True)
    assert out.names() == {HEADER}


def test_other_files_are_not_deleted(source: SharedStorage, tmp_path: Path) -> None:
    """A folder without a job is refused, also with --restart."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious.txt").write_text("mine")
    for restart in (False, True):
        with pytest.raises(ConfigError, match="files of other programs"):
            begin(SharedStorage(str(tmp_path / "out")), job(tmp_path), source.parquet_files(), 5, restart=restart)
    assert (tmp_path / "out" / "precious.txt").read_text() == "mine"


@pytest.mark.parametrize("name", ["nowhere", "empty", "text.parquet"])
def test_an_unreadable_input_is_an_error(tmp_path: Path, name: str) -> None:
    """The message names IN."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.parquet").write_text("no Parquet")
    with pytest.raises(ConfigError, match=r"^IN: "):
        SharedStorage(str(tmp_path / name)).parquet_files()


def test_writing_a_file_is_atomic(tmp_path: Path) -> None:
    """A failed write keeps the old file."""
    out = SharedStorage(str(tmp_path))
    out.write("part", b"old")
    with pytest.raises(FileNotFoundError):
        out.upload(tmp_path / "nowhere", "part")
    assert out.read("part") == b"old"
