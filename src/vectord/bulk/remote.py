"""The model of a server, over HTTP: vectors in Arrow if both sides support it, else in JSON with base64.

Uses the transport of `vectord.client`. Order and retries belong to the pipeline.
"""

from __future__ import annotations

import asyncio
from binascii import a2b_base64
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from types import TracebackType
from typing import Any, Self

import httpx
import msgspec
import numpy as np

from vectord.bulk.embedder import ModelFacts, facts_of, find_model, model_description, precision_of
from vectord.bulk.job import BulkFailed, BulkJob, RetryLater
from vectord.bulk.rows import Array, TextVectors
from vectord.client.errors import ClientError, NotAcceptable, TryLater
from vectord.client.reading import ARROW, matrices_of, matrix_of, read_batch, sparse_rows_of
from vectord.client.requests import JSON, HttpReply, Part, RequestTemplate, get, post
from vectord.client.transport import AsyncSender, Settings
from vectord.errors import ConfigError
from vectord.schema import Sparse, VectorKind

CONCURRENCY = 8  # concurrent requests
TIMEOUT_S = 600.0
MAX_ANSWER_BYTES = 256 * 2**20
DTYPES = {"float": "<f4", "int8": "i1", "uint8": "u1", "ubinary": "u1"}


class _SparseBody(msgspec.Struct):
    indices: list[int]
    values: list[float]


class _FailureBody(msgspec.Struct):
    message: str


class _TextBody(msgspec.Struct):
    dense: str | None = None
    sparse: _SparseBody | None = None
    colbert: list[str] | None = None
    error: _FailureBody | None = None


class _Body(msgspec.Struct):
    data: list[_TextBody]


class RemoteEmbedder:
    """For use in an `async with` block."""

    def __init__(self, url: str, api_key: str | None, job: BulkJob) -> None:
        """Opens no connection yet. Raises ConfigError for an invalid URL."""
        try:
            settings = Settings(
                base_url=url,
                api_key=api_key,
                timeout_s=TIMEOUT_S,
                max_answer_bytes=MAX_ANSWER_BYTES,
                max_retries=0,
                concurrency=CONCURRENCY,
                texts_per_request=1,
                characters_per_request=1,
                lane="bulk",
            )
        except ValueError as problem:
            raise ConfigError(f"--url: {problem}") from None
        self._job = job
        self._precision = precision_of(job)
        self._http = httpx.AsyncClient()
        self._sender = AsyncSender(self._http, settings)
        self._arrow = find_spec("pyarrow") is not None
        self._model: str | None = job.model
        self._slots = asyncio.Semaphore(CONCURRENCY)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def facts(self) -> ModelFacts:
        reply = await self._send(get("/vectord/models"))
        try:
            found = msgspec.json.decode(reply.body)
            if (one := find_model(self._job, found["models"])) is not None:
                self._model = one["name"]
                return facts_of(one, int(found["limits"]["max_inputs_per_request"]))
        except (msgspec.DecodeError, KeyError, TypeError, ValueError) as cause:
            raise BulkFailed("--url: the server is not vectord") from cause
        raise BulkFailed(f"--model: the server has no {model_description(self._job)}")

    async def embed(self, texts: Sequence[str]) -> TextVectors:
        try:
            reply = await self._request(texts, ARROW if self._arrow else JSON)
        except NotAcceptable:
            if not self._arrow:
                raise BulkFailed("the server supports no response format of this client") from None
            self._arrow = False
            return await self.embed(texts)
        try:
            return read_reply(reply, self._job, len(texts))
        except (msgspec.DecodeError, ValueError, KeyError, TypeError) as cause:
            raise BulkFailed("docs/api.md does not describe the server's response") from cause

    async def _request(self, texts: Sequence[str], accept: str) -> HttpReply:
        job = self._job
        body = {
            "model": self._model,
            "truncate": job.truncate,
            "truncate_side": job.truncate_side,
            "kind": job.kind,
            "prompt": job.prompt,
            "prompt_name": job.prompt_name,
            "outputs": list(job.kinds),
            "dimensions": job.dimensions,
            "normalize": job.normalize,
            "precisions": [self._precision],
            "encoding": "base64",
            "partial_results": True,
        }
        template = RequestTemplate(path="/vectord/embed", key="inputs", body=body, accept=accept)
        return await self._send(post(Part(template, 0, texts), "bulk"))

    async def _send(self, request: Any) -> HttpReply:
        """Raises RetryLater, NotAcceptable, BulkFailed."""
        try:
            async with self._slots:
                return await self._sender.send(request)
        except TryLater as refused:
            raise RetryLater(str(refused), refused.retry_after_s) from refused
        except NotAcceptable:
            raise
        except ClientError as cause:
            raise BulkFailed(str(cause)) from cause


