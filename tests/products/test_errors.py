"""Every product renders every error, and its parsers raise no other exceptions."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.dialects import all_dialects
from tests.products.results import incoming, model_info

from vectord.errors import (
    InferenceFailed,
    MethodNotAllowed,
    Overloaded,
    StartError,
    TimedOut,
    Unavailable,
    VectordError,
)
from vectord.products.common.dialect import Call, Incoming, Route
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
    """Allow with 405, and Retry-After if a retry helps."""
    for renderer, render in RENDERERS.items():
        wrong_method = render(instance(MethodNotAllowed))
        assert (wrong_method.status, wrong_method.headers["allow"]) == (405, "GET, POST"), renderer
        busy = render(instance(Overloaded))
        assert busy.status in (429, 503), renderer
        assert busy.headers["retry-after"] == "2", renderer


MARK = "zq"  # in every string of the bodies, and in none of our messages
# One route of each parser.
PARSES = {
    (dialect.name, route.parse): (dialect, route) for dialect in DIALECTS for route in dialect.routes if route.body
}
POSTS = [pytest.param(dialect, route, id=f"{dialect.name} {route.path}") for dialect, route in PARSES.values()]


def keys_of(route: Route) -> list[str]:
    """Every key that the route's body may have, at any depth."""
    _, components = msgspec.json.schema_components([route.body])
    return sorted({key for component in components.values() for key in component.get("properties", {})})


def bodies(route: Route) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with the keys that select the route and some of its others, with any JSON as values."""
    keys = st.sampled_from(keys_of(route))
    marked = st.text(max_size=4).map(lambda text: MARK + text)
    values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | marked,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
        max_leaves=10,
    )
    chosen = st.fixed_dictionaries(dict.fromkeys(sorted(route.required | route.one_of), values))
    return st.builds(lambda options, selecting: options | selecting, st.dictionaries(keys, values, max_size=3), chosen)


@pytest.mark.parametrize(("dialect", "route"), POSTS)
def test_any_json_is_a_request_or_a_client_error(dialect, route):
    """No parser raises another exception. The response repeats no string of the body, and is not retried."""
    render_error = route.render_error or dialect.render_error
    path = dict.fromkeys(re.findall(r"\{(\w+)", route.path), "a")

    @settings(max_examples=50, deadline=None)
    @given(bodies(route))
    def check(body):
        try:
            call = route.parse(Incoming(body=incoming(body).body, path=path, models=[model_info()]))
            assert isinstance(call, Call)
        except VectordError as error:
            rendered = render_error(error)
            assert 400 <= rendered.status < 500
            assert rendered.status not in RETRIED
            assert MARK.encode() not in rendered.body

    check()
