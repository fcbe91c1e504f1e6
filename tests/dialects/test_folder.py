"""The folder is the registry of dialects."""

from __future__ import annotations

import msgspec
import pytest

from vectord.dialects.folder import dialect_names, load_dialects
from vectord.errors import ConfigError


def test_every_dialect_is_named_as_its_module():
    """A name in the configuration, a module and a URL prefix are one word."""
    names = dialect_names()
    assert {"openai", "tei", "vectord"} <= set(names)
    assert [dialect.name for dialect in load_dialects(names)] == names


def test_dialects_come_in_the_order_asked_for():
    """The order decides who answers on a shared path."""
    assert [dialect.name for dialect in load_dialects(["tei", "openai"])] == ["tei", "openai"]


@pytest.mark.parametrize("name", ["opnai", "", "base", "folder", "..errors", "openai.ERRORS"])
def test_another_name_lists_what_there_is(name):
    """Neither a typing error, nor a module that is no dialect, nor a path out of the folder loads anything."""
    with pytest.raises(ConfigError, match="openai, tei, vectord"):
        load_dialects([name])


@pytest.mark.parametrize("dialect", load_dialects(dialect_names()), ids=lambda dialect: dialect.name)
def test_no_route_stands_twice(dialect):
    """One method, path and telling key, one route."""
    routes = [(route.method, route.path, key) for route in dialect.routes for key in route.keys or {None}]
    assert len(set(routes)) == len(routes)


@pytest.mark.parametrize(
    "route",
    [
        pytest.param(route, id=f"{dialect.name} {route.method} {route.path}")
        for dialect in load_dialects(dialect_names())
        for route in dialect.routes
    ],
)
def test_a_route_tells_itself_by_keys_its_body_has(route):
    """What reads a body shows it in OpenAPI and has a key to be told by, which is required; what changes the server
    reads none."""
    if route.method == "GET" or route.admin:
        assert route.body is None and not route.keys
        return
    required = {field.name for field in msgspec.structs.fields(route.body) if field.required}
    assert route.keys
    assert route.keys <= required
