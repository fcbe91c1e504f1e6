"""Texts to token ids, and ids back to text, by tokenizer.json alone: no prompt, no token limit, no pairs.

All files of this package read texts through the one PlainTokenizer of their model. Several threads use it at once: it
is read-only after loading (`read_specials_as_text` is called while the model loads).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, cast

import msgspec
import numpy as np
from msgspec.structs import replace
from tokenizers import Encoding

from vectord.checkpoints.files.gguf_file import is_gguf
from vectord.checkpoints.spec import ModelSpec
from vectord.errors import EmptyInput, ForeignIds, InvalidField, ModelUnavailable, Untokenizable
from vectord.schema import Input, Int32, Media, TextLength
from vectord.text import cl100k
from vectord.text.sequence import CutText, TokenArrays, TokenSequence
from vectord.text.tokenizer_file import (
    check_rows,
    count_ids,
    declares_no_types,
    find_special_ids,
    is_library_failure,
    load_tokenizer,
    probe_frame,
)
from vectord.text.truncation import Limit, check_size, fit_characters
from vectord.text.wordpiece import COST_BEFORE_LOAD, FastWordPiece

log = logging.getLogger("vectord.text")

# The limit of one call of the tokenizer, which returns all Encodings at once: up to 600 bytes per token, and per text.
CALL_CHARACTERS = 2**17
TEXT_COST_CHARACTERS = 100

# A whole file in place of a text: its vector would be one of base64 digits.
_data_uri = re.compile(r"data:(image|audio|video|application)/[^,\s]{1,200};base64,[\w+/=%\r\n-]*", re.IGNORECASE)


class Source(msgspec.Struct, frozen=True):
    """A text to tokenize."""

    index: int | None  # of its input in the request; None: the query
    text: str  # with its prompt, cut by characters
    characters_cut: int = 0
    foreign: bool = False  # see TextLength


class PlainTokenizer:
    """A model's tokenizer without the truncation and padding of its file, which all threads would share."""

    def __init__(self, spec: ModelSpec) -> None:
        # The libraries of static tables read tokenizer.json alone, and put no special tokens around a text.
        config = None if spec.static is not None or is_gguf(spec.tokenizer) else spec.config
        self.tokenizer = load_tokenizer(
            spec.tokenizer, config, lowercase=spec.lowercase, removes_punctuation=spec.removes_punctuation is True
        )
        if spec.static is not None:
            self.tokenizer.post_processor = None
        self.frame = probe_frame(self.tokenizer, spec.tokenizer)
        self.has_types = config is None or not declares_no_types(spec.tokenizer)
        if not self.has_types:
            self.frame = replace(self.frame, has_type_ids=False)
        if "last" in spec.pooling_name and not self.frame.suffix and spec.template is None:
            log.warning("%s puts no token after a text: the vector is that of the text's last token", spec.tokenizer)
        ids = count_ids(self.tokenizer, spec.tokenizer)
        rows = spec.config.get("vocab_size")
        if isinstance(rows, int) and rows < 1:
            raise ModelUnavailable(f"{spec.folder}: config.json's vocab_size {rows} leaves no room for a token")
        self.vocab_size = min(ids, rows) if isinstance(rows, int) else ids
        check_rows(
            self.tokenizer,
            self.vocab_size,
            spec.config.get("type_vocab_size") if self.has_types else None,
            spec.tokenizer,
        )
        self.no_types: Int32 = np.zeros(spec.max_tokens, np.int32)  # the type ids of a text without types, if cut
        self.no_types.flags.writeable = False  # all texts share it
        self.special_ids = find_special_ids(self.tokenizer, spec.tokenizer)
        self._fast = None if self.frame.has_type_ids else FastWordPiece(self.tokenizer, spec.tokenizer)
        self._cost_left = COST_BEFORE_LOAD  # threads may lose a subtraction, which only delays the load
        self._prefix, self._suffix = (np.array(ends, np.int32) for ends in (self.frame.prefix, self.frame.suffix))
        self._skipped_id = spec.skipped_id
        self._reads_images = spec.reads_images
        self._may_exceed = ids > self.vocab_size  # the tokenizer has more tokens than the model has rows

    def read_specials_as_text(self) -> None:
        """Read the name of a special token inside a text, such as <|im_end|>, as ordinary text from now on."""
        self.tokenizer.encode_special_tokens = True

    def encodings(self, sources: Sequence[Source], *, specials: bool) -> Iterator[Encoding]:
        """The tokens of each source and their offsets, in order. specials: with the frame around each text."""
        return chain.from_iterable(_encoded(self.tokenizer.encode_batch, group, specials) for group in _groups(sources))

    def tokens(self, sources: Sequence[Source], *, specials: bool) -> TokenArrays:
        """The tokens of the sources. specials: with the frame around each text."""
        texts = [source.text for source in sources]
        self._cost_left -= TEXT_COST_CHARACTERS * len(texts) + sum(map(len, texts))
        read = None if self._fast is None or self._cost_left >= 0 else self._fast.read(texts)
        if read is None:
            return self._reference_tokens(sources, specials=specials)
        fast, left = read
        if specials and any(self.frame.specials):
            parts = [part for row, _ in fast.each() for part in (self._prefix, row, self._suffix)]
            added = sum(self.frame.specials)
            fast = TokenArrays(np.concatenate(parts), [size + added for size in fast.sizes])
        if not left:
            return fast
        others = self._reference_tokens([sources[i] for i in left], specials=specials).each()
        rows, places = fast.each(), {*left}
        return TokenArrays.of([next(others if i in places else rows)[0] for i in range(len(sources))])

    def _reference_tokens(self, sources: Sequence[Source], *, specials: bool) -> TokenArrays:
        ids: list[list[int]] = []
        types: list[list[int]] = []
        for group in [sources] if len(sources) == 1 else _groups(sources):
            # Always the batch calls: they release the GIL, and without offsets they are faster for one text too.
            encodings = _encoded(self.tokenizer.encode_batch_fast, group, specials)
            ids += [encoding.ids for encoding in encodings]
            if self.frame.has_type_ids:
                types += [encoding.type_ids for encoding in encodings]
        return TokenArrays(
            np.fromiter(chain.from_iterable(ids), np.int32),
            [*map(len, ids)],
            np.fromiter(chain.from_iterable(types), np.int32) if self.frame.has_type_ids else None,
        )

    def contents(self, sources: Sequence[Source]) -> Iterator[Int32]:
        """The tokens (n,) without specials of each source: views."""
        return (ids for ids, _ in self.tokens(sources, specials=False).each())

    def content(self, text: str) -> Int32:
        """The tokens (n,) without specials of one text that is our own or has been checked."""
        (encoding,) = self.tokenizer.encode_batch_fast([text], add_special_tokens=False)
        return np.array(encoding.ids, np.int32)

    def cut(self, source: Source, encoding: Encoding, max_tokens: int) -> CutText:
        """The source's text, cut at its end to `max_tokens` of its own tokens. encoding: with offsets."""
        if len(encoding.ids) <= max_tokens:
            return CutText(source.text, 0, source.characters_cut)
        # A cut through a character's tokens, or one that changes the tokens before it, may leave too many tokens: then
        # cut one character earlier.
        stops = [stop for _, stop in encoding.offsets[:max_tokens]]
        while stops:
            text = source.text[: stops[-1]]
            found = len(self.content(text))
            if found <= max_tokens:
                return CutText(text, len(encoding.ids) - found, source.characters_cut)
            while stops and stops[-1] >= len(text):
                stops.pop()
        return CutText("", len(encoding.ids), source.characters_cut)

    def check_known(self, ids: Int32, index: int | None) -> None:
        """Raises Untokenizable for ids (n,) that the model has no rows for, or that its positions skip: those count
        every token, so a literal <pad> would move all later tokens by one position."""
        if self._may_exceed and len(ids) and ids.max() >= self.vocab_size:
            raise self._outside(index)
        if self._skipped_id is not None and (ids == self._skipped_id).any():
            raise Untokenizable(
                "{field} contains {token}, this model's padding token, which is not supported inside a text; remove it",
                index=index,
                token=self.tokenizer.id_to_token(self._skipped_id) or str(self._skipped_id),
            )

    def sequence(self, ids: Int32, length: TextLength, index: int | None, **parts: Any) -> TokenSequence:
        """Tokens (n,) as a sequence. Its type ids are zeros unless `parts` has others. Raises as `check_known`."""
        self.check_known(ids, index)
        parts.setdefault("type_ids", self.no_types[: len(ids)])
        return TokenSequence(ids=ids, length=length, index=index or 0, **parts)

    def check_ids(self, given: Sequence[int], index: int) -> Int32:
        """A client's token ids as an array (n,). Raises EmptyInput, or Untokenizable for ids outside the vocabulary."""
        if not len(given):
            raise EmptyInput("{field} has no token ids", index=index)
        try:
            ids = np.array(given, np.int64)
        except OverflowError:
            raise self._outside(index) from None
        if ids.min() < 0 or ids.max() >= self.vocab_size:
            raise self._outside(index)
        return ids.astype(np.int32)

    def own_or_text(self, value: Input, limit: Limit, index: int, *, own_ids: bool) -> tuple[str | Sequence[int], bool]:
        """Return texts and this tokenizer's own ids unchanged, the text of cl100k_base's ids, and the ids of an input
        of texts and ids; and whether they are foreign ids, see TextLength.

        Ids of another vocabulary would give a meaningless vector. If this tokenizer adds special tokens, ids between
        them are its own. Otherwise ids are its own if it makes the same ids of the text that they decode to. All other
        ids are decoded with cl100k_base, if that extra is installed. own_ids: return all ids unchanged.
        """
        if isinstance(value, str):
            return value, False
        if isinstance(value, Media) or any(isinstance(piece, Media) for piece in value):
            if not self._reads_images or isinstance(value, Media):
                raise InvalidField("{field} is or has an image; this model embeds texts only.", index=index)
            parts = "an image and a text" if any(isinstance(piece, str) for piece in value) else "several images"
            template = "{field} has {parts}; this model embeds each of them alone."
            raise InvalidField(template, index=index, parts=parts)
        if any(isinstance(piece, str) for piece in value):
            return self._joined(cast("Sequence[int | str]", value), limit, index), False
        value = cast("Sequence[int]", value)
        if not len(value) or self._are_own(value, limit):
            return value, False
        if own_ids:
            return value, True
        _check_count(value, limit, index)
        text = cl100k.decode(value)
        if text is None:
            raise ForeignIds(
                "{field} has token ids that are not this model's: they are not between its special tokens. Send texts "
                "(LangChain: OpenAIEmbeddings(check_embedding_ctx_length=False)), ids of this model's own tokenizer, "
                "special tokens included, or ids of cl100k_base with the extra `cl100k` installed on the server",
                index=index,
            )
        return text, False

    def _joined(self, pieces: Sequence[int | str], limit: Limit, index: int) -> Sequence[int]:
        """Return the ids of texts and ids in order, with special tokens only around a text that comes first."""
        size = len(pieces) + sum(len(text) for text in pieces if isinstance(text, str))
        check_size(size, limit.max_characters, "token ids and characters", index=index)
        sources = {at: Source(index, text) for at, text in enumerate(pieces) if isinstance(text, str)}
        tokens = dict(zip(sources, self.contents(list(sources.values())), strict=True))
        if 0 in sources:
            tokens[0] = self.tokens([sources[0]], specials=True).ids
        ids: list[int] = []
        for at, piece in enumerate(pieces):
            ids += [piece] if isinstance(piece, int) else tokens[at].tolist()
        return ids

    def text_of(self, value: str | Sequence[int], limit: Limit, index: int) -> str:
        """The text of an input; its token ids are this tokenizer's."""
        if isinstance(value, str):
            return value
        _check_count(value, limit, index)
        return self._decoded(self.check_ids(value, index).tolist(), skip_special_tokens=True)

    def _decoded(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of one list of ids. `Tokenizer.decode` would hold the GIL for all of them."""
        text: str
        (text,) = self.tokenizer.decode_batch([ids], skip_special_tokens=skip_special_tokens)
        return text

    def _are_own(self, ids: Sequence[int], limit: Limit) -> bool:
        if any(self.frame.specials):
            return self.frame.holds(ids)
        if len(ids) > limit.max_characters or not 0 <= min(ids) <= max(ids) < self.vocab_size:
            return False
        try:
            (again,) = self.contents([Source(0, self._decoded(list(ids), skip_special_tokens=False))])
        except Untokenizable:
            return False
        return np.array_equal(again, ids)

    def _outside(self, index: int | None) -> Untokenizable:
        return Untokenizable(
            "{field} has token ids outside this model's vocabulary, 0 to {last}; send text, or ids made by this "
            "model's own tokenizer",
            index=index,
            last=self.vocab_size - 1,
        )


def cut_source(text: str, limit: Limit, index: int | None, prompt: str = "", *, foreign: bool = False) -> Source:
    """The text with its prompt, cut by characters if it is far too long."""
    if ":" in text[:99]:
        refuse_data_uri(text, index)
    kept = text if len(text) <= limit.surely_fits else fit_characters(text, limit, index)
    return Source(index, prompt + kept, len(text) - len(kept), foreign)


def refuse_data_uri(text: str, index: int | None) -> None:
    """Raises InvalidField for a text that is a data URI as a whole."""
    if text[:99].lstrip()[:5].lower() == "data:" and _data_uri.fullmatch(text.strip()):
        raise InvalidField("{field} is an image or another file in base64, where a text is expected.", index=index)


def _check_count(ids: Sequence[int], limit: Limit, index: int) -> None:
    """A list may have as many ids as a text may have characters: decoding them costs as much."""
    check_size(len(ids), limit.max_characters, "token ids", index=index)


def _encoded(run: Callable[..., list[Encoding]], sources: Sequence[Source], specials: bool) -> list[Encoding]:
    try:
        return run([source.text for source in sources], add_special_tokens=specials)
    except BaseException as error:
        if not is_library_failure(error) and not isinstance(error, TypeError):  # TypeError: not Unicode text
            raise
    # The first source that is not Unicode text is at fault, else the first on which the tokenizer fails.
    for source in sources:
        try:
            source.text.encode()
        except UnicodeEncodeError:
            template = "{field} is not Unicode text: it has half of a surrogate pair"
            raise Untokenizable(template, index=source.index) from None
    for source in sources:
        try:
            run([source.text])
        except BaseException as error:
            if not is_library_failure(error):
                raise
            raise Untokenizable("{field} makes this model's tokenizer fail", index=source.index) from None
    raise Untokenizable("{field} makes this model's tokenizer fail")


def _groups(sources: Sequence[Source]) -> Iterator[Sequence[Source]]:
    """Runs of `sources` of at most CALL_CHARACTERS together, or one longer text."""
    start = total = 0
    for i, source in enumerate(sources):
        cost = TEXT_COST_CHARACTERS + len(source.text)
        total += cost
        if total > CALL_CHARACTERS and i > start:
            yield sources[start:i]
            start, total = i, cost
    if start < len(sources):
        yield sources[start:]
