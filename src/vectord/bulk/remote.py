"""The model of a server, over HTTP: vectors in JSON with base64.

Uses the transport of `vectord.client`. Order and retries belong to the pipeline.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from itertools import starmap
from ssl import SSLContext
from typing import Any, Self

import httpx
import msgspec

from vectord.bulk.embedder import ModelFacts, error_of_row, facts_of, precision_of
from vectord.bulk.job import BulkFailed, BulkJob, RetryLater, TextsRefused
from vectord.bulk.rows import TextVectors
from vectord.client.errors import BadRequest, ClientError, ServerFailed, TryLater
from vectord.client.reading import LAYOUTS, read_vectors
from vectord.client.requests import HttpReply, HttpRequest, RequestPart, RequestTemplate, get, post
from vectord.client.transport import ClientSettings, Sender
from vectord.errors import ConfigError, InvalidRequest
from vectord.schema import COLBERT_ROWS, Media, Span, Sparse
from vectord.text.pdf import page_image

CONCURRENCY = 8  # concurrent requests
TIMEOUT_S = 600.0
MAX_ANSWER_BYTES = 256 * 2**20
MAX_PAGE_BYTES = 8 * 2**20  # of a page that is sent: with two pages, the body is within a server's usual limit
INVALID = "the server's response is invalid; check that --url is a vectord server of this version"


class _Document(msgspec.Struct):
    chunks: list[Span]


class _Documents(msgspec.Struct):
    data: list[_Document]


_documents = msgspec.json.Decoder(_Documents)


class RemoteEmbedder:
    """Embeds through a running server. Used in an `async with` block."""

    def __init__(self, url: str, api_key: str | None, job: BulkJob, tls: SSLContext | None = None) -> None:
        """Opens no connection yet. tls: None trusts the usual authorities. Raises ConfigError for an invalid URL."""
        try:
            settings = ClientSettings(
                base_url=url,
                api_key=api_key,
                timeout_s=TIMEOUT_S,
                max_answer_bytes=MAX_ANSWER_BYTES,
            )
        except ValueError as problem:
            raise ConfigError(f"--url: {problem}") from None
        self._job = job
        self._precision = precision_of(job)
        self._http = httpx.AsyncClient(verify=tls or True)
        self._sender = Sender(self._http, settings)
        self._model: str | None = job.model
        self._slots = asyncio.Semaphore(CONCURRENCY)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self._http.aclose()

    async def facts(self) -> ModelFacts:
        reply = await self._send(get("/vectord/models"))
        try:
            found = msgspec.json.decode(reply.body)
            facts = facts_of(self._job, found["models"], int(found["limits"]["max_inputs_per_request"]), "the server")
        except (msgspec.DecodeError, KeyError, TypeError, ValueError) as cause:
            raise BulkFailed("--url: the server is not vectord") from cause
        self._model = facts.model
        return facts

    async def chunk(self, texts: Sequence[str]) -> list[Sequence[Span]]:
        body = {**self._text_options(), "chunk": self._job.chunk, "vectors": False}
        template = RequestTemplate(path="/vectord/documents", key="documents", body=body)
        reply = await self._send(post(RequestPart(template, 0, texts), "bulk"))
        try:
            return [document.chunks for document in _documents.decode(reply.body).data]
        except msgspec.DecodeError as cause:
            raise BulkFailed(INVALID) from cause

    def _text_options(self) -> dict[str, object]:
        job = self._job
        return {
            "model": self._model,
            "truncate": job.truncate,
            "truncate_side": job.truncate_side,
            "kind": job.kind,
            "prompt": job.prompt,
            "prompt_name": job.prompt_name,
        }

    async def embed(self, texts: Sequence[str | Media]) -> TextVectors:
        job = self._job
        body: dict[str, Any] = {
            **self._text_options(),
            "outputs": sorted(job.model_outputs),
            "dimensions": job.dimensions,
            "normalize": job.normalize,
            "precisions": [self._precision],
            "encoding": "base64",
            "partial_results": True,
        }
        if job.multivectors != COLBERT_ROWS:
            body["colbert"] = job.multivectors
        template = RequestTemplate(path="/vectord/embed", key="inputs", body=body)
        sent: list[str | bytes] = []
        undrawn: dict[int, str] = {}
        for i, text in enumerate(texts):
            try:
                sent.append(text if isinstance(text, str) else await asyncio.to_thread(_sent, text))
            except InvalidRequest as cause:
                sent.append(b"")  # which the server refuses alone
                undrawn[i] = error_of_row(cause)
        reply = await self._send(post(RequestPart(template, 0, sent), "bulk"))
        try:
            vectors = read_reply(reply, self._job, len(texts))
            return replace(vectors, failures={**vectors.failures, **undrawn})
        except (ServerFailed, ValueError) as cause:
            raise BulkFailed(INVALID) from cause

    async def _send(self, request: HttpRequest) -> HttpReply:
        try:
            async with self._slots:
                return await self._sender.send(request)
        except TryLater as refused:
            raise RetryLater(str(refused), refused.retry_after_s) from refused
        except BadRequest as cause:
            raise TextsRefused(re.sub(r"`(inputs|documents)(\[\d+\])?`", "the input", str(cause))) from cause
        except ClientError as cause:
            raise BulkFailed(str(cause)) from cause


def _sent(media: Media) -> bytes:
    """The file of an image; of a page, a PNG. Raises InvalidRequest for a page that cannot be drawn."""
    if media.page is None:
        return media.data
    image, file = page_image(media), BytesIO()
    image.save(file, "PNG", compress_level=1)
    if file.tell() > MAX_PAGE_BYTES:  # a photo
        file = BytesIO()
        image.save(file, "JPEG", quality=95, subsampling=0)
    return file.getvalue()


def read_reply(reply: HttpReply, job: BulkJob, texts: int) -> TextVectors:
    """The vectors of a reply. Raises ServerFailed or ValueError if it is invalid."""
    layouts = {"layout": LAYOUTS[precision_of(job)], "rows_layout": LAYOUTS[job.multivectors.precision]}
    found = read_vectors(reply, job.kinds, texts, partial=True, **layouts)
    return TextVectors(
        space=reply.fingerprint,
        dense=found.dense if "dense" in job.outputs and len(found.failures) < texts else None,
        sparse=list(starmap(Sparse, found.sparse)) if "sparse" in job.outputs and found.sparse is not None else None,
        colbert=found.colbert if "colbert" in job.outputs else None,
        muvera=found.muvera if "muvera" in job.outputs and len(found.failures) < texts else None,
        tokens=reply.tokens_read,
        cut=int(reply.headers.get("x-vectord-truncated", "0")),
        # The job names the row: the message does not need the text's index in its request.
        failures={i: message.replace(f"`inputs[{i}]`", "the input") for i, message in found.failures.items()},
    )
