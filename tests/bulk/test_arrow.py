"""arrow_input.py and arrow_output.py: columns keep their types; a value that does not fit is named by its row."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.bulk.makers import read_output, run_job, write_input

from vectord.bulk.job import BulkFailed
from vectord.bulk.rows import RowLimits
from vectord.errors import ConfigError

COLUMNS = {
    "id": pa.array([1, 2, 3], pa.int16()),
    "text": pa.array(["a", "b", "c"], pa.large_string()),
    "when": pa.array([datetime.datetime(2026, 1, 1)] * 3, pa.timestamp("ms")),
    "tags": pa.array([["x"], None, []], pa.list_(pa.string())),
    "raw": pa.array([b"\xff", None, b""], pa.binary()),
    "group": pa.array(["g", "h", "g"]).dictionary_encode(),
    "nested": pa.array([{"a": 1}, None, {"a": None}], pa.struct([("a", pa.int64())])),
}


@pytest.mark.parametrize("out", ["out.parquet", "out.arrow", "out.arrows"])
async def test_the_columns_of_a_table_are_unchanged(tmp_path: Path, out: str) -> None:
    """Types, nulls and order; a dictionary becomes its values."""
    table = pa.table(COLUMNS)
    pq.write_table(table, tmp_path / "in.parquet")
    await run_job(tmp_path / "in.parquet", tmp_path / out, column="text")
    found = read_output(tmp_path / out)
    assert [{name: row[name] for name in COLUMNS} for row in found] == table.to_pylist()
    if out == "out.parquet":
        kept = pq.read_table(tmp_path / out).schema
        assert kept.field("id").type == pa.int16()
        assert kept.field("when").type == pa.timestamp("ms")
        assert kept.field("group").type == pa.string()


async def test_a_table_becomes_json_lines(tmp_path: Path) -> None:
    """A type that JSON lacks becomes a string."""
    pq.write_table(pa.table(COLUMNS), tmp_path / "in.parquet")
    await run_job(tmp_path / "in.parquet", tmp_path / "out.jsonl", column="text")
    (first, *_) = read_output(tmp_path / "out.jsonl")
    assert (first["when"], first["nested"]) == ("2026-01-01T00:00:00", {"a": 1})


async def test_json_lines_become_a_table(tmp_path: Path) -> None:
    """Each column has the type of its values; mixed values become JSON."""
    rows = [
        {"text": "a", "n": 1, "x": 1, "ok": True, "many": [1, "b"], "mixed": 1, "none": None},
        {"text": "b", "n": None, "x": 2.5, "ok": False, "many": {}, "mixed": "c"},
    ]
    await run_job(write_input(tmp_path / "in.jsonl", rows), tmp_path / "out.parquet")
    found = read_output(tmp_path / "out.parquet")
    assert [{name: row[name] for name in row if name != "dense"} for row in found] == [
        {"text": "a", "n": 1, "x": 1.0, "ok": True, "many": '[1,"b"]', "mixed": "1", "none": None},
        {"text": "b", "n": None, "x": 2.5, "ok": False, "many": "{}", "mixed": "c", "none": None},
    ]


@pytest.mark.parametrize(
    ("last", "message"),
    [
        ({"text": "b", "n": "many"}, "Row 100: `n` is str, but int64 in the first rows; --columns-as-text"),
        ({"text": "b", "n": 2**70}, "Row 100: `n` is int, but int64 in the first rows"),
        ({"text": "b", "new": 1}, "Row 100: column 'new' is not in the first rows"),
    ],
    ids=["type", "size", "new"],
)
async def test_a_value_that_does_not_fit_the_table_fails_with_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: dict[str, Any], message: str
) -> None:
    """The row is counted over all parts."""
    rows = [*({"text": "a", "n": 1} for _ in range(100)), last]
    source = write_input(tmp_path / "in.jsonl", rows)
    monkeypatch.setattr("vectord.bulk.pipeline.REQUEST", RowLimits(rows=50, characters=1000))
    monkeypatch.setattr("vectord.bulk.rows.FIRST_ROWS", 50)
    with pytest.raises(BulkFailed, match=message.replace("(", r"\(")):
        await run_job(source, tmp_path / "out.parquet", part_rows=40)


async def test_every_column_can_be_text(tmp_path: Path) -> None:
    """--columns-as-text accepts columns with values of several types."""
    rows = [{"text": "a", "n": 1}, {"text": "b", "n": "many"}]
    await run_job(write_input(tmp_path / "in.jsonl", rows), tmp_path / "out.parquet", columns_as_text=True)
    assert [row["n"] for row in read_output(tmp_path / "out.parquet")] == ["1", "many"]


@pytest.mark.parametrize("out", ["out.parquet", "out.jsonl"])
@pytest.mark.parametrize("name", ["in.parquet", "in.jsonl"])
async def test_a_column_with_the_name_of_an_added_one_is_not_overwritten(tmp_path: Path, name: str, out: str) -> None:
    """--output-column renames the added column."""
    source = write_input(tmp_path / name, [{"text": "a", "dense": "precious"}])
    with pytest.raises((BulkFailed, ConfigError), match="--output-column"):
        await run_job(source, tmp_path / out, column="text")
    await run_job(source, tmp_path / out, column="text", prefix="new_")
    (row,) = read_output(tmp_path / out)
    assert (row["dense"], len(row["new_dense"])) == ("precious", 4)


async def test_files_with_different_columns_are_refused(tmp_path: Path) -> None:
    """All files of a folder form one table."""
    folder = tmp_path / "in"
    folder.mkdir()
    write_input(folder / "0.parquet", [{"text": "a"}])
    write_input(folder / "1.parquet", [{"text": "a", "more": 1}])
    with pytest.raises(BulkFailed, match=r"1\.parquet has other columns"):
        await run_job(folder, tmp_path / "out.jsonl")


async def test_a_row_group_contains_many_parts(tmp_path: Path) -> None:
    """Readers prefer large row groups."""
    source = write_input(tmp_path / "in.csv", [{"text": str(i)} for i in range(1000)])
    await run_job(source, tmp_path / "out.parquet", part_rows=100)
    assert pq.read_metadata(tmp_path / "out.parquet").num_row_groups == 1
