"""Jobs for tests: input files in every format, an embedder without a model, and a reader of OUT."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from signal import SIGTERM
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from vectord.bulk.embedder import ModelFacts
from vectord.bulk.inputs import find_source
from vectord.bulk.job import BulkJob, RetryLater, Stopped, Summary, TextsRefused
from vectord.bulk.outputs import format_of_output
from vectord.bulk.pipeline import PROBE, Pipeline
from vectord.bulk.progress import JobProgress
from vectord.bulk.rows import TextVectors
from vectord.schema import ChunkOptions, Media, Span, Sparse

WIDTH, TOKEN_WIDTH = 4, 3
CHUNK = ChunkOptions(max_tokens=8)  # of FakeEmbedder: characters


def vector_of(text: str | Media) -> np.ndarray:
    """(WIDTH,) float32, different for every text, image and page."""
    content = text.encode() if isinstance(text, str) else text.data + bytes([text.page or 0])
    return np.random.default_rng(crc32(content)).random(WIDTH, np.float32)


class FakeEmbedder:
    """A BulkEmbedder. A text that contains "poison" fails alone, and one with "whole" has no chunks; the first `later`
    requests raise RetryLater.

    before: called with the texts of each request before the response.
    """

    def __init__(self, *, later: int = 0, space: str = "space", before: Callable[[Sequence[Any]], None] | None = None):
        self.later = later
        self.space = space
        self.before = before
        self.seen: list[str | Media] = []
        self.modalities = ["text", "image"]
        self.max_inputs = 2048

    async def facts(self) -> ModelFacts:
        facts = {"max_inputs": self.max_inputs, "modalities": self.modalities}
        return ModelFacts(model="fake", fingerprint="f" * 16, dimensions=WIDTH, **facts)

    async def chunk(self, texts: Sequence[str]) -> list[Sequence[Span]]:
        if any("whole" in text for text in texts):
            raise TextsRefused("it cannot be split")
        starts = [range(0, max(1, len(text)), CHUNK.max_tokens) for text in texts]
        return [
            [Span(start, min(start + CHUNK.max_tokens, len(text))) for start in own]
            for text, own in zip(texts, starts, strict=True)
        ]

    async def embed(self, texts: Sequence[str | Media]) -> TextVectors:
        if self.later:
            self.later -= 1
            raise RetryLater("full", 0.001)
        if self.before is not None:
            self.before(texts)
        self.seen += [text for text in texts if text != PROBE]
        dense, texts = [vector_of(text) for text in texts], [one if isinstance(one, str) else "page" for one in texts]
        return TextVectors(
            space=self.space,
            dense=np.stack(dense),
            sparse=[Sparse(np.arange(len(text), dtype=np.int32), np.ones(len(text), np.float32)) for text in texts],
            colbert=[np.full((len(text), TOKEN_WIDTH), len(text), np.float32) for text in texts],
            tokens=sum(map(len, texts)),
            cut=sum("long" in text for text in texts),
            failures={index: "it is poison" for index, text in enumerate(texts) if "poison" in text},
        )


def job_of(source: Path | str, out: Path, **options: Any) -> BulkJob:
    """out: a file. A URL is in `options`."""
    output_format, compression = format_of_output(options.get("out_url") or str(out), None)
    given = {"output_format": output_format, "output_compression": compression, "part_rows": 1024, **options}
    return BulkJob(source=str(source), out=out, **given)


async def run_pipeline(pipeline: Pipeline, embedder: FakeEmbedder, patience_s: float = 60.0) -> Summary:
    return await pipeline.run(embedder, JobProgress(None), patience_s)


async def run_job(source: Path | str, out: Path, embedder: FakeEmbedder | None = None, **options: Any) -> Summary:
    job = job_of(source, out, **options)
    return await run_pipeline(Pipeline(find_source(job)), embedder or FakeEmbedder())


async def stop_job(job: BulkJob, content: str | Media) -> None:
    """Run the job until a request has this text or page, then stop it."""
    pipeline = Pipeline(find_source(job))
    embedder = FakeEmbedder(before=lambda inputs: pipeline.stop(SIGTERM) if content in inputs else None)
    with pytest.raises(Stopped) as stopped:
        await run_pipeline(pipeline, embedder)
    assert stopped.value.signal == SIGTERM


def rows_of(count: int) -> list[dict[str, Any]]:
    return [{"id": str(i), "text": f"text {i}, ünïcode"} for i in range(count)]


def write_input(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """In the format of the suffix."""
    suffixes = path.suffixes
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), path, row_group_size=50)
        return path
    if path.suffix in {".arrow", ".arrows"}:
        table = pa.Table.from_pylist(list(rows))
        with (pa.ipc.new_file if path.suffix == ".arrow" else pa.ipc.new_stream)(str(path), table.schema) as writer:
            writer.write_table(table, max_chunksize=30)
        return path
    if ".txt" in suffixes:
        data = "".join(row["text"] + "\n" for row in rows).encode()
    elif ".jsonl" in suffixes:
        data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    else:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter="\t" if ".tsv" in suffixes else ",")
            writer.writeheader()
            writer.writerows(rows)
        data = path.read_bytes()
    packed = {".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}.get(path.suffix, bytes)
    path.write_bytes(packed(data))
    return path


def read_output(path: Path) -> list[dict[str, Any]]:
    """The rows of OUT; only the vectors for .npy."""
    if path.suffix == ".npy":
        return [{"dense": row.tolist()} for row in np.load(path, mmap_mode="r")]
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    if path.suffix == ".arrow":
        return pa.ipc.open_file(str(path)).read_all().to_pylist()
    if path.suffix == ".arrows":
        return pa.ipc.open_stream(path.read_bytes()).read_all().to_pylist()
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    if path.suffix == ".zst":
        data = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
    return [json.loads(line) for line in data.splitlines()]


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}
