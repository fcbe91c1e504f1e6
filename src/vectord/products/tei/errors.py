"""TEI's errors: JSON from TEI itself, plain text from its web framework. gRPC uses the same sentences."""

from __future__ import annotations

from collections.abc import Mapping

from vectord import errors
from vectord.errors import InputTooLong, InvalidField, TooManyCharacters, TooManyInputs, Unauthorized, VectordError
from vectord.products.common.dialect import Rendered
from vectord.products.common.errors import TEI_ERROR_TYPES, UNPROCESSABLE, Statuses, error_response, row_of

ERRORS: Statuses = {**UNPROCESSABLE, errors.ModelCannot: 424, errors.InferenceFailed: 424}

# TEI's sentence; {} is our message.
SENTENCES: Mapping[type[VectordError], str] = {
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
    errors.ModelFailed: "{}",
}

# TEI's web framework refuses these before TEI reads the request, in plain text that begins so.
PLAIN_TEXTS: Mapping[type[VectordError], str] = {
    errors.MalformedBody: "Failed to parse the request body as JSON: ",
    errors.WrongType: "Failed to deserialize the JSON body into the target type: ",
    errors.UnsupportedMediaType: "Expected request with `Content-Type: application/json`: ",
    errors.PayloadTooLarge: "Failed to buffer the request body: ",
}


def render_error(error: VectordError) -> Rendered:
    shown = {"error": sentence_of(error), "error_type": row_of(TEI_ERROR_TYPES, error)}
    return _from_framework(error) or error_response(error, shown, ERRORS)


def render_openai_error(error: VectordError) -> Rendered:
    """TEI's flat form on its OpenAI routes."""
    shown = {
        "message": sentence_of(error),
        "code": row_of(ERRORS, error),
        "type": row_of(TEI_ERROR_TYPES, error),
    }
    return _from_framework(error) or error_response(error, shown, ERRORS)


def _from_framework(error: VectordError) -> Rendered | None:
    if isinstance(error, Unauthorized):
        return Rendered(body=b"", status=401, headers={"www-authenticate": "Bearer"})
    for kind, beginning in PLAIN_TEXTS.items():
        if isinstance(error, kind):
            body = (beginning + error.message).encode()
            return Rendered(body=body, status=row_of(ERRORS, error), content_type="text/plain; charset=utf-8")
    return None


def sentence_of(error: VectordError) -> str:
    """The whole sentence: TEI's own if it has one for this error."""
    return row_of(SENTENCES, error).format(_own_sentence(error) or error.message)


def _own_sentence(error: VectordError) -> str | None:
    if isinstance(error, InvalidField) and error.field == "prompt_name":
        prompts = error.values.get("prompts")  # of the model, separated by commas; None: it has none
        if prompts is None:
            return "`prompt_name` is set but no prompts were found in the Sentence Transformers configuration"
        names = ", ".join(f'"{name}"' for name in str(prompts).split(", "))
        return f"`prompt_name` was not found in the Sentence Transformers prompts. Available prompts: [{names}]"
    if error.limit is None:
        return None
    if isinstance(error, InvalidField) and error.field == "dimensions":
        return "`dimensions` should be smaller than the maximum embedding dimension."
    if isinstance(error, TooManyInputs) and error.given is not None:
        return f"batch size {error.given} > maximum allowed batch size {error.limit}"
    if isinstance(error, InputTooLong) and error.given is not None:
        unit = "characters" if isinstance(error, TooManyCharacters) else "tokens"
        return f"`{error.field_name or 'inputs'}` must have less than {error.limit} {unit}. Given: {error.given}"
    return None
