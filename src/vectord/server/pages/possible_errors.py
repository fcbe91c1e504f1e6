"""The errors of each endpoint, for the API's description. openapi.py renders them as their product does.

Each example has the message that clients get: it comes from the code that raises it, or from parsing an invalid body.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import orjson

from vectord import errors
from vectord.config import ServerConfig
from vectord.errors import (
    UNFORESEEN,
    Forbidden,
    NoSuchRoute,
    NotAcceptable,
    Overloaded,
    ShuttingDown,
    Unauthorized,
    Unavailable,
    UnsupportedMediaType,
    VectordError,
)
from vectord.products.common.dialect import Incoming, Rate, Route
from vectord.server.admission.buckets import Draw
from vectord.server.admission.gate import LANE, caller_of
from vectord.server.admission.keys import KEY_NOT_ADMIN, KEY_UNKNOWN, NO_SUCH_PATH, NOT_THE_ADMIN_KEY
from vectord.server.admission.rate_limit import rate_limited
from vectord.server.http.hardening.body import NOT_JSON, too_slow
from vectord.server.http.hardening.decompression import too_large
from vectord.server.http.negotiation import UNKNOWN_DTYPE
from vectord.server.http.routing import Choice, Endpoint

EXAMPLE_RATE = Rate(3600, period_s=60, burst=60)

# Errors of the engine, whose messages depend on the model: their statuses are listed without examples.
ANY_REQUEST: Sequence[VectordError] = (errors.ModelNotFound(""), Unavailable(""), errors.ModelFailed(""))
REQUEST_WITH_BODY: Sequence[VectordError] = (
    *(
        kind("")
        for kind in (
            errors.InvalidRequest,
            errors.InvalidField,
            errors.EmptyInput,
            errors.TooManyInputs,
            errors.InputTooLong,
            errors.TooManyCharacters,
            errors.ForeignIds,
            errors.Untokenizable,
            errors.ModelCannot,
            errors.FingerprintMismatch,
            errors.TimedOut,
            errors.InferenceFailed,
            errors.OutOfMemory,
            errors.InferenceTimedOut,
        )
    ),
    Overloaded("", retry_after_s=1.0),
    errors.QueueTimedOut("", retry_after_s=1.0),
)


def engine_errors(endpoint: Endpoint) -> Sequence[VectordError]:
    return ANY_REQUEST if endpoint.method == "GET" else (*ANY_REQUEST, *REQUEST_WITH_BODY)


def example_errors(endpoint: Endpoint, choice: Choice, *, embeds: bool) -> Iterator[VectordError]:
    """The errors of `choice` at `endpoint`. Errors before a product is selected belong to the endpoint's owner.

    embeds: whether it returns vectors, which have several forms.
    """
    reads = endpoint.method != "GET"
    if choice is endpoint.choices[0]:
        if not endpoint.public:
            yield Unauthorized(NOT_THE_ADMIN_KEY if endpoint.admin else KEY_UNKNOWN)
        if endpoint.admin:
            yield Forbidden(KEY_NOT_ADMIN)
            yield NoSuchRoute(NO_SUCH_PATH)  # if no admin key is configured
        if reads:
            yield too_large(ServerConfig().payload_limit)
            yield too_slow()
            yield UnsupportedMediaType(NOT_JSON)
    if reads:
        yield from _parse_errors(choice.route)
    if embeds:
        yield NotAcceptable(UNKNOWN_DTYPE, field="accept")
    yield from _raised_by(lambda: caller_of({LANE: ""}, ""))
    if not endpoint.public:
        yield rate_limited(Draw(EXAMPLE_RATE, ""), retry_after_s=1.0)
    yield ShuttingDown()
    if not reads or _reaches_the_engine(choice.route):
        yield VectordError(UNFORESEEN)


def invalid_bodies(route: Route) -> Iterator[bytes]:
    """No JSON, no fields, and the example with one invalid field each."""
    yield b""
    yield b"{}"
    for key in route.example or {}:
        yield orjson.dumps({**route.example, key: []})
        yield orjson.dumps({**route.example, key: {}})


def _parse_errors(route: Route) -> Iterable[VectordError]:
    """One error of each class."""
    found: dict[type[VectordError], VectordError] = {}
    for body in invalid_bodies(route):
        for error in _raised_by(partial(route.parse, _incoming(route, body))):
            found.setdefault(type(error), error)
    return found.values()


def _reaches_the_engine(route: Route) -> bool:
    """False for a route that refuses every body, such as one for images."""
    return not list(_raised_by(partial(route.parse, _incoming(route, orjson.dumps(route.example)))))


def _incoming(route: Route, body: bytes) -> Incoming:
    return Incoming(body=body, path=dict.fromkeys(re.findall(r"\{(\w+)", route.path), "m"))


def _raised_by(work: Callable[[], object]) -> Iterator[VectordError]:
    try:
        work()
    except VectordError as error:
        yield error
