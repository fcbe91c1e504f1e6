"""The interface between text/ and the engine: requests to read texts, and the token sequences and chunks made of them.

Plain values. This file imports no tokenizer, so that its import does not delay the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from vectord.schema import ChunkOptions, Float32, Input, Int32, Span, TextLength, TextOptions, Token

TextOrPair: TypeAlias = Input | tuple[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    """Tokens that several sequences of a causal model begin with. Compared by identity; it runs once in a batch."""

    ids: Int32  # (p,)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenSequence:
    """A text, a pair of texts or a window of a document, as token ids. n tokens, those of `prefix` included.

    The tokenizer makes it; the cache, the queue and packing take it. `spans` and `keys` count rows after the prefix.
    """

    ids: Int32  # (n,)
    type_ids: Int32  # (n,)
    length: TextLength  # mask tokens not counted; of a window: the tokens that no earlier window has
    index: int = 0  # its input's place in the request
    spans: Int32 | None = None  # (m, 2) first and last + 1 of the rows that are pooled together; None: all rows
    keys: int | None = None  # only the first `keys` rows are attended to; None: all
    prefix: Prefix | None = None  # the same object in every sequence that shares it
    rows: Int32 | None = None  # (r,) the rows whose token vectors count, ascending; None: all
    adapter: int = 0  # from 1, in the order of ModelSpec.adapters; 0: none
    parts: tuple[TextLength, ...] = ()  # of a pair: the length of each text, without special tokens

    @property
    def own_ids(self) -> Int32:
        """The ids after the prefix."""
        return self.ids if self.prefix is None else self.ids[len(self.prefix.ids) :]

    @property
    def pooled(self) -> int:
        """How many pooled vectors it gives: m."""
        return 1 if self.spans is None else len(self.spans)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a document. The chunks that vectord cuts without overlap, joined, are the text."""

    start: int  # characters
    stop: int
    first: int  # the first of its tokens, counted in the document
    tokens: int  # without special tokens


@dataclass(frozen=True, slots=True)
class CutText:
    """The beginning of a text that was cut at its end before it is read."""

    text: str
    tokens_cut: int
    characters_cut: int  # after those tokens

    def whole(self, length: TextLength) -> TextLength:
        """The length of the text before the cut; length: that of the beginning."""
        if not self.tokens_cut and not self.characters_cut:
            return length
        return TextLength(length.seen + self.tokens_cut, length.kept, length.characters_cut + self.characters_cut)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """Texts for a model to read. The model's kind decides how: plain, as a ColBERT text, or in a template."""

    inputs: Sequence[TextOrPair]  # texts, token ids, or pairs in which both texts count alike; `query`: passages
    options: TextOptions
    truncate: bool  # `options.truncate`, with the server's default applied
    query: str | None = None  # read together with each input
    instruction: str | None = None  # for a language model that judges the query; None: the model's own
    chunks: Sequence[Sequence[Chunk]] | None = None  # late chunking: the chunks of each input


class Encoder(Protocol):
    """The tokenizer of one model, as the engine calls it. Blocks; several threads may call it at once.

    Raises InvalidRequest: with the index of the input and no field, or with the option's own field.
    """

    @property
    def special_ids(self) -> Int32: ...  # ids that are not words

    @property
    def query_weights(self) -> Float32 | None: ...  # (V,) the weight of each token of a query; None: the network's

    def read(self, request: ReadRequest, part: range | None = None) -> Sequence[TokenSequence]:
        """The sequence of each input, in order; of late chunking, those of its windows. part: only these inputs."""

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
