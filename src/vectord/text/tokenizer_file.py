"""tokenizer.json and the settings next to it: loads the tokenizer, and finds its special tokens and ids.

tokenizer.json is used unchanged: the model was trained with it. Called once per model, at load.
"""

from __future__ import annotations

import re
import string
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from tokenizers import Regex, Tokenizer, models, normalizers, processors

from vectord.checkpoints.files.gguf_file import is_gguf
from vectord.checkpoints.files.read import OPTION, read_bytes, unread_settings
from vectord.checkpoints.gguf.tokenizer import tokenizer_json
from vectord.checkpoints.vocabulary import TOKENIZER_LIMIT_BYTES, read_token_settings, token_text, vocab_txt_json
from vectord.errors import ModelUnavailable
from vectord.schema import Int32

MASKS = ("[MASK]", "<mask>")  # the names of mask tokens
_PROBES = ("a", "hello world")


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
    """Whether a Rust library (tokenizers, tokie) failed on a text or file, rather than our code.

    tokenizers raises bare Exceptions (a word without an id, and no unknown token), and tokie its TokieError. A panic
    arrives as pyo3's PanicException, a BaseException that no module exports, which would end a thread instead of one
    request.
    """
    name = type(error).__name__
    return name in ("Exception", "TokieError") or (name == "PanicException" and not isinstance(error, Exception))


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

    config: config.json's entries. None: nothing but the file is read. lowercase: before its own normalization, as
    sentence-transformers does for `do_lower_case`. removes_punctuation: then as SiglipTokenizer's canonicalize_text.
    """
    try:
        if path.suffix == ".txt":
            tokenizer = Tokenizer.from_str(vocab_txt_json(path))
        elif is_gguf(path):
            tokenizer = Tokenizer.from_str(tokenizer_json(path))
        else:
            tokenizer = Tokenizer.from_buffer(read_bytes(path, TOKENIZER_LIMIT_BYTES))
        if config is not None:
            _obey_settings(tokenizer, path, unread_settings(path, config).allowed)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        if getattr(tokenizer.model, "dropout", None):  # of BPE: random tokens, for training
            tokenizer.model.dropout = None
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


def _obey_settings(tokenizer: Tokenizer, path: Path, allowed: Collection[str]) -> None:
    """Apply what the settings next to the file state about the tokens around a text.

    Refused is a truncation at the start of texts, which transformers obeys where the settings name no truncation_side
    (checkpoints/reader.py refuses theirs). allowed: keys that the operator ignores.
    """
    values, own = read_token_settings(path), tokenizer.truncation or {}
    is_left = own.get("direction", "right") != "right" and values.get("truncation_side") is None
    if is_left and "truncation_side" not in allowed:
        raise ModelUnavailable(
            f"{path}: truncation with the direction {own['direction']} is not supported and could change the results; "
            f"{OPTION} truncation_side ignores it"
        )
    if not values.get("auto_map"):
        return
    # gte-Qwen2 has a tokenizer class of its own: it obeys add_bos_token and add_eos_token, and its tokenizer.json lacks
    # both tokens.
    begin, end = (
        [token_text(values.get(f"{name}_token"))] * (values.get(f"add_{name}_token") is True) for name in ("bos", "eos")
    )
    ids = {token: None if token is None else tokenizer.token_to_id(token) for token in (*begin, *end)}
    if None in ids.values():
        raise ModelUnavailable(
            f"{path.with_name('tokenizer_config.json')}: add_bos_token and add_eos_token need a bos_token and "
            "eos_token of the vocabulary"
        )
    if ids:
        single = [*begin, "$A", *end]
        pair = [*single, *(f"{token}:1" for token in begin), "$B:1", *(f"{token}:1" for token in end)]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=single, pair=pair, special_tokens=list(ids.items())
        )


def declares_no_types(path: Path) -> bool:
    """Return whether the settings state that the model is given no token types: they are zeros then.

    transformers 5 writes the class TokenizersBackend, which gives none unless model_input_names has them.
    """
    values = read_token_settings(path)
    names = values.get("model_input_names")
    if isinstance(names, list):
        return "token_type_ids" not in names
    return values.get("tokenizer_class") == "TokenizersBackend"


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
    values = {} if is_gguf(path) else read_token_settings(path)
    lists = (values.get("additional_special_tokens"), values.get("extra_special_tokens"))
    words = {*MASKS, *(token_text(token) for tokens in lists if isinstance(tokens, list) for token in tokens)}
    added = tokenizer.get_added_tokens_decoder().items()
    return np.array([id_ for id_, token in added if token.special and token.content not in words], np.int32)
