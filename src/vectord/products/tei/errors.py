"""How text-embeddings-inference says what went wrong: JSON from itself, plain text from its web framework."""

from __future__ import annotations

from collections.abc import Mapping

from vectord import errors
from vectord.errors import InputTooLong, InvalidField, TooManyCharacters, TooManyInputs, Unauthorized, VectordError
from vectord.products.common.dialect import Rendered
from vectord.products.common.errors import TEI_ERROR_TYPES, UNPROCESSABLE, headers_of, row_of
from vectord.products.common.vectors import dump_json

# Those of errors before any dialect is chosen are TEI's already.
ERRORS: Mapping[type[VectordError], int] = {
    **UNPROCESSABLE,
    errors.ModelCannot: 424,
    errors.InferenceFailed: 424,
    errors.OutOfMemory: 424,
}

# What stands around our message, {}.
TEXTS: Mapping[type[VectordError], str] = {
    errors.VectordError: "{}",
    errors.InvalidRequest: "Input validation error: {}",
    errors.NotAcceptable: "{}",
    errors.EmptyInput: "{}",
    errors.TooManyInputs: "{}",
    errors.Untokenizable: "tokenizer error {}",
    errors.ModelCannot: "Backend error: {}",
    errors.InferenceFailed: "Backend error: {}",
    errors.Overloaded: "Model is overloaded",
    errors.RateLimited: "{}",
    errors.Unavailable: "unhealthy",
}

# What TEI's web framework refuses before TEI sees the request: no JSON, and these words before our message.
PLAIN_TEXTS: Mapping[type[VectordError], str] = {
    errors.MalformedBody: "Failed to parse the request body as JSON: ",
    errors.WrongType: "Failed to deserialize the JSON body into the target type: ",
    errors.UnsupportedMediaType: "Expected request with `Content-Type: application/json`: ",
    errors.PayloadTooLarge: "Failed to buffer the request body: ",
}


def render_error(error: VectordError) -> Rendered:
    shown = {"error": text_of(error), "error_type": row_of(TEI_ERROR_TYPES, error)}
    return _early(error) or _json(error, shown)


def render_openai_error(error: VectordError) -> Rendered:
    """Flat, as TEI answers on its OpenAI routes."""
    shown = {"message": text_of(error), "code": row_of(ERRORS, error), "type": row_of(TEI_ERROR_TYPES, error)}
    return _early(error) or _json(error, shown)


def text_of(error: VectordError) -> str:
    """The whole message, in TEI's words where it has some."""
    return row_of(TEXTS, error).format(_message(error))


def _json(error: VectordError, shown: Mapping[str, object]) -> Rendered:
    return Rendered(body=dump_json(shown), status=row_of(ERRORS, error), headers=headers_of(error))


def _early(error: VectordError) -> Rendered | None:
    if isinstance(error, Unauthorized):  # the status says it all
        return Rendered(body=b"", status=row_of(ERRORS, error), headers=headers_of(error))
    for kind, beginning in PLAIN_TEXTS.items():
        if isinstance(error, kind):
            body = (beginning + error.message).encode()
            return Rendered(body=body, status=row_of(ERRORS, error), content_type="text/plain; charset=utf-8")
    return None


def _message(error: VectordError) -> str:
    """TEI's own words for the limits its clients meet most, where the numbers are known."""
    if isinstance(error, InvalidField) and error.field == "dimensions" and error.limit is not None:
        return "`dimensions` should be smaller than the maximum embedding dimension."
    if isinstance(error, TooManyInputs | InputTooLong) and error.limit is not None and error.given is not None:
        if isinstance(error, TooManyInputs):
            return f"batch size {error.given} > maximum allowed batch size {error.limit}"
        unit = "characters" if isinstance(error, TooManyCharacters) else "tokens"
        return f"`{error.field_name or 'inputs'}` must have less than {error.limit} {unit}. Given: {error.given}"
    return error.message
