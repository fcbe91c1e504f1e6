"""vectord.Client: the API under /vectord/ for programs with threads. async_client.py is the same under asyncio."""

from __future__ import annotations

import threading
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from contextlib import closing
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
from vectord.client.in_order import in_order
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
from vectord.client.sending import Sender
from vectord.client.splitting import Part

A = TypeVar("A")


class Client(BaseClient[httpx.Client]):
    """A server of vectord's. May be shared by threads; use it in `with`, or close it.

    Lists of any length are split into requests, several of which are under way at once; answers are in the order given.
    `progress`: True and False force the bar on stderr; None shows it for calls of more than 8 requests on a terminal.
    `options`: of each call in options.py; what is left out is the server's choice.

    Every call raises ClientError (errors.py draws the tree) for what the server refuses or does not answer, and
    TypeError or ValueError for what cannot be asked. A part that fails fails the call: there is no half answer.
    """

    _http_of_its_own = httpx.Client

    def embed(
        self,
        texts: str | Iterable[str],
        *,
        dtype: Dtype = "float32",
        progress: bool | None = None,
        **options: Unpack[EmbedOptions],
    ) -> Array:
        """The dense vectors: (N, D) of `dtype`, or (D,) of a lone string; (0, 0) of no texts.

        dtype: float32; float16, half the bytes on the wire; int8 and ubinary as docs/api.md defines them, the latter
        (N, D / 8) uint8 with a bit a number.
        """
        return self._run(calls.embed(texts, self._settings.limits, dtype, options), progress)

    def embed_iter(
        self, texts: Iterable[str], *, dtype: Dtype = "float32", **options: Unpack[EmbedOptions]
    ) -> Iterator[Batch]:
        """The dense vectors of texts that need not fit into memory: (texts, vectors (n, D)), in order.

        `texts` is read only so far ahead as requests are under way, and not at all while nobody takes the vectors.
        """
        return self._batches(calls.embed_iter(texts, self._settings.limits, dtype, options))

    def embed_all(
        self,
        texts: str | Iterable[str],
        *,
        outputs: Collection[VectorKind] = ("dense", "sparse", "colbert"),
        progress: bool | None = None,
        **options: Unpack[EmbedOptions],
    ) -> Embeddings:
        """Any of dense, sparse, colbert and tokens, all from one pass of the model; which texts were cut, too."""
        given = calls.listed(texts)
        arrow = self._arrow
        call = calls.embed_all(given, outputs, self._settings.limits, options, arrow=arrow)
        try:
            return self._run(call, progress)
        except NotAcceptable:
            if not arrow:
                raise
            self._arrow = False
            return self.embed_all(given, outputs=outputs, progress=progress, **options)

    def documents(
        self,
        texts: str | Iterable[str],
        *,
        chunk: Chunk,
        progress: bool | None = None,
        **options: Unpack[DocumentsOptions],
    ) -> list[Document]:
        """Each text in chunks, with a dense vector for each chunk."""
        return self._run(calls.documents(texts, chunk, self._settings.limits, options), progress)

    def rerank(
        self,
        query: str,
        passages: str | Iterable[str],
        *,
        top_n: int | None = None,
        progress: bool | None = None,
        **options: Unpack[RerankOptions],
    ) -> Ranking:
        """How well each passage answers the query, best first; the best `top_n` of them, None: all."""
        return self._run(calls.rerank(query, passages, self._settings.limits, top_n, options), progress)

    def classify(
        self,
        inputs: str | Iterable[str | tuple[str, str]],
        *,
        progress: bool | None = None,
        **options: Unpack[ClassifyOptions],
    ) -> list[list[Label]]:
        """The labels of each text or pair of texts, best first."""
        return self._run(calls.classify(inputs, self._settings.limits, options), progress)

    def similarity(
        self,
        source: str,
        sentences: str | Iterable[str],
        *,
        progress: bool | None = None,
        **options: Unpack[PromptedOptions],
    ) -> Float32:
        """The cosine of `source` with each of the sentences: (N,)."""
        return self._run(calls.similarity(source, sentences, self._settings.limits, options), progress)

    def tokenize(
        self, texts: str | Iterable[str], *, progress: bool | None = None, **options: Unpack[TokenizeOptions]
    ) -> list[list[Token]]:
        """The tokens of each text."""
        return self._run(calls.tokenize(texts, self._settings.limits, options), progress)

    def decode(
        self, ids: Iterable[Sequence[int]], *, progress: bool | None = None, **options: Unpack[DecodeOptions]
    ) -> list[str]:
        """The text of each list of token ids."""
        return self._run(calls.decode(ids, self._settings.limits, options), progress)

    def models(self) -> list[Model]:
        """What is served, the default first."""
        return read_models(self._sender.send(calls.models()))

    def health(self) -> Health:
        """Whether requests will be answered. Asks once: raises ConnectionFailed where nobody listens."""
        return read_health(self._sender.send(calls.health()))

    def close(self) -> None:
        """Give the connections back. What is still under way in threads fails."""
        if self._owns_http:
            self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @cached_property
    def _sender(self) -> Sender:
        return Sender(self._http, self._settings)

    def _run(self, call: Call[A], progress: bool | None) -> A:
        with progress_of(call, progress) as advance, closing(self._replies(call)) as replies:
            for part, reply in replies:
                call.take(part, reply)
                advance(len(part.items), reply.tokens_read)
        return call.join.result()

    def _batches(self, stream: Stream) -> Iterator[Batch]:
        with closing(self._replies(stream)) as replies:
            for part, reply in replies:
                yield stream.take(part, reply)

    def _replies(self, call: Call[Any] | Stream) -> Generator[tuple[Part, Reply]]:
        """Each part with its answer, in order. Closed early, it lets nobody wait for another attempt."""
        lane = self._settings.lane or call.lane
        left = threading.Event()

        def answer(part: Part) -> Reply:
            request = post(part, lane)
            try:
                return self._sender.send(request, left.wait)
            except BadRequest as error:
                part.place(error)
                raise

        try:
            yield from in_order(answer, call.parts, call.concurrency(self._settings.concurrency))
        finally:
            left.set()
