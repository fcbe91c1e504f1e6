"""Two texts as one sequence of a cross-encoder or classifier: joined as the tokenizer joins them, then truncated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import msgspec
import numpy as np
from tokenizers import Tokenizer

from vectord.errors import InputTooLong, ModelCannot, Untokenizable
from vectord.schema import Int32, TextLength
from vectord.text.options import limit_of, refuse_prompts, require_specials
from vectord.text.plain import PlainTokenizer, Source, cut_source
from vectord.text.sequence import QUERY_INDEX, ReadRequest, TokenSequence
from vectord.text.truncation import Limit, keep

_PROBES = (("hello world", "a"), ("a", "hello world"), ("", "a"), ("a", ""))


class PairFrame(msgspec.Struct, frozen=True, eq=False):
    """The special tokens before, between and after two texts, and the type of every token."""

    ids: tuple[Int32, Int32, Int32]
    types: tuple[Int32, Int32, Int32]
    text_types: tuple[int, int]
    has_type_ids: bool  # whether any type is not 0

    @property
    def specials(self) -> int:
        return sum(map(len, self.ids))

    @property
    def least(self) -> int:
        """The tokens of a pair whose texts have one token each."""
        return self.specials + 2

    def join(self, first: Int32, second: Int32) -> Int32:
        before, between, after = self.ids
        return np.concatenate((before, first, between, second, after))

    def join_types(self, first: int, second: int) -> Int32:
        """The type ids of `join` for texts with these numbers of tokens."""
        before, between, after = self.types
        of_first, of_second = (
            np.full(n, kind, np.int32) for n, kind in zip((first, second), self.text_types, strict=True)
        )
        return np.concatenate((before, of_first, between, of_second, after))


def probe_pair_frame(tokenizer: Tokenizer) -> PairFrame | None:
    """How the tokenizer joins two texts, found by tokenizing; None if it does not join all texts in the same way."""
    first, second = (len(tokenizer.encode(text, add_special_tokens=False).ids) for text in _PROBES[0])
    encoding = tokenizer.encode(*_PROBES[0])
    content = [i for i, special in enumerate(encoding.special_tokens_mask) if not special]
    if len(content) < first + second:
        return None
    start, stop = content[0], content[-1] + 1
    cuts = [start, start + first, stop - second, stop]
    ids, types = (np.split(np.array(row, np.int32), cuts) for row in (encoding.ids, encoding.type_ids))
    frame = PairFrame(
        (ids[0], ids[2], ids[4]),
        (types[0], types[2], types[4]),
        (int(types[1][0]), int(types[3][0])),
        any(encoding.type_ids),
    )
    for probe in _PROBES:
        encoding = tokenizer.encode(*probe)
        parts = [np.array(tokenizer.encode(text, add_special_tokens=False).ids, np.int32) for text in probe]
        kinds = frame.join_types(*map(len, parts))
        if not np.array_equal(frame.join(*parts), encoding.ids) or not np.array_equal(kinds, encoding.type_ids):
            return None
    return frame


def most_query_tokens(max_tokens: int) -> int:
    """The most tokens of a query in a pair that does not fit, for BGE's rerankers. Source: FlagEmbedding."""
    return max_tokens * 3 // 4


def keep_query_share(query: int, passage: int, room: int, max_tokens: int) -> tuple[int, int]:
    """How many tokens of a query and of a passage are kept by BGE's rerankers. room: max_tokens without the specials.

    A pair that fits stays whole. Otherwise the passage gets what the query leaves, at least one token.
    """
    if query + passage <= room:
        return query, passage
    query = min(query, most_query_tokens(max_tokens), room - 1)
    return query, min(passage, room - query)


