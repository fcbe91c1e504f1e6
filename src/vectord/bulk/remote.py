"""The model of a server, over HTTP, in Arrow where both sides have it and in JSON with base64 where not.

The client's parts are used one by one: it is the job that keeps the order, waits, and knows what fails alone.
"""

from __future__ import annotations

import asyncio
from binascii import a2b_base64
from collections.abc import Sequence
from importlib.util import find_spec
from types import TracebackType
from typing import Any, Self

import httpx
import msgspec
import numpy as np

from vectord.bulk.embedder import Facts, facts_of, find_model, precision_of, wanted, without_place
from vectord.bulk.failures import BulkFailed, Later
from vectord.bulk.job import Job
from vectord.bulk.rows import Answer
from vectord.client.errors import ClientError, NotAcceptable, TryLater
from vectord.client.reading import ARROW
from vectord.client.requests import JSON, Part, Reply, Template, get, post
from vectord.client.transport import AsyncSender, Settings
from vectord.errors import ConfigError
from vectord.schema import Sparse

CONCURRENCY = 8  # requests at once; more wait for the server's answers here
TIMEOUT_S = 600.0
MAX_ANSWER_BYTES = 256 * 2**20
DTYPES = {"float": "<f4", "int8": "i1", "uint8": "u1", "ubinary": "u1"}


class _Sparse(msgspec.Struct):
    indices: list[int]
    values: list[float]


class _Failed(msgspec.Struct):
    message: str


class _Embedded(msgspec.Struct):
    dense: str | None = None
    sparse: _Sparse | None = None
    colbert: list[str] | None = None
    error: _Failed | None = None


class _Answer(msgspec.Struct):
    data: list[_Embedded]


class Remote:
    """To be used in `async with`."""

    def __init__(self, url: str, api_key: str | None, job: Job) -> None:
        """Raises ConfigError for a URL that is none. Opens no connection yet."""
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
        self._room = asyncio.Semaphore(CONCURRENCY)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def facts(self) -> Facts:
        reply = await self._send(get("/vectord/models"))
        try:
            found = msgspec.json.decode(reply.body)
            if (one := find_model(self._job, found["models"])) is not None:
                self._model = one["name"]
                return facts_of(one, int(found["limits"]["max_inputs_per_request"]))
        except (msgspec.DecodeError, KeyError, TypeError, ValueError) as cause:
            raise BulkFailed("--url: what answers there is no vectord") from cause
        raise BulkFailed(f"--model: the server has no {wanted(self._job)}")

    async def embed(self, texts: Sequence[str]) -> Answer:
        try:
            reply = await self._ask(texts, ARROW if self._arrow else JSON)
        except NotAcceptable:
            if not self._arrow:
                raise BulkFailed("the server has no form of answer that can be read here") from None
            self._arrow = False
            return await self.embed(texts)
        try:
            return self._read(reply, len(texts))
        except (msgspec.DecodeError, ValueError, KeyError, TypeError) as cause:
            raise BulkFailed("the server's answer is none of vectord's") from cause

    async def _ask(self, texts: Sequence[str], accept: str) -> Reply:
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
        template = Template(path="/vectord/embed", key="inputs", body=body, accept=accept)
        return await self._send(post(Part(template, 0, texts), "bulk"))

    async def _send(self, request: Any) -> Reply:
        """Raises Later, NotAcceptable, BulkFailed."""
        try:
            async with self._room:
                return await self._sender.send(request)
        except TryLater as refused:
            raise Later(str(refused), refused.retry_after_s) from refused
        except NotAcceptable:
            raise
        except ClientError as cause:
            raise BulkFailed(str(cause)) from cause

    def _read(self, reply: Reply, texts: int) -> Answer:
        counts: dict[str, Any] = {
            "space": reply.fingerprint,
            "tokens": reply.tokens_read,
            "cut": int(reply.headers.get("x-vectord-truncated", "0")),
        }
        if reply.headers.get("content-type") == ARROW:
            from vectord.bulk.arrow.answer import read_answer  # noqa: PLC0415 - pyarrow, an extra

            return read_answer(reply.body, texts, self._job.kinds, counts)
        data = msgspec.json.decode(reply.body, type=_Answer).data
        if len(data) != texts:
            raise ValueError("another number of vectors than of texts")
        failures = {i: without_place(one.error.message, i) for i, one in enumerate(data) if one.error is not None}
        return Answer(
            dense=self._dense(data) if "dense" in self._job.outputs else None,
            sparse=[_sparse(one.sparse) for one in data] if "sparse" in self._job.outputs else None,
            colbert=[_colbert(one.colbert) for one in data] if "colbert" in self._job.outputs else None,
            failures=failures,
            **counts,
        )

    def _dense(self, data: Sequence[_Embedded]) -> Any:
        rows = {
            i: np.frombuffer(a2b_base64(one.dense), DTYPES[self._precision])
            for i, one in enumerate(data)
            if one.dense is not None
        }
        if not rows:
            return None
        width = len(next(iter(rows.values())))
        whole = np.zeros((len(data), width), DTYPES[self._precision])
        for i, row in rows.items():
            whole[i] = row
        return whole


def _sparse(vector: _Sparse | None) -> Sparse:
    if vector is None:
        return Sparse(np.zeros(0, np.int32), np.zeros(0, np.float32))
    return Sparse(np.array(vector.indices, np.int32), np.array(vector.values, np.float32))


def _colbert(rows: list[str] | None) -> Any:
    if not rows:
        return np.zeros((0, 0), np.float32)
    return np.stack([np.frombuffer(a2b_base64(row), "<f4") for row in rows])
