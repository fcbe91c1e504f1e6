"""vectord.Client for threads, and vectord.AsyncClient for asyncio. calls.py defines the calls, once for both."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

import httpx

from .answers import VectorBatch
from .calls import Calls
from .options import Dtype, EmbedOptions, Lane
from .transport import MAX_ANSWER_BYTES, ClientSettings, Sender, in_order, in_order_blocking, run_blocking

A = TypeVar("A")
M = TypeVar("M")
P = ParamSpec("P")


def _blocking(call: Callable[Concatenate[Calls, P], Coroutine[Any, Any, A]]) -> Callable[Concatenate[Client, P], A]:
    """A method of Client that waits for a call of calls.py."""

    @wraps(call)
    def method(self: Client, /, *args: P.args, **options: P.kwargs) -> A:
        return run_blocking(call(self._calls, *args, **options))

    return _shown_as(method, call)


def _awaitable(
    call: Callable[Concatenate[Calls, P], Coroutine[Any, Any, A]],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, A]]:
    """A method of AsyncClient that returns the coroutine of a call of calls.py."""

    @wraps(call)
    def method(self: AsyncClient, /, *args: P.args, **options: P.kwargs) -> Coroutine[Any, Any, A]:
        return call(self._calls, *args, **options)

    return _shown_as(method, call)


def _shown_as(method: M, call: Callable[..., Any]) -> M:
    """`method` with the signature of `call` for help(), without its return type, which differs."""
    function: Any = method
    function.__signature__ = inspect.signature(call).replace(return_annotation=inspect.Signature.empty)
    return method


class _BaseClient:
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
        http: httpx.AsyncClient | None = None,
    ) -> None:
        """Opens no connection yet. Raises ValueError for an invalid setting, and TypeError for another kind of `http`.

        base_url: of the server, including its path prefix. timeout_s: for each request, from sending it to the last
        byte of the response; connecting may take 5 s of it. max_answer_bytes: of each response; a larger one is an
        error. max_retries: of each request; the last one starts within two minutes of the first attempt. concurrency:
        concurrent requests of each call. texts_per_request, characters_per_request: where long lists are split. lane:
        "interactive" or "bulk"; by default calls of more than 8 requests use bulk, and the server chooses for the
        others. http: a client of httpx, for proxies and certificates, which belongs to this client from now on.
        """
        if not isinstance(http, httpx.AsyncClient | None):
            raise TypeError(f"http must be an httpx.AsyncClient, not {type(http).__name__}")
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
        self._http = http or httpx.AsyncClient()
        self._calls = Calls(self._settings, Sender(self._http, self._settings))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._settings.base_url!r})"


class Client(_BaseClient):
    """A client of a vectord server. Threads may share it; use it in a `with` block, or close it.

    Lists of any length are split into concurrent requests; results keep the order of the list. `progress`: True and
    False force the bar on stderr on and off; None shows it on a terminal for calls of more than 8 requests. `options`:
    see options.py. The requests run on an event loop in a thread that all clients share.

    Every call raises ClientError (errors.py draws the tree) if the server refuses or does not answer, and TypeError or
    ValueError for invalid arguments. If one part of a call fails, the call fails: there are no partial results.
    """

    embed = _blocking(Calls.embed)
    embed_all = _blocking(Calls.embed_all)
    documents = _blocking(Calls.documents)
    rerank = _blocking(Calls.rerank)
    classify = _blocking(Calls.classify)
    similarity = _blocking(Calls.similarity)
    tokenize = _blocking(Calls.tokenize)
    decode = _blocking(Calls.decode)
    models = _blocking(Calls.models)
    health = _blocking(Calls.health)

    def embed_iter(
        self, texts: Iterable[str], *, dtype: Dtype = "float32", **options: Unpack[EmbedOptions]
    ) -> Iterator[VectorBatch]:
        """The dense vectors of texts that need not fit into memory: (texts, vectors (n, D)), in order.

        Reads `texts` a few requests in advance, and only while the vectors are consumed.
        """
        parts, batch_of = self._calls.batches(texts, dtype, options)
        return in_order_blocking(batch_of, parts, self._settings.concurrency)

    def close(self) -> None:
        """Close the connections. Calls that run in other threads fail."""
        run_blocking(self._http.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


class AsyncClient(_BaseClient):
    """Client for asyncio. Cancelling a call closes its connections, and the server drops its texts."""

    embed = _awaitable(Calls.embed)
    embed_all = _awaitable(Calls.embed_all)
    documents = _awaitable(Calls.documents)
    rerank = _awaitable(Calls.rerank)
    classify = _awaitable(Calls.classify)
    similarity = _awaitable(Calls.similarity)
    tokenize = _awaitable(Calls.tokenize)
    decode = _awaitable(Calls.decode)
    models = _awaitable(Calls.models)
    health = _awaitable(Calls.health)

    def embed_iter(
        self, texts: Iterable[str], *, dtype: Dtype = "float32", **options: Unpack[EmbedOptions]
    ) -> AsyncIterator[VectorBatch]:
        """As Client.embed_iter, for `async for`."""
        parts, batch_of = self._calls.batches(texts, dtype, options)
        return in_order(batch_of, parts, self._settings.concurrency)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.aclose()
