"""llama.cpp's errors: a code, a message and a type, and for over-long text its size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vectord import errors
from vectord.errors import InputTooLong, ModelCannot, Unauthorized, VectordError
from vectord.products.common.dialect import Rendered
from vectord.products.common.errors import STATUSES, Statuses, error_response, row_of

ERRORS: Statuses = {**STATUSES, errors.Overloaded: 503, errors.QueueTimedOut: 503, errors.RateLimited: 429}

_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "unavailable_error",
}


def render_error(error: VectordError) -> Rendered:
    status = row_of(ERRORS, error)
    kind = _TYPES.get(status, "invalid_request_error")
    shown: dict[str, Any] = {"code": status, "message": error.message, "type": kind}
    if isinstance(error, Unauthorized):
        shown["message"] = "Invalid API Key"
    if isinstance(error, ModelCannot):  # its status in llama.cpp is 501, which clients would retry
        shown["type"] = "not_supported_error"
    if isinstance(error, InputTooLong):
        shown["type"] = "exceed_context_size_error"
        if error.limit is not None and error.given is not None:
            # Clients look for this sentence and its numbers. Ours follows, because it names the place.
            shown["message"] = (
                f"request ({error.given} tokens) exceeds the available context size ({error.limit} tokens), "
                f"it is too large to process. {error.message}"
            )
            shown |= {"n_prompt_tokens": error.given, "n_ctx": error.limit}
    return error_response(error, {"error": shown}, ERRORS)
