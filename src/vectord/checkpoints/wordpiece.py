"""The tokenizer of a BERT that comes with vocab.txt alone, in the form of tokenizer.json: `wordpiece_json(path)`.

reader.py names vocab.txt as the tokenizer where there is no tokenizer.json; the text layer asks for this form of it.
Source: transformers' BertTokenizer, whose defaults and names of special tokens these are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vectord.checkpoints.files.json_file import read_optional_json_object
from vectord.errors import ModelUnavailable

VOCABULARY_LIMIT_BYTES = 16 * 2**20  # the longest seen (LaBSE, 501,153 words) has 5 MB

_SPECIALS = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}


def wordpiece_json(path: Path) -> str:
    """What tokenizer.json beside `path`, a vocab.txt, would hold. Raises ModelUnavailable, naming the file: unreadable,
    too large, or without the special tokens."""
    ids = _read_vocabulary(path)
    config = read_optional_json_object(path.with_name("tokenizer_config.json"))
    specials = {key: _content(config.get(key), usual) for key, usual in _SPECIALS.items()}
    for token in specials.values():
        if token not in ids:
            raise ModelUnavailable(f"{path}: the special token {token[:40]!r} is not in it")
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": [_added_token(token, ids[token]) for token in specials.values()],
            "normalizer": _normalizer(config),
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": _post_processor(specials["cls_token"], specials["sep_token"], ids),
            "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
            "model": {
                "type": "WordPiece",
                "unk_token": specials["unk_token"],
                "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 100,
                "vocab": ids,
            },
        }
    )


def _read_vocabulary(path: Path) -> dict[str, int]:
    """A token a line; its id is the line's number, from 0."""
    try:
        with path.open("rb") as file:
            data = file.read(VOCABULARY_LIMIT_BYTES + 1)
        if len(data) > VOCABULARY_LIMIT_BYTES:
            raise ModelUnavailable(f"{path}: more than {VOCABULARY_LIMIT_BYTES:,} bytes of words")
        lines = data.decode().removesuffix("\n").split("\n")
    except OSError as error:
        raise ModelUnavailable(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ModelUnavailable(f"{path}: not UTF-8") from error
    return {line.removesuffix("\r"): i for i, line in enumerate(lines)}


def _content(token: Any, usual: str) -> str:
    """tokenizer_config.json writes a special token as a text, or as an object with one."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else usual


def _added_token(token: str, i: int) -> dict[str, object]:
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": i, "content": token, "special": True, **plain}


def _normalizer(config: Mapping[str, Any]) -> dict[str, object]:
    strips = config.get("strip_accents")
    return {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": config.get("tokenize_chinese_chars") is not False,
        "strip_accents": strips if isinstance(strips, bool) else None,
        "lowercase": config.get("do_lower_case") is not False,
    }


def _post_processor(first: str, last: str, ids: Mapping[str, int]) -> dict[str, object]:
    """[CLS] A [SEP], and [CLS] A [SEP] B [SEP] with B and what follows it of type 1."""

    def special(token: str, type_id: int) -> dict[str, object]:
        return {"SpecialToken": {"id": token, "type_id": type_id}}

    def text(name: str, type_id: int) -> dict[str, object]:
        return {"Sequence": {"id": name, "type_id": type_id}}

    single = [special(first, 0), text("A", 0), special(last, 0)]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, text("B", 1), special(last, 1)],
        "special_tokens": {token: {"id": token, "ids": [ids[token]], "tokens": [token]} for token in (first, last)},
    }
