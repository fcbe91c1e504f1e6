"""tokenizer.json of the vocabulary in a GGUF file: `tokenizer_json(path)`.

text/ calls it once per model, at load. The result is what transformers has for the same model, because the file was
made from it: the kind of vocabulary and the name of the splitting rule (`tokenizer.ggml.pre`) determine normalizer and
pre-tokenizer. An unknown rule is refused, because each splits texts differently.
Source: get_vocab_base and SpecialVocab in llama.cpp, which write these keys; src/llama-vocab.cpp for missing ones.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vectord.checkpoints.config_keys import Harmless, harmless
from vectord.checkpoints.files.gguf_file import read_gguf
from vectord.checkpoints.files.read import Settings, map_file
from vectord.checkpoints.vocabulary import wordpiece_json
from vectord.errors import ModelUnavailable

SPACE = "▁"

# tokenizer.ggml.token_type
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)

_QWEN2_WORDS = (  # a pattern of words, as in Qwen2Tokenizer of transformers
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = _QWEN2_WORDS.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
# tokenizer.ggml.pre of byte-level BPE: the rules that are known to be those of the model's own tokenizer.json.
_GPT2 = frozenset({"gpt-2", "modern-bert", "roberta-bpe"})
_LLAMAS = ("jina-v5-nano", "lfm2", "llama-bpe", "llama-v3", "llama3")
_SPLITS: Mapping[str, str] = {"qwen2": _QWEN2_WORDS, **dict.fromkeys(_LLAMAS, _LLAMA3)}

HARMLESS: Mapping[str, Harmless] = {
    **harmless(
        "tokenizer_json reads it, or refuses its value",
        "tokenizer.ggml.model tokenizer.ggml.pre tokenizer.ggml.tokens tokenizer.ggml.token_type tokenizer.ggml.scores "
        "tokenizer.ggml.merges tokenizer.ggml.add_bos_token tokenizer.ggml.add_eos_token tokenizer.ggml.strip_accents "
        "tokenizer.ggml.add_space_prefix tokenizer.ggml.normalizer.lowercase tokenizer.ggml.normalizer.strip_accents "
        "tokenizer.ggml.bos_token_id tokenizer.ggml.eos_token_id tokenizer.ggml.unknown_token_id "
        "tokenizer.ggml.seperator_token_id tokenizer.ggml.padding_token_id tokenizer.ggml.cls_token_id "
        "tokenizer.ggml.mask_token_id tokenizer.ggml.precompiled_charsmap",
    ),
    **harmless("the table of types decides", "tokenizer.ggml.token_type_count"),
    **harmless("pairs of texts have their kind's template", "tokenizer.ggml.add_sep_token"),
    **harmless("texts are split at white space before", "tokenizer.ggml.remove_extra_whitespaces"),
}


def tokenizer_json(path: Path) -> str:
    """Return the tokenizer.json of the file's vocabulary."""
    vocabulary = _Vocabulary(path, read_gguf(path, map_file(path)).metadata)
    write = _KINDS.get(vocabulary.kind or "")
    if write is None:
        raise vocabulary.refuse("model", "must be bert, gpt2, llama or t5")
    return write(vocabulary)


