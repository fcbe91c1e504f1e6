"""Texts as a ColBERT model reads them: a marker for query or document, mask tokens after a query, rows that count.

Source of the rules: pylate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
from tokenizers import Tokenizer

from vectord.checkpoints.spec import Colbert
from vectord.checkpoints.vocabulary import read_token_settings, token_text
from vectord.errors import ModelUnavailable, Untokenizable
from vectord.schema import Int32, TextLength
from vectord.text.options import limit_of, require_specials
from vectord.text.plain import PlainTokenizer, cut_source
from vectord.text.sequence import ReadRequest, TokenSequence
from vectord.text.tokenizer_file import MASKS
from vectord.text.truncation import fit_tokens


class _TextFormat(msgspec.Struct, frozen=True):
    prefix: str  # the marker's name
    marker: int | None  # a token inserted after the first
    max_tokens: int
    fills: int  # filled up with mask tokens to this length
    suffix: Int32  # tokens after the text


class ColbertEncoder:
    """The queries and documents of one model."""

    def __init__(self, plain: PlainTokenizer, colbert: Colbert, max_tokens: int, path: Path) -> None:
        """path: the tokenizer's, for messages. Raises ModelUnavailable: no such tokens, or no room for a text."""
        self._plain = plain
        self._attends, self._framed = colbert.attend_to_expansion, colbert.framed is not False
        self._specials = plain.frame.specials if self._framed else (0, 0)
        expansion = (colbert.expansion_length or colbert.query_length or max_tokens) if colbert.expand_queries else 0
        settings: dict[str, tuple[str, int | None, int, str]] = {
            "query": (colbert.query_prefix, colbert.query_length, expansion, colbert.query_suffix or ""),
            "document": (colbert.document_prefix, colbert.document_length, 0, ""),
        }
        self._forms: dict[str, _TextFormat] = {}
        for kind, (prefix, length, fills, suffix) in settings.items():
            most = min(length or max_tokens, max_tokens)
            marker = _marker(plain.tokenizer, prefix, path)
            form = _TextFormat(prefix, marker, most, min(fills, most), plain.content(suffix))
            if form.max_tokens < self._least(form):
                raise ModelUnavailable(f"{path}: special tokens fill all {form.max_tokens} tokens of a text")
            self._forms[kind] = form
        self._mask = _mask(plain.tokenizer, colbert.expansion_token, path) if colbert.expand_queries else 0
        self._skips = colbert.skiplist_tasks or ("document",)
        self._kept = np.array(colbert.kept_tokens, np.int32)
        self._strips = colbert.library == "pylate"
        self._skipped = _skiplist(plain, colbert, path)

    def read(self, request: ReadRequest, prompt: str, part: Sequence[int]) -> Iterator[TokenSequence]:
        """Each input as a query if the options say so, else as a document; cut at its end, as pylate does. prompt: may
        begin with the marker, which sentence-transformers writes into it."""
        options, inputs = request.options, request.inputs
        require_specials(options, "ColBERT vectors")
        kind = "query" if options.is_query else "document"
        form = self._forms[kind]
        limit = limit_of(request, form.max_tokens, self._least(form), "right")
        prompt = prompt.removeprefix(form.prefix)
        sources = []
        for i in part:
            value, foreign = self._plain.own_or_text(inputs[i], limit, i, own_ids=options.own_ids)
            text, before = self._plain.text_of(value, limit, i), prompt
            if self._strips:
                text, before = (prompt + text).strip(), ""
            sources.append(cut_source(text, limit, i, before, foreign=foreign))
        tokens = self._plain.tokens(sources, specials=self._framed)
        for source, row in zip(sources, tokens.each(), strict=True):
            ids, types = row
            if not len(ids):
                raise Untokenizable("{field} has no tokens", index=source.index)
            type_ids = np.zeros_like(ids) if types is None else types
            if form.marker is not None:
                ids, type_ids = _insert(ids, form.marker), _insert(type_ids, 0)
            first, last = self._specials
            if len(form.suffix):
                end = len(ids) - last
                ids, type_ids = np.insert(ids, end, form.suffix), np.insert(type_ids, end, np.zeros_like(form.suffix))
            seen, specials = len(ids), (first, last + len(form.suffix))
            ids, type_ids = (fit_tokens(row, specials, limit, source.index) for row in (ids, type_ids))
            self._plain.check_known(ids, source.index)
            length = TextLength(seen, len(ids), source.characters_cut, source.foreign)
            if len(ids) < form.fills:
                ids, type_ids = _fill(ids, form.fills, self._mask), _fill(type_ids, form.fills, 0)
            counts = ~np.isin(ids, self._skipped) if kind in self._skips else np.ones(len(ids), np.bool_)
            if kind == "document" and len(self._kept):
                counts &= np.isin(ids, self._kept)
            yield TokenSequence(
                ids=ids,
                type_ids=type_ids,
                length=length,
                index=source.index or 0,
                keys=None if self._attends or length.kept == len(ids) else length.kept,
                rows=np.flatnonzero(counts).astype(np.int32),
            )

    def _least(self, form: _TextFormat) -> int:
        return sum(self._specials) + (form.marker is not None) + len(form.suffix) + 1


