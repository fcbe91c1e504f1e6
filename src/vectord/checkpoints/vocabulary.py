"""The tokens of a model's folder: the ids of single tokens, and tokenizer.json for a BERT that has only vocab.txt.

The readers of ColBERT models and of yes-or-no rerankers call `find_ids` at start; text/ calls `vocab_txt_json`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vectord.checkpoints.files.gguf_file import is_gguf, read_gguf
from vectord.checkpoints.files.read import map_file, read_bytes, read_json_object, read_settings
from vectord.errors import ModelUnavailable

TOKENIZER_LIMIT_BYTES = 64 * 2**20  # Gemma's, with 262,144 tokens, has 33 MB
VOCABULARY_LIMIT_BYTES = 16 * 2**20  # the longest known (LaBSE, 501,153 words) has 5 MB
ADDED_LIMIT = 10_000  # tokens that the files next to vocab.txt add
_FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")
_OF_VOCAB_TXT = frozenset({"BertTokenizer", "DistilBertTokenizer", "PreTrainedTokenizer"})


def find_ids(path: Path, tokens: Iterable[str]) -> dict[str, int]:
    """Return the ids of those `tokens` that the tokenizer.json or GGUF file at `path` has in exactly this form, added
    tokens first. This layer needs no tokenizer.
    """
    if is_gguf(path):
        listed = read_gguf(path, map_file(path)).metadata.get("tokenizer.ggml.tokens")
        known = {token: i for i, token in enumerate(listed)} if isinstance(listed, list) else {}
    else:
        known, _ = read_vocabulary(path)
    found = {token: known[token] for token in tokens if token in known}
    for token, i in found.items():
        if type(i) is not int or not 0 <= i < 2**31:
            raise ModelUnavailable(f"{path}: the id of {token[:40]!r} is not a whole number from 0")
    return found


def find_tokens(path: Path, ids: Iterable[int]) -> dict[int, str]:
    """Return the tokens of those `ids` that the tokenizer.json at `path` has."""
    wanted, (known, _) = frozenset(ids), read_vocabulary(path)
    return {i: token for token, i in known.items() if type(i) is int and i in wanted}


def read_vocabulary(path: Path) -> tuple[dict[str, int], Mapping[str, Any]]:
    """Return the id of each token of the tokenizer.json at `path`, and the whole file.

    The ids are not checked.
    """
    if is_gguf(path):
        raise ModelUnavailable(f"{path}: single tokens are looked up in tokenizer.json only")
    fields = read_json_object(path, limit_bytes=TOKENIZER_LIMIT_BYTES)
    match fields.get("model"):
        case {"vocab": dict(ids)}:  # BPE, WordPiece, WordLevel
            known = dict(ids)
        case {"vocab": list(pieces)}:  # Unigram: pairs of a piece and its score, in the order of their ids
            known = {piece[0]: i for i, piece in enumerate(pieces) if piece and isinstance(piece[0], str)}
        case _:
            raise ModelUnavailable(f"{path}: model has no vocab")
    added = fields.get("added_tokens") or []
    for token in added if isinstance(added, list) else [None]:
        match token:
            case {"id": int(i), "content": str(content)}:
                known[content] = i
            case _:
                raise ModelUnavailable(f"{path}: added_tokens must be objects with an id and a content")
    return known, fields


def token_text(token: object) -> str | None:
    """Return the text of a special token of the settings, which is a string or an object; None for any other value."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def read_token_settings(path: Path) -> Mapping[str, Any]:
    """Return the settings in the files next to the tokenizer.json or vocab.txt at `path`.

    Before version 4.34 of transformers, the tokens of special_tokens_map.json replace those of tokenizer_config.json.
    """
    values = read_settings(path.with_name("tokenizer_config.json"), optional=True).fields
    if "added_tokens_decoder" in values:
        return values
    return {**values, **read_settings(path.with_name("special_tokens_map.json"), optional=True).fields}


def vocab_txt_json(path: Path) -> str:
    """Return the tokenizer.json that transformers' BertTokenizer makes of the vocab.txt at `path`.

    Special tokens and normalization come from the files next to it.
    """
    try:
        lines = read_bytes(path, VOCABULARY_LIMIT_BYTES).decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise ModelUnavailable(f"{path}: not UTF-8") from error
    ids = {line.removesuffix("\r"): i for i, line in enumerate(lines)}
    config = read_token_settings(path)
    name = str(config.get("tokenizer_class") or "BertTokenizer").removesuffix("Fast")
    if name not in _OF_VOCAB_TXT:
        raise ModelUnavailable(f"{path}: no tokenizer.json, and {name[:80]} is not made from vocab.txt here")
    specials = {}
    for name in ("pad", "unk", "cls", "sep", "mask"):
        specials[name] = token = token_text(config.get(f"{name}_token")) or f"[{name.upper()}]"
        if token not in ids:
            raise ModelUnavailable(f"{path}: the special token {token[:40]!r} is not in it")
    strips = config.get("strip_accents")
    return wordpiece_json(
        ids,
        specials,
        chinese=config.get("tokenize_chinese_chars") is not False,
        strip_accents=strips if isinstance(strips, bool) else None,
        lowercase=config.get("do_lower_case") is not False,
        added=_added_tokens(path, config),
    )


def _added_tokens(path: Path, config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tokens that the files next to a vocab.txt add, in the order of their ids; those without one come last."""
    decoder = config.get("added_tokens_decoder")
    if decoder is None:
        file = path.with_name("added_tokens.json")
        ids = read_json_object(file) if file.exists() else {}
        decoder = {i: {"content": name} for name, i in ids.items()}
    try:
        added = [dict(decoder[i]) for i in sorted(decoder, key=int)]
    except (AttributeError, TypeError, ValueError):
        raise ModelUnavailable(f"{path}: the tokens that the files next to it add have an unknown form") from None
    for key in ("additional_special_tokens", "extra_special_tokens"):
        for token in config.get(key) or ():
            added.append({"special": True, **(token if isinstance(token, dict) else {"content": token})})
    if len(added) > ADDED_LIMIT or not all(isinstance(token.get("content"), str) for token in added):
        raise ModelUnavailable(
            f"{path}: the files next to it add more than {ADDED_LIMIT:,} tokens, or one without text"
        )
    return added


def wordpiece_json(
    ids: Mapping[str, int],
    specials: Mapping[str, str],
    *,
    lowercase: bool,
    strip_accents: bool | None,
    chinese: bool = True,
    added: Iterable[Mapping[str, Any]] = (),
) -> str:
    """Return the tokenizer.json of a BERT with these words.

    specials: the tokens pad, unk, cls, sep and mask; strip_accents: None: if lowercase; chinese: split at ideographs;
    added: further tokens, as in tokenizer_config.json.
    """
    from tokenizers import AddedToken, BertWordPieceTokenizer  # noqa: PLC0415  few models come without tokenizer.json

    tokenizer = BertWordPieceTokenizer(
        dict(ids),
        **{f"{name}_token": token for name, token in specials.items()},
        handle_chinese_chars=chinese,
        strip_accents=strip_accents,
        lowercase=lowercase,
    )
    tokenizer.add_tokens(
        [
            AddedToken(token["content"], **{flag: bool(token[flag]) for flag in _FLAGS if flag in token})
            for token in added
        ]
    )
    return str(tokenizer.to_str())
