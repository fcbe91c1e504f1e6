"""pipeline.py: what is in OUT is what was in IN, in order, with its vectors; and on from where it stopped."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.bulk.makers import (
    TOKEN_WIDTH,
    WIDTH,
    FakeEmbedder,
    job_of,
    pipeline_of,
    read_output,
    rows_of,
    run_job,
    vector_of,
    write_input,
)

from vectord.bulk import parts
from vectord.bulk.embedder import Facts
from vectord.bulk.failures import BulkFailed, Stopped
from vectord.errors import ConfigError

INPUTS = (
    *("in.parquet", "in.arrow", "in.arrows", "in.csv", "in.tsv", "in.jsonl", "in.txt"),
    *("in.csv.gz", "in.csv.zst", "in.jsonl.gz", "in.jsonl.zst", "in.txt.gz"),
)
OUTPUTS = ["out.parquet", "out.arrow", "out.arrows", "out.jsonl", "out.jsonl.gz", "out.jsonl.zst", "out.npy"]


def check_vectors(found: Sequence[dict[str, Any]], texts: Sequence[str]) -> None:
    assert len(found) == len(texts)
    for row, text in zip(found, texts, strict=True):
        np.testing.assert_allclose(row["dense"], vector_of(text), rtol=1e-6)


@pytest.mark.parametrize("out", OUTPUTS)
@pytest.mark.parametrize("name", INPUTS)
async def test_every_row_comes_out_in_order_with_its_columns_and_its_vector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, out: str
) -> None:
    """Whatever the formats of IN and OUT are, and over several parts."""
    monkeypatch.setattr(parts, "PART_ROWS", 200)
    rows = rows_of(700)
    summary = await run_job(write_input(tmp_path / name, rows), tmp_path / out)
    found = read_output(tmp_path / out)
    check_vectors(found, [row["text"] for row in rows])
    if out != "out.npy":
        kept = [{key: value for key, value in row.items() if key != "dense"} for row in found]
        assert kept == ([{"text": row["text"]} for row in rows] if ".txt" in name else rows)
    assert (summary.rows, summary.resumed_from, summary.failed) == (700, 0, 0)
    assert summary.parts > 1
    assert not (tmp_path / f"{out}.parts").exists()


@pytest.mark.parametrize("out", OUTPUTS)
async def test_a_job_that_is_stopped_goes_on_behind_its_last_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    """What was answered before the signal is not asked again, and OUT is as if nothing had happened."""
    monkeypatch.setattr(parts, "PART_ROWS", 300)
    rows = rows_of(1500)
    source = write_input(tmp_path / "in.jsonl", rows)

    def stop(texts: Sequence[str]) -> None:
        if rows[900]["text"] in texts:
            pipeline.stop(signal.SIGTERM)

    pipeline = pipeline_of(job_of(source, tmp_path / out), FakeEmbedder(before=stop))
    with pytest.raises(Stopped) as stopped:
        await pipeline.run()
    assert stopped.value.signal == signal.SIGTERM
    assert not (tmp_path / out).exists()
    again = FakeEmbedder()
    summary = await run_job(source, tmp_path / out, again)
    assert summary.resumed_from > 0
    assert again.seen == [row["text"] for row in rows[summary.resumed_from :]]
    check_vectors(read_output(tmp_path / out), [row["text"] for row in rows])


async def test_all_kinds_of_vectors_have_their_columns(tmp_path: Path) -> None:
    """The types that docs/bulk.md promises, and the model's name and space in the schema."""
    source = write_input(tmp_path / "in.csv", rows_of(40))
    options = {"outputs": frozenset({"dense", "sparse", "colbert"}), "numbers": "float16", "prefix": "v_"}
    await run_job(source, tmp_path / "out.parquet", **options)
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.schema.names == ["id", "text", "v_dense", "v_sparse", "v_colbert"]
    assert table.schema.field("v_dense").type == pa.list_(pa.float16(), WIDTH)
    pair = pa.struct([("index", pa.uint32()), ("value", pa.float32())])
    assert table.schema.field("v_sparse").type.value_type == pair
    assert table.schema.field("v_colbert").type.value_type == pa.list_(pa.float16(), TOKEN_WIDTH)
    last = table.to_pylist()[39]
    assert [one["index"] for one in last["v_sparse"]] == list(range(len(last["text"])))
    assert last["v_colbert"] == [[len(last["text"])] * TOKEN_WIDTH] * len(last["text"])
    assert b'"space":"space"' in table.schema.metadata[b"vectord"]


