"""Every domain error has a rendering in every dialect, and no parse lets anything else out."""

from __future__ import annotations

import json
import re
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.products.results import incoming, model_info

from vectord import products as dialects
from vectord.errors import (
    InferenceFailed,
    MethodNotAllowed,
    Overloaded,
    StartError,
    TimedOut,
    Unavailable,
    VectordError,
)
from vectord.products.common.dialect import Call, Incoming, Route, dialect_names, load_dialects
from vectord.products.common.errors import UNPROCESSABLE, Statuses, render_any

DIALECTS = load_dialects(dialect_names())
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


def table_of(dialect: str) -> Statuses:
    """The `ERRORS` of a product, from whichever of its modules defines it."""
    name = f"{dialects.__name__}.{dialect}"
    package = import_module(name)
    inner = [f"{name}.{file}" for file in ("errors", "routes") if hasattr(package, "__path__")]
    modules = [package, *(import_module(file) for file in inner if find_spec(file))]
    table: Statuses = next(module.ERRORS for module in modules if hasattr(module, "ERRORS"))
    return table


KINDS = sorted(subclasses(VectordError), key=lambda kind: kind.__name__)
CLIENTS_OWN = [
    kind
    for kind in KINDS
    if kind is not VectordError
    and not issubclass(kind, (InferenceFailed, Overloaded, StartError, TimedOut, Unavailable))
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("renderer", RENDERERS)
def test_every_error_has_an_answer(renderer, kind):
    """4xx or 5xx, and JSON objects but where TEI has plain text or nothing."""
    rendered = RENDERERS[renderer](instance(kind))
    assert 400 <= rendered.status < 600
    if rendered.content_type == "application/json" and rendered.body:
        assert isinstance(json.loads(rendered.body), dict)
    else:
        assert renderer.startswith("tei")


@pytest.mark.parametrize("dialect", ["plain", *dialect_names()])
def test_the_tables_are_whole(dialect):
    """Whoever adds an error decides what each dialect says; errors of the start never meet a client."""
    table = UNPROCESSABLE if dialect == "plain" else table_of(dialect)
    assert set(table) == subclasses(VectordError) - subclasses(StartError)


@pytest.mark.parametrize("kind", CLIENTS_OWN, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("renderer", RENDERERS)
def test_what_will_fail_again_is_never_retried(renderer, kind):
    """SDKs retry 408, 409, 429 and 5xx: a client's own fault is none of these, in any dialect."""
    assert RENDERERS[renderer](instance(kind)).status not in RETRIED


@pytest.mark.parametrize("renderer", RENDERERS)
def test_what_http_asks_for_stands_in_the_headers(renderer):
    """Allow beside 405; of a refusal for now, which clients do retry, Retry-After."""
    wrong_method = RENDERERS[renderer](instance(MethodNotAllowed))
    assert (wrong_method.status, wrong_method.headers["allow"]) == (405, "GET, POST")
    busy = RENDERERS[renderer](instance(Overloaded))
    assert busy.status in (429, 503)
    assert busy.headers["retry-after"] == "2"


def test_the_plain_shape_has_everyones_keys():
    """Before a dialect is chosen the message is under each key that some client reads."""
    rendered = render_any(VectordError(MESSAGE))
    assert json.loads(rendered.body) == {
        "detail": MESSAGE,
        "error": MESSAGE,
        "error_type": "Backend",
        "message": MESSAGE,
    }


MARK = "zq"  # in every string a client sends below, and in none of our words
# Several paths may have one parse: it is asked once.
PARSES = {
    (dialect.name, route.parse): (dialect, route) for dialect in DIALECTS for route in dialect.routes if route.body
}
POSTS = [pytest.param(dialect, route, id=f"{dialect.name} {route.path}") for dialect, route in PARSES.values()]


def keys_of(route: Route) -> list[str]:
    """Every key that the route's body may have, at any depth."""
    _, components = msgspec.json.schema_components([route.body])
    return sorted({key for component in components.values() for key in component.get("properties", {})})


def bodies(route: Route) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with the keys that choose the route, some of its others, and any JSON behind them."""
    keys = st.sampled_from(keys_of(route))
    marked = st.text(max_size=4).map(lambda text: MARK + text)
    values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | marked,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
        max_leaves=10,
    )
    chosen = st.fixed_dictionaries(dict.fromkeys(sorted(route.keys), values))
    return st.builds(lambda options, asked: options | asked, st.dictionaries(keys, values, max_size=3), chosen)


@pytest.mark.parametrize(("dialect", "route"), POSTS)
def test_any_json_is_a_request_or_a_domain_error(dialect, route):
    """No parse raises anything but domain errors; none of them holds a client's string, and none is retried."""
    render_error = route.render_error or dialect.render_error
    path = dict.fromkeys(re.findall(r"\{(\w+)", route.path), "a")

    @settings(max_examples=100, deadline=None)
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
