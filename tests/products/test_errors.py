"""Every product renders every error."""

from __future__ import annotations

import json

from tests.dialects import all_dialects

from vectord.checkpoints.pulling import PullFailed
from vectord.errors import (
    InferenceFailed,
    MethodNotAllowed,
    Overloaded,
    StartError,
    TimedOut,
    Unauthorized,
    Unavailable,
    VectordError,
)
from vectord.products.common.errors import render_any

DIALECTS = all_dialects()
RENDERERS = {
    "plain": render_any,
    **{dialect.name: dialect.render_error for dialect in DIALECTS},
    **{
        f"{dialect.name} {route.path}": route.render_error
        for dialect in DIALECTS
        for route in dialect.routes
        if route.render_error is not None
    },
}
MESSAGE = "What went wrong."
RETRIED = {408, 409, 429, *range(500, 600)}  # by SDKs


def subclasses(kind: type[VectordError]) -> set[type[VectordError]]:
    return {kind}.union(*(subclasses(child) for child in kind.__subclasses__()))


def instance(kind: type[VectordError]) -> VectordError:
    if issubclass(kind, MethodNotAllowed):
        return kind(MESSAGE, allowed=("GET", "POST"))
    if issubclass(kind, Overloaded):
        return kind(MESSAGE, retry_after_s=2.0)
    if issubclass(kind, PullFailed):
        return kind(MESSAGE, failure=MESSAGE)
    return kind(MESSAGE)


KINDS = sorted(subclasses(VectordError), key=lambda kind: kind.__name__)
REPEATABLE = (InferenceFailed, Overloaded, StartError, TimedOut, Unavailable)  # a retry may succeed


def test_every_error_has_a_response():
    """Its status is 4xx or 5xx, and its body a JSON object. TEI has plain text, or no body, for some."""
    for renderer, render in RENDERERS.items():
        for kind in KINDS:
            rendered = render(instance(kind))
            assert 400 <= rendered.status < 600, renderer
            if rendered.content_type == "application/json" and rendered.body:
                assert isinstance(json.loads(rendered.body), dict), renderer
            else:
                assert renderer.startswith("tei"), renderer


def test_an_error_that_would_repeat_is_not_retried():
    """SDKs retry 408, 409, 429 and 5xx."""
    for render in RENDERERS.values():
        for kind in KINDS:
            if kind is not VectordError and not issubclass(kind, REPEATABLE):
                assert render(instance(kind)).status not in RETRIED, kind


def test_an_error_has_the_headers_that_http_requires():
    """RFC 9110: Allow with 405, WWW-Authenticate with 401, Retry-After if a retry helps."""
    for renderer, render in RENDERERS.items():
        assert render(instance(Unauthorized)).headers == {"www-authenticate": "Bearer"}, renderer
        wrong_method = render(instance(MethodNotAllowed))
        assert (wrong_method.status, wrong_method.headers["allow"]) == (405, "GET, POST"), renderer
        busy = render(instance(Overloaded))
        assert busy.status in (429, 503), renderer
        assert busy.headers["retry-after"] == "2", renderer
