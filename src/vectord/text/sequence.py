"""The interface between text/ and the engine: requests to read texts, and the token sequences and chunks made of them.

Plain values. This file imports no tokenizer, so that its import does not delay the start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, pairwise
from typing import Protocol, TypeAlias, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from vectord.schema import (
    ChunkOptions,
    Features,
    Float32,
    Input,
    Int32,
    Item,
    Span,
    TextLength,
    TextLengths,
    TextOptions,
    Token,
)

T = TypeVar("T")
N = TypeVar("N", bound=np.generic)
TextOrPair: TypeAlias = Input | tuple[str, str]


class Prefix(msgspec.Struct, frozen=True, eq=False):
    """Tokens that several sequences of a causal model begin with. Compared by identity; it runs once in a batch."""

    ids: Int32  # (p,)


class Undecoded(Protocol):
    """An image whose pixels are not decoded yet."""

    @property
    def count(self) -> int: ...  # of its sequences

    @property
    def rows_bytes(self) -> int: ...  # of its rows, once decoded

    @property
    def decoding_bytes(self) -> int: ...  # the memory that `rows` takes, at most

    def rows(self) -> Sequence[Features]:
        """The rows (n, W) of each of its sequences. Blocks, for seconds if it is large; raises InvalidRequest."""


class TokenSequence(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A text, a pair of texts or a window of a document, as n token ids. `Texts` joins those of a request."""

    ids: Int32  # (n,)
    type_ids: Int32  # (n,)
    length: TextLength  # mask tokens not counted; of a window: the tokens that no earlier window has
    index: int = 0  # its input's place in the request
    spans: Int32 | None = None  # (m, 2) first and last + 1 of the rows that are pooled together; None: all rows
    keys: int | None = None  # only the first `keys` rows are attended to; None: all
    rows: Int32 | None = None  # (r,) the rows whose token vectors count, ascending; None: all
    parts: tuple[TextLength, ...] = ()  # of a pair: the length of each text, without special tokens
    coordinates: Int32 | None = None  # (n, P) see PackedTexts; None: all 0


class TokenArrays(msgspec.Struct, frozen=True, eq=False):
    """The tokens of N texts, end to end."""

    ids: Int32  # (T,)
    sizes: Sequence[int]  # (N,)
    type_ids: Int32 | None = None  # (T,); None: all 0

    @classmethod
    def of(cls, rows: Sequence[Int32], types: Sequence[Int32] | None = None) -> TokenArrays:
        """rows, types: of each text."""
        return cls(np.concatenate(rows), [*map(len, rows)], None if types is None else np.concatenate(types))

    def each(self) -> Iterator[tuple[Int32, Int32 | None]]:
        """The ids and type ids of each text: views."""
        for start, stop in pairwise(accumulate(self.sizes, initial=0)):
            yield self.ids[start:stop], None if self.type_ids is None else self.type_ids[start:stop]


