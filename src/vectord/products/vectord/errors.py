"""How our own dialect says what went wrong: one object with the same keys for every error."""

from __future__ import annotations

import re
from typing import Any

from vectord.errors import InvalidRequest, MissingField, VectordError
from vectord.products.common.dialect import Rendered
from vectord.products.common.errors import STATUSES, headers_of, row_of
from vectord.products.common.vectors import dump_json

# 400 for what a request says, 413 for bytes alone, 429 for load alone, 503 for not ready.
ERRORS = STATUSES

_word_ends = re.compile(r"(?<=[a-z])(?=[A-Z])")


def render_error(error: VectordError) -> Rendered:
    body = dump_json({"error": shown_error(error)})
    return Rendered(body=body, status=row_of(ERRORS, error), headers=headers_of(error))


def shown_error(error: VectordError) -> dict[str, Any]:
    """Every key is always there; null where it says nothing."""
    figures = (error.limit, error.given) if isinstance(error, InvalidRequest) else (None, None)
    return {
        "type": type_of(type(error)),
        "message": error.message,
        "field": error.field_name,
        "index": error.index,
        "limit": figures[0],
        "given": figures[1],
    }


def type_of(kind: type[VectordError]) -> str:
    """The name of the class in errors.py, "model_not_found"; "internal_error" for what none of them is about."""
    if kind is MissingField:
        return "wrong_type"
    return "internal_error" if kind is VectordError else _word_ends.sub("_", kind.__name__).lower()
