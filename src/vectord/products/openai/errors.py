"""How OpenAI says what went wrong, with the `detail` of Simple Inference Server, whose clients call the same routes."""

from __future__ import annotations

import math
from collections.abc import Mapping

from vectord import errors
from vectord.errors import Overloaded, Unavailable, VectordError
from vectord.products.common.dialect import Rendered
from vectord.products.common.errors import STATUSES, headers_of, retry_after_s, row_of
from vectord.products.common.vectors import dump_json

ERRORS = STATUSES

_INVALID = "invalid_request_error"

TYPES: Mapping[type[VectordError], str] = {
    errors.VectordError: "server_error",
    errors.InvalidRequest: _INVALID,
    errors.ModelNotFound: _INVALID,
    errors.ModelCannot: _INVALID,
    errors.FingerprintMismatch: _INVALID,
    errors.NoSuchRoute: _INVALID,
    errors.Unauthorized: "authentication_error",
    errors.Forbidden: "permission_error",
    errors.Overloaded: "rate_limit_error",
}
CODES: Mapping[type[VectordError], str | None] = {
    errors.VectordError: None,
    errors.InputTooLong: "context_length_exceeded",
    errors.TooManyCharacters: "string_above_max_length",
    errors.ForeignIds: "foreign_token_ids",
    errors.ModelNotFound: "model_not_found",
    errors.FingerprintMismatch: "fingerprint_mismatch",
    errors.Unauthorized: "invalid_api_key",
    errors.Overloaded: "rate_limit_exceeded",
}


def render_error(error: VectordError) -> Rendered:
    body = dump_json({"error": error_object(error), "detail": error.message})
    return Rendered(body=body, status=row_of(ERRORS, error), headers=_headers(error))


def error_object(error: VectordError) -> dict[str, str | None]:
    return {
        "message": error.message,
        "type": row_of(TYPES, error),
        "param": error.field_name,
        "code": row_of(CODES, error),
    }


def _headers(error: VectordError) -> dict[str, str]:
    headers = headers_of(error)
    if isinstance(error, Overloaded | Unavailable):  # the SDK waits this long, and reads it before Retry-After
        headers["retry-after-ms"] = str(math.ceil(retry_after_s(error) * 1000))
    return headers
