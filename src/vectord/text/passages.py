"""A query in the prompt of a language model that reads passages through a network of their own: KaLM-Reranker-V1.

A sequence is a row for each few tokens of the passage, then prefix + body + suffix. The rows have the type 1, and
`Texts.images` are the passages' own tokens, whose pooled states take their place. The body has instruction and query.

Special tokens count in the template only, as in yes_no.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import cast

import msgspec
import numpy as np
from msgspec.structs import replace

from vectord.checkpoints.spec import YesNo
from vectord.errors import ModelUnavailable
from vectord.schema import Int32, TextLength
from vectord.text.options import check_prompt, limit_of, refuse_prompts, require_specials
from vectord.text.plain import PlainTokenizer, Source, cut_source
from vectord.text.sequence import QUERY_INDEX, ReadRequest, Texts, TokenSequence
from vectord.text.truncation import Limit
from vectord.text.yes_no import QUERY, join, text_length, tokens_of


class _Prompt(msgspec.Struct, frozen=True, eq=False):
    """The template, filled in. All pairs of a request share it."""

    ids: Int32  # (n,)
    query: TextLength


class PassageEncoder:
    def __init__(
        self, plain: PlainTokenizer, template: YesNo, max_tokens: int, max_passage_tokens: int, path: Path
    ) -> None:
        """max_tokens: of a sequence; path: the tokenizer's, for messages. From now on `plain` reads special tokens
        inside texts as ordinary text."""
        assert template.passages is not None
        body = QUERY.fullmatch(cast(str, template.body))
        before, _, after = template.passages.text.partition("{document}")
        if body is None:
            raise ModelUnavailable(f"{path}: the template must have {{query}}")
        self._before, self._between, self._last = body.groups()
        self._passage, self._pooled = (before, after), template.passages.pooled
        self._prefix, self._suffix = join(plain, template.prefix), join(plain, template.suffix)
        plain.read_specials_as_text()
        self._plain, self._instruction = plain, template.instruction
        self._max_query, self._max_passage = template.passages.max_query_tokens, max_passage_tokens
        self._max_prompt = max_tokens - self._rows(max_passage_tokens)
        self._least = len(self._prefix) + len(plain.content(self._before + self._between + self._last))
        self._least += len(self._suffix) + 2  # a token of the query and one of the passage
        if self._max_prompt < self._least:
            raise ModelUnavailable(f"{path}: the template and a passage fill all {max_tokens} tokens of a text")

    def read(self, request: ReadRequest, query: str, part: Sequence[int]) -> Texts:
        """The query with each passage; both are cut at their ends. A request's limit holds for the tokens of both."""
        refuse_prompts(request.options)
        require_specials(request.options, "a language model's template")
        limit = limit_of(request, self._max_prompt + self._max_passage, self._least, "right")
        instruction = request.instruction
        instruction = self._instruction if instruction is None else check_prompt(instruction, "instruction")
        prompt = self._read_prompt(query, instruction, limit)
        before, after = self._passage
        sources = [cut_source(cast(str, request.inputs[i]), limit, i) for i in part]
        whole = [replace(source, text=f"{before}{source.text}{after}") for source in sources]
        room = min(self._max_passage, limit.max_tokens - len(prompt.ids))
        passages, pairs = list[TokenSequence](), list[TokenSequence]()
        for source, encoding in zip(sources, self._plain.encodings(whole, specials=False), strict=True):
            ids = np.array(encoding.ids, np.int32)
            if len(ids) > room and not limit.truncate:
                raise replace(limit, max_tokens=room).too_long(source.index, len(ids))
            offsets = np.array(encoding.offsets, np.int32).reshape(-1, 2)
            own = tokens_of(offsets, len(before), len(before) + len(source.text))
            length = text_length(own, min(room, len(ids)), source.characters_cut)
            kept = ids[:room]
            starts = np.arange(0, len(kept), self._pooled)
            spans = np.stack([starts, np.minimum(starts + self._pooled, len(kept))], axis=1).astype(np.int32)
            passages.append(self._plain.sequence(kept, length, source.index, spans=spans))
            pairs.append(self._pair(prompt, kept, len(ids), length, source.index))
        digests = [blake2b(each.ids.tobytes(), digest_size=16).digest() for each in passages]
        return replace(Texts.of(pairs), digests=digests, images=Texts.of(passages))

    def _read_prompt(self, query: str, instruction: str, limit: Limit) -> _Prompt:
        source = cut_source(query, limit, QUERY_INDEX)
        (encoding,) = self._plain.encodings([source], specials=False)
        start = len(self._before) + len(instruction) + len(self._between)
        around = len(self._prefix) + len(self._suffix)
        most = min(self._max_prompt, limit.max_tokens - 1) - around  # of the body
        text, count = source.text, len(encoding.ids)
        if count > self._max_query:
            if not limit.truncate:
                raise replace(limit, max_tokens=self._max_query).too_long(QUERY_INDEX, count)
            text = text[: encoding.offsets[self._max_query - 1][1]]
        body = f"{self._before}{instruction}{self._between}{text}{self._last}"
        (filled,) = self._plain.encodings([Source(QUERY_INDEX, body)], specials=False)
        offsets = np.array(filled.offsets, np.int32).reshape(-1, 2)
        own, over = tokens_of(offsets, start, start + len(text)), max(0, len(filled.ids) - most)
        if over and (not limit.truncate or over >= len(own)):
            raise replace(limit, max_tokens=most + around).too_long(QUERY_INDEX, len(filled.ids) + around)
        ids = np.array(filled.ids, np.int32)
        ids = np.concatenate((self._prefix, ids[: own.stop - over], ids[own.stop :], self._suffix))
        # The query alone may have another number of tokens than in the body.
        seen = len(own) + max(0, count - self._max_query)
        return _Prompt(ids, TextLength(seen, len(own) - over, source.characters_cut))

    def _pair(self, prompt: _Prompt, passage: Int32, seen: int, own: TextLength, index: int | None) -> TokenSequence:
        rows, count = self._rows(len(passage)), len(prompt.ids)
        cut = prompt.query.characters_cut + own.characters_cut
        length = TextLength(count + prompt.query.seen - prompt.query.kept + seen, count + len(passage), cut)
        ids = np.concatenate((np.zeros(rows, np.int32), prompt.ids))
        # The rows have no positions, and those of the prompt begin after them.
        coordinates = -np.minimum(np.arange(len(ids), dtype=np.int32), rows)[:, None]
        types = (np.arange(len(ids)) < rows).astype(np.int32)
        parts = (prompt.query, own)
        return self._plain.sequence(ids, length, index, parts=parts, type_ids=types, coordinates=coordinates)

    def _rows(self, tokens: int) -> int:
        return -(-tokens // self._pooled)
