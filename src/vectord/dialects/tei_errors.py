"""How text-embeddings-inference says what went wrong: JSON from itself, plain text from its web framework."""

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

# Class -> status, TEI's name for the kind, text with {} for our message.
ERRORS: Mapping[type[VectordError], tuple[int, str, str]] = {
    VectordError: (500, "Backend", "{}"),
    InvalidRequest: (422, "Validation", "Input validation error: {}"),
    InvalidField: (422, "Validation", "Input validation error: {}"),
    EmptyInput: (400, "Empty", "{}"),
    TooManyInputs: (422, "Validation", "{}"),
    InputTooLong: (422, "Validation", "Input validation error: {}"),
    Untokenizable: (422, "Tokenizer", "tokenizer error {}"),
    ModelNotFound: (404, "Validation", "{}"),
    ModelCannot: (424, "Backend", "Backend error: {}"),
    FingerprintMismatch: (412, "Validation", "{}"),
    Forbidden: (403, "Validation", "{}"),
    NoSuchRoute: (404, "Validation", "{}"),
    MethodNotAllowed: (405, "Validation", "{}"),
    Overloaded: (429, "Overloaded", "Model is overloaded"),
    Unavailable: (503, "Unhealthy", "unhealthy"),
    InferenceFailed: (424, "Backend", "Backend error: {}"),
    OutOfMemory: (424, "Backend", "Backend error: {}"),
}

# What TEI's web framework refuses before TEI sees the request. No JSON: class -> status and the text's beginning.
TEXT_ERRORS: Mapping[type[VectordError], tuple[int, str]] = {
    MalformedBody: (400, "Failed to parse the request body as JSON: {}"),
    WrongType: (422, "Failed to deserialize the JSON body into the target type: {}"),
    UnsupportedMediaType: (415, "Expected request with `Content-Type: application/json`: {}"),
    PayloadTooLarge: (413, "Failed to buffer the request body: {}"),
}

BARE_STATUS: Mapping[type[VectordError], int] = {Unauthorized: 401}  # no body at all


def render_error(error: VectordError) -> Rendered:
    if early := _early(error):
        return early
    status, kind, text = row_of(ERRORS, error)
    shown = {"error": text.format(_message(error)), "error_type": kind}
    return Rendered(body=dump_json(shown), status=status, headers=headers_of(error))


def render_openai_error(error: VectordError) -> Rendered:
    """Flat, as TEI answers on its OpenAI routes."""
    if early := _early(error):
        return early
    status, kind, text = row_of(ERRORS, error)
    shown = {"message": text.format(_message(error)), "code": status, "type": kind}
    return Rendered(body=dump_json(shown), status=status, headers=headers_of(error))


def _early(error: VectordError) -> Rendered | None:
    for kind, status in BARE_STATUS.items():
        if isinstance(error, kind):
            return Rendered(body=b"", status=status, headers=headers_of(error))
    for kind, (status, text) in TEXT_ERRORS.items():
        if isinstance(error, kind):
            body = text.format(error.message).encode()
            return Rendered(body=body, status=status, content_type="text/plain; charset=utf-8")
    return None


def _message(error: VectordError) -> str:
    """TEI's own words for the limits its clients meet most, where the numbers are known."""
    if isinstance(error, InvalidField) and error.field == "dimensions" and error.limit is not None:
        return "`dimensions` should be smaller than the maximum embedding dimension."
    if isinstance(error, TooManyInputs | InputTooLong) and error.limit is not None and error.given is not None:
        if isinstance(error, TooManyInputs):
            return f"batch size {error.given} > maximum allowed batch size {error.limit}"
        return f"`{error.field or 'inputs'}` must have less than {error.limit} tokens. Given: {error.given}"
    return error.message
