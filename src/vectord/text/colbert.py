"""Texts as a ColBERT model reads them: a marker for query or document, mask tokens behind a query, rows that count.

tokenizer.py calls `ColbertEncoder` on the tokenising threads. Source of the rules: pylate; BGE-M3 (`drops_first`) is a
ColBERT without marker, lengths and mask tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Encoding, Tokenizer

from vectord.checkpoints.spec import Colbert
from vectord.errors import ModelUnavailable, Untokenizable
from vectord.schema import InputKind, Int32, TextLength, TextOptions
from vectord.text.encoded import EncodedColbert
from vectord.text.options import max_tokens_of, require_specials
from vectord.text.plain import PlainTokenizer, Source
from vectord.text.tokenizer_file import MASKS
from vectord.text.truncation import Limit, fit_tokens


@dataclass(frozen=True, slots=True)
class _Form:
    """How one kind of text is read."""

    prefix: str  # the marker's name
    marker: int | None  # a token put behind the first
    max_tokens: int
    expands: bool


class ColbertEncoder:
    """The queries and documents of one model."""

    def __init__(self, plain: PlainTokenizer, colbert: Colbert, max_tokens: int, path: Path) -> None:
        """path: the tokenizer's, for messages. Raises ModelUnavailable: no such tokens, or no room for a text."""
        self._plain = plain
        self._drops_first = colbert.drops_first
        self._attends = colbert.attend_to_expansion
        tokenizer = plain.tokenizer
        self._forms: dict[InputKind, _Form] = {
            "query": _Form(
                colbert.query_prefix,
                _marker(tokenizer, colbert.query_prefix, path),
                min(colbert.query_length or max_tokens, max_tokens),
                colbert.expand_queries,
            ),
            "document": _Form(
                colbert.document_prefix,
                _marker(tokenizer, colbert.document_prefix, path),
                min(colbert.document_length or max_tokens, max_tokens),
                expands=False,
            ),
        }
        for form in self._forms.values():
            if form.max_tokens < self._least(form):
                raise ModelUnavailable(f"{path}: special tokens fill all {form.max_tokens} tokens of a text")
        self._mask = _mask(tokenizer, path) if colbert.expand_queries else 0
        words = (tokenizer.token_to_id(word) for word in colbert.skiplist_words)
        self._skipped: Int32 = np.array([word for word in words if word is not None], np.int32)

    def limit(self, kind: InputKind, options: TextOptions, *, truncate: bool, field: str, inputs: int) -> Limit:
        """What over-long texts of this kind are cut by: at their end, as pylate does. Raises InvalidField."""
        require_specials(options, "ColBERT vectors")
        form = self._forms[kind]
        max_tokens = max_tokens_of(options, form.max_tokens, self._least(form))
        return Limit(max_tokens, truncate, "right", field, inputs, reads=form.max_tokens)

    def _least(self, form: _Form) -> int:
        """Tokens that a text of one token has."""
        return sum(self._plain.frame.specials) + (form.marker is not None) + 1

    def without_marker(self, prompt: str, kind: InputKind) -> str:
        """The prompt, less the marker that sentence-transformers writes into it and pylate beside it."""
        return prompt.removeprefix(self._forms[kind].prefix)

    def encode(self, sources: Sequence[Source], kind: InputKind, limit: Limit) -> Iterator[EncodedColbert]:
        """One a source, in order. limit: as `limit` gave it for this kind. See TextEncoder.encode_colbert."""
        for source, encoding in zip(sources, self._plain.encodings(sources, limit, specials=True), strict=True):
            if not encoding.ids:
                message = f"{limit.place(source.index)} has no tokens at all"
                raise Untokenizable(message, field=limit.field, index=source.index)
            yield self._encoded(encoding, self._forms[kind], kind, limit, source)

    def _encoded(
        self, encoding: Encoding, form: _Form, kind: InputKind, limit: Limit, source: Source
    ) -> EncodedColbert:
        ids, type_ids = np.array(encoding.ids, np.int32), np.array(encoding.type_ids, np.int32)
        if form.marker is not None:
            ids, type_ids = _insert(ids, form.marker), _insert(type_ids, 0)
        seen = len(ids)
        specials = self._plain.frame.specials
        ids, type_ids = (fit_tokens(row, specials, limit, source.index) for row in (ids, type_ids))
        self._plain.check_known(ids, limit, source.index)
        length = TextLength(seen, len(ids), source.characters_cut)
        if form.expands:
            ids, type_ids = _fill(ids, form.max_tokens, self._mask), _fill(type_ids, form.max_tokens, 0)
        kept = np.arange(len(ids), dtype=np.int32)
        if kind == "document":
            kept = kept[~np.isin(ids, self._skipped)]
        if self._drops_first:
            kept = kept[kept > 0]
        return EncodedColbert(ids, type_ids, length, kept, len(ids) if self._attends else length.kept)


def _insert(row: Int32, value: int) -> Int32:
    """`value` behind the first number of `row`, as pylate does even where that is no special token."""
    return np.concatenate((row[:1], np.array([value], np.int32), row[1:]))


def _fill(row: Int32, length: int, value: int) -> Int32:
    return np.concatenate((row, np.full(length - len(row), value, np.int32)))


def _marker(tokenizer: Tokenizer, prefix: str, path: Path) -> int | None:
    """The token of a prefix such as "[Q] ", whose blank is part of its name in some files and not in others."""
    if not prefix.strip():
        return None
    ids = (tokenizer.token_to_id(name) for name in (prefix, prefix.split(maxsplit=1)[0]))
    marker = next((id_ for id_ in ids if id_ is not None), None)
    if marker is None:
        raise ModelUnavailable(f"{path}: has no token {prefix[:40]!r}, which goes before this model's texts")
    return marker


def _mask(tokenizer: Tokenizer, path: Path) -> int:
    mask = next((id_ for id_ in map(tokenizer.token_to_id, MASKS) if id_ is not None), None)
    if mask is None:
        raise ModelUnavailable(f"{path}: has no {' or '.join(MASKS)}, with which this model's queries are filled up")
    return mask
