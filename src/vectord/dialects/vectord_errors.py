"""How our own dialect says what went wrong: one object with the same keys for every error."""

from __future__ import annotations

from collections.abc import Mapping

from vectord.dialects.base import Rendered
from vectord.dialects.failures import headers_of, row_of
from vectord.dialects.vectors import dump_json
from vectord.errors import (
    EmptyInput,
    FingerprintMismatch,
    Forbidden,
    InferenceFailed,
    InputTooLong,
    InvalidField,
    InvalidRequest,
    MalformedBody,
    MethodNotAllowed,
    ModelCannot,
    ModelNotFound,
    NoSuchRoute,
    OutOfMemory,
    Overloaded,
    PayloadTooLarge,
    TooManyInputs,
    Unauthorized,
    Unavailable,
    UnsupportedMediaType,
    Untokenizable,
    VectordError,
    WrongType,
)

# Class -> status, type. 400 for what a request says, 413 for bytes alone, 429 for load alone, 503 for not ready.
ERRORS: Mapping[type[VectordError], tuple[int, str]] = {
    VectordError: (500, "internal_error"),
    InvalidRequest: (400, "invalid_request"),
    MalformedBody: (400, "malformed_body"),
    UnsupportedMediaType: (415, "unsupported_media_type"),
    PayloadTooLarge: (413, "payload_too_large"),
    InvalidField: (400, "invalid_field"),
    WrongType: (400, "wrong_type"),
    EmptyInput: (400, "empty_input"),
    TooManyInputs: (400, "too_many_inputs"),
    InputTooLong: (400, "input_too_long"),
    Untokenizable: (400, "untokenizable"),
    ModelNotFound: (404, "model_not_found"),
    ModelCannot: (400, "model_cannot"),
    FingerprintMismatch: (412, "fingerprint_mismatch"),
    Unauthorized: (401, "unauthorized"),
    Forbidden: (403, "forbidden"),
    NoSuchRoute: (404, "no_such_route"),
    MethodNotAllowed: (405, "method_not_allowed"),
    Overloaded: (429, "overloaded"),
    Unavailable: (503, "unavailable"),
    InferenceFailed: (500, "inference_failed"),
    OutOfMemory: (500, "out_of_memory"),
}


def render_error(error: VectordError) -> Rendered:
    """Every key is always there; null where it says nothing."""
    status, kind = row_of(ERRORS, error)
    figures = (error.limit, error.given) if isinstance(error, InvalidRequest) else (None, None)
    shown = {
        "type": kind,
        "message": error.message,
        "field": error.field,
        "index": error.index,
        "limit": figures[0],
        "given": figures[1],
    }
    return Rendered(body=dump_json({"error": shown}), status=status, headers=headers_of(error))
