"""Every error a request can be answered with, one of each, by when it happens. openapi.py shows how they read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vectord.errors import (
    UNFORESEEN,
    EmptyInput,
    FingerprintMismatch,
    Forbidden,
    ForeignIds,
    InferenceFailed,
    InferenceTimedOut,
    InputTooLong,
    InvalidField,
    InvalidRequest,
    MalformedBody,
    MissingField,
    ModelCannot,
    ModelNotFound,
    NoSuchRoute,
    NotAcceptable,
    OutOfMemory,
    Overloaded,
    PayloadTooLarge,
    RateLimited,
    ShuttingDown,
    TimedOut,
    TooManyCharacters,
    TooManyInputs,
    Unauthorized,
    Unavailable,
    UnsupportedMediaType,
    Untokenizable,
    UploadTooSlow,
    VectordError,
    WrongType,
)
from vectord.server.http.routing import Choice, Endpoint

OF_A_KEY: Sequence[VectordError] = (Unauthorized("The key is not one of this server's."),)
OF_THE_ADMIN_KEY: Sequence[VectordError] = (
    Forbidden("This key may not load or unload models; that takes the admin key."),
    NoSuchRoute("Nothing is served at this path; /docs lists what is."),  # where there is no admin key
)
OF_A_BODY: Sequence[VectordError] = (
    MalformedBody("The request body is not valid JSON: it is empty."),
    PayloadTooLarge("The body is larger than 33554432 bytes."),
    UploadTooSlow("Less than 16384 bytes of the body came in 10 s."),
    UnsupportedMediaType("Bodies are read as JSON only; send Content-Type: application/json."),
)
OF_ITS_FIELDS: Sequence[VectordError] = (
    WrongType("`input` must be a string, strings or token ids.", field="input"),
    MissingField("{field} is required.", field="input"),
    InvalidField("`dimensions` must be at most 384; got 400.", field="dimensions", limit=384, given=400),
    InvalidRequest("The request cannot be answered."),
    EmptyInput("`input` cannot be empty.", field="input"),
    TooManyInputs("`input` has 3000 inputs; at most 2048 are taken.", field="input", limit=2048, given=3000),
    InputTooLong("Input 0 has 600 tokens; the model reads 512.", field="input", index=0, limit=512, given=600),
    TooManyCharacters("Input at index 0 exceeds max length 20000 chars", field="input", index=0, limit=20_000),
    ForeignIds("`input` holds ids that are not of the model's vocabulary.", field="input", index=0),
    Untokenizable("The model's tokenizer cannot read input 0.", field="input", index=0),
    ModelCannot("The model does not do what was asked of it."),
    FingerprintMismatch("The vectors belong to another space than the one expected.", field="expect_fingerprint"),
    Overloaded("The queue is full.", retry_after_s=2.0),
    OutOfMemory("The device has no room for this request."),
    TimedOut("The request was not finished by its deadline."),
    InferenceTimedOut("The model did not answer within 300 s."),
)
OF_A_FORM: Sequence[VectordError] = (NotAcceptable("Documents come as JSON or as application/octet-stream."),)
OF_ANY_REQUEST: Sequence[VectordError] = (
    ModelNotFound("No served model has that name."),
    InvalidField("The header x-vectord-lane must be interactive or bulk.", field="x-vectord-lane"),
    Unavailable("The model is not loaded yet."),
    RateLimited("Rate limit exceeded. Max 3600 requests per minute.", retry_after_s=1.0),
    ShuttingDown(),
    InferenceFailed("The model failed on this request."),
    VectordError(UNFORESEEN),
)


def errors_of(endpoint: Endpoint, choice: Choice, *, embeds: bool) -> Iterator[VectordError]:
    """What `choice` may have to say at `endpoint`. Until the body has been read its owner speaks.

    embeds: whether it answers with vectors, which have several forms.
    """
    reads = endpoint.method != "GET"
    if choice is endpoint.choices[0]:
        yield from () if endpoint.public else OF_A_KEY
        yield from OF_THE_ADMIN_KEY if endpoint.admin else ()
        yield from OF_A_BODY if reads else ()
    yield from OF_ITS_FIELDS if reads else ()
    yield from OF_A_FORM if embeds else ()
    yield from OF_ANY_REQUEST
