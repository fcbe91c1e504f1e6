"""What the answers of one call make together. Each `add` takes the next answer, in the order of the parts. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Generic, Protocol, TypeVar

import numpy as np

from vectord.client.answers import Array, Embeddings, Float32, Ranked, Ranking
from vectord.client.errors import FingerprintChanged
from vectord.client.messages import Reply
from vectord.client.options import Dtype, VectorKind
from vectord.client.reading import read_ranked, reading
from vectord.client.splitting import Part
from vectord.client.vectors import LAYOUTS, Piece, SparsePiece, read_matrix, read_piece

T = TypeVar("T")
A = TypeVar("A")
Whole_co = TypeVar("Whole_co", covariant=True)


class Join(Protocol[Whole_co]):
    def add(self, part: Part, reply: Reply) -> None: ...

    def result(self) -> Whole_co: ...


class Space:
    """The vector space of a call's first answer. A server may be restarted with another model between two parts."""

    def __init__(self) -> None:
        self.fingerprint = ""

    def check(self, reply: Reply) -> None:
        """Raises FingerprintChanged for an answer of another space."""
        self.fingerprint = self.fingerprint or reply.fingerprint
        if reply.fingerprint != self.fingerprint:
            raise FingerprintChanged(
                "The server changed its model during this call: some of its vectors belong to another space.",
                status=reply.status,
                request_id=reply.headers.get("x-request-id"),
            )


class Rows:
    """(total, D), allocated when the first rows say how wide it is; (0, 0) without any."""

    def __init__(self, total: int, dtype: Dtype) -> None:
        self._total = total
        self._dtype = np.dtype(LAYOUTS[dtype]).newbyteorder("=")
        self.matrix: Array = np.empty((0, 0), self._dtype)

    def put(self, start: int, rows: Array) -> None:
        """rows (n, D) as rows start to start + n. Raises ValueError for another width than the first ones had."""
        if not self.matrix.size:
            self.matrix = np.empty((self._total, rows.shape[1]), self._dtype)
        if rows.shape[1] != self.matrix.shape[1]:
            raise ValueError("another width than the answers before")
        self.matrix[start : start + len(rows)] = rows


class Matrix:
    """One kind of dense vectors: (N, D), or (D,) of a lone text."""

    def __init__(self, total: int, dtype: Dtype, *, lone: bool) -> None:
        self._rows = Rows(total, dtype)
        self._dtype = dtype
        self._lone = lone

    def add(self, part: Part, reply: Reply) -> None:
        with reading(reply):
            self._rows.put(part.start, read_matrix(reply, self._dtype, len(part.items)))

    def result(self) -> Array:
        return self._rows.matrix[0] if self._lone else self._rows.matrix


class Kinds:
    """Several kinds of vectors at once."""

    def __init__(self, total: int, outputs: Collection[VectorKind]) -> None:
        if "sparse" in outputs:  # scipy is an extra, whose absence shall be known before anything is asked
            from vectord.client.sparse import csr_of  # noqa: PLC0415

            self._csr_of = csr_of
        self._outputs = outputs
        self._model = ""
        self._fingerprint = ""
        self._dense = Rows(total, "float32")
        self._sparse: list[SparsePiece] = []
        self._colbert: list[Float32] = []
        self._tokens: list[Float32] = []
        self._truncated: list[int] = []
        self._tokens_read = 0

    def add(self, part: Part, reply: Reply) -> None:
        piece = read_piece(reply, self._outputs, len(part.items))
        self._model = piece.model
        self._fingerprint = reply.fingerprint
        self._truncated += [part.start + index for index in piece.truncated]
        self._tokens_read += reply.tokens_read
        self._put(part.start, piece, reply)

    def _put(self, start: int, piece: Piece, reply: Reply) -> None:
        if piece.dense is not None:
            with reading(reply):
                self._dense.put(start, piece.dense)
        if piece.sparse is not None:
            self._sparse.append(piece.sparse)
        self._colbert += piece.colbert or ()
        self._tokens += piece.tokens or ()

    def result(self) -> Embeddings:
        return Embeddings(
            model=self._model,
            fingerprint=self._fingerprint,
            dense=self._dense.matrix if "dense" in self._outputs else None,
            sparse=self._csr_of(self._sparse) if "sparse" in self._outputs else None,
            colbert=self._colbert if "colbert" in self._outputs else None,
            tokens=self._tokens if "tokens" in self._outputs else None,
            truncated=self._truncated,
            tokens_read=self._tokens_read,
        )


class Ranks:
    """The best of all parts: each was asked for its own best `top_n`."""

    def __init__(self, top_n: int | None) -> None:
        self._top_n = top_n
        self._ranked: list[Ranked] = []
        self._model = ""
        self._fingerprint = ""
        self._score_kind = ""
        self._query_truncated = False
        self._truncated: list[int] = []
        self._tokens_read = 0

    def add(self, part: Part, reply: Reply) -> None:
        answer = read_ranked(reply, len(part.items), self._top_n)
        self._model = answer.model
        self._fingerprint = reply.fingerprint
        self._score_kind = answer.score_kind
        self._query_truncated = answer.query_truncated
        self._ranked += [
            Ranked(part.start + one.index, one.score, part.items[one.index], one.span) for one in answer.results
        ]
        self._truncated += [part.start + index for index in answer.truncated]
        self._tokens_read += reply.tokens_read

    def result(self) -> Ranking:
        best = sorted(self._ranked, key=lambda ranked: -ranked.score)  # equal ones stay in the order of the parts
        return Ranking(
            ranked=best[: self._top_n or None],
            score_kind=self._score_kind,
            model=self._model,
            fingerprint=self._fingerprint,
            truncated=self._truncated,
            query_truncated=self._query_truncated,
            tokens_read=self._tokens_read,
        )


class Items(Generic[T, A]):
    """One value an item, in order. read: an answer's values; whole: what is made of all."""

    def __init__(self, read: Callable[[Reply], list[T]], whole: Callable[[list[T]], A]) -> None:
        self._read = read
        self._whole = whole
        self._items: list[T] = []

    def add(self, part: Part, reply: Reply) -> None:
        with reading(reply):
            items = self._read(reply)
            if len(items) != len(part.items):
                raise ValueError("another number of answers than of items")
        self._items += items

    def result(self) -> A:
        return self._whole(self._items)
