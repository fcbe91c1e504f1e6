"""The ids of single tokens, looked up in tokenizer.json: `find_ids(path, tokens)`.

yes_no.py and colbert.py ask at start. tokenizer.json is read as JSON, so that this layer needs no tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vectord.checkpoints.files.json_file import read_json_object
from vectord.errors import ModelUnavailable

TOKENIZER_LIMIT_BYTES = 64 * 2**20  # Gemma's, with 262,144 tokens, has 33 MB


def find_ids(path: Path, tokens: Iterable[str]) -> dict[str, int]:
    """The ids of those of `tokens` that stand in the vocabulary exactly so, added tokens first.

    Raises ModelUnavailable: no tokenizer.json, or one whose vocabulary is in no known form.
    """
    fields = read_json_object(path, limit_bytes=TOKENIZER_LIMIT_BYTES)
    known = {**_model_ids(path, fields), **_added_ids(path, fields)}
    return {token: known[token] for token in tokens if token in known}


def _model_ids(path: Path, fields: Mapping[str, Any]) -> dict[str, int]:
    match fields.get("model"):
        case {"vocab": dict(vocab)}:  # BPE, WordPiece, WordLevel
            ids = vocab
        case {"vocab": list(pieces)}:  # Unigram: pairs of a piece and its score, in the order of their ids
            ids = {piece[0]: i for i, piece in enumerate(pieces) if isinstance(piece, list) and _is_piece(piece)}
        case _:
            raise ModelUnavailable(f"{path}: model has no vocab")
    if not all(_is_id(i) for i in ids.values()):
        raise ModelUnavailable(f"{path}: model.vocab has an id that is no whole number from 0")
    return ids


def _added_ids(path: Path, fields: Mapping[str, Any]) -> dict[str, int]:
    added = fields.get("added_tokens") or []
    ids = {}
    for token in added if isinstance(added, list) else [None]:
        match token:
            case {"id": int(i), "content": str(content)} if _is_id(i):
                ids[content] = i
            case _:
                raise ModelUnavailable(f"{path}: added_tokens must be objects with an id and a content")
    return ids


def _is_piece(piece: list[Any]) -> bool:
    return bool(piece) and isinstance(piece[0], str)


def _is_id(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**31
