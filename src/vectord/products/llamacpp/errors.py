"""How llama.cpp's server says what went wrong: a code, a message and a type; for over-long text its size, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vectord import errors
from vectord.errors import InputTooLong, ModelCannot, Unauthorized, VectordError
from vectord.products.common.dialect import Rendered
from vectord.products.common.errors import STATUSES, Statuses, headers_of, row_of
from vectord.products.common.vectors import dump_json

ERRORS: Statuses = {**STATUSES, errors.Overloaded: 503, errors.RateLimited: 429}

_KINDS: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "unavailable_error",
}


def render_error(error: VectordError) -> Rendered:
    status = row_of(ERRORS, error)
    shown: dict[str, Any] = {"code": status, "message": error.message, "type": _kind(error, status)}
    if isinstance(error, Unauthorized):
        shown["message"] = "Invalid API Key"
    if isinstance(error, InputTooLong) and error.limit is not None and error.given is not None:
        # Clients look for these words and numbers. Ours, which name the place, come behind them.
        shown["message"] = (
            f"request ({error.given} tokens) exceeds the available context size ({error.limit} tokens), "
            f"it is too large to process. {error.message}"
        )
        shown |= {"n_prompt_tokens": error.given, "n_ctx": error.limit}
    return Rendered(body=dump_json({"error": shown}), status=status, headers=headers_of(error))


def _kind(error: VectordError, status: int) -> str:
    if isinstance(error, InputTooLong):
        return "exceed_context_size_error"
    if isinstance(error, ModelCannot):  # llama.cpp's status for it is 501, which clients would retry: here it is 400
        return "not_supported_error"
    return _KINDS.get(status, "invalid_request_error")
