"""The model of a job: the interface, and its implementation by the engine in this process. remote.py uses a server.

Called on the event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from vectord.bulk.job import KINDS, BulkFailed, BulkJob, RetryLater, TextsRefused
from vectord.bulk.rows import TextVectors
from vectord.engine.client import LocalEngine
from vectord.errors import InvalidRequest, Overloaded, Unavailable, VectordError
from vectord.schema import (
    Caller,
    DocumentsRequest,
    DocumentsResult,
    EmbedRequest,
    EmbedResult,
    Media,
    Precision,
    Request,
    Result,
    Span,
    TextOptions,
)

log = logging.getLogger("vectord.bulk")

CALLER = Caller(client="bulk", lane="bulk", route="bulk")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Written into the metadata of a table. Values that are unknown keep their defaults."""

    model: str
    fingerprint: str
    model_id: str = ""
    revision: str | None = None
    pooling: str = ""
    dimensions: int = 0
    dtype: str = ""  # of the computation
    backend: str = ""
    max_inputs: int = 2048  # of one request
    modalities: Sequence[str] = ("text",)  # kinds of inputs


class BulkEmbedder(Protocol):
    async def facts(self) -> ModelFacts:
        """Of the job's model. Raises BulkFailed if there is no such model, RetryLater if it is not ready."""
        ...

    async def chunk(self, texts: Sequence[str]) -> list[Sequence[Span]]:
        """The chunks of each text, at least one. Raises TextsRefused; else as `embed`."""
        ...

    async def embed(self, texts: Sequence[str | Media]) -> TextVectors:
        """In order. An input that fails has its reason. Raises RetryLater, or BulkFailed for the whole job."""
        ...


def precision_of(job: BulkJob) -> Precision:
    """The precision to request: float16 is made of float32 later."""
    return "float" if job.numbers in {"float32", "float16"} else job.numbers  # type: ignore[return-value]


def facts_of(job: BulkJob, models: Sequence[Mapping[str, Any]], max_inputs: int, where: str) -> ModelFacts:
    """Of the model of --model, or of the first one with the job's outputs, a failed one last.

    models: entries of /vectord/models, or the same fields from the engine. where: they are, for the error.
    """
    if job.model is None:
        found = [one for one in models if job.model_outputs <= set(one["outputs"])]
        made = (f"{one['name']} makes {', '.join(sorted({*KINDS} & {*one['outputs']})) or 'none'}" for one in models)
        outputs = " and ".join(sorted(job.model_outputs))
        problem = f"--outputs: no model of {where} makes {outputs} vectors; {', '.join(made)}"
    else:
        found = [one for one in models if one["name"] == job.model]
        names = ", ".join(one["name"] for one in models)
        problem = f"--model: {job.model} is none of the models of {where}: {names}"
    if not found:
        raise BulkFailed(problem)
    one = min(found, key=lambda one: one["state"] == "failed")
    known = {name: one[name] for name in ModelFacts.__dataclass_fields__ if name in one}
    return ModelFacts(**{**known, "model": one["name"], "max_inputs": max_inputs})


class EngineEmbedder:
    """Embeds with the engine in this process, in its bulk lane."""

    def __init__(self, engine: LocalEngine, job: BulkJob) -> None:
        self._engine = engine
        self._job = job
        self._model = job.model
        self._precision = precision_of(job)
        self._text = TextOptions(
            truncate=job.truncate,
            truncate_side=job.truncate_side,
            kind=job.kind,
            prompt=job.prompt,
            prompt_name=job.prompt_name,
        )

    def model(self) -> ModelFacts:
        """Of the job's model, which need not be loaded. Raises BulkFailed if there is none."""
        found = self._engine.models(CALLER)
        models = [msgspec.structs.asdict(one) for one in found.models]
        where = "this process (named after OUT)"
        return facts_of(self._job, models, found.limits.max_inputs_per_request, where)

    async def facts(self) -> ModelFacts:
        facts = self.model()
        self._model = facts.model  # without --model: another model may load during the job
        for one in self._engine.models(CALLER).models:
            if one.state == "failed":
                cause = self._engine.failure(one.name) or "the log has the reason"
                failure = f"{one.name} could not be loaded: {cause}"
                if one.name == facts.model:
                    raise BulkFailed(failure)
                log.warning("%s", failure)
        return facts

    async def chunk(self, texts: Sequence[str]) -> list[Sequence[Span]]:
        request = DocumentsRequest(
            documents=texts, chunks=self._job.chunk, model=self._model, text=self._text, vectors=False
        )
        result = await self._answer(request)
        assert isinstance(result, DocumentsResult)
        return [[chunk.span for chunk in document.chunks] for document in result.documents]

    async def embed(self, texts: Sequence[str | Media]) -> TextVectors:
        job = self._job
        request = EmbedRequest(
            inputs=texts,
            model=self._model,
            text=self._text,
            outputs=job.model_outputs,
            normalize=job.normalize,
            dimensions=job.dimensions,
            precisions=(self._precision,),
            colbert=job.multivectors,
            partial=True,
            waits=True,
        )
        result = await self._answer(request)
        assert isinstance(result, EmbedResult)
        truncated = {index for lengths in result.lengths.values() for index in lengths.truncated}
        return TextVectors(
            space=result.fingerprint,
            dense=result.dense.get(self._precision),
            sparse=result.sparse,
            colbert=result.colbert,
            muvera=result.muvera,
            tokens=result.usage.tokens,
            cut=len(truncated),
            failures={index: error_of_row(error) for index, error in result.failures.items()},
        )

    async def _answer(self, request: Request) -> Result:
        try:
            return await self._engine.answer(request, CALLER)
        except (Overloaded, Unavailable) as refused:
            raise RetryLater(refused.message, refused.retry_after_s) from refused
        except InvalidRequest as cause:
            raise TextsRefused(error_of_row(cause)) from cause
        except VectordError as cause:
            raise BulkFailed(cause.message) from cause


def error_of_row(error: VectordError) -> str:
    """The message without the text's place in its request: the job names the row."""
    plain = copy(error)
    if error.field in {None, "inputs", "documents"}:
        plain.field = plain.index = None
    return plain.message
