"""vectord.Client for threads, and vectord.AsyncClient for asyncio. calls.py defines the calls, once for both."""

from __future__ import annotations

import inspect
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator
from contextlib import aclosing, closing
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack

import httpx

from vectord.client.answers import Health, Model, VectorBatch
from vectord.client.calls import Calls, ClientCall, Stream
from vectord.client.errors import NotAcceptable
from vectord.client.in_order import in_order, in_order_async
from vectord.client.options import Dtype, EmbedOptions, Lane
from vectord.client.progress import progress_of
from vectord.client.reading import read_health, read_models
from vectord.client.requests import OK, HttpReply, RequestPart, get, post
from vectord.client.transport import MAX_ANSWER_BYTES, AsyncSender, ClientSettings, Sender

A = TypeVar("A")
M = TypeVar("M")
P = ParamSpec("P")
Http = TypeVar("Http", httpx.Client, httpx.AsyncClient)


def _blocking(make: Callable[Concatenate[Calls, P], ClientCall[A]]) -> Callable[Concatenate[Client, P], A]:
    """A method of Client that runs a call of calls.py."""

    @wraps(make)
    def method(self: Client, /, *args: P.args, **options: P.kwargs) -> A:
        return self._run(make(self._calls, *args, **options))

    return _shown_as(method, make)


def _awaitable(
    make: Callable[Concatenate[Calls, P], ClientCall[A]],
) -> Callable[Concatenate[AsyncClient, P], Awaitable[A]]:
    """A method of AsyncClient that runs a call of calls.py."""

    @wraps(make)
    async def method(self: AsyncClient, /, *args: P.args, **options: P.kwargs) -> A:
        return await self._run(make(self._calls, *args, **options))

    return _shown_as(method, make)


def _shown_as(method: M, make: Callable[..., Any]) -> M:
    """`method` with the signature of `make` for help(), without its return type, which is internal."""
    function: Any = method
    function.__signature__ = inspect.signature(make).replace(return_annotation=inspect.Signature.empty)
    return method


class _BaseClient(Generic[Http]):
    _new_http: type[Http]

    def __init__(
        self,
        base_url: str = "http://127.0.0.1:8000",
        *,
        api_key: str | None = None,
        timeout_s: float = 300.0,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
        max_retries: int = 8,
        concurrency: int = 4,
        texts_per_request: int = 64,
        characters_per_request: int = 100_000,
        lane: Lane | None = None,
        http: Http | None = None,
    ) -> None:
        """Opens no connection yet. Raises ValueError for an invalid setting.

        base_url: of the server, including its path prefix. timeout_s: for each request, from sending it to the last
        byte of the response; connecting may take 5 s of it. max_answer_bytes: of each response; a larger one is an
        error. max_retries: of each request; the last one starts within two minutes of the first attempt. concurrency:
        concurrent requests of each call. texts_per_request, characters_per_request: where long lists are split. lane:
        "interactive" or "bulk"; by default calls of more than 8 requests use bulk, and the server chooses for the
        others. http: a client of httpx, for proxies and certificates; it stays open when this client is closed.
        """
        self._settings = ClientSettings(
            base_url=base_url,
            api_key=api_key,
            timeout_s=timeout_s,
            max_answer_bytes=max_answer_bytes,
            max_retries=max_retries,
            concurrency=concurrency,
            texts_per_request=texts_per_request,
            characters_per_request=characters_per_request,
            lane=lane,
        )
        self._http: Http = self._new_http() if http is None else http
        self._owns_http = http is None
        self._calls = Calls(self._settings.part_limits)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._settings.base_url!r})"


