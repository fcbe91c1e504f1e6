"""What a tokenizer.json may put into a text: `check_growth(tokenizer, path)`. tokenizer_file.py asks once a model.

The library runs what the file says: a Replace of "a" by a thousand letters, four times in a row, makes a gigabyte of
one letter, and the process ends where memory does. What published models add is a handful of characters, so anything
far beyond that is refused before the first text is read. (What a pattern costs in time cannot be told beforehand; a
search that gives up is Untokenizable, see panics.py.)
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from vectord.errors import ModelUnavailable

STEPS_LIMIT = 64  # normalizers, pre-tokenizers and decoders of a file; the longest seen (Phi's) has 11
ADDED_CHARACTERS_LIMIT = 64  # of one replacement, or before a text
GROWTH_LIMIT = 32  # of all replacements together; " {2,}" by "▁" counts as 2
CHARSMAP_CHARACTERS_LIMIT = 64  # for one character; NFKC's longest has 18
TEMPLATE_LIMIT = 256  # special tokens around a text
WORD_CHARACTERS_LIMIT = 1000  # a word of WordPiece costs its square; BERT's longest has 100

Step = Mapping[str, Any]


def check_growth(tokenizer: Tokenizer, path: Path) -> None:
    """Raises ModelUnavailable, naming the file, if its steps could make far more of a text than it is."""
    parts = (tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.post_processor, tokenizer.decoder)
    states = [json.loads(part.__getstate__()) for part in parts if part is not None]
    steps = [step for state in states for step in _steps(state)]
    if len(steps) > STEPS_LIMIT:
        raise ModelUnavailable(f"{path}: a tokenizer of {len(steps):,} steps; the limit is {STEPS_LIMIT}")
    growth = 1.0
    for step in steps:
        growth *= _growth(step, path)
        _check_charsmap(step, path)
        _check_template(step, path)
    if growth > GROWTH_LIMIT:
        raise ModelUnavailable(f"{path}: a tokenizer whose replacements make a text up to {growth:,.0f} times as long")
    if getattr(tokenizer.model, "max_input_chars_per_word", 0) > WORD_CHARACTERS_LIMIT:
        raise ModelUnavailable(f"{path}: max_input_chars_per_word is over {WORD_CHARACTERS_LIMIT:,}")


def _steps(state: Any) -> Iterator[Step]:
    """Every object with a type, at any depth: sequences hold further ones. The library has bounded the depth."""
    if isinstance(state, list):
        for item in state:
            yield from _steps(item)
    elif isinstance(state, dict):
        if "type" in state:
            yield state
        for value in state.values():
            yield from _steps(value)


def _growth(step: Step, path: Path) -> float:
    """How many times as long a text may become by a replacement; 1 for any other step."""
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
    """A Precompiled map: the size of its trie, the trie, and behind that what characters become, parted by zeros."""
    if step.get("type") != "Precompiled":
        return
    try:
        data = base64.b64decode(step.get("precompiled_charsmap") or "")
    except (TypeError, binascii.Error) as error:
        raise ModelUnavailable(f"{path}: precompiled_charsmap is not base64") from error
    written = data[4 + int.from_bytes(data[:4], "little") :].split(b"\0")
    if max(len(text.decode("utf-8", "replace")) for text in written) > CHARSMAP_CHARACTERS_LIMIT:
        raise ModelUnavailable(
            f"{path}: precompiled_charsmap has more than {CHARSMAP_CHARACTERS_LIMIT} characters for one"
        )


def _check_template(step: Step, path: Path) -> None:
    if step.get("type") != "TemplateProcessing":
        return
    tokens = step.get("special_tokens") or {}
    ids = sum(len(token.get("ids") or ()) for token in tokens.values())
    pieces = max(len(step.get("single") or ()), len(step.get("pair") or ()))
    if max(ids, pieces) > TEMPLATE_LIMIT or ids * pieces > TEMPLATE_LIMIT**2:
        raise ModelUnavailable(f"{path}: a template of more than {TEMPLATE_LIMIT} special tokens")
