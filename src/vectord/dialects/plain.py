"""How an error reads that came before any dialect was chosen, on a path outside /v1: every shape's keys at once."""

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

# Class -> status and TEI's name for the kind, since most paths outside /v1 are TEI's.
ERRORS: Mapping[type[VectordError], tuple[int, str]] = {
    VectordError: (500, "Backend"),
    InvalidRequest: (422, "Validation"),
    MalformedBody: (400, "Validation"),
    UnsupportedMediaType: (415, "Validation"),
    PayloadTooLarge: (413, "Validation"),
    InvalidField: (422, "Validation"),
    WrongType: (422, "Validation"),
    EmptyInput: (400, "Empty"),
    TooManyInputs: (422, "Validation"),
    InputTooLong: (422, "Validation"),
    Untokenizable: (422, "Tokenizer"),
    ModelNotFound: (404, "Validation"),
    ModelCannot: (400, "Backend"),
    FingerprintMismatch: (412, "Validation"),
    Unauthorized: (401, "Validation"),
    Forbidden: (403, "Validation"),
    NoSuchRoute: (404, "Validation"),
    MethodNotAllowed: (405, "Validation"),
    Overloaded: (429, "Overloaded"),
    Unavailable: (503, "Unhealthy"),
    InferenceFailed: (500, "Backend"),
    OutOfMemory: (500, "Backend"),
}


def render_error(error: VectordError) -> Rendered:
    """`detail`, `error` and `message` all hold the message: whichever key the client reads, it is there."""
    status, kind = row_of(ERRORS, error)
    message = error.message
    shown = {"detail": message, "error": message, "error_type": kind, "message": message}
    return Rendered(body=dump_json(shown), status=status, headers=headers_of(error))
