"""How vLLM says what went wrong: OpenAI's error object, with the status as its code."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from vectord.errors import InputTooLong, VectordError
from vectord.products.common.dialect import Rendered
from vectord.products.common.errors import STATUSES, Statuses, headers_of, row_of
from vectord.products.common.vectors import dump_json

ERRORS: Statuses = STATUSES

_TYPES: Mapping[int, str] = {400: "BadRequestError", 404: "NotFoundError", 500: "InternalServerError"}


def render_error(error: VectordError) -> Rendered:
    """Where vLLM has no class for a status, its type is the status in words."""
    status = row_of(ERRORS, error)
    kind = _TYPES.get(status, HTTPStatus(status).phrase)
    shown = {"message": _message(error), "type": kind, "param": error.field_name, "code": status}
    return Rendered(body=dump_json({"error": shown}), status=status, headers=headers_of(error))


def _message(error: VectordError) -> str:
    """Over-long text in the words by which LiteLLM and others know it, then in ours, which name the place."""
    if not isinstance(error, InputTooLong) or error.limit is None or error.given is None:
        return error.message
    return (
        f"This model's maximum context length is {error.limit} tokens. However, you requested {error.given} tokens in "
        f"the input. Please reduce the length of the input, or set `truncate_prompt_tokens`. {error.message}"
    )