class _Vocabulary:
    """The keys of `tokenizer.ggml.`, checked."""

    def __init__(self, path: Path, metadata: Mapping[str, Any]) -> None:
        self.path = path
        self._metadata = Settings(path, metadata)
        self.kind = self.text("model")
        self.tokens: list[str] = self.texts("tokens")
        if not self.tokens or len(set(self.tokens)) < len(self.tokens):
            raise self.refuse("tokens", "has no token, or the same token twice")
        self.types: Sequence[int] = self.numbers("token_type", "iu", np.full(len(self.tokens), _NORMAL)).tolist()

    def get(self, key: str) -> Any:
        return self._metadata.get(f"tokenizer.ggml.{key}")

    def text(self, key: str) -> str | None:
        text: str | None = self._metadata.value(f"tokenizer.ggml.{key}", str)
        return text

    def texts(self, key: str) -> list[str]:
        value = self.get(key)
        if not isinstance(value, list):
            raise self.refuse(key, "must be a list of texts")
        return value

    def flag(self, key: str, default: bool) -> bool:
        return self._metadata.flag(f"tokenizer.ggml.{key}", default)

    def token(self, key: str, default: int | None = None) -> str:
        """The token whose id is at `key`."""
        value = self.get(f"{key}_token_id")
        value = default if value is None else value
        if type(value) is not int or not 0 <= value < len(self.tokens):
            raise self.refuse(f"{key}_token_id", f"must be an id below {len(self.tokens):,}; found {value!r:.40}")
        return self.tokens[value]

    def has(self, key: str) -> bool:
        return self.get(key) is not None

    def numbers(self, key: str, kinds: str, default: Any = None) -> Any:
        """The array with a number for each token, of a dtype of these kinds."""
        value = self.get(key)
        value = default if value is None else value
        if getattr(value, "dtype", np.dtype(object)).kind not in kinds or len(value) != len(self.tokens):
            raise self.refuse(key, f"must be a list of {len(self.tokens):,} numbers")
        return value

    def known(self) -> dict[str, int]:
        """The ids of all tokens but those that only fill the table."""
        return {token: i for i, token in enumerate(self.tokens) if self.types[i] != _UNUSED}

    def added(self, *, strips: str | None = None) -> list[dict[str, Any]]:
        """Tokens that are found in a text before it is split. strips: one that takes the spaces before it along."""
        return [
            {
                "id": i,
                "content": token,
                "single_word": False,
                "lstrip": token == strips,
                "rstrip": False,
                "normalized": False,
                "special": self.types[i] != _USER_DEFINED,
            }
            for i, token in enumerate(self.tokens)
            if self.types[i] in (_CONTROL, _UNKNOWN, _USER_DEFINED)
        ]

    def frame(self, *, begins: bool, ends: bool, twice: bool = False) -> dict[str, Any] | None:
        """The template of special tokens around texts and pairs. begins, ends: for files that do not say; twice: two
        of them between the texts of a pair."""
        first = [self.token("bos")] if self.flag("add_bos_token", begins) else []
        last = [self.token("eos")] if self.flag("add_eos_token", ends) else []
        if not first and not last:
            return None
        single = [*map(_special, first), {"Sequence": {"id": "A", "type_id": 0}}, *map(_special, last)]
        between = [*map(_special, last)] if twice else []
        second = [{"Sequence": {"id": "B", "type_id": 0}}, *map(_special, last)]
        ids = {token: {"id": token, "ids": [self.tokens.index(token)], "tokens": [token]} for token in (*first, *last)}
        return {
            "type": "TemplateProcessing",
            "single": single,
            "pair": [*single, *between, *second],
            "special_tokens": ids,
        }

    def refuse(self, key: str, why: str) -> ModelUnavailable:
        return ModelUnavailable(f"{self.path}: tokenizer.ggml.{key} {why}")


def _special(token: str) -> dict[str, Any]:
    return {"SpecialToken": {"id": token, "type_id": 0}}


