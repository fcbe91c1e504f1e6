"""The actor of Ray Data: an engine that embeds each part of the input as a job of vectord.bulk.

Ray Data calls it with one part at a time, in one thread. The name of a part identifies its rows, so a part that is made
twice, because a node died or seemed to, exists once.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from vectord import compose
from vectord.bulk.embedder import EngineEmbedder
from vectord.bulk.inputs import find_source
from vectord.bulk.job import BulkFailed, BulkJob
from vectord.bulk.pipeline import Pipeline, Summary
from vectord.bulk.progress import JobProgress
from vectord.cluster.ray.parts import InputPart, SharedStorage
from vectord.config import Config
from vectord.observability import logs


class PartEmbedder:
    def __init__(
        self, config: Config, job: BulkJob, source: str, out: str, fingerprint: str | None, patience_s: float
    ) -> None:
        """fingerprint: of the weights that made the finished parts; None: there are none."""
        logs.configure(config.telemetry)
        self._job = job
        self._source, self._out = SharedStorage(source), SharedStorage(out)
        self._fingerprint = fingerprint
        self._patience_s = patience_s
        self._runner = asyncio.Runner()
        self._running = AsyncExitStack()
        engine = self._runner.run(self._running.enter_async_context(compose.running_engine(config)))
        self._embedder = EngineEmbedder(engine, job)

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Make one part. row: an InputPart. Returns `report`, also for BulkFailed: Ray would retry an exception."""
        part = InputPart(**row)
        with tempfile.TemporaryDirectory(prefix="vectord-part-") as folder:
            try:
                return report(part, summary=self._runner.run(self._make(part, Path(folder))))
            except BulkFailed as failed:
                return report(part, error=f"{part.path}, rows from {part.start}: {failed}")

    async def _make(self, part: InputPart, folder: Path) -> Summary:
        facts = await self._embedder.facts()
        if self._fingerprint not in (None, facts.fingerprint):
            raise BulkFailed("OUT has parts made with other weights; --restart starts over")
        texts, vectors = folder / "in.parquet", folder / "out.parquet"
        self._source.copy_rows(part.path, part.start, part.stop, texts)
        job = replace(self._job, source=str(texts), out=vectors, input_format="parquet")
        progress = JobProgress(part.stop - part.start)
        pipeline = Pipeline(job, find_source(job), self._embedder, progress, patience_s=self._patience_s, restart=False)
        summary = await pipeline.run()
        self._out.upload(vectors, part.name)
        return summary


def report(part: InputPart, *, summary: Summary | None = None, error: str = "") -> dict[str, Any]:
    """A row for Ray Data, always with the same columns. error: "" for a finished part."""
    found = {} if summary is None else asdict(summary)
    return {
        "name": part.name,
        "error": error,
        "space": found.get("space", ""),
        **{name: found.get(name, 0) for name in ("rows", "tokens", "cut", "failed")},
    }
