"""The calls of both clients: the requests that each one sends, and how their replies are joined. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Generic, Protocol, TypeVar, Unpack

import numpy as np

from vectord.client import options as known
from vectord.client.answers import Array, Document, Embeddings, Float32, Label, Ranked, Ranking, Token, VectorBatch
from vectord.client.errors import FingerprintChanged
from vectord.client.options import ChunkOptions, Dtype, Lane, VectorKind, check_names
from vectord.client.reading import (
    ARROW,
    LAYOUTS,
    OCTETS,
    SparseRows,
    csr_of,
    has_arrow,
    read_documents,
    read_labels,
    read_matrix,
    read_ranked,
    read_scores,
    read_texts,
    read_tokens,
    read_vectors,
    reading,
)
from vectord.client.requests import (
    JSON,
    HttpReply,
    PartLimits,
    RequestPart,
    RequestTemplate,
    ids_size,
    pair_size,
    split,
    text_size,
)

A = TypeVar("A")
T = TypeVar("T")
Result_co = TypeVar("Result_co", covariant=True)
Options = Mapping[str, Any]

BULK_REQUESTS = 8  # a call of more requests uses the bulk lane and shows a progress bar


class Join(Protocol[Result_co]):
    """Joins the replies of a call, which are added in the order of its parts."""

    def add(self, part: RequestPart, reply: HttpReply) -> None: ...

    def result(self) -> Result_co: ...


@dataclass(slots=True)
class VectorSpace:
    """The vector space of a call's first reply: a server may restart with another model between two of them."""

    fingerprint: str = ""

    def check(self, reply: HttpReply) -> None:
        """Raises FingerprintChanged for a reply of another space."""
        self.fingerprint = self.fingerprint or reply.fingerprint
        if reply.fingerprint != self.fingerprint:
            raise FingerprintChanged(
                "The server changed its model during this call: some of its vectors belong to another space.",
                status=reply.status,
                request_id=reply.headers.get("x-request-id"),
            )


@dataclass(frozen=True, slots=True)
class ClientCall(Generic[A]):
    """The requests of one call, and the code that joins their replies. `take` each reply in the order of the parts."""

    parts: Sequence[RequestPart]
    join: Join[A]
    progress: bool | None = None  # whether to show the bar; None: by size
    in_json: Callable[[], ClientCall[A]] | None = None  # the same call for a server that cannot reply in Arrow
    space: VectorSpace = field(default_factory=VectorSpace)

    @property
    def is_large(self) -> bool:
        return len(self.parts) > BULK_REQUESTS

    @property
    def lane(self) -> Lane | None:
        """bulk for a large call: the server sees only small requests."""
        return "bulk" if self.is_large else None

    def concurrency(self, most: int) -> int:
        return max(1, min(most, len(self.parts)))

    def take(self, part: RequestPart, reply: HttpReply) -> None:
        """Raises FingerprintChanged, or ServerFailed for an invalid reply."""
        self.space.check(reply)
        self.join.add(part, reply)


@dataclass(frozen=True, slots=True)
class Stream:
    """As ClientCall, for a list that need not end or fit into memory: no reply is kept."""

    parts: Iterator[RequestPart]
    dtype: Dtype
    lane: Lane = "bulk"
    space: VectorSpace = field(default_factory=VectorSpace)

    def concurrency(self, most: int) -> int:
        return most

    def take(self, part: RequestPart, reply: HttpReply) -> VectorBatch:
        self.space.check(reply)
        return VectorBatch(part.items, read_matrix(reply, self.dtype, len(part.items)).copy())