def _file(added: list[dict[str, Any]], **parts: Any) -> str:
    """parts: normalizer, pre_tokenizer, post_processor, decoder, model."""
    return json.dumps({"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, **parts})


# --- WordPiece: BERT ------------------------------------------------------------------------------------------


def wordpiece(vocabulary: _Vocabulary) -> str:
    """Words begin with a space's mark and their continuations do not; in BERT's own file, continuations begin with ##.

    Special tokens are unchanged. Older files do not say which they are, or whether texts are lowercased; a vocabulary
    with capital letters is of a model that does not.
    """
    if vocabulary.text("pre") == "whitespace":
        raise vocabulary.refuse("pre", "'whitespace' is not supported")
    ids = {}
    for i, token in enumerate(vocabulary.tokens):
        kind = vocabulary.types[i]
        if kind != _UNUSED:
            is_special = kind in (_CONTROL, _UNKNOWN) or _BRACKETED.fullmatch(token) is not None
            is_word = is_special or token.startswith(SPACE)
            ids[token.removeprefix(SPACE) if is_word else f"##{token}"] = i
    is_cased = any(re.search("[A-Z]", word) for word in ids if not _BRACKETED.fullmatch(word))
    lowercase = vocabulary.flag("normalizer.lowercase", not is_cased)
    strips = vocabulary.flag("normalizer.strip_accents", vocabulary.flag("strip_accents", lowercase))
    defaults = {"unk": ("unknown", 100), "sep": ("seperator", 102), "pad": ("padding", 0), "mask": ("mask", 103)}
    specials = {name: vocabulary.token(key, default) for name, (key, default) in defaults.items()}
    specials["cls"] = vocabulary.token("cls" if vocabulary.has("cls_token_id") else "bos", 101)
    for key in ("add_bos_token", "add_sep_token"):
        if not vocabulary.flag(key, True):
            raise vocabulary.refuse(key, "must be true: BERT's texts have both special tokens")
    for name, token in specials.items():
        if token not in ids:
            raise vocabulary.refuse("tokens", f"has no word {token[:40]!r} for the special token {name}")
    return wordpiece_json(ids, specials, lowercase=lowercase, strip_accents=strips)


_BRACKETED = re.compile(r"\[.+\]")


# --- byte-level BPE: Qwen, Llama 3, RoBERTa -------------------------------------------------------------------


def byte_level(vocabulary: _Vocabulary) -> str:
    rule = vocabulary.text("pre") or "default"
    if rule in _GPT2:
        prefix = vocabulary.flag("add_space_prefix", False)
        split = {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": True}
    elif rule in _SPLITS:
        if vocabulary.flag("add_space_prefix", False):
            raise vocabulary.refuse("add_space_prefix", f"must be false for tokenizer.ggml.pre {rule!r}")
        split = {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": _SPLITS[rule]}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
            ],
        }
    else:
        known = ", ".join((*sorted(_GPT2), *_SPLITS))
        raise vocabulary.refuse("pre", f"{rule[:80]!r} is not supported; supported are {known}")
    is_bert, is_llama = rule in ("modern-bert", "roberta-bpe"), rule in _LLAMAS
    merges = [merge.split(" ") for merge in vocabulary.texts("merges")]
    if any(len(pair) != 2 for pair in merges):
        raise vocabulary.refuse("merges", "has an entry that is not two parts and a space")
    return _file(
        vocabulary.added(strips=vocabulary.token("mask") if is_bert and vocabulary.has("mask_token_id") else None),
        normalizer={"type": "NFC"} if rule in ("modern-bert", "qwen2") else None,
        pre_tokenizer=split,
        post_processor=vocabulary.frame(begins=is_llama or is_bert, ends=is_bert, twice=rule == "roberta-bpe"),
        decoder={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        model={"type": "BPE", "vocab": vocabulary.known(), "merges": merges, "ignore_merges": is_llama},
    )


# --- BPE of SentencePiece: Gemma, Llama 2 ---------------------------------------------------------------------


def byte_fallback(vocabulary: _Vocabulary) -> str:
    """Spaces become marks, and characters without a token become their bytes."""
    unknown = vocabulary.token("unknown", 0)
    marks: dict[str, Any] = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    if vocabulary.flag("add_space_prefix", True):
        marks = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE}, marks]}
    # Tokens of spaces were written as such; the text has marks when they are looked up.
    ids = {_marked(token): i for token, i in vocabulary.known().items()}
    scores = vocabulary.numbers("scores", "f").tolist()
    # Every way to join two tokens to a third, the best score first, as transformers' SentencePieceExtractor.
    merges: list[tuple[float, str, str]] = []
    for token, i in ids.items():
        if vocabulary.types[i] in (_CONTROL, _UNKNOWN, _BYTE):
            continue
        # One at a time: all together take the square of the token's length.
        parts = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
        pairs = [(ids[left], ids[right], left, right) for left, right in parts if left in ids and right in ids]
        merges += [(-scores[i], left, right) for _, _, left, right in sorted(pairs)]
    merges.sort(key=lambda merge: merge[0])  # stable: of equal scores, the first token
    return _file(
        [{**token, "content": _marked(token["content"])} for token in vocabulary.added()],
        normalizer=marks,
        pre_tokenizer=None,
        post_processor=vocabulary.frame(begins=True, ends=False),
        decoder={
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        model={
            "type": "BPE",
            "vocab": ids,
            "merges": [(left, right) for _, left, right in merges],
            "unk_token": unknown,
            "fuse_unk": True,
            "byte_fallback": True,
        },
    )


def _marked(token: str) -> str:
    return token.replace(" ", SPACE)


# --- Unigram: XLM-RoBERTa -------------------------------------------------------------------------------------


def unigram(vocabulary: _Vocabulary) -> str:
    if not vocabulary.flag("add_space_prefix", True):
        raise vocabulary.refuse("add_space_prefix", "must be true for this kind of vocabulary")
    names = list(vocabulary.tokens)
    types = list(vocabulary.types)
    mask = names.index(vocabulary.token("mask")) if vocabulary.has("mask_token_id") else None
    if mask is not None and types[mask] == _UNUSED:  # sentencepiece's file lacks the last token of XLM-RoBERTa
        names[mask], types[mask] = "<mask>", _CONTROL
        vocabulary.tokens, vocabulary.types = names, types
    normalizer = None
    if vocabulary.has("precompiled_charsmap"):
        charsmap = vocabulary.get("precompiled_charsmap")
        if getattr(charsmap, "dtype", np.dtype(object)).itemsize != 1:
            raise vocabulary.refuse("precompiled_charsmap", "must be a list of bytes")
        encoded = base64.b64encode(charsmap.tobytes()).decode()
        normalizer = {"type": "Precompiled", "precompiled_charsmap": encoded}
    return _file(
        vocabulary.added(strips=None if mask is None else names[mask]),
        normalizer=normalizer,
        pre_tokenizer={
            "type": "Sequence",
            "pretokenizers": [
                {"type": "WhitespaceSplit"},
                {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True},
            ],
        },
        post_processor=vocabulary.frame(begins=False, ends=True, twice=True),
        decoder={"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True},
        model={
            "type": "Unigram",
            "unk_id": names.index(vocabulary.token("unknown", 2)),
            "vocab": list(zip(names, vocabulary.numbers("scores", "f").tolist(), strict=True)),
            "byte_fallback": False,
        },
    )


_KINDS: Mapping[str, Callable[[_Vocabulary], str]] = {  # by tokenizer.ggml.model
    "bert": wordpiece,
    "gpt2": byte_level,
    "llama": byte_fallback,
    "t5": unigram,
}
