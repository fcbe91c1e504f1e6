"""JSON of a model's folder, which is hostile: bounded in size, safe in depth, no key twice.

Called by every reader of this folder, at start, in whatever thread loads the model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vectord.errors import ModelUnavailable

JSON_LIMIT_BYTES = 8 * 2**20  # the longest config.json seen (21,000 labels) has 1.6 MB


def read_json_object(path: Path, *, limit_bytes: int = JSON_LIMIT_BYTES) -> dict[str, Any]:
    """The object in the file. Raises ModelUnavailable, naming the file: missing, too large, or no JSON object."""
    value = read_json(path, limit_bytes=limit_bytes)
    if not isinstance(value, dict):
        raise ModelUnavailable(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def read_optional_json_object(path: Path) -> dict[str, Any]:
    """As `read_json_object`; {} where there is no such file."""
    return read_json_object(path) if path.is_file() else {}


def read_json(path: Path, *, limit_bytes: int = JSON_LIMIT_BYTES) -> Any:
    """Any JSON value in the file. Raises ModelUnavailable, naming the file."""
    try:
        with path.open("rb") as file:
            data = file.read(limit_bytes + 1)
    except OSError as error:
        raise ModelUnavailable(f"{path}: cannot be read ({error.strerror})") from error
    if len(data) > limit_bytes:
        raise ModelUnavailable(f"{path}: more than {limit_bytes:,} bytes of JSON")
    return parse_json(data, path)


def parse_json(data: bytes, path: Path) -> Any:
    """The JSON value of `data`, read from `path`. Raises ModelUnavailable for anything but JSON with unique keys."""
    try:
        value = json.loads(data, object_pairs_hook=_unique)
        if b"\\ud" in data.lower():
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except RecursionError:
        raise ModelUnavailable(f"{path}: JSON nested too deeply") from None
    except UnicodeEncodeError:  # no tokenizer reads such a text, and no answer can hold it
        raise ModelUnavailable(f"{path}: a text with half a surrogate pair") from None
    except ValueError as error:  # json.JSONDecodeError, UnicodeDecodeError, _unique
        raise ModelUnavailable(f"{path}: not valid JSON ({error})") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Two readers may disagree about which of two equal keys counts, and one of them checks while the other uses.
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key occurs twice")
    return value
