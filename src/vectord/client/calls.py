"""The calls of both clients: each splits its list into requests at once, and returns a coroutine that sends them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import chain
from types import MappingProxyType
from typing import Any, Generic, TypeVar, Unpack

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
from .options import ChunkOptions, Dtype, VectorKind, check_names
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
    split,
    text_size,
)
from .transport import ClientSettings, Sender, in_order

A = TypeVar("A")
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


class Calls:
    def __init__(self, settings: ClientSettings, sender: Sender) -> None:
        self._settings = settings
        self._sender = sender

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

    def batches(
        self, texts: Iterable[str], dtype: Dtype, options: Options
    ) -> tuple[Iterator[RequestPart], Callable[[RequestPart], Coroutine[Any, Any, VectorBatch]]]:
        """The requests for `texts`, made lazily, and the function that sends one."""
        if isinstance(texts, str):
            raise TypeError("texts must be several strings, not one")
        template, read = _dense(dtype, options)
        space = _VectorSpace()

        async def batch_of(part: RequestPart) -> VectorBatch:
            reply = await self._sender.send(post(part, self._settings.lane or "bulk"))
            space.check(reply)
            return VectorBatch(part.items, read(reply, len(part.items)))

        return split(template, texts, text_size, self._settings.part_limits), batch_of

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
        return self._call(template, texts, text_size, _one_each(read_documents), _joined, progress)

    def rerank(
        self,
        query: str,
        passages: str | Iterable[str],
        *,
        top_n: int | None = None,
        progress: bool | None = None,
        **options: Unpack[known.RerankOptions],
    ) -> Coroutine[Any, Any, Ranking]:
        """The passages, best first, with their scores for the query; only the best `top_n` if it is set."""
        body = {"query": query, "top_n": top_n or 0}
        template = _template("rerank", "passages", known.RerankOptions, options, body)

        def join(pieces: Sequence[Piece[RankedPassages]]) -> Ranking:
            ranked = [
                (
                    one.score,
                    one.logit,
                    Ranked(piece.part.start + one.index, one.score, piece.part.items[one.index], one.span),
                )
                for piece in pieces
                for one in piece.value.results
            ]
            # Equal scores by their logits, then in order.
            ranked.sort(key=lambda one: one[:2], reverse=True)
            warnings = [(piece.part.start, warning) for piece in pieces for warning in piece.value.warnings]
            return Ranking(
                ranked=[one for *_, one in ranked[: top_n or None]],
                score_kind=pieces[0].value.score_kind if pieces else "",
                model=pieces[0].value.model if pieces else "",
                fingerprint=pieces[0].fingerprint if pieces else "",
                truncated=[start + warning.index for start, warning in warnings if warning.index is not None],
                query_truncated=any(warning.type == "query_truncated" for _, warning in warnings),
                tokens_read=sum(piece.tokens_read for piece in pieces),
            )

        return self._call(
            template, passages, text_size, lambda reply, count: read_ranked(reply, count, top_n), join, progress
        )

    def classify(
        self,
        inputs: str | Iterable[str | tuple[str, str]],
        *,
        progress: bool | None = None,
        **options: Unpack[known.ClassifyOptions],
    ) -> Coroutine[Any, Any, list[list[Label]]]:
        """The labels of each text or pair of texts, best first."""
        template = _template("classify", "inputs", known.ClassifyOptions, options)
        return self._call(template, inputs, pair_size, _one_each(read_labels), _joined, progress)

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

        return self._call(template, sentences, text_size, _one_each(read_scores), join, progress)

    def tokenize(
        self, texts: str | Iterable[str], *, progress: bool | None = None, **options: Unpack[known.TokenizeOptions]
    ) -> Coroutine[Any, Any, list[list[Token]]]:
        """The tokens of each text."""
        template = _template("tokenize", "inputs", known.TokenizeOptions, options)
        return self._call(template, texts, text_size, _one_each(read_tokens), _joined, progress)

    def decode(
        self, ids: Iterable[Sequence[int]], *, progress: bool | None = None, **options: Unpack[known.DecodeOptions]
    ) -> Coroutine[Any, Any, list[str]]:
        """The text of each list of token ids."""
        template = _template("decode", "ids", known.DecodeOptions, options)
        return self._call(template, ids, ids_size, _one_each(read_texts), _joined, progress)

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
        items = [items] if isinstance(items, Item) else items
        parts = list(split(template, items, size, self._settings.part_limits))
        is_large = len(parts) > BULK_REQUESTS
        # The server sees only small requests, which would delay those of other clients.
        lane = self._settings.lane or ("bulk" if is_large else None)

        async def run() -> A:
            pieces: list[Piece[T]] = []
            space = _VectorSpace()
            reply = HttpReply(200, {}, b"")

            async def send(part: RequestPart) -> tuple[RequestPart, HttpReply]:
                return part, await self._sender.send(post(part, lane))

            with progress_of(parts, progress, is_large=is_large) as advance:
                async with aclosing(in_order(send, parts, self._settings.concurrency)) as replies:
                    async for part, reply in replies:
                        space.check(reply)
                        value = read(reply, len(part.items))
                        pieces.append(Piece(part, value, reply.fingerprint, reply.tokens_read))
                        advance(len(part.items), reply.tokens_read)
            with reading(reply):  # matrices of different widths
                return join(pieces)

        return run()


class _VectorSpace:
    """The vector space of a call's first reply: a server may restart with another model between two of them."""

    def __init__(self) -> None:
        self._fingerprint = ""

    def check(self, reply: HttpReply) -> None:
        """Raises FingerprintChanged for a reply of another space."""
        self._fingerprint = self._fingerprint or reply.fingerprint
        if reply.fingerprint != self._fingerprint:
            raise FingerprintChanged(
                "The server changed its model during this call: some of its vectors belong to another space.",
                status=reply.status,
                request_id=reply.headers.get("x-request-id"),
            )


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


def _one_each(read: Callable[[HttpReply], list[T]]) -> Callable[[HttpReply, int], list[T]]:
    """Reads a reply with one value for each item."""

    def read_all(reply: HttpReply, items: int) -> list[T]:
        with reading(reply):
            values = read(reply)
            if len(values) != items:
                raise ValueError("the number of values differs from the number of items")
            return values

    return read_all


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