def _skiplist(plain: PlainTokenizer, colbert: Colbert, path: Path) -> Int32:
    """The tokens of documents whose vectors are left out.

    A word outside the vocabulary is the unknown token in pylate, and no token in sentence-transformers. colbert-ai
    takes the first token of the word as a text.
    """
    if colbert.library == "colbert-ai":
        return np.array([plain.content(word)[:1] for word in colbert.skiplist_words], np.int32).ravel()
    find = plain.tokenizer.token_to_id
    unknown = None
    if colbert.library == "pylate":
        names = (token_text(read_token_settings(path).get("unk_token")) or "", "[UNK]", "<unk>")
        unknown = next((id_ for id_ in map(find, names) if id_ is not None), None)
    ids = (unknown if (found := find(word)) is None else found for word in colbert.skiplist_words)
    return np.array([id_ for id_ in ids if id_ is not None], np.int32)


def _insert(row: Int32, value: int) -> Int32:
    """`value` after the first number of `row`, as pylate does even where that is not a special token."""
    return np.concatenate((row[:1], np.array([value], np.int32), row[1:]))


def _fill(row: Int32, length: int, value: int) -> Int32:
    return np.concatenate((row, np.full(length - len(row), value, np.int32)))


def _marker(tokenizer: Tokenizer, prefix: str, path: Path) -> int | None:
    """The token of a prefix such as "[Q] ", whose space is part of its name in some files and not in others. From now
    on it is a single token inside a text too, as in pylate."""
    if not prefix.strip():
        return None
    names = (prefix, prefix.split(maxsplit=1)[0])
    name = next((name for name in names if tokenizer.token_to_id(name) is not None), None)
    if name is None:
        raise ModelUnavailable(f"{path}: has no token {prefix[:40]!r}, which goes before this model's texts")
    marker = tokenizer.token_to_id(name)
    if marker not in tokenizer.get_added_tokens_decoder():
        tokenizer.add_tokens([name])
    return marker


def _mask(tokenizer: Tokenizer, own: str | None, path: Path) -> int:
    """The token that fills up queries: the model's own, or pylate's choice: the mask token, else the end token."""
    if own is not None:
        if (mask := tokenizer.token_to_id(own)) is None:
            raise ModelUnavailable(f"{path}: has no token {own[:40]!r}, with which this model's queries are filled up")
        return mask
    settings = read_token_settings(path)
    mask_token, eos_token = (token_text(settings.get(key)) or "" for key in ("mask_token", "eos_token"))
    names = (mask_token, *MASKS, eos_token)
    mask = next((id_ for id_ in map(tokenizer.token_to_id, names) if id_ is not None), None)
    if mask is None:
        raise ModelUnavailable(
            f"{path}: has neither {' nor '.join(MASKS)} nor an eos_token, with which this model's queries are filled up"
        )
    return mask