def keep_longest_last(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens of two texts are kept: the longer one is cut until both are half of the room. Equals tokenizers'
    "longest_first", by which sentence-transformers and TEI cut pairs."""
    if first + second <= room:
        return first, second
    if first <= second:
        kept = min(first, room // 2)
        return kept, room - kept
    kept = min(second, room // 2)
    return room - kept, kept


class PairEncoder:
    def __init__(self, plain: PlainTokenizer, max_tokens: int, *, caps_query: bool) -> None:
        """caps_query: pairs of a query and a passage are cut by `keep_query_share`."""
        frame = probe_pair_frame(plain.tokenizer)
        self._plain = plain
        self._caps_query = caps_query
        self._max_tokens = max_tokens
        self._frame = frame if frame is not None and max_tokens >= frame.least else None

    @property
    def possible(self) -> bool:
        """Whether the tokenizer joins all pairs in the same way, and the model has room for a token of each text."""
        return self._frame is not None

    def read_passages(self, request: ReadRequest, query: str, part: Sequence[int]) -> Iterator[TokenSequence]:
        """The query, tokenized once, with each passage, both cut at `truncate_side`."""
        frame, limit = self._prepare(request)
        query_source = cut_source(query, limit, QUERY_INDEX)
        (query_ids,) = self._plain.contents([query_source])
        if not limit.truncate and len(query_ids) + frame.specials > limit.max_tokens:
            raise limit.too_long(QUERY_INDEX, len(query_ids) + frame.specials)
        sources = [cut_source(cast(str, request.inputs[i]), limit, i) for i in part]
        room = limit.max_tokens - frame.specials
        for source, ids in zip(sources, self._plain.contents(sources), strict=True):
            if self._caps_query:
                kept = keep_query_share(len(query_ids), len(ids), room, limit.max_tokens)
            else:
                kept = keep_longest_last(len(query_ids), len(ids), room)
            yield self._pair(frame, (query_source, source), (query_ids, ids), kept, limit)

    def read_pairs(self, request: ReadRequest, part: Sequence[int]) -> Iterator[TokenSequence]:
        """Pairs of a classifier: the longer text is cut first, both at `truncate_side`."""
        frame, limit = self._prepare(request)
        sources = [cut_source(text, limit, i) for i in part for text in cast("tuple[str, str]", request.inputs[i])]
        contents = self._plain.contents(sources)
        room = limit.max_tokens - frame.specials
        for first, second in zip(sources[::2], sources[1::2], strict=True):
            ids = next(contents), next(contents)
            kept = keep_longest_last(len(ids[0]), len(ids[1]), room)
            yield self._pair(frame, (first, second), ids, kept, limit)

    def _prepare(self, request: ReadRequest) -> tuple[PairFrame, Limit]:
        refuse_prompts(request.options)
        require_specials(request.options, "pairs of texts")
        if self._frame is None:
            raise ModelCannot("This model's tokenizer does not join two texts in one way.")
        return self._frame, limit_of(request, self._max_tokens, self._frame.least)

    def _pair(
        self,
        frame: PairFrame,
        sources: tuple[Source, Source],
        ids: tuple[Int32, Int32],
        kept: tuple[int, int],
        limit: Limit,
    ) -> TokenSequence:
        """sources, ids, kept: of the first and of the second text."""
        index = sources[1].index
        seen = len(ids[0]) + len(ids[1]) + frame.specials
        if seen > limit.max_tokens and not limit.truncate:
            raise InputTooLong(
                "{field} must have at most {limit} tokens, as a pair; got {given}",
                index=index,
                limit=limit.max_tokens,
                given=seen,
            )
        joined = frame.join(*(keep(text_ids, count, limit.side) for text_ids, count in zip(ids, kept, strict=True)))
        if not len(joined):
            raise Untokenizable("{field} has no tokens", index=index)
        first, second = (
            TextLength(len(text_ids), count, source.characters_cut)
            for source, text_ids, count in zip(sources, ids, kept, strict=True)
        )
        length = TextLength(seen, len(joined), first.characters_cut + second.characters_cut)
        types = {"type_ids": frame.join_types(*kept)} if frame.has_type_ids and self._plain.has_types else {}
        return self._plain.sequence(joined, length, index, parts=(first, second), **types)
