"""The tokenizer of one model: the `Tokenizer` that the engine's tokenizing threads call.

`read` feeds the queue; `tokenize` and `decode` answer their own routes. Everything here blocks, and several threads may
call it at once. plain.py tokenizes and truncation.py cuts. pairs.py, yes_no.py, passages.py, listwise.py, colbert.py
and windows.py read all inputs that are not a single text, interleaved.py those with images.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, groupby
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace
from tokenizers import Encoding

from vectord.checkpoints.checkpoint import open_checkpoint
from vectord.checkpoints.spec import ModelSpec
from vectord.errors import ModelUnavailable, Untokenizable
from vectord.schema import ChunkOptions, Float32, InputKind, Int32, Span, TextLength, TextLengths, TextOptions, Token
from vectord.text.chunks import chunk_document
from vectord.text.colbert import ColbertEncoder
from vectord.text.interleaved import InterleavedEncoder
from vectord.text.listwise import ListwiseEncoder
from vectord.text.options import find_adapter, find_prompt, text_limit
from vectord.text.pairs import PairEncoder
from vectord.text.passages import PassageEncoder
from vectord.text.plain import PlainTokenizer, Source, cut_source, refuse_data_uri
from vectord.text.sequence import Chunk, CutText, ReadRequest, TextOrPair, Texts, TokenArrays, TokenSequence
from vectord.text.tokenizer_file import library_failures_as_unavailable
from vectord.text.truncation import Limit, check_size, fit_tokens
from vectord.text.windows import WindowEncoder
from vectord.text.yes_no import YesNoEncoder

# A token of `tokenize` costs up to 1 kB in its response (measured on Chinese, with one token a character).
TOKENIZE_LIMIT_CHARACTERS = 150_000


class TokenIds(NamedTuple):
    """A text's tokens as the model reads them."""

    ids: Int32  # (n,)
    types: Int32 | None  # (n,); None: all 0
    length: TextLength


