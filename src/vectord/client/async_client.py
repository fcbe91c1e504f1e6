"""vectord.AsyncClient: client.py under asyncio, call by call."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable, Sequence
from contextlib import aclosing
from functools import cached_property
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import httpx

from vectord.client import calls
from vectord.client.answers import (
    Array,
    Batch,
    Document,
    Embeddings,
    Float32,
    Health,
    Label,
    Model,
    Ranking,
    Token,
)
from vectord.client.base import BaseClient
from vectord.client.calls import Call, Stream
from vectord.client.errors import BadRequest, NotAcceptable
from vectord.client.in_order import in_order_async
from vectord.client.messages import Reply, post
from vectord.client.options import (
    Chunk,
    ClassifyOptions,
    DecodeOptions,
    DocumentsOptions,
    Dtype,
    EmbedOptions,
    PromptedOptions,
    RerankOptions,
    TokenizeOptions,
    VectorKind,
)
from vectord.client.progress import progress_of
from vectord.client.reading import read_health, read_models
from vectord.client.sending import AsyncSender
from vectord.client.splitting import Part

A = TypeVar("A")


class AsyncClient(BaseClient[httpx.AsyncClient]):
    """Client, to be awaited. A call that is cancelled closes its connections, and the server drops its texts."""

    _http_of_its_own = httpx.AsyncClient

    async def embed(
        self,
        texts: str | Iterable[str],
        *,
        dtype: Dtype = "float32",
        progress: bool | None = None,
        **options: Unpack[EmbedOptions],
    ) -> Array:
        """As Client.embed."""
        return await self._run(calls.embed(texts, self._settings.limits, dtype, options), progress)

    def embed_iter(
        self, texts: Iterable[str], *, dtype: Dtype = "float32", **options: Unpack[EmbedOptions]
    ) -> AsyncIterator[Batch]:
        """As Client.embed_iter, for `async for`."""
        return self._batches(calls.embed_iter(texts, self._settings.limits, dtype, options))

    async def embed_all(
        self,
        texts: str | Iterable[str],
        *,
        outputs: Collection[VectorKind] = ("dense", "sparse", "colbert"),
        progress: bool | None = None,
        **options: Unpack[EmbedOptions],
    ) -> Embeddings:
        """As Client.embed_all."""
        given = calls.listed(texts)
        arrow = self._arrow
        call = calls.embed_all(given, outputs, self._settings.limits, options, arrow=arrow)
        try:
            return await self._run(call, progress)
        except NotAcceptable:
            if not arrow:
                raise
            self._arrow = False
            return await self.embed_all(given, outputs=outputs, progress=progress, **options)

    async def documents(
        self,
        texts: str | Iterable[str],
        *,
        chunk: Chunk,
        progress: bool | None = None,
        **options: Unpack[DocumentsOptions],
    ) -> list[Document]:
        """As Client.documents."""
        return await self._run(calls.documents(texts, chunk, self._settings.limits, options), progress)

    async def rerank(
        self,
        query: str,
        passages: str | Iterable[str],
        *,
        top_n: int | None = None,
        progress: bool | None = None,
        **options: Unpack[RerankOptions],
    ) -> Ranking:
        """As Client.rerank."""
        return await self._run(calls.rerank(query, passages, self._settings.limits, top_n, options), progress)

    async def classify(
        self,
        inputs: str | Iterable[str | tuple[str, str]],
        *,
        progress: bool | None = None,
        **options: Unpack[ClassifyOptions],
    ) -> list[list[Label]]:
        """As Client.classify."""
        return await self._run(calls.classify(inputs, self._settings.limits, options), progress)

    async def similarity(
        self,
        source: str,
        sentences: str | Iterable[str],
        *,
        progress: bool | None = None,
        **options: Unpack[PromptedOptions],
    ) -> Float32:
        """As Client.similarity."""
        return await self._run(calls.similarity(source, sentences, self._settings.limits, options), progress)

    async def tokenize(
        self, texts: str | Iterable[str], *, progress: bool | None = None, **options: Unpack[TokenizeOptions]
    ) -> list[list[Token]]:
        """As Client.tokenize."""
        return await self._run(calls.tokenize(texts, self._settings.limits, options), progress)

    async def decode(
        self, ids: Iterable[Sequence[int]], *, progress: bool | None = None, **options: Unpack[DecodeOptions]
    ) -> list[str]:
        """As Client.decode."""
        return await self._run(calls.decode(ids, self._settings.limits, options), progress)

    async def models(self) -> list[Model]:
        """As Client.models."""
        return read_models(await self._sender.send(calls.models()))

    async def health(self) -> Health:
        """As Client.health."""
        return read_health(await self._sender.send(calls.health()))

    async def aclose(self) -> None:
        """Give the connections back."""
        if self._owns_http:
            await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    @cached_property
    def _sender(self) -> AsyncSender:
        return AsyncSender(self._http, self._settings)

    async def _run(self, call: Call[A], progress: bool | None) -> A:
        with progress_of(call, progress) as advance:
            async with aclosing(self._replies(call)) as replies:
                async for part, reply in replies:
                    call.take(part, reply)
                    advance(len(part.items), reply.tokens_read)
        return call.join.result()

    async def _batches(self, stream: Stream) -> AsyncGenerator[Batch]:
        async with aclosing(self._replies(stream)) as replies:
            async for part, reply in replies:
                yield stream.take(part, reply)

    def _replies(self, call: Call[Any] | Stream) -> AsyncGenerator[tuple[Part, Reply]]:
        lane = self._settings.lane or call.lane

        async def answer(part: Part) -> Reply:
            request = post(part, lane)
            try:
                return await self._sender.send(request)
            except BadRequest as error:
                part.place(error)
                raise

        return in_order_async(answer, call.parts, call.concurrency(self._settings.concurrency))
