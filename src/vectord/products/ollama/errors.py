"""How Ollama says what went wrong: one string, whose beginning its clients look for in two cases."""

from __future__ import annotations

from vectord import errors
from vectord.errors import InputTooLong, ModelNotFound, VectordError
from vectord.products.common.dialect import Rendered
from vectord.products.common.errors import STATUSES, Statuses, headers_of, row_of
from vectord.products.common.vectors import dump_json

ERRORS: Statuses = {**STATUSES, errors.Overloaded: 503, errors.RateLimited: 429}


def render_error(error: VectordError) -> Rendered:
    body = dump_json({"error": _text(error)})
    return Rendered(body=body, status=row_of(ERRORS, error), headers=headers_of(error))


def _text(error: VectordError) -> str:
    if isinstance(error, ModelNotFound):
        return f"model not found: {error.message}"
    if isinstance(error, InputTooLong):
        return f"the input length exceeds the context length: {error.message}"
    return error.message
