"""A query and a list of passages as the texts of a listwise reranker: one for all passages, or for as many as fit.

A marker follows each passage, and another one the query at the end. The model's states at these tokens are pooled. What
would follow the last marker cannot change them, because attention is causal, so it is left out.

Markers inside the client's texts are removed, as in the model's own code. Other special tokens inside them are ordinary
text, as in yes_no.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path

import msgspec
import numpy as np

from vectord.checkpoints.spec import Listwise
from vectord.errors import ModelUnavailable
from vectord.schema import Int32, TextLength
from vectord.text.options import check_prompt, limit_of, refuse_prompts, require_specials
from vectord.text.plain import PlainTokenizer, Source, cut_source
from vectord.text.sequence import QUERY_INDEX, ReadRequest, TextOrPair, TokenSequence
from vectord.text.truncation import Limit

LEAST_TOKENS = 1024  # of a text: the template, the query twice, and a passage
# The shares of a text that the query, which it has twice, and a passage get at most, if the operator makes texts short.
QUERY_SHARE, PASSAGE_SHARE = 8, 2


class _Text(msgspec.Struct, frozen=True):
    index: int | None  # of its passage in the request, or QUERY_INDEX
    text: str
    length: TextLength


class ListwiseEncoder:
    def __init__(self, plain: PlainTokenizer, template: Listwise, max_tokens: int, path: Path) -> None:
        """path: the tokenizer's, for messages. From now on `plain` reads special tokens in texts as ordinary text."""
        ids = [plain.tokenizer.token_to_id(marker) for marker in template.markers]
        if None in ids:
            raise ModelUnavailable(f"{path}: no tokens {' and '.join(template.markers)}")
        if max_tokens < LEAST_TOKENS:
            raise ModelUnavailable(
                f"{path}: a listwise reranker needs texts of {LEAST_TOKENS:,} tokens; the limit is {max_tokens:,}"
            )
        self._plain, self._template, self._max_tokens = plain, template, max_tokens
        self._markers = [np.array([marker], np.int32) for marker in ids]
        self._prefix = plain.content(template.prefix)
        plain.read_specials_as_text()
        frame = template.between + template.passage.format(number=template.max_passages, document="")
        self._frame_tokens = len(plain.content(frame)) + 1

    def read(self, request: ReadRequest, query: str) -> Iterator[TokenSequence]:
        """One sequence for each part of the list. Its spans are those of its passages' markers and of the query's; its
        `parts` are the lengths of the query and of its passages."""
        refuse_prompts(request.options)
        require_specials(request.options, "a list of passages")
        limit = limit_of(request, self._max_tokens, LEAST_TOKENS, "right")
        instruction = self._without_markers(check_prompt(request.instruction or "", "instruction"))
        if instruction:
            instruction = self._template.instruction_form.format(instruction=instruction)
        most = min(self._template.max_query_tokens, limit.max_tokens // QUERY_SHARE)
        (cut_query,) = self._cut([(QUERY_INDEX, query)], most, limit)
        most = min(self._template.max_passage_tokens, limit.max_tokens // PASSAGE_SHARE)
        passages = self._cut([*enumerate(request.inputs)], most, limit)
        for part in self._parts(cut_query, passages, instruction, most, limit.max_tokens):
            yield self._sequence(passages[part], cut_query, instruction, limit)

    def _parts(
        self, query: _Text, passages: Sequence[_Text], instruction: str, most: int, max_tokens: int
    ) -> Iterator[slice]:
        """The passages of each sequence, as the model's own code divides a list: a part ends after `max_passages`, or
        where the room that query and passages leave has no more than `most` tokens, a passage's limit.

        The words around them do not count there, so a part also ends where they would exceed the model's positions.
        """
        opening = self._opening(len(passages), query, instruction)
        fixed = len(self._prefix) + len(self._plain.content(opening)) + query.length.kept + self._frame_tokens
        start = used = 0
        for end, passage in enumerate(passages, 1):
            size = passage.length.kept
            if end - start > 1 and fixed + used + size + self._frame_tokens * (end - start) > max_tokens:
                yield slice(start, end - 1)
                start, used = end - 1, 0
            used += size
            is_full = max_tokens - 2 * query.length.kept - used <= most or end - start == self._template.max_passages
            if is_full or end == len(passages):
                yield slice(start, end)
                start, used = end, 0

    def _without_markers(self, text: str) -> str:
        for marker in self._template.markers:
            text = text.replace(marker, "")
        return text

    def _cut(self, texts: Sequence[tuple[int, TextOrPair]], most: int, limit: Limit) -> list[_Text]:
        """The texts without markers, cut to `most` tokens. Raises InputTooLong if the request forbids that."""
        own = Limit(most, limit.truncate)
        sources = [cut_source(self._without_markers(str(text)), own, index) for index, text in texts]
        cut = []
        for source, encoding in zip(sources, self._plain.encodings(sources, specials=False), strict=True):
            seen = len(encoding.ids)
            if seen > most and not limit.truncate:
                raise own.too_long(source.index, seen)
            kept = self._plain.cut(source, encoding, most)
            length = TextLength(seen, seen - kept.tokens_cut, source.characters_cut)
            cut.append(_Text(source.index, kept.text, length))
        return cut

    def _opening(self, count: int, query: _Text, instruction: str) -> str:
        return self._template.opening.format(count=count, query=query.text, instruction=instruction)

    def _sequence(self, passages: Sequence[_Text], query: _Text, instruction: str, limit: Limit) -> TokenSequence:
        template, before = self._template, self._opening(len(passages), query, instruction)
        sources = []
        for number, passage in enumerate(passages):
            text = before + template.passage.format(number=number, document=passage.text)
            sources.append(Source(passage.index, text))
            before = template.between
        sources.append(Source(QUERY_INDEX, before + template.closing.format(query=query.text)))
        of_passage, of_query = self._markers
        markers = [*[of_passage] * len(passages), of_query]
        pieces: list[Int32] = [self._prefix]
        for piece, marker in zip(self._plain.contents(sources), markers, strict=True):
            pieces += [piece, marker]
        stops = np.array([*accumulate(map(len, pieces))], np.int32)[2::2]
        parts = (query.length, *(passage.length for passage in passages))
        cut = sum(part.seen - part.kept for part in parts)
        ids = np.concatenate(pieces)
        if len(ids) > limit.max_tokens:
            raise limit.too_long(passages[0].index, len(ids))
        length = TextLength(len(ids) + cut, len(ids), sum(part.characters_cut for part in parts))
        spans = np.stack([stops - 1, stops], axis=1)
        return self._plain.sequence(ids, length, passages[0].index, spans=spans, parts=parts)
