"""tokenizer.json: loads it, rejects a file that could exhaust memory, and finds its special tokens and ids.

Called once per model, at load. The tokenizers library runs what the file describes: a Replace of "a" by a thousand
letters, four times in sequence, makes a gigabyte of one letter, and the process dies where memory ends. Published
models add a handful of characters, so anything far beyond that is rejected before the first text is read.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from tokenizers import Regex, Tokenizer, models, normalizers

from vectord.checkpoints.files.gguf_file import is_gguf
from vectord.checkpoints.files.read import read_bytes, unread_settings
from vectord.checkpoints.gguf.tokenizer import tokenizer_json
from vectord.checkpoints.vocabulary import TOKENIZER_LIMIT_BYTES, read_token_settings, vocab_txt_json
from vectord.errors import ModelUnavailable
from vectord.schema import Int32
from vectord.text.tokenizer_settings import (
    add_ends_of_own_class,
    find_contradictions,
    further_tokens,
    refuse_cut_at_start,
    steps_of,
)

log = logging.getLogger("vectord.text")

MASKS = ("[MASK]", "<mask>")  # the names of mask tokens
STEPS_LIMIT = 64  # normalizers, pre-tokenizers and decoders of a file; the longest known (Phi's) has 11
ADDED_CHARACTERS_LIMIT = 64  # of one replacement, or before a text
GROWTH_LIMIT = 32  # of all replacements together; " {2,}" by "▁" counts as 2
CHARSMAP_CHARACTERS_LIMIT = 64  # for one character; NFKC's longest has 18
TEMPLATE_LIMIT = 256  # special tokens around a text
WORD_CHARACTERS_LIMIT = 1000  # a word of WordPiece costs its square; BERT's longest has 100
_PROBES = ("a", "hello world")

Step = Mapping[str, Any]


class Frame(msgspec.Struct, frozen=True):
    """The special tokens that the tokenizer puts around every text."""

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    has_type_ids: bool  # whether any token gets a type other than 0

    @property
    def specials(self) -> tuple[int, int]:
        return len(self.prefix), len(self.suffix)

    def holds(self, ids: Sequence[int]) -> bool:
        """Whether a client's own ids are between these tokens."""
        end = len(ids) - len(self.suffix)
        begins = tuple(ids[: len(self.prefix)]) == self.prefix
        return end >= len(self.prefix) and begins and tuple(ids[end:]) == self.suffix


def is_library_failure(error: BaseException) -> bool:
    """Whether the tokenizers library failed on a text or file, rather than our code.

    It raises bare Exceptions (a word without an id, and no unknown token). A panic of its Rust arrives as pyo3's
    PanicException, a BaseException that no module exports, which would end a thread instead of one request.
    """
    return type(error) is Exception or (type(error).__name__ == "PanicException" and not isinstance(error, Exception))


@contextmanager
def library_failures_as_unavailable(path: Path) -> Iterator[None]:
    """Raises ModelUnavailable, with the file's name, where the library fails while a tokenizer is loaded and probed."""
    try:
        yield
    except BaseException as error:
        if not is_library_failure(error):
            raise
        raise ModelUnavailable(f"{path}: cannot be used as a tokenizer ({error})") from None