class Texts(msgspec.Struct, kw_only=True, eq=False, omit_defaults=True):
    """N token sequences end to end, T tokens in all: what one request sends to a model. Nobody changes it.

    The tokenizer makes it; the cache, the queue and packing take it. With a prefix, every text begins with its tokens,
    and `spans` and `keys` count rows after it.
    """

    ids: Int32  # (T,)
    cu_seqlens: Int32  # (N + 1,) from 0 to T
    type_ids: Int32 | None = None  # (T,); None: all 0
    spans: Int32 | None = None  # (M, 2) rows of their text that are pooled together; None: all rows of each text
    pooled: Int32 | None = None  # (N,) how many spans each text has; None: one
    keys: Int32 | None = None  # (N,) only the first `keys` rows of a text are attended to; None: all
    prefix: Prefix | None = None
    adapter: int = 0  # from 1, in the order of ModelSpec.adapters; 0: none
    # (T, W): the pixels of each row of an image, or the rows that images have in a text; None: all rows are words
    features: Features | None = None
    coordinates: Int32 | None = None  # (T, P) see PackedTexts; None: all 0
    # Facts for the request, which the queue does not need: empty in a selection.
    lengths: TextLengths = TextLengths()  # see TokenSequence
    indexes: Sequence[int] = ()  # the place of each text's input in the request
    rows: Sequence[Int32 | None] = ()  # see TokenSequence; empty: all rows of all texts
    parts: Sequence[tuple[TextLength, ...]] = ()  # of pairs
    undecoded: Sequence[Undecoded] = ()  # the images of these sequences, in order, whose rows are not in `features` yet
    digests: Sequence[bytes] = ()  # of images: of the files of each text, in place of its features; b"": none
    # (n, 4) of a text with images, the part of its image that each row shows: left, top, right and bottom, from 0 to 1.
    # NaN for rows of words; None: all are words.
    boxes: Sequence[Float32 | None] = ()
    # Of texts with images: the images' own sequences. Their vectors become the rows of type 1, in order, as `features`.
    images: Texts | None = None
    shown: Int32 | None = None  # (R,) the vector of each of those rows, where several show the same; None: in order

    @classmethod
    def of(cls, sequences: Sequence[TokenSequence], prefix: Prefix | None = None) -> Texts:
        """prefix: the tokens that all of them begin with."""
        counts = [len(one.ids) for one in sequences]
        own = counts if prefix is None else [count - len(prefix.ids) for count in counts]
        spans = pooled = keys = type_ids = None
        if any(one.type_ids.any() for one in sequences):
            type_ids = np.concatenate([one.type_ids for one in sequences])
        if any(one.spans is not None for one in sequences):
            each = [one.spans if one.spans is not None else [(0, n)] for one, n in zip(sequences, own, strict=True)]
            spans, pooled = np.concatenate(each).astype(np.int32), np.array([*map(len, each)], np.int32)
        if any(one.keys is not None for one in sequences):
            keys = np.array(
                [n if one.keys is None else one.keys for one, n in zip(sequences, own, strict=True)], np.int32
            )
        return cls(
            ids=np.concatenate([one.ids for one in sequences]) if sequences else np.zeros(0, np.int32),
            cu_seqlens=cu_seqlens_of(counts),
            type_ids=type_ids,
            spans=spans,
            pooled=pooled,
            keys=keys,
            prefix=prefix,
            lengths=TextLengths.of([one.length for one in sequences]),
            indexes=[one.index for one in sequences],
            coordinates=_joined_rows([one.coordinates for one in sequences], counts),
            rows=[one.rows for one in sequences] if any(one.rows is not None for one in sequences) else (),
            parts=[one.parts for one in sequences] if any(one.parts for one in sequences) else (),
        )

    @classmethod
    def join(cls, parts: Sequence[Texts]) -> Texts:
        """All texts of the parts, in order: of one request, or to be packed. Without their prefixes."""
        spans = pooled = keys = type_ids = shown = None
        images = [part.images for part in parts if part.images is not None]
        sizes = [len(part.ids) for part in parts]
        features = _joined_rows([part.features for part in parts], sizes)
        coordinates = _joined_rows([part.coordinates for part in parts], sizes)
        if any(part.type_ids is not None for part in parts):
            type_ids = np.concatenate([part.all_type_ids for part in parts])
        if any(part.spans is not None for part in parts):
            spans = np.concatenate([part.all_spans for part in parts])
            pooled = np.concatenate([part.all_pooled for part in parts])
        if any(part.keys is not None for part in parts):
            keys = np.concatenate([part.sizes if part.keys is None else part.keys for part in parts])
        if any(part.shown is not None for part in parts):
            counts = [0 if part.images is None else int(part.images.all_pooled.sum()) for part in parts]
            before = np.cumsum([0, *counts[:-1]])
            rows = [np.arange(n) if part.shown is None else part.shown for part, n in zip(parts, counts, strict=True)]
            shown = np.concatenate([own + first for own, first in zip(rows, before, strict=True)]).astype(np.int32)
        return cls(
            ids=np.concatenate([part.ids for part in parts]),
            cu_seqlens=cu_seqlens_of(np.concatenate([part.sizes for part in parts]).tolist()),
            type_ids=type_ids,
            spans=spans,
            pooled=pooled,
            keys=keys,
            adapter=parts[0].adapter,
            features=features,
            coordinates=coordinates,
            lengths=TextLengths.join([part.lengths for part in parts]),
            indexes=[*chain.from_iterable(part.indexes for part in parts)],
            rows=_joined([part.rows for part in parts], parts, None),
            parts=_joined([part.parts for part in parts], parts, ()),
            undecoded=[image for part in parts for image in part.undecoded],
            digests=_joined([part.digests for part in parts], parts, b""),
            boxes=_joined([part.boxes for part in parts], parts, None),
            images=cls.join(images) if images else None,
            shown=shown,
        )

    def __len__(self) -> int:
        return len(self.cu_seqlens) - 1

    def __iter__(self) -> Iterator[TokenSequence]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, i: int) -> TokenSequence:
        """One text, for readers that look at few; the arrays are views."""
        tokens, spans = slice(*self.cu_seqlens[i : i + 2]), None
        if self.spans is not None:
            stop = int(self.all_pooled[: i + 1].sum())
            spans = self.spans[stop - self.all_pooled[i] : stop]
        return TokenSequence(
            ids=self.ids[tokens],
            type_ids=self.all_type_ids[tokens],
            length=self.lengths[i],
            index=self.indexes[i],
            spans=spans,
            keys=None if self.keys is None else int(self.keys[i]),
            rows=self.rows[i] if self.rows else None,
            parts=self.parts[i] if self.parts else (),
        )

    @property
    def sizes(self) -> Int32:
        """The number of tokens of each text. (N,)"""
        return self.cu_seqlens[1:] - self.cu_seqlens[:-1]  # np.diff takes six times as long for one text

    @property
    def all_type_ids(self) -> Int32:
        return np.zeros(len(self.ids), np.int32) if self.type_ids is None else self.type_ids

    @property
    def all_pooled(self) -> Int32:
        return np.ones(len(self), np.int32) if self.pooled is None else self.pooled

    @property
    def all_spans(self) -> Int32:
        if self.spans is not None:
            return self.spans
        return np.stack([np.zeros(len(self), np.int32), self.sizes], axis=1)

    def take(self, places: Int32) -> Texts:
        """The texts at these places (n,), ascending, without the facts for the request."""
        if len(places) == len(self):
            return self
        first, stop = int(places[0]), int(places[-1]) + 1
        chosen: slice | Int32 = places
        tokens: slice | npt.NDArray[np.bool_]
        if stop - first == len(places):  # views
            chosen, bounds = slice(first, stop), self.cu_seqlens[first : stop + 1]
            tokens, cu_seqlens = slice(bounds[0], bounds[-1]), bounds - bounds[0]
        else:
            tokens = np.repeat(np.isin(np.arange(len(self)), places), self.sizes)
            cu_seqlens = cu_seqlens_of(self.sizes[places].tolist())
        return Texts(
            ids=self.ids[tokens],
            cu_seqlens=cu_seqlens,
            type_ids=None if self.type_ids is None else self.type_ids[tokens],
            spans=None if self.spans is None else self.spans[self.vectors_of(places)],
            pooled=None if self.pooled is None else self.pooled[chosen],
            keys=None if self.keys is None else self.keys[chosen],
            prefix=self.prefix,
            adapter=self.adapter,
            features=None if self.features is None else self.features[tokens],
            coordinates=None if self.coordinates is None else self.coordinates[tokens],
        )

    def vectors_of(self, places: Int32) -> Int32:
        """The places of these texts' pooled vectors among those of all texts. (m,)"""
        if self.pooled is None:
            return places
        counts = self.pooled[places]
        # The place of each text's first vector, and from there on as many as it has.
        first = self.pooled.cumsum()[places] - counts
        steps = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
        vectors: Int32 = (np.repeat(first, counts) + steps).astype(np.int32)
        return vectors

    def after_prefix(self) -> Texts:
        """The texts without the prefix that they begin with."""
        if self.prefix is None:
            return self
        begun = len(self.prefix.ids)
        own = np.ones(len(self.ids), bool)
        own[(self.cu_seqlens[:-1, None] + np.arange(begun)).ravel()] = False
        return replace(
            self,
            ids=self.ids[own],
            cu_seqlens=cu_seqlens_of((self.sizes - begun).tolist()),
            type_ids=None if self.type_ids is None else self.type_ids[own],
            coordinates=None if self.coordinates is None else self.coordinates[own],
            prefix=None,
        )