async def test_a_folder_of_texts_is_a_row_a_file(tmp_path: Path) -> None:
    """Each with its path, sorted by name, those in folders too; hidden files are none."""
    folder = tmp_path / "notes"
    (folder / "b").mkdir(parents=True)
    for name in ("a.md", "b/c.md", "z.txt", ".hidden"):
        (folder / name).write_text(f"I am {name}")
    await run_job(folder, tmp_path / "out.jsonl")
    assert [row["path"] for row in read_output(tmp_path / "out.jsonl")] == ["a.md", "z.txt", "b/c.md"]


async def test_a_folder_of_tables_is_all_their_rows(tmp_path: Path) -> None:
    """In the order of their names."""
    folder = tmp_path / "tables"
    folder.mkdir()
    rows = rows_of(90)
    write_input(folder / "0.parquet", rows[:50])
    write_input(folder / "1.parquet", rows[50:])
    await run_job(folder, tmp_path / "out.jsonl")
    assert [row["id"] for row in read_output(tmp_path / "out.jsonl")] == [row["id"] for row in rows]


BAD_ROWS = [{"id": 0, "text": "good"}, {"id": 1, "text": None}, {"id": 2, "text": 7}, {"id": 3, "text": "poison"}]


@pytest.mark.parametrize("out", ["out.parquet", "out.arrow", "out.jsonl"])
async def test_rows_that_cannot_be_embedded_can_be_null(tmp_path: Path, out: str) -> None:
    """Their reasons stand beside them, and the others have their vectors."""
    source = write_input(tmp_path / "in.jsonl", [*BAD_ROWS, {"id": 4, "text": "good too"}])
    summary = await run_job(source, tmp_path / out, on_error="null")
    found = read_output(tmp_path / out)
    assert [row["dense"] is None for row in found] == [False, True, True, True, False]
    assert [row.get("error") for row in found] == [
        None, "`text` is null", "`text` is no string but int", "it is poison", None,
    ]  # fmt: skip
    np.testing.assert_allclose(found[4]["dense"], vector_of("good too"), rtol=1e-6)
    assert summary.failed == 3


@pytest.mark.parametrize(
    ("bad", "why"), [({"text": None}, "null"), ({"text": "poison"}, "poison"), ({"text": 7}, "int")], ids=str
)
async def test_a_row_that_cannot_be_embedded_ends_the_job_by_its_number(
    tmp_path: Path, bad: dict[str, Any], why: str
) -> None:
    """The rows before it are kept, and --on-error null goes on from there."""
    rows = [*({"text": f"text {i}"} for i in range(300)), bad, {"text": "end"}]
    source = write_input(tmp_path / "in.jsonl", rows)
    with pytest.raises(BulkFailed, match=rf"Row 300, counted from 0: .*{why}.*--on-error null"):
        await run_job(source, tmp_path / "out.parquet", outputs=frozenset({"dense", "sparse", "colbert"}))
    again = FakeEmbedder()
    options = {"outputs": frozenset({"dense", "sparse", "colbert"}), "on_error": "null"}
    summary = await run_job(source, tmp_path / "out.parquet", again, **options)
    assert (summary.rows, summary.resumed_from, summary.failed) == (302, 300, 1)
    assert [row["dense"] is None for row in read_output(tmp_path / "out.parquet")] == [False] * 300 + [True, False]


async def test_a_first_part_without_vectors_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its columns are as wide as the model says."""
    monkeypatch.setattr(parts, "PART_ROWS", 100)
    rows = [{"text": None, "id": i} for i in range(300)] + [{"text": "one", "id": 300}]
    await run_job(write_input(tmp_path / "in.jsonl", rows), tmp_path / "out.parquet", column="text", on_error="null")
    found = read_output(tmp_path / "out.parquet")
    assert [row["id"] for row in found] == list(range(301))
    np.testing.assert_allclose(found[300]["dense"], vector_of("one"), rtol=1e-6)


async def test_whoever_is_put_off_asks_again(tmp_path: Path) -> None:
    """429 and 503 cost time and no row."""
    rows = rows_of(600)
    await run_job(write_input(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl", FakeEmbedder(later=7))
    check_vectors(read_output(tmp_path / "out.jsonl"), [row["text"] for row in rows])


async def test_no_request_has_more_texts_than_the_model_takes(tmp_path: Path) -> None:
    """Servers have limits of their own."""
    sizes: list[int] = []

    class Narrow(FakeEmbedder):
        async def facts(self) -> Facts:
            return Facts(model="fake", fingerprint="f" * 16, dimensions=WIDTH, max_inputs=7)

    embedder = Narrow(before=lambda texts: sizes.append(len(texts)))
    await run_job(write_input(tmp_path / "in.jsonl", rows_of(30)), tmp_path / "out.jsonl", embedder)
    assert sizes == [7, 7, 7, 7, 2]


async def test_patience_ends(tmp_path: Path) -> None:
    """A server that never has room is an error that says what it said."""
    job = job_of(write_input(tmp_path / "in.jsonl", rows_of(3)), tmp_path / "out.jsonl")
    pipeline = pipeline_of(job, FakeEmbedder(later=10**9), patience_s=0)
    with pytest.raises(BulkFailed, match=r"Nothing was answered for 0 s: full"):
        await pipeline.run()


async def test_vectors_of_another_space_end_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a server came back with another model between two runs."""
    monkeypatch.setattr(parts, "PART_ROWS", 100)
    source = write_input(tmp_path / "in.jsonl", [*rows_of(300), {"text": "poison"}])
    with pytest.raises(BulkFailed, match="poison"):
        await run_job(source, tmp_path / "out.jsonl")
    with pytest.raises(BulkFailed, match="of the space other, those before of space"):
        await run_job(source, tmp_path / "out.jsonl", FakeEmbedder(space="other"), on_error="null")


