"""PartEmbedder without Ray: it writes one file for each part of the input."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vectord.bulk.job import BulkJob
from vectord.cluster.ray.part_embedder import PartEmbedder
from vectord.cluster.ray.parts import InputPart, SharedStorage, begin, finished_parts, parts_of
from vectord.config import Config, DeviceConfig


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"id": [0, 1, 2, 3], "text": ["one", "two", None, "four"]}), path, row_group_size=3)
    return path


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vectord.observability.logs.configure", lambda telemetry: None)


def embedder(source: Path, fingerprint: str | None = None) -> PartEmbedder:
    config = replace(Config(), device=replace(DeviceConfig(), backend="fake", num_threads=1))
    out = source.with_name("out")
    files = SharedStorage(str(source)).parquet_files()
    begin(SharedStorage(str(out)), BulkJob(source="in", out=out), files, 2, restart=False)
    return PartEmbedder(config, BulkJob(source="in", out=out), str(source), str(out), fingerprint, 10.0)


def parts(source: Path) -> list[InputPart]:
    return list(parts_of(SharedStorage(str(source)).parquet_files(), 2))


def test_a_part_is_a_file_of_its_rows(source: Path) -> None:
    """The file has the rows' columns and vectors. A part that is computed twice has one file and counts as finished."""
    first, _ = parts(source)
    actor = embedder(source)
    for _ in range(2):
        made = actor(asdict(first))
        assert (made["rows"], made["error"]) == (2, "")
    out = SharedStorage(str(source.with_name("out")))
    rows = pq.read_table(source.with_name("out") / first.name).to_pylist()
    assert [(row["id"], len(row["dense"])) for row in rows] == [(0, 384), (1, 384)]
    assert list(finished_parts(out, parts(source))) == [first.name]
    assert finished_parts(out, parts(source))[first.name]["space"] == made["space"]


def test_a_row_without_a_text_is_reported(source: Path) -> None:
    """The error names the file and the row, and the part is not written."""
    made = embedder(source)(asdict(parts(source)[1]))
    assert "in.parquet, rows from 2: Row 0" in made["error"]
    assert not list(source.with_name("out").glob("*.parquet"))


def test_other_weights_write_nothing(source: Path) -> None:
    """A job cannot be resumed with another model."""
    made = embedder(source, fingerprint="another")(asdict(parts(source)[0]))
    assert "other weights" in made["error"]
    assert not list(source.with_name("out").glob("*.parquet"))