class TokenizedTexts(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The texts of a request, tokenized before it reached the engine's process."""

    texts: Texts
    fingerprint: str  # of the model whose tokenizer read them
    seconds: float  # that this took


def _joined(columns: Sequence[Sequence[T]], parts: Sequence[Texts], missing: T) -> list[T]:
    """Optional facts of the texts of all parts; `missing` for parts without it."""
    if not any(columns):
        return []
    return [*chain.from_iterable(column or [missing] * len(part) for column, part in zip(columns, parts, strict=True))]


def _joined_rows(parts: Sequence[npt.NDArray[N] | None], sizes: Sequence[int]) -> npt.NDArray[N] | None:
    """The rows of all parts; zeros for parts without."""
    some = next((part for part in parts if part is not None), None)
    if some is None:
        return None
    given = zip(parts, sizes, strict=True)
    return np.concatenate([np.zeros((n, some.shape[1]), some.dtype) if part is None else part for part, n in given])


def cu_seqlens_of(sizes: Sequence[int]) -> Int32:
    """Where each text begins, and where the last one ends. (N + 1,)"""
    return np.array([*accumulate(sizes, initial=0)], np.int32)


class Chunk(msgspec.Struct, frozen=True):
    """A part of a document. The chunks that vectord cuts without overlap, joined, are the text."""

    start: int  # characters
    stop: int
    first: int  # the first of its tokens, counted in the document
    tokens: int  # without special tokens
    rows: tuple[int, int] | None = None  # first and last + 1 of the whole sequence; None: those of its tokens


class CutText(msgspec.Struct, frozen=True):
    """The beginning of a text that was cut at its end before it is read."""

    text: str
    tokens_cut: int
    characters_cut: int  # after those tokens

    def whole(self, length: TextLength) -> TextLength:
        """The length of the text before the cut; length: that of the beginning."""
        if not self.tokens_cut and not self.characters_cut:
            return length
        return TextLength(length.seen + self.tokens_cut, length.kept, length.characters_cut + self.characters_cut)


QUERY_INDEX = -1  # the index of an error about `ReadRequest.query`


class ReadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Texts for a model to read. The model's kind decides how: plain, as a ColBERT text, or in a template."""

    inputs: Sequence[TextOrPair]  # texts, token ids, or pairs in which both texts count alike; `query`: passages
    options: TextOptions
    truncate: bool  # `options.truncate`, with the server's default applied
    query: Item | None = None  # read together with each input; a text unless the model reads images in pairs
    instruction: str | None = None  # for a language model that judges the query; None: the model's own
    chunks: Sequence[Sequence[Chunk]] | None = None  # late chunking: the chunks of each input


class Encoder(Protocol):
    """The reader of a network's inputs, as the engine calls it. Blocks; several threads may call it at once.

    Raises InvalidRequest: with the index of the input, or QUERY_INDEX, and no field, or with the option's own field.
    """

    @property
    def special_ids(self) -> Int32: ...  # ids that are not words

    @property
    def query_weights(self) -> Float32 | None: ...  # (V,) the weight of each token of a query; None: the network's

    def read(self, request: ReadRequest, part: range | None = None) -> Texts:
        """The sequence of each input, in order; of late chunking, those of its windows. part: only these inputs."""


class Tokenizer(Encoder, Protocol):
    """The encoder of a network that reads texts."""

    def cut(self, texts: Sequence[str], max_tokens: int, part: range | None = None) -> Sequence[CutText]:
        """Each text cut at its end to `max_tokens` of its own tokens, if that is less than the model reads."""

    def chunk(self, text: str, how: ChunkOptions | Sequence[Span], max_chunks: int | None = None) -> Sequence[Chunk]:
        """The chunks of a document, in order. how: options to cut it by, or the chunks that the client has cut.

        Stops after more than `max_chunks` chunks; the caller refuses them."""

    def count(self, texts: Sequence[str], part: range | None = None) -> Sequence[int]:
        """How many tokens each text has, without specials. part: only these texts."""

    def tokenize(
        self, texts: Sequence[str], *, add_special_tokens: bool, prompt_name: str | None
    ) -> Sequence[Sequence[Token]]: ...

    def decode(self, ids: Sequence[Sequence[int]], *, skip_special_tokens: bool) -> Sequence[str]: ...
