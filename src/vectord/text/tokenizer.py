"""Texts to token ids and back, for one model: what the engine's tokenising threads call.

`encode` feeds the scheduler; `tokenize` and `decode` answer their own routes. Everything here blocks and is safe to
call from several threads at once: the tokenizer is read-only after `__init__`. The file's own truncation and padding,
which are state that all threads would share, are switched off, and truncation.py cuts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import Encoding

from vectord.artifacts.spec import ModelSpec
from vectord.errors import EmptyInput, InputTooLong, ModelUnavailable, Untokenizable
from vectord.schema import Input, TextLength, TextOptions, Token
from vectord.text.prompts import prompt_prefix
from vectord.text.tokenizer_file import count_ids, load_tokenizer, probe_frame
from vectord.text.truncation import Int32, Limit, fit_characters, fit_tokens

# Texts tokenised in one call: their Encodings live together, at up to 600 bytes a token and as much for a text.
CHUNK_CHARACTERS = 2**17
TEXT_COST_CHARACTERS = 100
# A token of `tokenize` costs up to 1 kB on its way (measured on Chinese, where each character is one).
TOKENIZE_LIMIT_CHARACTERS = 150_000


@dataclass(frozen=True, slots=True)
class Encoded:
    """One input as the model reads it."""

    ids: Int32  # (n,)
    type_ids: Int32  # (n,)
    length: TextLength


@dataclass(frozen=True, slots=True)
class _Text:
    """An input that is to be tokenised."""

    index: int
    text: str  # with its prompt, cut by characters
    characters_cut: int


class TextEncoder:
    """The tokenizer of one model."""

    def __init__(self, spec: ModelSpec) -> None:
        """Reads tokenizer.json. Raises ModelUnavailable if that is broken, or its specials leave no room for a text."""
        self._tokenizer = load_tokenizer(spec.tokenizer, lowercase=spec.lowercase)
        self._frame = probe_frame(self._tokenizer, spec.tokenizer)
        self._prompts = spec.prompts
        self._default_prompt_name = spec.default_prompt_name
        self.max_tokens = spec.max_tokens
        if sum(self._frame.specials) >= self.max_tokens:
            raise ModelUnavailable(f"{spec.tokenizer}: its special tokens fill all {self.max_tokens} tokens of a text")
        ids = count_ids(self._tokenizer)
        rows = spec.config.get("vocab_size")
        self.vocab_size = min(ids, rows) if isinstance(rows, int) else ids
        self._may_exceed = ids > self.vocab_size  # a tokenizer with more tokens than the model has rows for
        self._no_types: Int32 = np.zeros(self.max_tokens, np.int32)
        self._no_types.flags.writeable = False

    def encode(
        self,
        inputs: Sequence[Input],
        options: TextOptions,
        *,
        truncate: bool,
        field: str = "input",
        part: range | None = None,
    ) -> list[Encoded]:
        """Each input's tokens, prompt and specials included, in order. `truncate` settles `options.truncate`.

        part: only these of the inputs; errors still name the place among all of them.
        Token ids are taken as they are, without specials; under a prompt they are decoded and encoded again with it.
        An empty text has its specials alone. Raises InputTooLong, Untokenizable, EmptyInput (an empty list of ids) or
        InvalidField (an unknown prompt), with `field` and the input's index.
        """
        prompt = prompt_prefix(self._prompts, options.prompt_name, self._default_prompt_name)
        limit = Limit(self.max_tokens, truncate, options.truncate_side, field, len(inputs))
        texts: list[_Text] = []
        done: list[Encoded | None] = []
        for i in range(len(inputs)) if part is None else part:
            value = inputs[i]
            if isinstance(value, str) or prompt:
                texts.append(self._text(value, prompt, limit, i))
                done.append(None)
            else:
                done.append(self._take_ids(value, limit, i))
        tokenized = self._encode_texts(texts, limit)
        return [encoded or next(tokenized) for encoded in done]

    def tokenize(
        self, texts: Sequence[str], *, add_special_tokens: bool, prompt_name: str | None, field: str = "inputs"
    ) -> list[list[Token]]:
        """Each text's tokens, beyond the model's limit too. Raises InputTooLong above 150,000 characters in all."""
        prompt = prompt_prefix(self._prompts, prompt_name, self._default_prompt_name)
        characters = sum(map(len, texts)) + len(prompt) * len(texts)
        if characters > TOKENIZE_LIMIT_CHARACTERS:
            message = f"`{field}` must have at most {TOKENIZE_LIMIT_CHARACTERS} characters in all; got {characters}"
            raise InputTooLong(message, field=field)
        limit = Limit(self.max_tokens, False, "right", field, len(texts))
        tokens = []
        for i, text in enumerate(texts):
            source = _Text(i, prompt + text, 0)
            (encoding,) = self._encodings([source], limit, add_special_tokens=add_special_tokens, offsets=True)
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
        checked = [self._check_ids(row, limit, i).tolist() for i, row in enumerate(ids)]
        texts: list[str] = self._tokenizer.decode_batch(checked, skip_special_tokens=skip_special_tokens)
        return texts

    def _text(self, value: Input, prompt: str, limit: Limit, index: int) -> _Text:
        text = value if isinstance(value, str) else self._to_text(value, limit, index)
        kept = fit_characters(text, limit, index)
        return _Text(index, prompt + kept, len(text) - len(kept))

    def _to_text(self, given: Sequence[int], limit: Limit, index: int) -> str:
        if len(given) > limit.max_characters:
            raise limit.too_long(index, limit.max_characters, "token ids", len(given))
        text: str = self._tokenizer.decode(self._check_ids(given, limit, index).tolist(), skip_special_tokens=True)
        return text

    def _take_ids(self, given: Sequence[int], limit: Limit, index: int) -> Encoded:
        ids = self._check_ids(given, limit, index)
        kept = fit_tokens(ids, self._frame.specials_of(ids), limit, index)
        return Encoded(kept, self._no_types[: len(kept)], TextLength(len(ids), len(kept)))

    def _encode_texts(self, texts: Sequence[_Text], limit: Limit) -> Iterator[Encoded]:
        for chunk in _chunks(texts):
            encodings = self._encodings(chunk, limit, add_special_tokens=True, offsets=False)
            for source, encoding in zip(chunk, encodings, strict=True):
                yield self._encoded(source, encoding, limit)

    def _encodings(
        self, texts: Sequence[_Text], limit: Limit, *, add_special_tokens: bool, offsets: bool
    ) -> list[Encoding]:
        # Always the batch calls: they release the GIL, and without offsets they are faster for one text too.
        run = self._tokenizer.encode_batch if offsets else self._tokenizer.encode_batch_fast
        try:
            return run([source.text for source in texts], add_special_tokens=add_special_tokens)
        except TypeError:  # what tokenizers makes of a str that is not Unicode text
            raise _first_not_unicode(texts, limit) from None

    def _encoded(self, source: _Text, encoding: Encoding, limit: Limit) -> Encoded:
        ids = np.array(encoding.ids, np.int32)
        if not len(ids):
            message = f"{limit.place(source.index)} has no tokens at all"
            raise Untokenizable(message, field=limit.field, index=source.index)
        kept = fit_tokens(ids, self._frame.specials, limit, source.index)
        if self._may_exceed and kept.max() >= self.vocab_size:
            raise self._outside(limit, source.index)
        type_ids = self._no_types[: len(kept)]
        if self._frame.has_type_ids:
            type_ids = fit_tokens(np.array(encoding.type_ids, np.int32), self._frame.specials, limit, source.index)
        return Encoded(kept, type_ids, TextLength(len(ids), len(kept), source.characters_cut))

    def _check_ids(self, given: Sequence[int], limit: Limit, index: int) -> Int32:
        if not len(given):
            raise EmptyInput(f"{limit.place(index)} has no token ids", field=limit.field, index=index)
        try:
            ids = np.array(given, np.int64)
        except OverflowError:
            raise self._outside(limit, index) from None
        if ids.min() < 0 or ids.max() >= self.vocab_size:
            raise self._outside(limit, index)
        return ids.astype(np.int32)

    def _outside(self, limit: Limit, index: int) -> Untokenizable:
        message = (
            f"{limit.place(index)} has token ids outside this model's vocabulary, 0 to {self.vocab_size - 1}; "
            "send text, or ids made by this model's own tokenizer"
        )
        return Untokenizable(message, field=limit.field, index=index)


def _chunks(texts: Sequence[_Text]) -> Iterator[Sequence[_Text]]:
    """Runs of `texts` of at most CHUNK_CHARACTERS together, or one text that is longer."""
    start = total = 0
    for i, source in enumerate(texts):
        cost = TEXT_COST_CHARACTERS + len(source.text)
        total += cost
        if total > CHUNK_CHARACTERS and i > start:
            yield texts[start:i]
            start, total = i, cost
    if start < len(texts):
        yield texts[start:]


def _first_not_unicode(texts: Sequence[_Text], limit: Limit) -> Untokenizable:
    for source in texts:
        try:
            source.text.encode()
        except UnicodeEncodeError:
            message = f"{limit.place(source.index)} is not Unicode text: it has half of a surrogate pair"
            return Untokenizable(message, field=limit.field, index=source.index)
    raise AssertionError("tokenizers refused texts that are Unicode")


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