class Calls:
    """A method for each call. client.py turns them into the methods of Client and AsyncClient, docstrings included."""

    def __init__(self, limits: PartLimits) -> None:
        self.limits = limits
        self.arrow = has_arrow()  # cleared when the server cannot reply in Arrow

    def embed(
        self,
        texts: str | Iterable[str],
        *,
        dtype: Dtype = "float32",
        progress: bool | None = None,
        **options: Unpack[known.EmbedOptions],
    ) -> ClientCall[Array]:
        """The dense vectors: (N, D) of `dtype`, or (D,) for a single string; (0, 0) without texts.

        dtype: float32; float16, half the bytes on the wire; int8 and ubinary as docs/api.md defines them. ubinary gives
        (N, D / 8) uint8, one bit for each number.
        """
        items = as_list(texts)
        parts = split(_matrix_template(dtype, options), items, text_size, self.limits)
        return ClientCall(list(parts), _JoinMatrix(len(items), dtype, single=isinstance(texts, str)), progress)

    def embed_iter(
        self, texts: Iterable[str], *, dtype: Dtype = "float32", **options: Unpack[known.EmbedOptions]
    ) -> Stream:
        if isinstance(texts, str):
            raise TypeError("texts must be several strings, not one")
        return Stream(split(_matrix_template(dtype, options), texts, text_size, self.limits), dtype)

    def embed_all(
        self,
        texts: str | Iterable[str],
        *,
        outputs: Collection[VectorKind] = ("dense", "sparse", "colbert"),
        progress: bool | None = None,
        **options: Unpack[known.EmbedOptions],
    ) -> ClientCall[Embeddings]:
        """Any of dense, sparse, colbert and tokens from one pass of the model, and which texts were truncated."""
        items = as_list(texts)

        # Reading base64 in JSON takes ten times as long as reading Arrow.
        def call(*, arrow: bool) -> ClientCall[Embeddings]:
            body = {"outputs": sorted(outputs), "encoding": "base64"}
            accept = ARROW if arrow else JSON
            template = _template("embed", "inputs", known.EmbedOptions, options, body, accept=accept)
            parts = list(split(template, items, text_size, self.limits))
            return ClientCall(parts, _JoinKinds(len(items), outputs), progress, in_json if arrow else None)

        def in_json() -> ClientCall[Embeddings]:
            self.arrow = False
            return call(arrow=False)

        return call(arrow=self.arrow)

    def documents(
        self,
        texts: str | Iterable[str],
        *,
        chunk: ChunkOptions,
        progress: bool | None = None,
        **options: Unpack[known.DocumentsOptions],
    ) -> ClientCall[list[Document]]:
        """Each text in chunks, with a dense vector for each chunk."""
        body = {"chunk": chunk, "encoding": "base64"}
        template = _template("documents", "documents", known.DocumentsOptions, options, body)
        return self._call(template, texts, text_size, _JoinItems(read_documents, list), progress)

    def rerank(
        self,
        query: str,
        passages: str | Iterable[str],
        *,
        top_n: int | None = None,
        progress: bool | None = None,
        **options: Unpack[known.RerankOptions],
    ) -> ClientCall[Ranking]:
        """The passages, best first, with their scores for the query; only the best `top_n` if it is set."""
        template = _template("rerank", "passages", known.RerankOptions, options, {"query": query, "top_n": top_n or 0})
        return self._call(template, passages, text_size, _JoinRanking(top_n), progress)

    def classify(
        self,
        inputs: str | Iterable[str | tuple[str, str]],
        *,
        progress: bool | None = None,
        **options: Unpack[known.ClassifyOptions],
    ) -> ClientCall[list[list[Label]]]:
        """The labels of each text or pair of texts, best first."""
        template = _template("classify", "inputs", known.ClassifyOptions, options)
        return self._call(template, inputs, pair_size, _JoinItems(read_labels, list), progress)

    def similarity(
        self,
        source: str,
        sentences: str | Iterable[str],
        *,
        progress: bool | None = None,
        **options: Unpack[known.PromptedOptions],
    ) -> ClientCall[Float32]:
        """The cosine of `source` and each sentence: (N,)."""
        template = _template("similarity", "sentences", known.PromptedOptions, options, {"source": source})
        join = _JoinItems(read_scores, lambda scores: np.array(scores, np.float32))
        return self._call(template, sentences, text_size, join, progress)

    def tokenize(
        self, texts: str | Iterable[str], *, progress: bool | None = None, **options: Unpack[known.TokenizeOptions]
    ) -> ClientCall[list[list[Token]]]:
        """The tokens of each text."""
        template = _template("tokenize", "inputs", known.TokenizeOptions, options)
        return self._call(template, texts, text_size, _JoinItems(read_tokens, list), progress)

    def decode(
        self, ids: Iterable[Sequence[int]], *, progress: bool | None = None, **options: Unpack[known.DecodeOptions]
    ) -> ClientCall[list[str]]:
        """The text of each list of token ids."""
        template = _template("decode", "ids", known.DecodeOptions, options)
        return self._call(template, ids, ids_size, _JoinItems(read_texts, list), progress)

    def _call(
        self,
        template: RequestTemplate,
        items: Any,
        size: Callable[[Any, int], int],
        join: Join[A],
        progress: bool | None,
    ) -> ClientCall[A]:
        return ClientCall(list(split(template, as_list(items), size, self.limits)), join, progress)


def _matrix_template(dtype: Dtype, options: Options) -> RequestTemplate:
    if dtype not in LAYOUTS:
        raise ValueError(f"dtype must be one of {', '.join(LAYOUTS)}")
    return _template("embed", "inputs", known.EmbedOptions, options, accept=f"{OCTETS};dtype={dtype}")


def _template(
    name: str, key: str, names: type, options: Options, body: Mapping[str, object] | None = None, accept: str = JSON
) -> RequestTemplate:
    """key: of the list in the body. Raises TypeError for an option that `names` lacks."""
    check_names(options, names)
    fields = {**options, **(body or {})}
    expected = fields.pop("expect_fingerprint", None)
    return RequestTemplate(path=f"/vectord/{name}", key=key, body=fields, accept=accept, expect_fingerprint=expected)


def as_list(items: str | Iterable[T]) -> Sequence[str | T]:
    """A single string becomes a list of one."""
    if isinstance(items, str):
        return [items]
    return items if isinstance(items, list | tuple) else list(items)