class TextEncoder:
    """Implements sequence.Tokenizer with tokenizer.json."""

    def __init__(self, spec: ModelSpec) -> None:
        path, self.max_tokens = spec.tokenizer, spec.max_tokens
        self._spec, self._static = spec, spec.static
        self._drops_first = spec.colbert is not None and spec.colbert.drops_first
        self._colbert: ColbertEncoder | None = None
        self._yes_no: YesNoEncoder | None = None
        self._passages: PassageEncoder | None = None
        self._listwise: ListwiseEncoder | None = None
        self._interleaved: InterleavedEncoder | None = None
        with library_failures_as_unavailable(path):
            self._plain = PlainTokenizer(spec)
            self._frame = self._plain.frame
            self.vocab_size = self._plain.vocab_size  # all token ids that a client may send are below
            self.special_ids = self._plain.special_ids  # (n,) the ids that are not words
            if sum(self._frame.specials) >= self.max_tokens:
                raise ModelUnavailable(f"{path}: its special tokens fill all {self.max_tokens} tokens of a text")
            # (V,) the weight of each token of a query, for a model that runs no network on queries
            self.query_weights: Float32 | None = None
            if spec.query_weights is not None:
                file = open_checkpoint((spec.query_weights,))
                self.query_weights = weights = file["weight"].as_float32().copy()
                file.close()
                if len(weights) < self.vocab_size or not np.isfinite(weights).all():
                    needed = f"a finite number for each of {self.vocab_size:,} tokens"
                    raise ModelUnavailable(f"{spec.query_weights}: weight must have {needed}")
            self._specials = self._frame.specials
            self._unscored_id = spec.unscored_id
            # CLIP pools the first end token, which a text may contain.
            is_clip = spec.model_type == "clip_text_model" and len(self._frame.suffix) == 1
            self._first_end = self._frame.suffix[0] if is_clip else None
            self._default_prompt = find_prompt(spec.prompts, TextOptions(), spec.default_prompt_name)
            self._windows = WindowEncoder(self._plain, self.max_tokens)
            self._pairs = PairEncoder(self._plain, self.max_tokens, caps_query=spec.caps_query is True)
            self.reads_pairs = self._pairs.possible  # whether `read` takes pairs and queries
            if spec.colbert is not None and spec.pooling is None:  # BGE-M3 also embeds, and reads every text alike
                self._colbert = ColbertEncoder(self._plain, spec.colbert, self.max_tokens, path)
            # Last: from here on special tokens inside texts are ordinary text.
            if spec.listwise is not None:
                self._listwise = ListwiseEncoder(self._plain, spec.listwise, self.max_tokens, path)
            if spec.yes_no is not None and spec.yes_no.passages is not None and spec.images is not None:
                most = spec.images.max_tokens
                self._passages = PassageEncoder(self._plain, spec.yes_no, self.max_tokens, most, path)
            elif spec.yes_no is not None and spec.template is None:
                self._yes_no = YesNoEncoder(
                    self._plain, spec.yes_no, self.max_tokens, path, caps_query=spec.caps_query is True
                )
            if spec.image_text is not None and spec.images is not None and spec.images.processor is not None:
                self._interleaved = InterleavedEncoder(self._plain, spec, spec.images.processor)

    def read(self, request: ReadRequest, part: range | None = None) -> Texts:
        """The sequence of each input, in order; for late chunking, one for each window. part: only these inputs.

        Token ids that are the model's own stay unchanged. Under a prompt, or for a ColBERT model, they are decoded and
        encoded again. An empty text has its special tokens only. A listwise reranker reads all inputs as one list.
        """
        adapter = 0
        if self._spec.adapters:
            adapter = find_adapter(self._spec.adapters, request.options, self._spec.default_adapter)
        indexes = range(len(request.inputs)) if part is None else part
        if self._interleaved is None or self._interleaved.reads_pairs != (request.query is not None):
            texts = self._read_words(request, indexes)
        else:
            texts = self._read_mixed(request, indexes, self._interleaved)
        if self._unscored_id is not None:
            texts = Texts.of([_before(sequence, self._unscored_id) for sequence in texts])
        if self._first_end is not None and np.count_nonzero(texts.ids == self._first_end) > len(texts):
            texts = Texts.of([_until(sequence, self._first_end) for sequence in texts])
        if self._spec.filling is not None:
            texts = _filled(texts, *self._spec.filling)
        return replace(texts, adapter=adapter) if adapter else texts

    def _read_mixed(self, request: ReadRequest, indexes: Sequence[int], encoder: InterleavedEncoder) -> Texts:
        """The inputs that `encoder` reads, and between them the others."""
        runs = [(reads, list(run)) for reads, run in groupby(indexes, key=lambda i: encoder.reads(request.inputs[i]))]
        if not any(reads for reads, _ in runs):
            return self._read_words(request, indexes)
        prompt = "" if encoder.reads_pairs else self._prompt(request.options)
        read = [encoder.read(request, run, prompt) if reads else self._read_words(request, run) for reads, run in runs]
        return read[0] if len(read) == 1 else Texts.join(read)

    def _read_words(self, request: ReadRequest, indexes: Sequence[int]) -> Texts:
        if isinstance(request.query, str):
            if self._listwise is not None:
                return Texts.of([*self._listwise.read(request, request.query)])
            if self._passages is not None:
                return self._passages.read(request, request.query, indexes)
            if self._yes_no is not None:
                return Texts.of([*self._yes_no.read(request, request.query, indexes)])
            return Texts.of([*self._pairs.read_passages(request, request.query, indexes)])
        if request.chunks is not None:
            return Texts.of([*self._windows.read(request, request.chunks, self._prompt(request.options), indexes)])
        if self._colbert is not None:
            kind = request.options.kind or "document"
            return Texts.of([*self._colbert.read(request, self._prompt(replace(request.options, kind=kind)), indexes)])
        if all(isinstance(request.inputs[i], str) for i in indexes):
            return self._read_texts(request, indexes)
        runs: list[Texts] = []
        for paired, run in groupby(indexes, key=lambda i: _is_pair(request.inputs[i])):
            if paired:
                runs.append(Texts.of([*self._pairs.read_pairs(request, list(run))]))
            else:
                runs.append(self._read_texts(request, list(run)))
        return Texts.join(runs)

    def _read_texts(self, request: ReadRequest, indexes: Sequence[int]) -> Texts:
        options, inputs = request.options, request.inputs
        prompt = self._prompt(options)
        specials = self._specials if options.add_special_tokens else (0, 0)
        prompt_tokens = 0
        if prompt and not self._spec.include_prompt:
            # As sentence-transformers counts them: as a text, without a special token at its end.
            content = self._plain.content(prompt)
            ends_special = specials[1] > 0 or bool(np.isin(content[-1:], self.special_ids).any())
            prompt_tokens = sum(specials) + len(content) - ends_special
        most_characters = None if self._static is None else self._static.max_characters
        limit = text_limit(
            options.max_tokens,
            request.truncate,
            options.truncate_side,
            self.max_tokens,
            sum(specials) + 1,
            most_characters,
        )
        # Without a network, no token gives no weight.
        by_table = self.query_weights is not None and self._spec.is_query(options)
        given: dict[int, TokenIds] = {}
        sources: list[Source] = []
        for i in indexes:
            value, foreign = inputs[i], False
            if not isinstance(value, str):
                value, foreign = self._plain.own_or_text(value, limit, i, own_ids=options.own_ids)
                if prompt:
                    value = self._plain.text_of(value, limit, i)
            if isinstance(value, str):
                sources.append(cut_source(value, limit, i, prompt, foreign=foreign))
            else:
                ids = self._plain.check_ids(value, i)
                kept = fit_tokens(ids, specials if self._frame.holds(value) else (0, 0), limit, i)
                given[i] = TokenIds(kept, None, TextLength(len(ids), len(kept), 0, foreign))
        tokens = self._plain.tokens(sources, specials=options.add_special_tokens)
        counts = tokens.sizes
        # Most requests need no row for each text: no text is cut, empty, or given as ids.
        if not given and max(counts, default=0) <= limit.max_tokens and (by_table or 0 not in counts):
            details = {
                place: TextLength(counts[place], counts[place], source.characters_cut, source.foreign)
                for place, source in enumerate(sources)
                if source.characters_cut or source.foreign
            }
            lengths = TextLengths(counts, details)
        else:
            read = [
                self._fit(source, ids, types, specials, limit, may_be_empty=by_table)
                for source, (ids, types) in zip(sources, tokens.each(), strict=True)
            ]
            if given:
                tokenized = iter(read)
                read = [given[i] if i in given else next(tokenized) for i in indexes]
            tokens, lengths = _joined(read), TextLengths.of([one.length for one in read])
        texts = self._texts(tokens, lengths, indexes)
        if not prompt_tokens:
            return texts
        first = np.full(len(texts), prompt_tokens, np.int32)
        if limit.side == "left":  # a cut from the left removes the prompt's tokens first
            first = np.array([max(specials[0], prompt_tokens - length.seen + length.kept) for length in texts.lengths])
        sizes = texts.sizes
        first = np.minimum(first, sizes - 1)  # at least one row is pooled
        return replace(texts, spans=np.stack([first, sizes], axis=1).astype(np.int32))

    def _fit(
        self,
        source: Source,
        ids: Int32,
        types: Int32 | None,
        specials: tuple[int, int],
        limit: Limit,
        *,
        may_be_empty: bool,
    ) -> TokenIds:
        seen = len(ids)
        if not seen and not may_be_empty:
            raise Untokenizable("{field} has no tokens", index=source.index)
        if seen > limit.max_tokens:
            if self._static is not None and self._static.truncates_known:
                known = ids[ids != self._static.unknown_id]
                ids = known if len(known) else ids[: limit.max_tokens]
                seen = len(ids)
            ids = fit_tokens(ids, specials, limit, source.index)
            if types is not None:
                types = fit_tokens(types, specials, limit, source.index)
        return TokenIds(ids, types, TextLength(seen, len(ids), source.characters_cut, source.foreign))

    def _texts(self, tokens: TokenArrays, lengths: TextLengths, indexes: Sequence[int]) -> Texts:
        """Raises Untokenizable for the first text with unknown ids."""
        try:
            self._plain.check_known(tokens.ids, None)
        except Untokenizable:
            for i, (ids, _) in zip(indexes, tokens.each(), strict=True):
                self._plain.check_known(ids, i)
        return Texts(
            ids=tokens.ids,
            cu_seqlens=np.array([0, *accumulate(tokens.sizes)], np.int32),
            type_ids=tokens.type_ids,
            lengths=lengths,
            indexes=indexes,
            rows=[np.arange(1, size, dtype=np.int32) for size in tokens.sizes] if self._drops_first else (),
        )

    def _prompt(self, options: TextOptions) -> str:
        if options.prompt is None and options.prompt_name is None and options.task is None and options.kind is None:
            return self._default_prompt
        prompts = self._spec.prompts
        if options.prompt_name in {adapter.name for adapter in self._spec.adapters} - prompts.keys():
            options = replace(options, prompt_name=None)
        if self._spec.names_kinds and options.prompt_name in {"query", "document"} - prompts.keys():
            kind: InputKind = "query" if options.is_query else "document"
            options = replace(options, prompt_name=None, kind=kind)
        return find_prompt(prompts, options, self._spec.default_prompt_name)

    def cut(self, texts: Sequence[str], max_tokens: int, part: range | None = None) -> list[CutText]:
        indexes = range(len(texts)) if part is None else part
        if max_tokens >= self.max_tokens:
            return [CutText(texts[i], 0, 0) for i in indexes]
        limit = Limit(max_tokens, truncate=True)
        sources = [cut_source(texts[i], limit, i) for i in indexes]
        encodings = self._plain.encodings(sources, specials=False)
        return [
            self._plain.cut(source, encoding, max_tokens) for source, encoding in zip(sources, encodings, strict=True)
        ]

    def chunk(self, text: str, how: ChunkOptions | Sequence[Span], max_chunks: int | None = None) -> list[Chunk]:
        refuse_data_uri(text, None)
        return chunk_document(self._plain, text, how, self.max_tokens - sum(self._frame.specials), max_chunks)

    def count(self, texts: Sequence[str], part: range | None = None) -> list[int]:
        indexes = range(len(texts)) if part is None else part
        return [len(ids) for ids in self._plain.contents([Source(i, texts[i]) for i in indexes])]

    def tokenize(self, texts: Sequence[str], *, add_special_tokens: bool, prompt_name: str | None) -> list[list[Token]]:
        """Each text's tokens, not limited by the model. Raises InputTooLong above 150,000 characters in all."""
        prompt = self._prompt(TextOptions(prompt_name=prompt_name))
        characters = sum(map(len, texts)) + len(prompt) * len(texts)
        check_size(characters, TOKENIZE_LIMIT_CHARACTERS, "characters in all")
        sources = [Source(i, prompt + text) for i, text in enumerate(texts)]
        encodings = self._plain.encodings(sources, specials=add_special_tokens)
        return [_tokens(source.text, encoding) for source, encoding in zip(sources, encodings, strict=True)]

    def decode(self, ids: Sequence[Sequence[int]], *, skip_special_tokens: bool) -> list[str]:
        """Each list of ids as text. Raises Untokenizable (an id outside the vocabulary), EmptyInput or InputTooLong."""
        check_size(sum(map(len, ids)), TOKENIZE_LIMIT_CHARACTERS, "token ids in all")
        checked = [self._plain.check_ids(row, i).tolist() for i, row in enumerate(ids)]
        texts: list[str] = self._plain.tokenizer.decode_batch(checked, skip_special_tokens=skip_special_tokens)
        return texts


