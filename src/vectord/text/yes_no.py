"""A query and a passage in the prompt by which a language model judges them, as Qwen3-Reranker and others read them.

A sequence is prefix + body + suffix, each tokenized alone. The body is one string with instruction, query and passage,
or it has parts that are tokenized alone. It is cut at its end, so a passage loses its end first;
for BGE's rerankers the query is cut to its share before.

Special tokens count in the template only. transformers would read `<|im_end|>` inside a passage as the end of the
user's message, so that a passage could write the rest of the conversation, including its own verdict. Here it is
ordinary text. Nothing else differs from transformers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import msgspec
import numpy as np

from vectord.checkpoints.spec import YesNo
from vectord.errors import ModelUnavailable
from vectord.schema import Int32, TextLength
from vectord.text.options import check_prompt, limit_of, refuse_prompts, require_specials
from vectord.text.pairs import most_query_tokens
from vectord.text.plain import PlainTokenizer, Source, cut_source
from vectord.text.sequence import QUERY_INDEX, ReadRequest, TokenSequence
from vectord.text.truncation import Limit

_BODY = re.compile(r"([^{}]*)(?:\{instruction\})?([^{}]*)\{query\}([^{}]*)\{document\}([^{}]*)")
QUERY = re.compile(r"([^{}]*)(?:\{instruction\})?([^{}]*)\{query\}([^{}]*)")
_DOCUMENT = re.compile(r"([^{}]*)\{document\}([^{}]*)")
# The last tokens before a passage can merge with it, but never as many as this.
SEAM_TOKENS = 16


class _BodyPrefix(msgspec.Struct, frozen=True, eq=False):
    """The template's body up to the passage, filled in and tokenized. All pairs of a request share it."""

    text: str  # before the passage; "" if the passage is tokenized alone
    ids: Int32  # (n,)
    query_tokens: range  # where the query is in `ids`
    query_cut: int  # characters of the query that were cut off