# --- joining --------------------------------------------------------------------------------------------------


class _VectorRows:
    """(total, D), allocated when the first rows are known; (0, 0) until then."""

    def __init__(self, total: int, dtype: Dtype) -> None:
        self._total = total
        self._dtype = np.dtype(LAYOUTS[dtype]).newbyteorder("=")
        self.matrix: Array = np.empty((0, 0), self._dtype)

    def put(self, start: int, rows: Array) -> None:
        """Write rows (n, D) from index `start`. Raises ValueError for a D that differs from the first one."""
        if not self.matrix.size:
            self.matrix = np.empty((self._total, rows.shape[1]), self._dtype)
        if rows.shape[1] != self.matrix.shape[1]:
            raise ValueError("the width differs from the first reply")
        self.matrix[start : start + len(rows)] = rows


class _JoinMatrix:
    """One kind of dense vectors: (N, D), or (D,) for a single text."""

    def __init__(self, total: int, dtype: Dtype, *, single: bool) -> None:
        self._rows = _VectorRows(total, dtype)
        self._dtype = dtype
        self._single = single

    def add(self, part: RequestPart, reply: HttpReply) -> None:
        with reading(reply):
            self._rows.put(part.start, read_matrix(reply, self._dtype, len(part.items)))

    def result(self) -> Array:
        return self._rows.matrix[0] if self._single else self._rows.matrix


class _JoinKinds:
    """Several kinds of vectors at once."""

    def __init__(self, total: int, outputs: Collection[VectorKind]) -> None:
        if "sparse" in outputs:  # scipy is an extra: fail before the first request if it is missing
            import_module("scipy.sparse")
        self._outputs = outputs
        self._model = self._fingerprint = ""
        self._dense = _VectorRows(total, "float32")
        self._sparse: list[SparseRows] = []
        self._colbert: list[Float32] = []
        self._tokens: list[Float32] = []
        self._truncated: list[int] = []
        self._tokens_read = 0

    def add(self, part: RequestPart, reply: HttpReply) -> None:
        found = read_vectors(reply, self._outputs, len(part.items))
        self._model, self._fingerprint = found.model, reply.fingerprint
        self._truncated += [part.start + index for index in found.truncated]
        self._tokens_read += reply.tokens_read
        if found.dense is not None:
            with reading(reply):
                self._dense.put(part.start, found.dense)
        if found.sparse is not None:
            self._sparse.append(found.sparse)
        self._colbert += found.colbert or ()
        self._tokens += found.tokens or ()

    def result(self) -> Embeddings:
        return Embeddings(
            model=self._model,
            fingerprint=self._fingerprint,
            dense=self._dense.matrix if "dense" in self._outputs else None,
            sparse=csr_of(self._sparse) if "sparse" in self._outputs else None,
            colbert=self._colbert if "colbert" in self._outputs else None,
            tokens=self._tokens if "tokens" in self._outputs else None,
            truncated=self._truncated,
            tokens_read=self._tokens_read,
        )


class _JoinRanking:
    """The best passages of all parts. Each part returns its own best `top_n`."""

    def __init__(self, top_n: int | None) -> None:
        self._top_n = top_n
        self._ranked: list[tuple[Ranked, float]] = []  # with the logit
        self._model = self._fingerprint = self._score_kind = ""
        self._query_truncated = False
        self._truncated: list[int] = []
        self._tokens_read = 0

    def add(self, part: RequestPart, reply: HttpReply) -> None:
        answer = read_ranked(reply, len(part.items), self._top_n)
        self._model, self._fingerprint, self._score_kind = answer.model, reply.fingerprint, answer.score_kind
        self._query_truncated = answer.query_truncated
        self._ranked += [
            (Ranked(part.start + one.index, one.score, part.items[one.index], one.span), one.logit)
            for one in answer.results
        ]
        self._truncated += [part.start + index for index in answer.truncated]
        self._tokens_read += reply.tokens_read

    def result(self) -> Ranking:
        # Equal scores by their logits, then in order.
        best = sorted(self._ranked, key=lambda ranked: (ranked[0].score, ranked[1]), reverse=True)
        return Ranking(
            ranked=[ranked for ranked, _ in best[: self._top_n or None]],
            score_kind=self._score_kind,
            model=self._model,
            fingerprint=self._fingerprint,
            truncated=self._truncated,
            query_truncated=self._query_truncated,
            tokens_read=self._tokens_read,
        )


class _JoinItems(Generic[T, A]):
    """One value for each item. read: the values of a reply. whole: makes the result of all values."""

    def __init__(self, read: Callable[[HttpReply], list[T]], whole: Callable[[list[T]], A]) -> None:
        self._read = read
        self._whole = whole
        self._items: list[T] = []

    def add(self, part: RequestPart, reply: HttpReply) -> None:
        with reading(reply):
            items = self._read(reply)
            if len(items) != len(part.items):
                raise ValueError("the number of values differs from the number of items")
        self._items += items

    def result(self) -> A:
        return self._whole(self._items)
