"""A query and a passage in the words a language model judges them by, as Qwen3-Reranker reads them.

tokenizer.py calls `YesNoEncoder` on the tokenising threads. A pair is prefix + body + suffix, each tokenised alone.
The body, one string with instruction, query and passage in it, is cut at its end, so a passage loses its end first.

Special tokens count in the template alone. transformers would read `<|im_end|>` inside a passage as the end of the
user's turn, and let a passage write what follows, its own verdict for one; here it is letters. Nothing else differs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vectord.checkpoints.spec import YesNo
from vectord.errors import ModelUnavailable
from vectord.schema import Int32, TextLength, TextOptions
from vectord.text.encoded import EncodedPair
from vectord.text.options import max_tokens_of, require_specials
from vectord.text.plain import PlainTokenizer, Source, cut_source
from vectord.text.prompts import check_literal, refuse_prompts
from vectord.text.truncation import Limit

_BODY = re.compile(r"([^{}]*)\{instruction\}([^{}]*)\{query\}([^{}]*)\{document\}([^{}]*)")
# A passage can change the last tokens before it, where they grow together; never so many.
SEAM_TOKENS = 16


@dataclass(frozen=True, slots=True, eq=False)
class _Head:
    """A body up to its passage, which all passages of a request share."""

    text: str
    ids: Int32  # (n,)
    query_tokens: range  # which of them
    query_cut: int  # characters


class YesNoEncoder:
    """The yes-or-no template of one model."""

    def __init__(self, plain: PlainTokenizer, template: YesNo, max_tokens: int, path: Path) -> None:
        """path: the tokenizer's, for messages. From now on `plain` reads special tokens inside texts as letters.

        Raises ModelUnavailable for a template that cannot be filled in, or leaves no room.
        """
        body = _BODY.fullmatch(template.body)
        if body is None:
            raise ModelUnavailable(f"{path}: the template must have {{instruction}}, {{query}}, {{document}}, in order")
        self._before, self._between, self._last, self._end = body.groups()
        self._prefix, self._suffix = plain.content(template.prefix), plain.content(template.suffix)
        literal = plain.content(template.body)
        plain.read_specials_as_text()
        if not np.array_equal(literal, plain.content(template.body)):
            raise ModelUnavailable(f"{path}: special tokens inside the template's body are not supported")
        self._plain = plain
        self._instruction = template.instruction
        self._max_tokens = max_tokens
        if max_tokens < self._length(1):
            raise ModelUnavailable(f"{path}: the template fills all {max_tokens} tokens of a text")

    def encode(
        self,
        query: str,
        passages: Sequence[str],
        instruction: str | None,
        options: TextOptions,
        *,
        truncate: bool,
        field: str,
        part: range | None,
    ) -> list[EncodedPair]:
        """See TextEncoder.encode_yes_no."""
        refuse_prompts(options)
        require_specials(options, "a language model's template")
        max_tokens = max_tokens_of(options, self._max_tokens, self._length(1))
        instruction = self._instruction if instruction is None else check_literal(instruction, "instruction")
        query_limit = Limit(max_tokens, truncate, "right", "query", 1, reads=self._max_tokens)
        limit = Limit(max_tokens, truncate, "right", field, len(passages), reads=self._max_tokens)
        head = self._head(query, instruction, query_limit)
        if not truncate and len(head.ids) > self._room(limit):
            raise query_limit.too_long(0, max_tokens, "tokens", self._length(len(head.ids)))
        sources = [cut_source(passages[i], limit, i) for i in (range(len(passages)) if part is None else part)]
        if len(head.ids) > self._room(limit) + SEAM_TOKENS:
            return list(self._heads_alone(head, sources, limit))
        return list(self._pairs(head, sources, limit))

    def _head(self, query: str, instruction: str, limit: Limit) -> _Head:
        asked = cut_source(query, limit, 0)
        start = len(self._before) + len(instruction) + len(self._between)
        text = f"{self._before}{instruction}{self._between}{asked.text}{self._last}"
        source = Source(0, text, asked.characters_cut)
        (encoding,) = self._plain.encodings([source], limit, specials=False, offsets=True)
        places = np.array(encoding.offsets, np.int32).reshape(-1, 2)
        query_tokens = _tokens_of(places, start, start + len(asked.text))
        return _Head(text, np.array(encoding.ids, np.int32), query_tokens, asked.characters_cut)

    def _pairs(self, head: _Head, sources: Sequence[Source], limit: Limit) -> Iterator[EncodedPair]:
        start = len(head.text)
        bodies = [Source(source.index, f"{head.text}{source.text}{self._end}") for source in sources]
        encodings = self._plain.encodings(bodies, limit, specials=False, offsets=True)
        for source, encoding in zip(sources, encodings, strict=True):
            ids = np.array(encoding.ids, np.int32)
            if len(ids) > self._room(limit) and not limit.truncate:
                raise limit.too_long(source.index, limit.max_tokens, "tokens", self._length(len(ids)))
            places = np.array(encoding.offsets, np.int32).reshape(-1, 2)
            passage = _tokens_of(places, start, start + len(source.text))
            yield self._pair(head, source, ids, passage, limit)

    def _heads_alone(self, head: _Head, sources: Sequence[Source], limit: Limit) -> Iterator[EncodedPair]:
        """Pairs of a query that leaves nothing of any passage: put together, the query would be read for each."""
        for source, passage in zip(sources, self._plain.contents(sources, limit), strict=True):
            end = len(head.ids) + len(passage)
            yield self._pair(head, source, head.ids, range(len(head.ids), end), limit)

    def _pair(self, head: _Head, source: Source, ids: Int32, passage: range, limit: Limit) -> EncodedPair:
        """ids (n,): the body's, or as many of them as can be kept; passage: which tokens are the passage's."""
        kept = ids[: self._room(limit)]
        joined = np.concatenate((self._prefix, kept, self._suffix))
        self._plain.check_known(joined, limit, source.index)
        return EncodedPair(
            joined,
            self._plain.no_types(joined),
            query=_length(head.query_tokens, len(kept), head.query_cut),
            passage=_length(passage, len(kept), source.characters_cut),
            length=TextLength(
                self._length(max(len(ids), passage.stop)), len(joined), head.query_cut + source.characters_cut
            ),
        )

    def _room(self, limit: Limit) -> int:
        """Tokens that a body may have."""
        return limit.max_tokens - self._length(0)

    def _length(self, body: int) -> int:
        return len(self._prefix) + body + len(self._suffix)


def _tokens_of(places: Int32, start: int, stop: int) -> range:
    """Which tokens have some of the characters start to stop; places (n, 2): each token's own."""
    if start == stop:
        return range(0)
    first = int(np.searchsorted(places[:, 1], start, side="right"))
    return range(first, int(np.searchsorted(places[:, 0], stop, side="left")))


def _length(tokens: range, kept: int, characters_cut: int) -> TextLength:
    return TextLength(len(tokens), len(range(tokens.start, min(tokens.stop, kept))), characters_cut)
