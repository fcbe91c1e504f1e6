"""Two texts as one input of a cross-encoder: joined as the tokenizer joins them, and cut by a rule for pairs.

tokenizer.py calls `PairEncoder` on the tokenising threads. A query is tokenised once for all its passages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import Encoding, Tokenizer

from vectord.errors import InputTooLong, ModelCannot
from vectord.schema import Int32, Side, TextLength, TextOptions
from vectord.text.encoded import EncodedPair
from vectord.text.options import max_tokens_of, require_specials
from vectord.text.plain import PlainTokenizer, Source, cut_source
from vectord.text.prompts import refuse_prompts
from vectord.text.truncation import Limit, keep

_PROBES = (("hello world", "a"), ("a", "hello world"), ("", "a"), ("a", ""))


@dataclass(frozen=True, slots=True, eq=False)
class PairFrame:
    """The special tokens around and between two texts, and the type of every token. Each (n,)."""

    prefix: Int32
    middle: Int32
    suffix: Int32
    prefix_types: Int32
    middle_types: Int32
    suffix_types: Int32
    text_types: tuple[int, int]
    has_type_ids: bool  # whether any is not 0

    @property
    def specials(self) -> int:
        return len(self.prefix) + len(self.middle) + len(self.suffix)

    def join(self, first: Int32, second: Int32) -> Int32:
        return np.concatenate((self.prefix, first, self.middle, second, self.suffix))

    def join_types(self, first: int, second: int) -> Int32:
        """The type ids of `join` for texts of so many tokens."""
        of_first, of_second = (
            np.full(n, kind, np.int32) for n, kind in zip((first, second), self.text_types, strict=True)
        )
        return np.concatenate((self.prefix_types, of_first, self.middle_types, of_second, self.suffix_types))


def probe_pair_frame(tokenizer: Tokenizer) -> PairFrame | None:
    """How the tokenizer joins two texts, asked of itself; None if not in one way for all texts."""
    first, second = (len(tokenizer.encode(text, add_special_tokens=False).ids) for text in _PROBES[0])
    encoding = tokenizer.encode(*_PROBES[0])
    content = [i for i, special in enumerate(encoding.special_tokens_mask) if not special]
    if len(content) < first + second:
        return None
    frame = _frame(encoding, content[0], content[0] + first, content[-1] + 1 - second, content[-1] + 1)
    return frame if all(_joins_as(tokenizer, frame, *probe) for probe in _PROBES) else None


def _frame(encoding: Encoding, first: int, first_end: int, second: int, second_end: int) -> PairFrame:
    ids, types = np.array(encoding.ids, np.int32), np.array(encoding.type_ids, np.int32)
    return PairFrame(
        ids[:first],
        ids[first_end:second],
        ids[second_end:],
        types[:first],
        types[first_end:second],
        types[second_end:],
        (int(types[first]), int(types[second])),
        bool(types.any()),
    )


def _joins_as(tokenizer: Tokenizer, frame: PairFrame, first: str, second: str) -> bool:
    encoding = tokenizer.encode(first, second)
    parts = [np.array(tokenizer.encode(text, add_special_tokens=False).ids, np.int32) for text in (first, second)]
    if not np.array_equal(frame.join(*parts), encoding.ids):
        return False
    return np.array_equal(frame.join_types(*map(len, parts)), encoding.type_ids)


def keep_query_first(query: int, passage: int, room: int, max_tokens: int) -> tuple[int, int]:
    """How many tokens of a query and of a passage are kept, where `room` is what specials leave of max_tokens.

    A pair that fits stays whole. Else the query stays whole if it leaves a token for the passage, and three quarters
    of max_tokens if not (FlagEmbedding's share); the passage gets what is left.
    """
    if query + passage <= room:
        return query, passage
    if query >= room:
        query = min(max_tokens * 3 // 4, room - 1)
    return query, min(passage, room - query)


def keep_longest_last(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens of two texts are kept that count alike: the longer one is cut until both are half of the room.

    Source: "longest_first" of tokenizers, to the token.
    """
    if first + second <= room:
        return first, second
    if first <= second:
        kept = min(first, room // 2)
        return kept, room - kept
    kept = min(second, room // 2)
    return room - kept, kept


class PairEncoder:
    """Pairs of one model."""

    def __init__(self, plain: PlainTokenizer, max_tokens: int) -> None:
        frame = probe_pair_frame(plain.tokenizer)
        self._plain = plain
        self._max_tokens = max_tokens
        self._frame = frame if frame is not None and max_tokens >= _least(frame) else None

    @property
    def possible(self) -> bool:
        """Whether the tokenizer joins pairs in one way, and they have room for a token of each text."""
        return self._frame is not None

    def encode(
        self,
        query: str,
        passages: Sequence[str],
        options: TextOptions,
        *,
        truncate: bool,
        field: str,
        part: range | None,
    ) -> list[EncodedPair]:
        """See TextEncoder.encode_pairs."""
        frame = self._usable(options)
        max_tokens = max_tokens_of(options, self._max_tokens, _least(frame))
        query_limit = Limit(max_tokens, truncate, "right", "query", 1, reads=self._max_tokens)
        limit = Limit(max_tokens, truncate, options.truncate_side, field, len(passages), reads=self._max_tokens)
        asked = cut_source(query, query_limit, 0)
        (query_ids,) = self._plain.contents([asked], query_limit)
        if not truncate and len(query_ids) + frame.specials > max_tokens:
            raise query_limit.too_long(0, max_tokens, "tokens", len(query_ids) + frame.specials)
        sources = [cut_source(passages[i], limit, i) for i in (range(len(passages)) if part is None else part)]
        room = max_tokens - frame.specials
        pairs = []
        for source, ids in zip(sources, self._plain.contents(sources, limit), strict=True):
            kept = keep_query_first(len(query_ids), len(ids), room, max_tokens)
            pairs.append(self._pair(frame, (asked, source), (query_ids, ids), kept, "right", limit))
        return pairs

    def encode_list(
        self, pairs: Sequence[tuple[str, str]], options: TextOptions, *, truncate: bool, field: str, part: range | None
    ) -> list[EncodedPair]:
        """See TextEncoder.encode_pair_list."""
        frame = self._usable(options)
        max_tokens = max_tokens_of(options, self._max_tokens, _least(frame))
        limit = Limit(max_tokens, truncate, options.truncate_side, field, len(pairs), reads=self._max_tokens)
        indexes = range(len(pairs)) if part is None else part
        sources = [cut_source(text, limit, i) for i in indexes for text in pairs[i]]
        contents = self._plain.contents(sources, limit)
        room = max_tokens - frame.specials
        encoded = []
        for first, second in zip(sources[::2], sources[1::2], strict=True):
            ids = next(contents), next(contents)
            kept = keep_longest_last(len(ids[0]), len(ids[1]), room)
            encoded.append(self._pair(frame, (first, second), ids, kept, options.truncate_side, limit))
        return encoded

    def _usable(self, options: TextOptions) -> PairFrame:
        refuse_prompts(options)
        require_specials(options, "pairs of texts")
        if self._frame is None:
            raise ModelCannot("This model's tokenizer has no one way to join two texts.")
        return self._frame

    def _pair(
        self,
        frame: PairFrame,
        sources: tuple[Source, Source],
        ids: tuple[Int32, Int32],
        kept: tuple[int, int],
        first_side: Side,
        limit: Limit,
    ) -> EncodedPair:
        """sources, ids, kept: of the first and of the second text."""
        index = sources[1].index
        seen = len(ids[0]) + len(ids[1]) + frame.specials
        if seen > limit.max_tokens and not limit.truncate:
            raise _together_too_long(limit, index, seen)
        joined = frame.join(keep(ids[0], kept[0], first_side), keep(ids[1], kept[1], limit.side))
        self._plain.check_known(joined, limit, index)
        first, second = (
            TextLength(len(text_ids), count, source.characters_cut)
            for source, text_ids, count in zip(sources, ids, kept, strict=True)
        )
        return EncodedPair(
            joined,
            frame.join_types(*kept) if frame.has_type_ids else self._plain.no_types(joined),
            query=first,
            passage=second,
            length=TextLength(seen, len(joined), first.characters_cut + second.characters_cut),
        )


def _least(frame: PairFrame) -> int:
    """Tokens that a pair of texts of one token each has."""
    return frame.specials + 2


def _together_too_long(limit: Limit, index: int, seen: int) -> InputTooLong:
    message = f"{limit.place(index)} must have at most {limit.max_tokens} tokens, as a pair; got {seen}"
    return InputTooLong(message, field=limit.field, index=index, limit=limit.max_tokens, given=seen)