def load_tokenizer(
    path: Path, config: Mapping[str, Any] | None, *, lowercase: bool, removes_punctuation: bool = False
) -> Tokenizer:
    """The tokenizer of the file, without truncation, padding and dropout. Raises ModelUnavailable if it cannot be read.

    config: config.json's entries; the log states where the files next to tokenizer.json contradict it. None: nothing
    but the file is read. lowercase: before its own normalization, as sentence-transformers does for `do_lower_case`.
    removes_punctuation: then as SiglipTokenizer's canonicalize_text.
    """
    try:
        tokenizer: Tokenizer = _read(path)
        check_growth(tokenizer, path)
        if config is not None:
            refuse_cut_at_start(tokenizer, path, unread_settings(path, config).allowed)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        if getattr(tokenizer.model, "dropout", None):  # of BPE: random tokens, for training
            tokenizer.model.dropout = None
        if config is not None:
            add_ends_of_own_class(tokenizer, path)
            if path.suffix == ".json":
                _log_contradictions(tokenizer, path, config)
    except ModelUnavailable:
        raise
    except Exception as error:  # tokenizers raises nothing more specific
        raise ModelUnavailable(f"{path}: cannot be read as a tokenizer ({error})") from error
    steps: list[Any] = [normalizers.Lowercase()] if lowercase else []
    if removes_punctuation:
        steps.append(normalizers.Replace(Regex(f"[{re.escape(string.punctuation)}]"), ""))
        steps += [normalizers.Replace(Regex(r"[\s\x1c-\x1f]+"), " "), normalizers.Strip()]
    if steps:
        own = [tokenizer.normalizer] if tokenizer.normalizer else []
        tokenizer.normalizer = normalizers.Sequence([*steps, *own])
    return tokenizer


def _log_contradictions(tokenizer: Tokenizer, path: Path, config: Mapping[str, Any]) -> None:
    try:
        differences = list(find_contradictions(tokenizer, path, config))
    except BaseException as error:
        if not is_library_failure(error):
            raise
        return  # the tokenizer fails on one of the compared texts, as it will on requests
    if differences:
        log.warning("%s is used unchanged; transformers 5 would make other tokens: %s", path, "; ".join(differences))


def _read(path: Path) -> Tokenizer:
    if path.suffix == ".txt":
        return Tokenizer.from_str(vocab_txt_json(path))
    if is_gguf(path):
        return Tokenizer.from_str(tokenizer_json(path))
    tokenizer: Tokenizer = Tokenizer.from_buffer(read_bytes(path, TOKENIZER_LIMIT_BYTES))
    return tokenizer


def check_growth(tokenizer: Tokenizer, path: Path) -> None:
    """Raises ModelUnavailable if the file's steps could make a text far longer than it is."""
    parts = (tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.post_processor, tokenizer.decoder)
    states = [json.loads(part.__getstate__()) for part in parts if part is not None]
    steps = [step for state in states for step in steps_of(state)]
    if len(steps) > STEPS_LIMIT:
        raise ModelUnavailable(f"{path}: a tokenizer of {len(steps):,} steps; the limit is {STEPS_LIMIT}")
    growth = 1.0
    for step in steps:
        growth *= _growth(step, path)
        if step.get("type") == "Precompiled":
            _check_charsmap(step, path)
        if step.get("type") == "TemplateProcessing":
            _check_template(step, path)
    if growth > GROWTH_LIMIT:
        raise ModelUnavailable(f"{path}: a tokenizer whose replacements make a text up to {growth:,.0f} times as long")
    if getattr(tokenizer.model, "max_input_chars_per_word", 0) > WORD_CHARACTERS_LIMIT:
        raise ModelUnavailable(f"{path}: max_input_chars_per_word is over {WORD_CHARACTERS_LIMIT:,}")


def _growth(step: Step, path: Path) -> float:
    """The factor by which a replacement may lengthen a text; 1 for any other step."""
    added = step.get("content", step.get("prepend", step.get("replacement", "")))
    if not isinstance(added, str) or len(added) > ADDED_CHARACTERS_LIMIT:
        raise ModelUnavailable(f"{path}: a tokenizer that adds more than {ADDED_CHARACTERS_LIMIT} characters at once")
    match step:
        case {"type": "Replace", "pattern": {"String": str(text)}} if text:
            return max(1.0, len(added) / len(text))
        case {"type": "Replace"}:  # a regular expression may match between any two characters
            return 1.0 + len(added)
    return 1.0


