"""Texts to token ids and back by tokenizer.json alone: no limit on tokens, no prompt, no pairs.

The other files of this folder read every text through the one PlainTokenizer of their model, on the engine's tokenising
threads, several at once: it is read-only after `__init__`, but for `read_specials_as_text`, which yes_no.py calls while
the model loads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import Encoding

from vectord.checkpoints.spec import ModelSpec
from vectord.errors import EmptyInput, Untokenizable
from vectord.schema import Int32
from vectord.text.panics import gave_up
from vectord.text.tokenizer_file import (
    check_specials,
    check_types,
    count_ids,
    find_special_ids,
    load_tokenizer,
    probe_frame,
)
from vectord.text.truncation import Limit, fit_characters

# Texts tokenised in one call: their Encodings live together, at up to 600 bytes a token and as much for a text.
CHUNK_CHARACTERS = 2**17
TEXT_COST_CHARACTERS = 100


@dataclass(frozen=True, slots=True)
class Source:
    """A text on its way into the tokenizer."""

    index: int  # of the input
    text: str  # with its prompt, cut by characters
    characters_cut: int = 0


class PlainTokenizer:
    """A model's tokenizer, without the file's own truncation and padding, which all threads would share."""

    def __init__(self, spec: ModelSpec) -> None:
        """Reads tokenizer.json. Raises ModelUnavailable if that is broken."""
        self.tokenizer = load_tokenizer(spec.tokenizer, lowercase=spec.lowercase)
        check_types(self.tokenizer, spec.config.get("type_vocab_size"), spec.tokenizer)
        self.frame = probe_frame(self.tokenizer, spec.tokenizer)
        ids = count_ids(self.tokenizer, spec.tokenizer)
        rows = spec.config.get("vocab_size")
        self.vocab_size = min(ids, rows) if isinstance(rows, int) else ids
        check_specials(self.tokenizer, self.vocab_size, spec.tokenizer)
        self._no_types: Int32 = np.zeros(spec.max_tokens, np.int32)
        self._no_types.flags.writeable = False  # all texts share it
        self.special_ids = find_special_ids(self.tokenizer)
        self._may_exceed = ids > self.vocab_size  # a tokenizer with more tokens than the model has rows for

    def read_specials_as_text(self) -> None:
        """From now on a special token's name inside a text, such as <|im_end|>, is letters like any other."""
        self.tokenizer.encode_special_tokens = True

    def encodings(
        self, sources: Sequence[Source], limit: Limit, *, specials: bool, offsets: bool = False
    ) -> Iterator[Encoding]:
        """One a source, in order, made a chunk at a time. specials: with the frame around each text.

        Raises Untokenizable, by `limit` and the source's index, for a str that is not Unicode text.
        """
        # Always the batch calls: they release the GIL, and without offsets they are faster for one text too.
        run = self.tokenizer.encode_batch if offsets else self.tokenizer.encode_batch_fast
        for chunk in _chunks(sources):
            try:
                encodings: list[Encoding] = run([source.text for source in chunk], add_special_tokens=specials)
            except TypeError:  # what tokenizers makes of a str that is not Unicode text
                raise _first_not_unicode(chunk, limit) from None
            except BaseException as error:
                if not gave_up(error):
                    raise
                raise _first_that_fails(run, chunk, limit) from None
            yield from encodings

    def contents(self, sources: Sequence[Source], limit: Limit) -> Iterator[Int32]:
        """The tokens (n,) of each source without specials, in order. Raises Untokenizable."""
        for encoding in self.encodings(sources, limit, specials=False):
            yield np.array(encoding.ids, np.int32)

    def content(self, text: str) -> Int32:
        """The tokens (n,) of one text that is ours or has been checked."""
        return np.array(self.tokenizer.encode(text, add_special_tokens=False).ids, np.int32)

    def no_types(self, ids: Int32) -> Int32:
        """Type ids for tokens (n,) that have none."""
        return self._no_types[: len(ids)]

    def check_known(self, ids: Int32, limit: Limit, index: int) -> None:
        """Raises Untokenizable if the tokenizer made ids (n,) that the model has no rows for."""
        if self._may_exceed and len(ids) and ids.max() >= self.vocab_size:
            raise self._outside(limit, index)

    def check_ids(self, given: Sequence[int], limit: Limit, index: int) -> Int32:
        """A client's own token ids (n,). Raises EmptyInput, or Untokenizable for ids outside the vocabulary."""
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


def cut_source(text: str, limit: Limit, index: int, prompt: str = "") -> Source:
    """The text with its prompt, cut by characters where it is absurdly long. Raises InputTooLong if it may not be."""
    kept = fit_characters(text, limit, index)
    return Source(index, prompt + kept, len(text) - len(kept))


def _chunks(sources: Sequence[Source]) -> Iterator[Sequence[Source]]:
    """Runs of `sources` of at most CHUNK_CHARACTERS together, or one text that is longer."""
    start = total = 0
    for i, source in enumerate(sources):
        cost = TEXT_COST_CHARACTERS + len(source.text)
        total += cost
        if total > CHUNK_CHARACTERS and i > start:
            yield sources[start:i]
            start, total = i, cost
    if start < len(sources):
        yield sources[start:]


def _first_not_unicode(sources: Sequence[Source], limit: Limit) -> Untokenizable:
    for source in sources:
        try:
            source.text.encode()
        except UnicodeEncodeError:
            message = f"{limit.place(source.index)} is not Unicode text: it has half of a surrogate pair"
            return Untokenizable(message, field=limit.field, index=source.index)
    raise AssertionError("tokenizers refused texts that are Unicode")


def _first_that_fails(run: Callable[[list[str]], object], sources: Sequence[Source], limit: Limit) -> Untokenizable:
    for source in sources:
        try:
            run([source.text])
        except BaseException as error:
            if not gave_up(error):
                raise
            message = f"{limit.place(source.index)} is a text on which this model's tokenizer fails"
            return Untokenizable(message, field=limit.field, index=source.index)
    return Untokenizable(f"`{limit.field}` holds texts on which this model's tokenizer fails", field=limit.field)