def read_reply(reply: HttpReply, job: BulkJob, texts: int) -> TextVectors:
    """The vectors of a reply in Arrow or JSON. Raises ValueError, msgspec.DecodeError and the like if it is invalid."""
    counts: dict[str, Any] = {
        "space": reply.fingerprint,
        "tokens": reply.tokens_read,
        "cut": int(reply.headers.get("x-vectord-truncated", "0")),
    }
    if reply.headers.get("content-type") == ARROW:
        return _read_arrow(reply.body, texts, job.kinds, counts)
    data = msgspec.json.decode(reply.body, type=_Body).data
    if len(data) != texts:
        raise ValueError("the number of vectors differs from the number of texts")
    return TextVectors(
        dense=_dense([one.dense for one in data], DTYPES[precision_of(job)]) if "dense" in job.outputs else None,
        sparse=[_sparse(one.sparse) for one in data] if "sparse" in job.outputs else None,
        colbert=[_colbert(one.colbert) for one in data] if "colbert" in job.outputs else None,
        failures={i: _without_place(one.error.message, i) for i, one in enumerate(data) if one.error is not None},
        **counts,
    )


def _without_place(message: str, index: int) -> str:
    """The server's message without the text's index in its request: the job names the row."""
    return message.replace(f"`inputs[{index}]`", "the input")


def _dense(encoded: Sequence[str | None], dtype: str) -> Array | None:
    rows = {i: np.frombuffer(a2b_base64(one), dtype) for i, one in enumerate(encoded) if one is not None}
    if not rows:
        return None
    whole = np.zeros((len(encoded), len(next(iter(rows.values())))), dtype)
    for i, row in rows.items():
        whole[i] = row
    return whole


def _sparse(vector: _SparseBody | None) -> Sparse:
    if vector is None:
        return Sparse(np.zeros(0, np.int32), np.zeros(0, np.float32))
    return Sparse(np.array(vector.indices, np.int32), np.array(vector.values, np.float32))


def _colbert(rows: list[str] | None) -> Array:
    if not rows:
        return np.zeros((0, 0), np.float32)
    return np.stack([np.frombuffer(a2b_base64(row), "<f4") for row in rows])


def _read_arrow(body: bytes, texts: int, kinds: Sequence[VectorKind], counts: Mapping[str, Any]) -> TextVectors:
    batch = read_batch(body)
    if batch.num_rows != texts:
        raise ValueError("the number of vectors differs from the number of texts")
    columns = {name: batch.column(name) for name in batch.schema.names}
    errors = enumerate(columns["error"].to_pylist())
    return TextVectors(
        dense=matrix_of(columns["dense"]) if "dense" in kinds else None,
        sparse=_sparse_rows(columns["sparse"]) if "sparse" in kinds else None,
        colbert=matrices_of(columns["colbert"]) if "colbert" in kinds else None,
        failures={i: _without_place(message, i) for i, message in errors if message is not None},
        **counts,
    )


def _sparse_rows(column: Any) -> list[Sparse]:
    rows = sparse_rows_of(column)
    bounds = np.cumsum(rows.lengths)[:-1]
    return [Sparse(*pair) for pair in zip(np.split(rows.ids, bounds), np.split(rows.weights, bounds), strict=True)]