def _joined(read: Sequence[TokenIds]) -> TokenArrays:
    types = None
    if any(one.types is not None for one in read):
        types = [np.zeros(len(one.ids), np.int32) if one.types is None else one.types for one in read]
    return TokenArrays.of([one.ids for one in read], types)


def _before(sequence: TokenSequence, ends: int) -> TokenSequence:
    """The sequence, pooled without the tokens `ends` at its end; without any other token, its first one is pooled."""
    others = np.flatnonzero(sequence.ids != ends)
    stop = int(others[-1]) + 1 if len(others) else 1
    return sequence if stop == len(sequence.ids) else replace(sequence, spans=np.array([[0, stop]], np.int32))


def _until(sequence: TokenSequence, end: int) -> TokenSequence:
    """The sequence, pooled up to its first token `end`."""
    found = np.flatnonzero(sequence.ids == end)
    return replace(sequence, spans=np.array([[0, found[0] + 1]], np.int32)) if len(found) > 1 else sequence


def _filled(texts: Texts, padding_id: int, size: int) -> Texts:
    """The texts, each filled up to `size` tokens."""
    ids = np.full((len(texts), size), padding_id, np.int32)
    ids[np.arange(size) < texts.sizes[:, None]] = texts.ids
    return replace(texts, ids=ids.ravel(), cu_seqlens=np.arange(len(texts) + 1, dtype=np.int32) * size, type_ids=None)


def _is_pair(value: TextOrPair) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str)


def _tokens(text: str, encoding: Encoding) -> list[Token]:
    at: Sequence[int] = range(len(text) + 1)  # character offset to UTF-8 byte offset
    if not text.isascii():
        code_points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        sizes = 1 + (code_points >= 0x80).astype(np.int64) + (code_points >= 0x800) + (code_points >= 0x10000)
        at = np.concatenate(([0], np.cumsum(sizes))).tolist()
    return [
        Token(id_, piece, True, None, None) if special else Token(id_, text[start:stop], False, at[start], at[stop])
        for id_, piece, special, (start, stop) in zip(
            encoding.ids, encoding.tokens, encoding.special_tokens_mask, encoding.offsets, strict=True
        )
    ]
