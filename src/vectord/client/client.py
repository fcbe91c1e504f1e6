"""vectord.AsyncClient, and vectord.Client for threads, whose calls wait for those of an AsyncClient.

Each call splits its list into requests at once, and returns a coroutine that sends them.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial, wraps
from importlib import import_module
from itertools import chain
from types import MappingProxyType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack

import httpx
import numpy as np

from . import options as known
from .answers import (
    Array,
    Document,
    Embeddings,
    Float32,
    Health,
    InputPage,
    Label,
    Model,
    Ranked,
    Ranking,
    Token,
    VectorBatch,
)
from .errors import BadRequest, FingerprintChanged
from .options import ChunkOptions, Dtype, Lane, VectorKind, check_names
from .progress import progress_of
from .reading import (
    FLOATS,
    LAYOUTS,
    RankedPassages,
    ReplyVectors,
    csr_of,
    read_documents,
    read_health,
    read_labels,
    read_models,
    read_ranked,
    read_scores,
    read_texts,
    read_tokens,
    read_vectors,
    reading,
)
from .requests import (
    OK,
    HttpReply,
    Item,
    RequestPart,
    RequestTemplate,
    get,
    ids_size,
    is_pdf,
    item_size,
    pair_size,
    post,
    sent,
    split,
    text_size,
)
from .transport import MAX_ANSWER_BYTES, ClientSettings, Sender, in_order, in_order_blocking, run_blocking

A = TypeVar("A")
P = ParamSpec("P")
T = TypeVar("T")
Options = Mapping[str, Any]

LARGEST_FLOAT16 = 65_504
BULK_REQUESTS = 8  # a call of more requests uses the bulk lane and shows a progress bar

# Of each dtype: the server's name, numpy's in the reply and in the result. A byte of ubinary has eight bits, the first
# one highest.
PRECISIONS: Mapping[Dtype, tuple[str, str, type[np.generic]]] = MappingProxyType(
    {
        "float32": ("float", FLOATS, np.float32),
        "float16": ("float", FLOATS, np.float16),
        "int8": ("int8", "i1", np.int8),
        "ubinary": ("ubinary", "u1", np.uint8),
    }
)


@dataclass(frozen=True, slots=True)
class Piece(Generic[T]):
    """One part of a call and the value that was read from its reply."""

    part: RequestPart
    value: T
    fingerprint: str
    tokens_read: int


class AsyncClient:
    """Client for asyncio. Cancelling a call closes its connections, and the server drops its texts."""

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
        self._sender = Sender(self._http, self._settings)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._settings.base_url!r})"

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.aclose()

    def embed(
        self,
        texts: Item | Iterable[Item | list[Item]],
        *,
        dtype: Dtype = "float32",
        progress: bool | None = None,
        **options: Unpack[known.EmbedOptions],
    ) -> Coroutine[Any, Any, Array]:
        """The dense vectors: (N, D) of `dtype`, or (D,) for a single text; (0, 0) without texts.

        texts: for a model that reads images, also those: paths, or the bytes of files. A PDF has a row for each of its
        pages; a single one always gives a matrix. A list of texts and images among them has one row.

        dtype: float32; float16, rounded by this client; int8 and ubinary as docs/api.md defines them. ubinary gives
        (N, D / 8) uint8, one bit for each number.
        """
        template, read = _dense(dtype, options)
        single = isinstance(texts, Item) and not is_pdf(texts)

        def join(pieces: Sequence[Piece[Array]]) -> Array:
            matrix = np.concatenate([piece.value for piece in pieces] or [np.empty((0, 0), PRECISIONS[dtype][2])])
            return matrix[0] if single else matrix

        return self._call(template, texts, item_size, read, join, progress)

    def embed_iter(
        self, texts: Iterable[str], *, dtype: Dtype = "float32", **options: Unpack[known.EmbedOptions]
    ) -> AsyncIterator[VectorBatch]:
        """The dense vectors of texts that need not fit into memory: (texts, vectors (n, D)), in order.

        Reads `texts` a few requests in advance, and only while the vectors are consumed.
        """
        parts, batch_of = self._batches(texts, dtype, options)
        return in_order(batch_of, parts, self._settings.concurrency)

    def embed_all(
        self,
        texts: Item | Iterable[Item | list[Item]],
        *,
        outputs: Collection[VectorKind] = ("dense", "sparse", "colbert"),
        colbert: known.ColbertOptions | None = None,
        progress: bool | None = None,
        **options: Unpack[known.EmbedOptions],
    ) -> Coroutine[Any, Any, Embeddings]:
        """Any of dense, sparse, colbert and tokens from one pass of the model, and which texts were truncated.

        texts: as of `embed`. colbert: the form of ColBERT vectors.
        """
        if "sparse" in outputs:  # scipy is an extra: fail before the first request if it is missing
            import_module("scipy.sparse")
        form = colbert or {}
        body = {"outputs": sorted(outputs), "encoding": "base64", **({"colbert": form} if form else {})}
        shown: set[Any] = {*outputs} if form.get("rows", True) else {*outputs} - {"colbert"}
        if form.get("muvera") is not None:
            shown.add("muvera")
        layout = LAYOUTS.get(form.get("precision", "float"), FLOATS)
        return self._call(
            _template("embed", "inputs", known.EmbedOptions, options, body),
            texts,
            item_size,
            lambda reply, count: read_vectors(reply, shown, count, rows_layout=layout),
            partial(_joined_vectors, shown),
            progress,
        )

    def documents(
        self,
        texts: str | Iterable[str],
        *,
        chunk: ChunkOptions,
        progress: bool | None = None,
        **options: Unpack[known.DocumentsOptions],
    ) -> Coroutine[Any, Any, list[Document]]:
        """Each text in chunks, with a dense vector for each chunk."""
        body = {"chunk": chunk, "encoding": "base64"}
        template = _template("documents", "documents", known.DocumentsOptions, options, body)
        return self._call(template, texts, text_size, read_documents, _joined, progress)

    def rerank(
        self,
        query: Item | list[Item],
        passages: Item | Iterable[Item | list[Item]],
        *,
        top_n: int | None = None,
        progress: bool | None = None,
        **options: Unpack[known.RerankOptions],
    ) -> Coroutine[Any, Any, Ranking]:
        """The passages, best first, with their scores for the query; only the best `top_n` if it is set.

        query, passages: for a model that reads images, also those, as `texts` of `embed`, without PDFs.
        """
        body = {"query": sent(query), "top_n": top_n or 0}
        template = _template("rerank", "passages", known.RerankOptions, options, body)

        def join(pieces: Sequence[Piece[RankedPassages]]) -> Ranking:
            found = [(piece.part, one) for piece in pieces for one in piece.value.results]
            # Equal scores by their logits, then in order.
            found.sort(key=lambda pair: (pair[1].score, pair[1].logit), reverse=True)
            ranked = [Ranked(part.start + one.index, one.score, part.items[one.index], one.span) for part, one in found]
            warnings = [(piece.part.start, warning) for piece in pieces for warning in piece.value.warnings]
            return Ranking(
                ranked=ranked[: top_n or None],
                score_kind=pieces[0].value.score_kind if pieces else "",
                model=pieces[0].value.model if pieces else "",
                fingerprint=pieces[0].fingerprint if pieces else "",
                truncated=[start + warning.index for start, warning in warnings if warning.index is not None],
                query_truncated=any(warning.type == "query_truncated" for _, warning in warnings),
                tokens_read=sum(piece.tokens_read for piece in pieces),
            )

        read = partial(read_ranked, top_n=top_n)
        return self._call(template, passages, item_size, read, join, progress)

    def classify(
        self,
        inputs: str | Iterable[str | tuple[str, str]],
        *,
        progress: bool | None = None,
        **options: Unpack[known.ClassifyOptions],
    ) -> Coroutine[Any, Any, list[list[Label]]]:
        """The labels of each text or pair of texts, best first."""
        template = _template("classify", "inputs", known.ClassifyOptions, options)
        return self._call(template, inputs, pair_size, read_labels, _joined, progress)

    def similarity(
        self,
        source: str,
        sentences: str | Iterable[str],
        *,
        progress: bool | None = None,
        **options: Unpack[known.PromptedOptions],
    ) -> Coroutine[Any, Any, Float32]:
        """The cosine of `source` and each sentence: (N,)."""
        template = _template("similarity", "sentences", known.PromptedOptions, options, {"source": source})

        def join(pieces: Sequence[Piece[list[float]]]) -> Float32:
            return np.array(_joined(pieces), np.float32)

        return self._call(template, sentences, text_size, read_scores, join, progress)

    def tokenize(
        self, texts: str | Iterable[str], *, progress: bool | None = None, **options: Unpack[known.TokenizeOptions]
    ) -> Coroutine[Any, Any, list[list[Token]]]:
        """The tokens of each text."""
        template = _template("tokenize", "inputs", known.TokenizeOptions, options)
        return self._call(template, texts, text_size, read_tokens, _joined, progress)

    def decode(
        self, ids: Iterable[Sequence[int]], *, progress: bool | None = None, **options: Unpack[known.DecodeOptions]
    ) -> Coroutine[Any, Any, list[str]]:
        """The text of each list of token ids."""
        template = _template("decode", "ids", known.DecodeOptions, options)
        return self._call(template, ids, ids_size, read_texts, _joined, progress)

    async def models(self) -> list[Model]:
        """The served models, the default first."""
        return read_models(await self._sender.send(get("/vectord/models")))

    async def health(self) -> Health:
        """Whether the server answers requests. Sends one request, without retries."""
        return read_health(await self._sender.send(get("/health", statuses=OK | {503}, retries=False)))

    def _call(
        self,
        template: RequestTemplate,
        items: Item | Iterable[Any],
        size: Callable[[Any, int], int],
        read: Callable[[HttpReply, int], T],
        join: Callable[[Sequence[Piece[T]]], A],
        progress: bool | None,
    ) -> Coroutine[Any, Any, A]:
        """read: a reply to so many items. progress: whether to show the bar; None: by size."""
        items, settings = [items] if isinstance(items, Item) else items, self._settings
        parts = list(split(template, items, size, settings.texts_per_request, settings.characters_per_request))
        is_large = len(parts) > BULK_REQUESTS
        # The server sees only small requests, which would delay those of other clients.
        lane = settings.lane or ("bulk" if is_large else None)

        async def send(part: RequestPart) -> tuple[RequestPart, HttpReply]:
            return part, await self._sender.send(post(part, lane))

        async def run() -> A:
            pieces: list[Piece[T]] = []
            space, reply = "", HttpReply(200, {}, b"")
            with progress_of(parts, progress, is_large=is_large) as advance:
                async with aclosing(in_order(send, parts, settings.concurrency)) as replies:
                    async for part, reply in replies:
                        space = _same_space(space, reply)
                        value = read(reply, len(part.items))
                        pieces.append(Piece(part, value, reply.fingerprint, reply.tokens_read))
                        advance(len(part.items), reply.tokens_read)
            with reading(reply):  # matrices of different widths
                return join(pieces)

        return run()

    def _batches(
        self, texts: Iterable[str], dtype: Dtype, options: Options
    ) -> tuple[Iterator[RequestPart], Callable[[RequestPart], Coroutine[Any, Any, VectorBatch]]]:
        """The requests for `texts`, made lazily, and the function that sends one."""
        if isinstance(texts, str):
            raise TypeError("texts must be several strings, not one")
        template, read = _dense(dtype, options)
        settings, space = self._settings, ""

        async def batch_of(part: RequestPart) -> VectorBatch:
            nonlocal space
            reply = await self._sender.send(post(part, settings.lane or "bulk"))
            space = _same_space(space, reply)
            return VectorBatch(part.items, read(reply, len(part.items)))

        parts = split(template, texts, text_size, settings.texts_per_request, settings.characters_per_request)
        return parts, batch_of


def _like(
    init: Callable[Concatenate[AsyncClient, P], None],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Client, P], None]]:
    """Gives the constructor of Client the settings of an AsyncClient, for help and type checkers."""
    return wraps(init)


def _blocking(
    call: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, A]],
) -> Callable[Concatenate[Client, P], A]:
    """A method of Client that waits for a call of AsyncClient."""

    @wraps(call)
    def method(self: Client, /, *args: P.args, **options: P.kwargs) -> A:
        return run_blocking(call(self._client, *args, **options))

    shown: Any = method  # by help(), without the return type, which differs
    shown.__signature__ = inspect.signature(call).replace(return_annotation=inspect.Signature.empty)
    return method


class Client:
    """A client of a vectord server. Threads may share it; use it in a `with` block, or close it.

    Lists of any length are split into concurrent requests; results keep the order of the list. `progress`: True and
    False force the bar on stderr on and off; None shows it on a terminal for calls of more than 8 requests. `options`:
    see options.py. The requests run on an event loop in a thread that all clients share.

    Every call raises ClientError (errors.py draws the tree) if the server refuses or does not answer, and TypeError or
    ValueError for invalid arguments. If one part of a call fails, the call fails: there are no partial results.
    """

    @_like(AsyncClient.__init__)
    def __init__(self, *args: Any, **settings: Any) -> None:
        self._client = AsyncClient(*args, **settings)

    embed = _blocking(AsyncClient.embed)
    embed_all = _blocking(AsyncClient.embed_all)
    documents = _blocking(AsyncClient.documents)
    rerank = _blocking(AsyncClient.rerank)
    classify = _blocking(AsyncClient.classify)
    similarity = _blocking(AsyncClient.similarity)
    tokenize = _blocking(AsyncClient.tokenize)
    decode = _blocking(AsyncClient.decode)
    models = _blocking(AsyncClient.models)
    health = _blocking(AsyncClient.health)

    def embed_iter(
        self, texts: Iterable[str], *, dtype: Dtype = "float32", **options: Unpack[known.EmbedOptions]
    ) -> Iterator[VectorBatch]:
        """As AsyncClient.embed_iter; the thread that consumes the vectors reads the texts."""
        parts, batch_of = self._client._batches(texts, dtype, options)
        return in_order_blocking(batch_of, parts, self._client._settings.concurrency)

    def __repr__(self) -> str:
        return repr(self._client).removeprefix("Async")

    def close(self) -> None:
        """Close the connections. Calls that run in other threads fail."""
        run_blocking(self._client.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


def _same_space(space: str, reply: HttpReply) -> str:
    """The vector space of a reply: a server may restart with another model during a call.

    space: of the replies before; "": there are none. Raises FingerprintChanged for another one.
    """
    if reply.fingerprint != (space or reply.fingerprint):
        raise FingerprintChanged(
            "The server changed its model during this call: some of its vectors belong to another space.",
            status=reply.status,
            request_id=reply.headers.get("x-request-id"),
        )
    return reply.fingerprint


def _dense(dtype: Dtype, options: Options) -> tuple[RequestTemplate, Callable[[HttpReply, int], Array]]:
    """The requests for dense vectors, and the function that reads (n, D) from a reply."""
    if dtype not in PRECISIONS:
        raise ValueError(f"dtype must be one of {', '.join(PRECISIONS)}")
    precision, layout, result = PRECISIONS[dtype]
    body = {"precisions": [precision], "encoding": "base64"}

    def read(reply: HttpReply, texts: int) -> Array:
        matrix = read_vectors(reply, ["dense"], texts, layout=layout).dense
        assert matrix is not None
        if dtype == "float16" and np.abs(matrix).max(initial=0) > LARGEST_FLOAT16:
            raise BadRequest(f"A vector has a number above {LARGEST_FLOAT16:,}, the largest of float16; use float32.")
        return matrix.astype(result, copy=False)

    return _template("embed", "inputs", known.EmbedOptions, options, body), read


def _template(
    name: str, key: str, names: type, options: Options, body: Mapping[str, object] | None = None
) -> RequestTemplate:
    """key: of the list in the body. Raises TypeError for an option that `names` lacks."""
    check_names(options, names)
    fields = {**options, **(body or {})}
    expected = fields.pop("expect_fingerprint", None)
    return RequestTemplate(path=f"/vectord/{name}", key=key, body=fields, expect_fingerprint=expected)


def _joined(pieces: Sequence[Piece[list[T]]]) -> list[T]:
    return [value for piece in pieces for value in piece.value]


def _joined_vectors(shown: Collection[str], pieces: Sequence[Piece[ReplyVectors]]) -> Embeddings:
    """shown: the kinds of vectors in the replies."""

    def all_of(kind: str) -> list[Any] | None:
        return [*chain.from_iterable(getattr(piece.value, kind) for piece in pieces)] if kind in shown else None

    dense = [piece.value.dense for piece in pieces if piece.value.dense is not None]
    encodings = [piece.value.muvera for piece in pieces if piece.value.muvera is not None]
    sparse = all_of("sparse")
    pages = [InputPage(piece.part.start + index, page) for piece in pieces for index, page in piece.value.pages]
    return Embeddings(
        model=pieces[0].value.model if pieces else "",
        fingerprint=pieces[0].fingerprint if pieces else "",
        pages=pages if any(one.page for one in pages) else (),
        dense=np.concatenate(dense or [np.empty((0, 0), np.float32)]) if "dense" in shown else None,
        sparse=None if sparse is None else csr_of(sparse),
        colbert=all_of("colbert"),
        muvera=np.concatenate(encodings) if encodings else None,
        tokens=all_of("tokens"),
        truncated=[piece.part.start + index for piece in pieces for index in piece.value.truncated],
        tokens_read=sum(piece.tokens_read for piece in pieces),
    )
