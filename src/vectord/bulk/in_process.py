"""The model in this process: the engine's own scheduler sees the lane bulk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from vectord.bulk.embedder import Facts, facts_of, find_model, precision_of, wanted, without_place
from vectord.bulk.failures import BulkFailed, Later
from vectord.bulk.job import Job
from vectord.bulk.rows import Answer
from vectord.engine.client import EngineClient
from vectord.errors import Overloaded, Unavailable, VectordError
from vectord.schema import Caller, EmbedRequest, EmbedResult, TextOptions

CALLER = Caller(client="bulk", lane="bulk", route="bulk")


class InProcess:
    def __init__(self, engine: EngineClient, job: Job) -> None:
        self._engine = engine
        self._job = job
        self._precision = precision_of(job)
        self._text = TextOptions(
            truncate=job.truncate,
            truncate_side=job.truncate_side,
            kind=job.kind,
            prompt=job.prompt,
            prompt_name=job.prompt_name,
        )

    async def facts(self) -> Facts:
        found = self._engine.models(CALLER)
        info = find_model(self._job, map(asdict, found.models))
        if info is None:
            raise BulkFailed(f"--model: there is no {wanted(self._job)} among those that are opened here")
        if info["state"] == "failed":
            raise BulkFailed(f"{info['name']} could not be loaded; the log says why")
        return facts_of(info, found.limits.max_inputs_per_request)

    async def embed(self, texts: Sequence[str]) -> Answer:
        job = self._job
        request = EmbedRequest(
            inputs=texts,
            model=job.model,
            text=self._text,
            outputs=job.outputs,
            normalize=job.normalize,
            dimensions=job.dimensions,
            precisions=(self._precision,),
            partial=True,
            waits=True,
        )
        try:
            result = await self._engine.answer(request, CALLER)
        except (Overloaded, Unavailable) as refused:
            raise Later(refused.message, refused.retry_after_s) from refused
        except VectordError as cause:
            raise BulkFailed(cause.message) from cause
        assert isinstance(result, EmbedResult)
        return Answer(
            space=result.fingerprint,
            dense=result.dense.get(self._precision),
            sparse=result.sparse,
            colbert=result.colbert,
            tokens=result.usage.tokens,
            cut=_count_cut(result, len(texts)),
            failures={index: without_place(error.message, index) for index, error in result.failures.items()},
        )


def _count_cut(result: EmbedResult, texts: int) -> int:
    """Texts that a model did not read to their end."""
    return sum(any(lengths[index].truncated for lengths in result.lengths.values()) for index in range(texts))
