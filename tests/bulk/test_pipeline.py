"""pipeline.py: OUT has the rows of IN, in order, with their vectors; and a stopped job resumes."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.bulk.makers import (
    CHUNK,
    TOKEN_WIDTH,
    WIDTH,
    FakeEmbedder,
    job_of,
    read_output,
    rows_of,
    run_job,
    run_pipeline,
    stop_job,
    vector_of,
    write_input,
)

from vectord.bulk.inputs import find_source
from vectord.bulk.job import BulkFailed, RetryLater, Stopped
from vectord.bulk.outputs import BulkOutput
from vectord.bulk.pipeline import PROBE, Pipeline
from vectord.errors import ConfigError

INPUTS = (
    *("in.parquet", "in.arrow", "in.arrows", "in.csv", "in.tsv", "in.jsonl", "in.txt"),
    *("in.csv.gz", "in.csv.zst", "in.jsonl.gz", "in.jsonl.zst", "in.txt.gz"),
)
OUTPUTS = ["out.parquet", "out.arrow", "out.arrows", "out.jsonl", "out.jsonl.gz", "out.jsonl.zst", "out.npy"]
# Every input format, every output format, and both kinds of columns into both kinds of output.
FORMATS = [
    *((name, "out.jsonl") for name in INPUTS),
    *(("in.jsonl", out) for out in OUTPUTS if out != "out.jsonl"),
    *(("in.parquet", out) for out in OUTPUTS if out != "out.jsonl"),
    ("in.csv.zst", "out.parquet"),
]


def check_vectors(found: Sequence[dict[str, Any]], texts: Sequence[str]) -> None:
    assert len(found) == len(texts)
    for row, text in zip(found, texts, strict=True):
        np.testing.assert_allclose(row["dense"], vector_of(text), rtol=1e-6)


@pytest.mark.parametrize(("name", "out"), FORMATS, ids=str)
async def test_out_has_every_row_in_order_with_its_columns_and_vector(tmp_path: Path, name: str, out: str) -> None:
    """In every format of IN and OUT, over several parts."""
    rows = rows_of(170)
    summary = await run_job(write_input(tmp_path / name, rows), tmp_path / out, part_rows=50)
    found = read_output(tmp_path / out)
    check_vectors(found, [row["text"] for row in rows])
    if out != "out.npy":
        kept = [{key: value for key, value in row.items() if key != "dense"} for row in found]
        assert kept == ([{"text": row["text"]} for row in rows] if ".txt" in name else rows)
    assert (summary.rows, summary.resumed_from, summary.failed, summary.parts) == (170, 0, 0, 4)
    assert not (tmp_path / f"{out}.parts").exists()


@pytest.mark.parametrize("out", ["out.parquet", "out.jsonl.gz", "out.npy"])
async def test_a_stopped_job_resumes_after_its_last_part(tmp_path: Path, out: str) -> None:
    """No finished row is embedded again, and OUT is the same as without the stop."""
    rows = rows_of(1500)
    source = write_input(tmp_path / "in.jsonl", rows)
    await stop_job(job_of(source, tmp_path / out, part_rows=200), rows[900]["text"])
    assert not (tmp_path / out).exists()
    again = FakeEmbedder()
    summary = await run_job(source, tmp_path / out, again, part_rows=200)
    assert summary.resumed_from in range(200, 1500, 200)
    assert again.seen == [row["text"] for row in rows[summary.resumed_from :]]
    check_vectors(read_output(tmp_path / out), [row["text"] for row in rows])


@pytest.mark.parametrize(
    ("name", "out"),
    [("in.jsonl", "out.jsonl"), ("in.parquet", "out.parquet"), ("in.txt.gz", "out.arrow")],
)
async def test_each_chunk_of_a_text_becomes_a_row(tmp_path: Path, name: str, out: str) -> None:
    """With the other columns, the chunk's text, number and place, and its vectors of every kind."""
    rows = [{"id": str(i), "text": f"{i} " + "lorem ipsum " * (i % 20)} for i in range(60)]
    kinds = frozenset({"dense", "sparse", "colbert"})
    source = write_input(tmp_path / name, rows)
    summary = await run_job(source, tmp_path / out, chunk=CHUNK, outputs=kinds, part_rows=20)
    expected = []
    for row in rows:
        starts = range(0, len(row["text"]), 8)
        for number, start in enumerate(starts):
            text = row["text"][start : start + 8]
            place = {"chunk_start": start, "chunk_stop": start + len(text)}
            kept = {} if ".txt" in name else {"id": row["id"]}
            expected.append({**kept, "text": text, "chunk": number, "chunks": len(starts), **place})
    found = read_output(tmp_path / out)
    assert [{key: value for key, value in row.items() if key not in kinds} for row in found] == expected
    check_vectors(found, [row["text"] for row in expected])
    assert [len(row["colbert"]) for row in found] == [len(row["text"]) for row in found]
    assert (summary.rows, summary.chunks, summary.parts) == (60, len(expected), 3)


