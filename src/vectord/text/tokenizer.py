"""Texts to token ids and back, for one model: what the engine's tokenising threads call.

The `encode` methods feed the scheduler; `tokenize` and `decode` answer their own routes. Everything here blocks and is
safe to call from several threads at once. plain.py reads texts, truncation.py cuts them; pairs.py, yes_no.py,
colbert.py and chunking.py are the ways to read anything but one text by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from tokenizers import Encoding

from vectord.checkpoints.spec import ModelSpec
from vectord.errors import InputTooLong, ModelCannot, ModelUnavailable, Untokenizable
from vectord.schema import ChunkOptions, Input, Int32, Span, TextLength, TextOptions, Token
from vectord.text.chunking import Chunker
from vectord.text.colbert import ColbertEncoder
from vectord.text.encoded import Chunk, CutText, EncodedColbert, EncodedPair, EncodedText, Window
from vectord.text.foreign import ForeignTable
from vectord.text.given_ids import GivenIds
from vectord.text.options import max_tokens_of
from vectord.text.pairs import PairEncoder
from vectord.text.panics import failures_refused
from vectord.text.passages import cut_texts
from vectord.text.plain import PlainTokenizer, Source, cut_source
from vectord.text.prompts import find_prompt
from vectord.text.truncation import Limit, fit_tokens
from vectord.text.yes_no import YesNoEncoder

# A token of `tokenize` costs up to 1 kB on its way (measured on Chinese, where each character is one).
TOKENIZE_LIMIT_CHARACTERS = 150_000


class TextEncoder:
    """The tokenizer of one model."""

    def __init__(self, spec: ModelSpec, foreign: ForeignTable | None = None) -> None:
        """foreign: the vocabulary of ids that are not the model's own; None: those are refused.

        Reads tokenizer.json. Raises ModelUnavailable if that is broken, or its specials leave no room for a text.
        """
        with failures_refused(spec.tokenizer):
            self._make(spec, foreign)

    def _make(self, spec: ModelSpec, foreign: ForeignTable | None) -> None:
        self._plain = PlainTokenizer(spec)
        self._ids = GivenIds(self._plain, foreign)
        self._frame = self._plain.frame
        self._prompts = spec.prompts
        self._default_prompt_name = spec.default_prompt_name
        self._include_prompt = spec.include_prompt
        self.max_tokens = spec.max_tokens
        if sum(self._frame.specials) >= self.max_tokens:
            raise ModelUnavailable(f"{spec.tokenizer}: its special tokens fill all {self.max_tokens} tokens of a text")
        self._chunker = Chunker(self._plain, self.max_tokens)
        self._pairs = PairEncoder(self._plain, self.max_tokens)
        self._colbert = (
            None if spec.colbert is None else ColbertEncoder(self._plain, spec.colbert, self.max_tokens, spec.tokenizer)
        )
        # The last: from here on the tokenizer reads special tokens inside texts as letters.
        self._yes_no = (
            None if spec.yes_no is None else YesNoEncoder(self._plain, spec.yes_no, self.max_tokens, spec.tokenizer)
        )

    @property
    def vocab_size(self) -> int:
        """Ids a client may send are below this."""
        return self._plain.vocab_size

    @property
    def special_ids(self) -> Int32:
        """The ids (n,) that are no words."""
        return self._plain.special_ids

    @property
    def reads_pairs(self) -> bool:
        """Whether `encode_pairs` and `encode_pair_list` work."""
        return self._pairs.possible

    # --- one text by itself -----------------------------------------------------------------------------------

    def encode(
        self,
        inputs: Sequence[Input],
        options: TextOptions,
        *,
        truncate: bool,
        field: str = "input",
        part: range | None = None,
    ) -> list[EncodedText]:
        """Each input's tokens, prompt and specials included, in order. `truncate` settles `options.truncate`.

        part: only these of the inputs; errors still name the place among all of them.
        The model's own token ids are taken as they are; under a prompt they are decoded and encoded again with it, and
        foreign ones always (given_ids.py). An empty text has its specials alone. Raises InputTooLong, Untokenizable,
        ForeignIds or EmptyInput (an empty list of ids) with `field` and the input's index, and InvalidField (an unknown
        prompt, too low a limit).
        """
        prompt = find_prompt(self._prompts, options, self._default_prompt_name)
        specials = self._frame.specials if options.add_special_tokens else (0, 0)
        prompt_tokens = 0 if self._include_prompt or not prompt else self._count_prompt(prompt, specials)
        max_tokens = max_tokens_of(options, self.max_tokens, sum(specials) + 1)
        limit = Limit(max_tokens, truncate, options.truncate_side, field, len(inputs), reads=self.max_tokens)
        sources: list[Source] = []
        done: list[EncodedText | None] = []
        for i in range(len(inputs)) if part is None else part:
            value = self._known(inputs[i], options, limit, i)
            if isinstance(value, str) or prompt:
                sources.append(self._source(value, prompt, limit, i))
                done.append(None)
            else:
                done.append(self._ids.take(value, specials, limit, i))
        encodings = zip(
            sources, self._plain.encodings(sources, limit, specials=options.add_special_tokens), strict=True
        )
        tokenized = (self._encoded(source, encoding, specials, limit, prompt_tokens) for source, encoding in encodings)
        return [encoded or next(tokenized) for encoded in done]

    def _known(self, value: Input, options: TextOptions, limit: Limit, index: int) -> Input:
        return value if options.own_ids else self._ids.known(value, limit, index)

    def _source(self, value: Input, prompt: str, limit: Limit, index: int) -> Source:
        text = value if isinstance(value, str) else self._ids.text(value, limit, index)
        return cut_source(text, limit, index, prompt)

    def _encoded(
        self, source: Source, encoding: Encoding, specials: tuple[int, int], limit: Limit, prompt_tokens: int
    ) -> EncodedText:
        ids = np.array(encoding.ids, np.int32)
        if not len(ids):
            message = f"{limit.place(source.index)} has no tokens at all"
            raise Untokenizable(message, field=limit.field, index=source.index)
        kept = fit_tokens(ids, specials, limit, source.index)
        self._plain.check_known(kept, limit, source.index)
        type_ids = self._plain.no_types(kept)
        if self._frame.has_type_ids:
            type_ids = fit_tokens(np.array(encoding.type_ids, np.int32), specials, limit, source.index)
        length = TextLength(len(ids), len(kept), source.characters_cut)
        if prompt_tokens:
            prompt_tokens = _left_of_prompt(prompt_tokens, specials[0], length, limit)
        return EncodedText(kept, type_ids, length, prompt_tokens)

    def _count_prompt(self, prompt: str, specials: tuple[int, int]) -> int:
        """As sentence-transformers counts: the prompt tokenised as if it were a text, less its last special."""
        first, last = specials
        return first + len(self._plain.content(prompt)) + max(last - 1, 0)

    # --- two texts together -----------------------------------------------------------------------------------

    def encode_pairs(
        self,
        query: str,
        passages: Sequence[str],
        options: TextOptions,
        *,
        truncate: bool,
        field: str = "passages",
        part: range | None = None,
    ) -> list[EncodedPair]:
        """The query with each passage, in order, as the tokenizer itself joins them.

        The query is cut only where it leaves no room for a passage, at its end; a passage at `options.truncate_side`.
        part: only these of the passages. Raises InputTooLong by `field` and the passage's index, or by `query`;
        Untokenizable; InvalidField (prompts do not apply); ModelCannot unless `reads_pairs`.
        """
        return self._pairs.encode(query, passages, options, truncate=truncate, field=field, part=part)

    def encode_pair_list(
        self,
        pairs: Sequence[tuple[str, str]],
        options: TextOptions,
        *,
        truncate: bool,
        field: str = "inputs",
        part: range | None = None,
    ) -> list[EncodedPair]:
        """Pairs of texts that count alike, for classifiers: of an over-long pair the longer text is cut first.

        Both at `options.truncate_side`. part, errors: as `encode_pairs`.
        """
        return self._pairs.encode_list(pairs, options, truncate=truncate, field=field, part=part)

    def encode_yes_no(
        self,
        query: str,
        passages: Sequence[str],
        instruction: str | None,
        options: TextOptions,
        *,
        truncate: bool,
        field: str = "passages",
        part: range | None = None,
    ) -> list[EncodedPair]:
        """The query with each passage, in order, in the template of a model that answers yes or no.

        instruction: None for the model's own. Cut at the end: of the passage, then of the query. part, errors: as
        `encode_pairs`; ModelCannot if the model has no such template.
        """
        if self._yes_no is None:
            raise ModelCannot("This model does not judge by yes and no.")
        return self._yes_no.encode(query, passages, instruction, options, truncate=truncate, field=field, part=part)

    # --- one vector a token -----------------------------------------------------------------------------------

    def encode_colbert(
        self,
        inputs: Sequence[Input],
        options: TextOptions,
        *,
        truncate: bool,
        field: str = "input",
        part: range | None = None,
    ) -> list[EncodedColbert]:
        """Each input as a query of a ColBERT model if `options.kind` says so, else as a document, in order.

        The limit is the model's for that kind, and texts are cut at their end. Token ids are decoded and encoded again.
        part, errors: as `encode`; InvalidField where specials are to be left out; ModelCannot if this is no such model.
        """
        if self._colbert is None:
            raise ModelCannot("This model does not make ColBERT vectors.")
        kind = options.kind or "document"
        prompt = find_prompt(self._prompts, replace(options, kind=kind), self._default_prompt_name)
        limit = self._colbert.limit(kind, options, truncate=truncate, field=field, inputs=len(inputs))
        indexes = range(len(inputs)) if part is None else part
        prompt = self._colbert.without_marker(prompt, kind)
        sources = [self._source(self._known(inputs[i], options, limit, i), prompt, limit, i) for i in indexes]
        return list(self._colbert.encode(sources, kind, limit))

    # --- passages ---------------------------------------------------------------------------------------------

    def cut(
        self, texts: Sequence[str], max_tokens: int, *, field: str = "passages", part: range | None = None
    ) -> list[CutText]:
        """Each text cut at its end to so many of its own tokens, where that is less than the model reads.

        part: only these of the texts. Raises Untokenizable by `field` and index.
        """
        indexes = range(len(texts)) if part is None else part
        if max_tokens >= self.max_tokens:
            return [CutText(texts[i], 0, 0) for i in indexes]
        return list(cut_texts(self._plain, texts, indexes, Limit(max_tokens, True, "right", field, len(texts))))

    # --- documents --------------------------------------------------------------------------------------------

    def chunk(self, text: str, options: ChunkOptions, *, field: str = "input", index: int = 0) -> list[Chunk]:
        """The document cut into chunks that the model can read; at least one. Tokens are those it has as a whole.

        index: its place among a request's inputs, for messages. Raises InvalidField (`options`), InputTooLong above
        2,000,000 characters, or Untokenizable.
        """
        return self._chunker.chunk(text, options, self._document_limit(field), index)

    def chunk_at(self, text: str, spans: Sequence[Span], *, field: str = "input", index: int = 0) -> list[Chunk]:
        """The chunks that the caller has cut, in order and apart, each with the document's tokens in it.

        Errors as `chunk`.
        """
        return self._chunker.chunk_at(text, spans, self._document_limit(field), index)

    def encode_windows(
        self,
        text: str,
        chunks: Sequence[Chunk],
        options: TextOptions,
        *,
        truncate: bool = False,
        field: str = "input",
        index: int = 0,
    ) -> list[Window]:
        """For late chunking, the document in windows that the model can read, overlapping if there are several.

        Their spans, taken in order, are those of `chunks`, which `chunk` or `chunk_at` gave for the same text. A prompt
        goes before every window. Of a chunk with more tokens than fit in beside the prompt the first are read, if
        `truncate`. Raises InvalidField for a chunk without tokens; else as `chunk` and `encode`.
        """
        prompt = find_prompt(self._prompts, options, self._default_prompt_name)
        limit = self._document_limit(field, truncate=truncate)
        return self._chunker.encode_windows(text, chunks, prompt, options, limit, index)

    def _document_limit(self, field: str, *, truncate: bool = False) -> Limit:
        return Limit(self.max_tokens, truncate, "right", field, inputs=2)  # messages name the place of a lone one, too

    # --- their own routes -------------------------------------------------------------------------------------

    def tokenize(
        self, texts: Sequence[str], *, add_special_tokens: bool, prompt_name: str | None, field: str = "inputs"
    ) -> list[list[Token]]:
        """Each text's tokens, beyond the model's limit too. Raises InputTooLong above 150,000 characters in all."""
        prompt = find_prompt(self._prompts, TextOptions(prompt_name=prompt_name), self._default_prompt_name)
        characters = sum(map(len, texts)) + len(prompt) * len(texts)
        if characters > TOKENIZE_LIMIT_CHARACTERS:
            message = f"`{field}` must have at most {TOKENIZE_LIMIT_CHARACTERS} characters in all; got {characters}"
            raise InputTooLong(message, field=field)
        limit = Limit(self.max_tokens, False, "right", field, len(texts))
        tokens = []
        for i, text in enumerate(texts):
            source = Source(i, prompt + text)
            (encoding,) = self._plain.encodings([source], limit, specials=add_special_tokens, offsets=True)
            tokens.append(_tokens(source.text, encoding))
        return tokens

    def decode(self, ids: Sequence[Sequence[int]], *, skip_special_tokens: bool, field: str = "ids") -> list[str]:
        """Each list of ids as text. Raises Untokenizable (an id outside the vocabulary), EmptyInput or InputTooLong."""
        limit = Limit(self.max_tokens, False, "right", field, len(ids))
        total = sum(map(len, ids))
        if total > TOKENIZE_LIMIT_CHARACTERS:
            raise InputTooLong(
                f"`{field}` must hold at most {TOKENIZE_LIMIT_CHARACTERS} token ids in all; got {total}.", field=field
            )
        checked = [self._plain.check_ids(row, limit, i).tolist() for i, row in enumerate(ids)]
        texts: list[str] = self._plain.tokenizer.decode_batch(checked, skip_special_tokens=skip_special_tokens)
        return texts


def _left_of_prompt(prompt_tokens: int, first_specials: int, length: TextLength, limit: Limit) -> int:
    if limit.side == "left":
        prompt_tokens = max(first_specials, prompt_tokens - (length.seen - length.kept))
    return min(prompt_tokens, length.kept - 1)  # something must be left to pool


def _tokens(text: str, encoding: Encoding) -> list[Token]:
    at = _byte_offsets(text)
    return [
        Token(id_, piece, True, None, None) if special else Token(id_, text[start:stop], False, at[start], at[stop])
        for id_, piece, special, (start, stop) in zip(
            encoding.ids, encoding.tokens, encoding.special_tokens_mask, encoding.offsets, strict=True
        )
    ]


def _byte_offsets(text: str) -> Sequence[int]:
    """Character offset to UTF-8 byte offset, from 0 to the text's end."""
    if text.isascii():
        return range(len(text) + 1)
    code_points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    sizes = 1 + (code_points >= 0x80).astype(np.int64) + (code_points >= 0x800) + (code_points >= 0x10000)
    offsets: list[int] = np.concatenate(([0], np.cumsum(sizes))).tolist()
    return offsets