def _check_charsmap(step: Step, path: Path) -> None:
    """The map holds the size of its trie, the trie, then the replacements of characters, separated by zeros."""
    try:
        data = base64.b64decode(step.get("precompiled_charsmap") or "")
    except (TypeError, binascii.Error) as error:
        raise ModelUnavailable(f"{path}: precompiled_charsmap is not base64") from error
    replacements = data[4 + int.from_bytes(data[:4], "little") :].split(b"\0")
    if max(len(text.decode("utf-8", "replace")) for text in replacements) > CHARSMAP_CHARACTERS_LIMIT:
        raise ModelUnavailable(
            f"{path}: precompiled_charsmap has more than {CHARSMAP_CHARACTERS_LIMIT} characters for one"
        )


def _check_template(step: Step, path: Path) -> None:
    tokens = step.get("special_tokens") or {}
    ids = sum(len(token.get("ids") or ()) for token in tokens.values())
    pieces = max(len(step.get("single") or ()), len(step.get("pair") or ()))
    if max(ids, pieces) > TEMPLATE_LIMIT or ids * pieces > TEMPLATE_LIMIT**2:
        raise ModelUnavailable(f"{path}: a template of more than {TEMPLATE_LIMIT} special tokens")
    for name, texts in (("single", 1), ("pair", 2)):
        if sum("Sequence" in piece for piece in step.get(name) or ()) != texts:
            raise ModelUnavailable(f"{path}: post_processor.{name} must hold each text once")


def check_rows(tokenizer: Tokenizer, vocab_size: int, type_rows: object, path: Path) -> None:
    """Raises ModelUnavailable if the file gives tokens types, or puts ids around texts, that the model has no rows for.

    type_rows: the model's type_vocab_size; with one row or none, types make no difference. The file sets both
    independently of the vocabulary. One device reads a missing row from other memory or answers zeros; another fails
    until the process ends, with all its models.
    """
    most = type_rows if isinstance(type_rows, int) and type_rows > 1 else 2**31
    types = [*tokenizer.encode(_PROBES[0]).type_ids, *tokenizer.encode(_PROBES[0], _PROBES[0]).type_ids]
    if max(types, default=0) >= most:
        raise ModelUnavailable(f"{path}: gives tokens the type {max(types)}; the model has types below {most}")
    ids = [*tokenizer.encode("").ids, *tokenizer.encode("", "").ids]
    if max(ids, default=0) >= vocab_size:
        raise ModelUnavailable(f"{path}: puts the id {max(ids)} around texts; the model has ids below {vocab_size}")


def probe_frame(tokenizer: Tokenizer, path: Path) -> Frame:
    """The special tokens around a text, found by tokenizing: the file can describe them in several ways."""
    first, second = (_frame(tokenizer, probe, path) for probe in _PROBES)
    if first != second:
        raise ModelUnavailable(f"{path}: puts different special tokens around different texts, which is not supported")
    return first


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
    """One more than the highest id: added tokens may be beyond the model's own, with a gap between."""
    added = max(tokenizer.get_added_tokens_decoder(), default=-1)
    own = tokenizer.get_vocab_size(with_added_tokens=False)
    may_have_gaps = not isinstance(tokenizer.model, models.Unigram)  # whose ids are the places of its tokens
    if may_have_gaps and None in map(tokenizer.model.id_to_token, range(own)):
        own = max(tokenizer.get_vocab(with_added_tokens=False).values()) + 1
    if max(own, added + 1) >= 2**31:
        raise ModelUnavailable(f"{path}: a token of the id {max(own - 1, added)}, which no model has a row for")
    return max(own, added + 1)


def find_special_ids(tokenizer: Tokenizer, path: Path) -> Int32:
    """The ids (n,) that are not words: beginnings, ends, padding, unknown.

    Mask tokens, and those that the settings add to these, count as words: BGE-M3 gives one that a text names a weight
    like any other (source: FlagEmbedding).
    """
    words = {*MASKS, *(() if is_gguf(path) else further_tokens(read_token_settings(path)))}
    added = tokenizer.get_added_tokens_decoder().items()
    return np.array([id_ for id_, token in added if token.special and token.content not in words], np.int32)