async def test_a_stopped_job_with_chunks_resumes(tmp_path: Path) -> None:
    """By rows of IN: OUT is the same as without the stop. Chunks of another size are another job."""
    source = write_input(tmp_path / "in.jsonl", rows_of(900))
    await stop_job(job_of(source, tmp_path / "out.jsonl", part_rows=100, chunk=CHUNK), "text 700")
    with pytest.raises(ConfigError, match=r"belongs to another job \(chunk "):
        await run_job(source, tmp_path / "out.jsonl", part_rows=100)
    summary = await run_job(source, tmp_path / "out.jsonl", part_rows=100, chunk=CHUNK)
    await run_job(source, tmp_path / "whole.jsonl", chunk=CHUNK)
    assert summary.resumed_from in range(100, 800, 100)
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


async def test_a_text_without_chunks_is_one_row_with_its_reason(tmp_path: Path) -> None:
    """The other texts of its request have theirs. The summary counts rows."""
    rows = [
        {"text": "one two three four"},
        {"text": "whole"},
        {"text": None},
        {"text": "poison and poison"},
        {"text": ""},
    ]
    await run_job(write_input(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl", chunk=CHUNK, on_error="null")
    found = [
        (row["text"], row["chunk"], row["chunks"], row.get("error")) for row in read_output(tmp_path / "out.jsonl")
    ]
    assert found == [
        *(("one two ", 0, 3, None), ("three fo", 1, 3, None), ("ur", 2, 3, None)),
        ("whole", 0, 1, "it cannot be split"),
        (None, 0, 1, "`text` is null"),
        *(("poison a", 0, 3, "it is poison"), ("nd poiso", 1, 3, None), ("n", 2, 3, None)),
        ("", 0, 1, None),
    ]


async def test_a_long_text_is_embedded_in_several_requests(tmp_path: Path) -> None:
    """Each within the limits of a request."""
    sizes: list[int] = []
    source = write_input(tmp_path / "in.jsonl", [{"text": "x" * 8000}])
    embedder = FakeEmbedder(before=lambda texts: sizes.append(len(texts)))
    await run_job(source, tmp_path / "out.jsonl", embedder, chunk=CHUNK)
    assert sizes[1:] == [128] * 7 + [104]


async def test_all_kinds_of_vectors_have_their_columns(tmp_path: Path) -> None:
    """With the types that docs/bulk.md promises; the schema names the model and its vector space."""
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


async def test_a_folder_of_tables_gives_all_their_rows(tmp_path: Path) -> None:
    """In the order of the file names."""
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
    """The column `error` has the reason; the other rows have vectors."""
    source = write_input(tmp_path / "in.jsonl", [*BAD_ROWS, {"id": 4, "text": "good too"}])
    summary = await run_job(source, tmp_path / out, on_error="null")
    found = read_output(tmp_path / out)
    assert [row["dense"] is None for row in found] == [False, True, True, True, False]
    assert [row.get("error") for row in found] == [
        None, "`text` is null", "`text` is not a string but int", "it is poison", None,
    ]  # fmt: skip
    np.testing.assert_allclose(found[4]["dense"], vector_of("good too"), rtol=1e-6)
    assert summary.failed == 3


@pytest.mark.parametrize(
    ("bad", "why"), [({"text": None}, "null"), ({"text": "poison"}, "poison"), ({"text": 7}, "int")], ids=str
)
async def test_a_row_that_cannot_be_embedded_fails_the_job_with_its_number(
    tmp_path: Path, bad: dict[str, Any], why: str
) -> None:
    """The parts before it are kept, and --on-error null resumes from there."""
    rows = [*({"text": f"text {i}"} for i in range(300)), bad, {"text": "end"}]
    source = write_input(tmp_path / "in.jsonl", rows)
    options = {"outputs": frozenset({"dense", "sparse", "colbert"}), "part_rows": 150}
    with pytest.raises(BulkFailed, match=rf"Row 300, counted from 0: .*{why}.*--on-error null"):
        await run_job(source, tmp_path / "out.parquet", **options)
    summary = await run_job(source, tmp_path / "out.parquet", **options, on_error="null")
    assert (summary.rows, summary.resumed_from, summary.failed) == (302, 300, 1)
    assert [row["dense"] is None for row in read_output(tmp_path / "out.parquet")] == [False] * 300 + [True, False]


@pytest.mark.parametrize("out", ["out.parquet", "out.arrow", "out.jsonl"])
async def test_a_first_part_may_have_no_vectors(tmp_path: Path, out: str) -> None:
    """Its columns have the widths of the model's vectors."""
    rows = [{"text": None, "id": i} for i in range(300)] + [{"text": "one", "id": 300}]
    source = write_input(tmp_path / "in.jsonl", rows)
    kinds = frozenset({"dense", "sparse", "colbert"})
    await run_job(source, tmp_path / out, column="text", on_error="null", part_rows=100, outputs=kinds)
    found = read_output(tmp_path / out)
    assert [row["id"] for row in found] == list(range(301))
    np.testing.assert_allclose(found[300]["dense"], vector_of("one"), rtol=1e-6)
    assert (found[0]["colbert"], found[300]["colbert"]) == (None, [[3] * TOKEN_WIDTH] * 3)


async def test_a_refused_request_is_retried(tmp_path: Path) -> None:
    """429 and 503 delay the job, and lose no row."""
    rows = rows_of(600)
    await run_job(write_input(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl", FakeEmbedder(later=7))
    check_vectors(read_output(tmp_path / "out.jsonl"), [row["text"] for row in rows])


async def test_no_request_exceeds_the_limit_of_inputs(tmp_path: Path) -> None:
    """The embedder reports the limit."""
    sizes: list[int] = []

    embedder = FakeEmbedder(before=lambda texts: sizes.append(len(texts)))
    embedder.max_inputs = 7
    await run_job(write_input(tmp_path / "in.jsonl", rows_of(30)), tmp_path / "out.jsonl", embedder)
    assert sizes[1:] == [7, 7, 7, 7, 2]  # after the text that shows the widths


async def test_a_job_fails_after_its_patience(tmp_path: Path) -> None:
    """The error contains the last reason of the server."""
    job = job_of(write_input(tmp_path / "in.jsonl", rows_of(3)), tmp_path / "out.jsonl")
    with pytest.raises(BulkFailed, match=r"No request succeeded for 0 s: full"):
        await run_pipeline(Pipeline(find_source(job)), FakeEmbedder(later=10**9), patience_s=0)


async def test_a_job_that_waits_for_its_output_can_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as for a database that is down."""

    class Down(BulkOutput):
        name = "down"

        def start(self, *_: Any) -> frozenset[int]:
            return frozenset()

        def write(self, *_: Any) -> None:
            loop.call_soon_threadsafe(pipeline.stop, signal.SIGINT)
            raise RetryLater("connection refused", 3600)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr("vectord.bulk.pipeline.output_of", lambda _: Down())
    job = job_of(write_input(tmp_path / "in.jsonl", rows_of(3)), tmp_path / "out.jsonl")
    pipeline = Pipeline(find_source(job))
    with pytest.raises(Stopped):
        await asyncio.wait_for(run_pipeline(pipeline, FakeEmbedder()), timeout=60)


async def test_vectors_of_another_space_fail_the_job(tmp_path: Path) -> None:
    """Whether the server restarts with another model during a run or between two."""
    source = write_input(tmp_path / "in.jsonl", rows_of(300))

    def restart(texts: Sequence[str]) -> None:
        if "text 150, ünïcode" in texts:
            embedder.space = "other"

    embedder = FakeEmbedder(before=restart)
    with pytest.raises(BulkFailed, match="to the space other, the earlier ones to space"):
        await run_job(source, tmp_path / "out.jsonl", embedder, part_rows=100)
    with pytest.raises(ConfigError, match="other weights: vector space space, now other"):
        await run_job(source, tmp_path / "out.jsonl", embedder, part_rows=100)


async def test_memory_does_not_grow_with_the_input(tmp_path: Path) -> None:
    """Reading stops at the limit of rows in flight."""
    source = write_input(tmp_path / "in.jsonl", [{"text": "x" * 5000}] * 2000)
    waiting = asyncio.Event()
    in_flight: list[int] = []

    class Stuck(FakeEmbedder):
        async def embed(self, texts: Sequence[str]) -> Any:
            if texts == [PROBE]:
                return await super().embed(texts)
            in_flight.append(sum(map(len, texts)))
            if sum(in_flight) > 900_000:
                waiting.set()
            return await asyncio.Event().wait()

    job = job_of(source, tmp_path / "out.jsonl")
    pipeline = Pipeline(find_source(job))
    running = asyncio.create_task(run_pipeline(pipeline, Stuck()))
    await waiting.wait()
    for _ in range(1000):
        await asyncio.sleep(0)
    assert sum(in_flight) <= 1_000_000
    pipeline.stop(signal.SIGINT)
    with pytest.raises(Stopped):
        await running


async def test_a_changed_input_is_refused(tmp_path: Path) -> None:
    """Its size or time differs; --restart starts over."""
    source = write_input(tmp_path / "in.jsonl", [*rows_of(300), {"text": "poison"}])
    with pytest.raises(BulkFailed):
        await run_job(source, tmp_path / "out.jsonl", part_rows=100)
    write_input(source, rows_of(301))
    with pytest.raises(ConfigError, match=r"another input, or a changed one.*--restart"):
        await run_job(source, tmp_path / "out.jsonl", part_rows=100)
    summary = await run_job(source, tmp_path / "out.jsonl", part_rows=100, restart=True)
    assert (summary.rows, summary.resumed_from) == (301, 0)


async def test_an_existing_output_is_not_overwritten(tmp_path: Path) -> None:
    """--restart replaces it when the new one is complete."""
    source = write_input(tmp_path / "in.jsonl", [*rows_of(3), {"text": "poison"}])
    out = tmp_path / "out.jsonl"
    out.write_text("precious")
    with pytest.raises(ConfigError, match="exists already"):
        await run_job(source, out)
    with pytest.raises(BulkFailed):
        await run_job(source, out, part_rows=2, restart=True)
    assert out.read_text() == "precious"
    summary = await run_job(source, out, part_rows=2, on_error="null")
    assert (summary.rows, summary.resumed_from) == (4, 2)
