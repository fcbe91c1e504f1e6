"""What each call asks, and how its answers are joined: the one place that knows the API. client.py and async_client.py
only send and wait. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from vectord.client import options as known
from vectord.client.answers import Batch, Document, Embeddings, Float32, Label, Ranking, Token
from vectord.client.documents import read_documents
from vectord.client.joining import Items, Join, Kinds, Matrix, Ranks, Space
from vectord.client.messages import Reply, Request, get
from vectord.client.options import Chunk, Dtype, Lane, VectorKind, check_names
from vectord.client.reading import read_labels, read_scores, read_texts, read_tokens
from vectord.client.splitting import JSON, Ask, Limits, Part, ids_size, pair_size, split, text_size
from vectord.client.vectors import ARROW, LAYOUTS, OCTETS, read_matrix

A = TypeVar("A")
T = TypeVar("T")
Options = Mapping[str, Any]

BULK_REQUESTS = 8  # a call of more requests than this is a job: it goes in the bulk lane, and has a progress bar


@dataclass(frozen=True, slots=True)
class Call(Generic[A]):
    """The requests of one call, and what their answers make. take each answer in the order of the parts."""

    parts: Sequence[Part]
    join: Join[A]
    space: Space = field(default_factory=Space)

    @property
    def is_large(self) -> bool:
        return len(self.parts) > BULK_REQUESTS

    @property
    def lane(self) -> Lane | None:
        """The server judges each request by itself, and would not see that together they are a job."""
        return "bulk" if self.is_large else None

    def concurrency(self, most: int) -> int:
        return max(1, min(most, len(self.parts)))

    def take(self, part: Part, reply: Reply) -> None:
        """Raises FingerprintChanged, or ServerFailed for what is no answer to `part`."""
        self.space.check(reply)
        self.join.add(part, reply)


@dataclass(frozen=True, slots=True)
class Stream:
    """As Call, for texts that do not end or do not fit into memory: nothing is kept."""

    parts: Iterator[Part]
    dtype: Dtype
    lane: Lane = "bulk"
    space: Space = field(default_factory=Space)

    def concurrency(self, most: int) -> int:
        return most

    def take(self, part: Part, reply: Reply) -> Batch:
        self.space.check(reply)
        return Batch(part.items, read_matrix(reply, self.dtype, len(part.items)).copy())


def embed(texts: str | Iterable[str], limits: Limits, dtype: Dtype, options: Options) -> Call[Any]:
    given = listed(texts)
    parts = split(_matrix_ask(dtype, options), given, text_size, limits)
    return Call(list(parts), Matrix(len(given), dtype, lone=isinstance(texts, str)))


def embed_iter(texts: Iterable[str], limits: Limits, dtype: Dtype, options: Options) -> Stream:
    if isinstance(texts, str):
        raise TypeError("texts must be several strings, not one")
    return Stream(split(_matrix_ask(dtype, options), texts, text_size, limits), dtype)


def _matrix_ask(dtype: Dtype, options: Options) -> Ask:
    if dtype not in LAYOUTS:
        raise ValueError(f"dtype must be one of {', '.join(LAYOUTS)}")
    return _ask("embed", "inputs", known.EmbedOptions, options, accept=f"{OCTETS};dtype={dtype}")


def embed_all(
    texts: Sequence[str], outputs: Collection[VectorKind], limits: Limits, options: Options, *, arrow: bool
) -> Call[Embeddings]:
    """arrow: columns of bytes, else JSON with its vectors in base64, which takes ten times as long to read."""
    said = {"outputs": sorted(outputs), "encoding": "base64"}
    ask = _ask("embed", "inputs", known.EmbedOptions, options, said, accept=ARROW if arrow else JSON)
    return Call(list(split(ask, texts, text_size, limits)), Kinds(len(texts), outputs))


def rerank(
    query: str, passages: str | Iterable[str], limits: Limits, top_n: int | None, options: Options
) -> Call[Ranking]:
    said = {"query": query, "top_n": top_n or 0}
    ask = _ask("rerank", "passages", known.RerankOptions, options, said)
    return Call(list(split(ask, listed(passages), text_size, limits)), Ranks(top_n))


def classify(
    inputs: str | Iterable[str | tuple[str, str]], limits: Limits, options: Options
) -> Call[list[list[Label]]]:
    ask = _ask("classify", "inputs", known.ClassifyOptions, options)
    return _call(ask, inputs, pair_size, limits, read_labels, list)


def similarity(source: str, sentences: str | Iterable[str], limits: Limits, options: Options) -> Call[Float32]:
    ask = _ask("similarity", "sentences", known.PromptedOptions, options, {"source": source})
    return _call(ask, sentences, text_size, limits, read_scores, lambda scores: np.array(scores, np.float32))


def tokenize(texts: str | Iterable[str], limits: Limits, options: Options) -> Call[list[list[Token]]]:
    ask = _ask("tokenize", "inputs", known.TokenizeOptions, options)
    return _call(ask, texts, text_size, limits, read_tokens, list)


def decode(ids: Iterable[Sequence[int]], limits: Limits, options: Options) -> Call[list[str]]:
    ask = _ask("decode", "ids", known.DecodeOptions, options)
    return _call(ask, ids, ids_size, limits, read_texts, list)


def documents(texts: str | Iterable[str], chunk: Chunk, limits: Limits, options: Options) -> Call[list[Document]]:
    said = {"chunk": chunk, "encoding": "base64"}
    ask = _ask("documents", "documents", known.DocumentsOptions, options, said)
    return _call(ask, texts, text_size, limits, read_documents, list)


def models() -> Request:
    return get("/vectord/models")


def health() -> Request:
    """Not ready is an answer, too."""
    return get("/health", statuses=frozenset({200, 503}), repeats=False)


def _call(
    ask: Ask,
    items: Any,
    size: Callable[[Any, int], int],
    limits: Limits,
    read: Callable[[Reply], list[T]],
    whole: Callable[[list[T]], A],
) -> Call[A]:
    return Call(list(split(ask, listed(items), size, limits)), Items(read, whole))


def _ask(
    name: str, key: str, names: type, options: Options, said: Mapping[str, object] | None = None, accept: str = JSON
) -> Ask:
    """key: of the list in the body. Raises TypeError for an option that this call does not have."""
    check_names(options, names)
    rest = {name: value for name, value in options.items() if name != "expect_fingerprint"}
    expected = options.get("expect_fingerprint")
    return Ask(
        path=f"/vectord/{name}", key=key, said={**rest, **(said or {})}, accept=accept, expect_fingerprint=expected
    )


def listed(items: str | Iterable[T]) -> Sequence[str | T]:
    """A lone text is a list of one."""
    if isinstance(items, str):
        return [items]
    return items if isinstance(items, list | tuple) else list(items)