class YesNoEncoder:
    def __init__(
        self, plain: PlainTokenizer, template: YesNo, max_tokens: int, path: Path, *, caps_query: bool
    ) -> None:
        """path: the tokenizer's, for messages. caps_query: in a pair that does not fit, the part with the query is cut
        to `most_query_tokens`. From now on `plain` reads special tokens inside texts as ordinary text.
        """
        parts = template.body if isinstance(template.body, tuple) else (template.body,)
        at_query, at_document = _part_with(parts, "{query}"), _part_with(parts, "{document}")
        self._is_joint = at_query == at_document
        query = (_BODY if self._is_joint else QUERY).fullmatch(parts[at_query])
        document = _DOCUMENT.fullmatch(parts[at_document])
        if query is None or not (self._is_joint or document) or at_query > at_document:
            raise ModelUnavailable(f"{path}: the template must have {{query}} and {{document}}, in order")
        self._before, self._between, self._last = query.groups()[:3]
        self._start, self._end = document.groups() if document is not None else ("", query.groups()[3])
        self._prefix = join(plain, template.prefix, *parts[:at_query])
        self._separator = join(plain, *parts[at_query + 1 : at_document])
        self._suffix = join(plain, *parts[at_document + 1 :], template.suffix)
        texts = [parts[at_query], parts[at_document]]
        with_specials = join(plain, *texts)
        plain.read_specials_as_text()
        if not np.array_equal(with_specials, join(plain, *texts)):
            raise ModelUnavailable(f"{path}: special tokens next to the template's query or document are not supported")
        self._plain = plain
        self._caps_query = caps_query and not self._is_joint
        self._instruction, self._form = template.instruction, template.instruction_form
        self._max_tokens = max_tokens
        if max_tokens < self._length(1):
            raise ModelUnavailable(f"{path}: the template fills all {max_tokens} tokens of a text")

    def read(self, request: ReadRequest, query: str, part: Sequence[int]) -> Iterator[TokenSequence]:
        """The query in the template with each passage. Cut at the end: of the passage, then of the query."""
        refuse_prompts(request.options)
        require_specials(request.options, "a language model's template")
        limit = limit_of(request, self._max_tokens, self._length(1), "right")
        instruction = request.instruction
        instruction = self._instruction if instruction is None else check_prompt(instruction, "instruction")
        instruction = instruction and self._form.replace("{instruction}", instruction)
        body_prefix = self._read_body_prefix(query, instruction, limit)
        sources = [cut_source(cast(str, request.inputs[i]), limit, i) for i in part]
        if len(body_prefix.ids) > self._room(limit) + SEAM_TOKENS and not self._caps_query:
            # The query leaves no room for passages, and is tokenized once, not once for each passage.
            ids, passages = body_prefix.ids, self._plain.contents(sources)
            return (
                self._pair(body_prefix, source, ids, range(len(ids), len(ids) + len(passage)), limit)
                for source, passage in zip(sources, passages, strict=True)
            )
        return self._pairs(body_prefix, sources, limit)

    def _read_body_prefix(self, query: str, instruction: str, limit: Limit) -> _BodyPrefix:
        source = cut_source(query, limit, QUERY_INDEX)
        start = len(self._before) + len(instruction) + len(self._between)
        text = f"{self._before}{instruction}{self._between}{source.text}{self._last}"
        (encoding,) = self._plain.encodings([Source(QUERY_INDEX, text)], specials=False)
        if not limit.truncate and len(encoding.ids) > self._room(limit):
            raise limit.too_long(QUERY_INDEX, self._length(len(encoding.ids)))
        offsets = np.array(encoding.offsets, np.int32).reshape(-1, 2)
        query_tokens = tokens_of(offsets, start, start + len(source.text))
        ids = np.concatenate((np.array(encoding.ids, np.int32), self._separator))
        return _BodyPrefix(text if self._is_joint else "", ids, query_tokens, source.characters_cut)

    def _pairs(self, body_prefix: _BodyPrefix, sources: Sequence[Source], limit: Limit) -> Iterator[TokenSequence]:
        before = body_prefix.text if self._is_joint else self._start
        first, start = (0 if self._is_joint else len(body_prefix.ids)), len(before)
        bodies = [Source(source.index, f"{before}{source.text}{self._end}") for source in sources]
        for source, encoding in zip(sources, self._plain.encodings(bodies, specials=False), strict=True):
            ids = np.concatenate((body_prefix.ids[:first], np.array(encoding.ids, np.int32)))
            if len(ids) > self._room(limit) and not limit.truncate:
                raise limit.too_long(source.index, self._length(len(ids)))
            offsets = np.array(encoding.offsets, np.int32).reshape(-1, 2)
            own = tokens_of(offsets, start, start + len(source.text))
            yield self._pair(body_prefix, source, ids, range(first + own.start, first + own.stop), limit)

    def _pair(
        self, body_prefix: _BodyPrefix, source: Source, ids: Int32, passage: range, limit: Limit
    ) -> TokenSequence:
        """ids (n,): the body's, or only the first that fit; passage: the passage's range of tokens."""
        seen = self._length(max(len(ids), passage.stop))
        query_end = len(body_prefix.ids) - len(self._separator)
        query_kept = min(query_end, self._room(limit))
        if self._caps_query and len(ids) > self._room(limit):
            query_kept = min(query_kept, most_query_tokens(limit.max_tokens))
            cut = query_end - query_kept
            ids = np.concatenate((ids[:query_kept], ids[query_end:]))
            passage = range(passage.start - cut, passage.stop - cut)
        kept = ids[: self._room(limit)]
        joined = np.concatenate((self._prefix, kept, self._suffix))
        parts = (
            text_length(body_prefix.query_tokens, query_kept, body_prefix.query_cut),
            text_length(passage, len(kept), source.characters_cut),
        )
        length = TextLength(seen, len(joined), body_prefix.query_cut + source.characters_cut)
        return self._plain.sequence(joined, length, source.index, parts=parts)

    def _room(self, limit: Limit) -> int:
        return limit.max_tokens - self._length(0)

    def _length(self, body: int) -> int:
        return len(self._prefix) + body + len(self._suffix)


def _part_with(parts: Sequence[str], placeholder: str) -> int:
    """The index of the part with the placeholder; -1 if no part or several have it."""
    found = [i for i, part in enumerate(parts) if placeholder in part]
    return found[0] if len(found) == 1 else -1


def join(plain: PlainTokenizer, *texts: str) -> Int32:
    return np.concatenate([np.zeros(0, np.int32), *map(plain.content, texts)])


def tokens_of(offsets: Int32, start: int, stop: int) -> range:
    """The tokens that overlap the characters start to stop. offsets (n, 2): the characters of each token."""
    if start == stop:
        return range(0)
    first = int(np.searchsorted(offsets[:, 1], start, side="right"))
    return range(first, int(np.searchsorted(offsets[:, 0], stop, side="left")))


def text_length(tokens: range, kept: int, characters_cut: int) -> TextLength:
    return TextLength(len(tokens), len(range(tokens.start, min(tokens.stop, kept))), characters_cut)