class Client(_BaseClient[httpx.Client]):
    """A client of a vectord server. Threads may share it; use it in a `with` block, or close it.

    Lists of any length are split into concurrent requests; results keep the order of the list. `progress`: True and
    False force the bar on stderr on and off; None shows it on a terminal for calls of more than 8 requests. `options`:
    see options.py.

    Every call raises ClientError (errors.py draws the tree) if the server refuses or does not answer, and TypeError or
    ValueError for invalid arguments. If one part of a call fails, the call fails: there are no partial results.
    """

    _new_http = httpx.Client

    embed = _blocking(Calls.embed)
    embed_all = _blocking(Calls.embed_all)
    documents = _blocking(Calls.documents)
    rerank = _blocking(Calls.rerank)
    classify = _blocking(Calls.classify)
    similarity = _blocking(Calls.similarity)
    tokenize = _blocking(Calls.tokenize)
    decode = _blocking(Calls.decode)

    def embed_iter(
        self, texts: Iterable[str], *, dtype: Dtype = "float32", **options: Unpack[EmbedOptions]
    ) -> Iterator[VectorBatch]:
        """The dense vectors of texts that need not fit into memory: (texts, vectors (n, D)), in order.

        Reads `texts` a few requests in advance, and only while the vectors are consumed.
        """
        return self._batches(self._calls.embed_iter(texts, dtype=dtype, **options))

    def models(self) -> list[Model]:
        """The served models, the default first."""
        return read_models(self._sender().send(get("/vectord/models")))

    def health(self) -> Health:
        """Whether the server answers requests. Sends one request, without retries."""
        return read_health(self._sender().send(get("/health", statuses=OK | {503}, retries=False)))

    def close(self) -> None:
        """Close the connections. Calls that run in other threads fail."""
        if self._owns_http:
            self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def _sender(self) -> Sender:
        return Sender(self._http, self._settings)

    def _run(self, call: ClientCall[A]) -> A:
        try:
            with progress_of(call) as advance, closing(self._replies(call)) as replies:
                for part, reply in replies:
                    call.take(part, reply)
                    advance(len(part.items), reply.tokens_read)
        except NotAcceptable:
            if call.in_json is None:
                raise
            return self._run(call.in_json())
        return call.join.result()

    def _batches(self, stream: Stream) -> Iterator[VectorBatch]:
        with closing(self._replies(stream)) as replies:
            for part, reply in replies:
                yield stream.take(part, reply)

    def _replies(self, call: ClientCall[Any] | Stream) -> Generator[tuple[RequestPart, HttpReply]]:
        """Each part with its reply, in order. Closing the generator ends the pauses between attempts."""
        sender, lane = self._sender(), self._settings.lane or call.lane
        abandoned = threading.Event()

        def send(part: RequestPart) -> HttpReply:
            return sender.send(post(part, lane), abandoned.wait)

        try:
            yield from in_order(send, call.parts, call.concurrency(self._settings.concurrency))
        finally:
            abandoned.set()


class AsyncClient(_BaseClient[httpx.AsyncClient]):
    """Client for asyncio. Cancelling a call closes its connections, and the server drops its texts."""

    _new_http = httpx.AsyncClient

    embed = _awaitable(Calls.embed)
    embed_all = _awaitable(Calls.embed_all)
    documents = _awaitable(Calls.documents)
    rerank = _awaitable(Calls.rerank)
    classify = _awaitable(Calls.classify)
    similarity = _awaitable(Calls.similarity)
    tokenize = _awaitable(Calls.tokenize)
    decode = _awaitable(Calls.decode)

    def embed_iter(
        self, texts: Iterable[str], *, dtype: Dtype = "float32", **options: Unpack[EmbedOptions]
    ) -> AsyncIterator[VectorBatch]:
        """As Client.embed_iter, for `async for`."""
        return self._batches(self._calls.embed_iter(texts, dtype=dtype, **options))

    async def models(self) -> list[Model]:
        """The served models, the default first."""
        return read_models(await self._sender().send(get("/vectord/models")))

    async def health(self) -> Health:
        """Whether the server answers requests. Sends one request, without retries."""
        return read_health(await self._sender().send(get("/health", statuses=OK | {503}, retries=False)))

    async def aclose(self) -> None:
        """Close the connections."""
        if self._owns_http:
            await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.aclose()

    def _sender(self) -> AsyncSender:
        return AsyncSender(self._http, self._settings)

    async def _run(self, call: ClientCall[A]) -> A:
        try:
            with progress_of(call) as advance:
                async with aclosing(self._replies(call)) as replies:
                    async for part, reply in replies:
                        call.take(part, reply)
                        advance(len(part.items), reply.tokens_read)
        except NotAcceptable:
            if call.in_json is None:
                raise
            return await self._run(call.in_json())
        return call.join.result()

    async def _batches(self, stream: Stream) -> AsyncGenerator[VectorBatch]:
        async with aclosing(self._replies(stream)) as replies:
            async for part, reply in replies:
                yield stream.take(part, reply)

    def _replies(self, call: ClientCall[Any] | Stream) -> AsyncGenerator[tuple[RequestPart, HttpReply]]:
        sender, lane = self._sender(), self._settings.lane or call.lane

        async def send(part: RequestPart) -> HttpReply:
            return await sender.send(post(part, lane))

        return in_order_async(send, call.parts, call.concurrency(self._settings.concurrency))