async def test_what_is_held_does_not_grow_with_the_input(tmp_path: Path) -> None:
    """While no request is answered, only so many rows are read."""
    source = write_input(tmp_path / "in.jsonl", [{"text": "x" * 5000}] * 2000)
    waiting = asyncio.Event()
    under_way: list[int] = []

    class Stuck(FakeEmbedder):
        async def embed(self, texts: Sequence[str]) -> Any:
            under_way.append(sum(map(len, texts)))
            if sum(under_way) > 900_000:
                waiting.set()
            await asyncio.Event().wait()

    pipeline = pipeline_of(job_of(source, tmp_path / "out.jsonl"), Stuck())
    running = asyncio.create_task(pipeline.run())
    await waiting.wait()
    for _ in range(1000):
        await asyncio.sleep(0)
    assert sum(under_way) <= 1_000_000
    pipeline.stop(signal.SIGINT)
    with pytest.raises(Stopped):
        await running


async def test_wide_columns_make_small_parts(tmp_path: Path) -> None:
    """What is kept beside short texts is held, too."""
    rows = [{"text": str(i), "page": "x" * 2**20} for i in range(100)]
    summary = await run_job(write_input(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl")
    assert summary.parts >= 3
    assert [row["text"] for row in read_output(tmp_path / "out.jsonl")] == [row["text"] for row in rows]


async def test_an_input_that_changed_is_refused(tmp_path: Path) -> None:
    """By its size and time; --restart starts anew."""
    source = write_input(tmp_path / "in.jsonl", [*rows_of(300), {"text": "poison"}])
    with pytest.raises(BulkFailed):
        await run_job(source, tmp_path / "out.jsonl")
    write_input(source, rows_of(301))
    with pytest.raises(ConfigError, match=r"another input, or it was changed.*--restart"):
        await run_job(source, tmp_path / "out.jsonl")
    summary = await pipeline_of(job_of(source, tmp_path / "out.jsonl"), FakeEmbedder(), restart=True).run()
    assert (summary.rows, summary.resumed_from) == (301, 0)


async def test_other_options_are_refused_by_name(tmp_path: Path) -> None:
    """Half of OUT would hold other vectors."""
    source = write_input(tmp_path / "in.jsonl", [*rows_of(300), {"text": "poison"}])
    with pytest.raises(BulkFailed):
        await run_job(source, tmp_path / "out.jsonl")
    with pytest.raises(ConfigError, match=r"kind None, now query"):
        await run_job(source, tmp_path / "out.jsonl", kind="query")


async def test_an_output_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    """Unless it is asked for, and then only once the new one is whole."""
    source = write_input(tmp_path / "in.jsonl", [*rows_of(3), {"text": "poison"}])
    out = tmp_path / "out.jsonl"
    out.write_text("precious")
    with pytest.raises(ConfigError, match="is there already"):
        await run_job(source, out)
    with pytest.raises(BulkFailed):
        await pipeline_of(job_of(source, out), FakeEmbedder(), restart=True).run()
    assert out.read_text() == "precious"
    summary = await run_job(source, out, on_error="null")
    assert (summary.rows, summary.resumed_from) == (4, 3)


async def test_nothing_is_left_of_a_job_that_could_not_begin(tmp_path: Path) -> None:
    """A column that is not there is no begin."""
    source = write_input(tmp_path / "in.csv", rows_of(3))
    with pytest.raises(ConfigError, match="there is no 'body'; there are 'id', 'text'"):
        await run_job(source, tmp_path / "out.jsonl", column="body")
    assert os.listdir(tmp_path) == ["in.csv"]  # noqa: PTH208
