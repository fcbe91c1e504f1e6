"""tokenizer.json, and what must be known of it before it can be used: its specials and how many ids it has.

plain.py calls these once a model, at start. The library beneath is not made for hostile files: tokenizer_limits.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, normalizers

from vectord.checkpoints.vocabulary import TOKENIZER_LIMIT_BYTES, wordpiece_json
from vectord.errors import ModelUnavailable
from vectord.schema import Int32
from vectord.text.tokenizer_limits import check_growth

MASKS = ("[MASK]", "<mask>")  # under the names that models with a mask token give it
_PROBES = ("a", "hello world")


@dataclass(frozen=True, slots=True)
class Frame:
    """The special tokens that the tokenizer puts around every text."""

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    has_type_ids: bool  # whether any of it, or the text, gets a type other than 0

    @property
    def specials(self) -> tuple[int, int]:
        return len(self.prefix), len(self.suffix)

    def holds(self, ids: Sequence[int]) -> bool:
        """Whether the client's own ids stand between these tokens."""
        end = len(ids) - len(self.suffix)
        begun = tuple(ids[: len(self.prefix)]) == self.prefix
        return end >= len(self.prefix) and begun and tuple(ids[end:]) == self.suffix


def load_tokenizer(path: Path, *, lowercase: bool) -> Tokenizer:
    """The tokenizer of the file, without truncation and padding. Raises ModelUnavailable if it cannot be read.

    lowercase: before its own normalising, as sentence-transformers does for `do_lower_case`.
    """
    try:
        tokenizer: Tokenizer = _read(path)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        check_growth(tokenizer, path)
    except ModelUnavailable:
        raise
    except Exception as error:  # tokenizers raises nothing more specific
        raise ModelUnavailable(f"{path}: cannot be read as a tokenizer ({error})") from error
    if lowercase:
        own = [tokenizer.normalizer] if tokenizer.normalizer else []
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *own])
    return tokenizer


def _read(path: Path) -> Tokenizer:
    """tokenizer.json, or what an older folder has in its place: the words of a BERT."""
    if path.suffix == ".txt":
        return Tokenizer.from_str(wordpiece_json(path))
    if path.stat().st_size > TOKENIZER_LIMIT_BYTES:
        raise ModelUnavailable(f"{path}: more than {TOKENIZER_LIMIT_BYTES:,} bytes of tokenizer")
    return Tokenizer.from_file(str(path))


def check_types(tokenizer: Tokenizer, rows: object, path: Path) -> None:
    """Raises ModelUnavailable if tokens get types that the model has no rows for.

    rows: the model's own figure; with one row or none, types make no difference. A device may answer for such a type
    with zeros, or fail for good, and all its models with it.
    """
    most = rows if isinstance(rows, int) and rows > 1 else 2**31
    types = [*tokenizer.encode(_PROBES[0]).type_ids, *tokenizer.encode(_PROBES[0], _PROBES[0]).type_ids]
    if max(types, default=0) >= most:
        raise ModelUnavailable(f"{path}: gives tokens the type {max(types)}; the model has types below {most}")


def check_specials(tokenizer: Tokenizer, vocab_size: int, path: Path) -> None:
    """Raises ModelUnavailable if a template puts ids around texts or pairs that the model has no rows for: the file
    gives them beside the vocabulary, and a row that is not there is read from foreign memory."""
    ids = [*tokenizer.encode("").ids, *tokenizer.encode("", "").ids]
    if max(ids, default=0) >= vocab_size:
        raise ModelUnavailable(f"{path}: puts the id {max(ids)} around texts; the model has ids below {vocab_size}")


def probe_frame(tokenizer: Tokenizer, path: Path) -> Frame:
    """What the tokenizer puts around a text. Asked of itself, because its file can say it in several ways.

    Raises ModelUnavailable if that differs from text to text, or if something goes inside texts.
    """
    frames = [_frame(tokenizer, probe, path) for probe in _PROBES]
    if any(frame != frames[0] for frame in frames):
        raise ModelUnavailable(f"{path}: puts different special tokens around different texts, which is not supported")
    return frames[0]


def _frame(tokenizer: Tokenizer, probe: str, path: Path) -> Frame:
    encoding = tokenizer.encode(probe)
    content = [i for i, special in enumerate(encoding.special_tokens_mask) if not special]
    if not content:
        raise ModelUnavailable(f"{path}: has no tokens for {probe!r}")
    prefix, suffix = encoding.ids[: content[0]], encoding.ids[content[-1] + 1 :]
    if encoding.ids != [*prefix, *tokenizer.encode(probe, add_special_tokens=False).ids, *suffix]:
        raise ModelUnavailable(f"{path}: puts special tokens inside texts, which is not supported")
    return Frame(tuple(prefix), tuple(suffix), any(encoding.type_ids))


def count_ids(tokenizer: Tokenizer, path: Path) -> int:
    """One more than the highest id: added tokens may lie beyond the model's own, with a gap between.

    Raises ModelUnavailable for an id that is none: a row of that number would be read from foreign memory.
    """
    added = max(tokenizer.get_added_tokens_decoder(), default=-1)
    own = tokenizer.get_vocab_size(with_added_tokens=False)
    if None in map(tokenizer.model.id_to_token, range(own)):  # as many ids as tokens, and not the first ones: a gap
        own = max(tokenizer.get_vocab(with_added_tokens=False).values()) + 1
    if max(own, added + 1) >= 2**31:
        raise ModelUnavailable(f"{path}: a token of the id {max(own - 1, added)}, which no model has a row for")
    return max(own, added + 1)


def find_special_ids(tokenizer: Tokenizer) -> Int32:
    """The ids (n,) that are no words: beginnings, ends, padding, unknown. Not masks, which stand for a word; and a text
    that names one has BGE-M3 give it a weight like any other (source: FlagEmbedding)."""
    added = tokenizer.get_added_tokens_decoder().items()
    return np.array([id_ for id_, token in added if token.special and token.content not in MASKS], np.int32)
