"""The folder is the registry of dialects."""

from __future__ import annotations

import msgspec
import pytest

from vectord.dialects.folder import dialect_names, load_dialects
from vectord.errors import ConfigError


def test_every_dialect_is_named_as_its_module():
    """A name in the configuration, a module and a URL prefix are one word."""
    names = dialect_names()
    assert {"openai", "tei"} <= set(names)
    assert [dialect.name for dialect in load_dialects(names)] == names


def test_dialects_come_in_the_order_asked_for():
    """The order decides who answers on a shared path."""
    assert [dialect.name for dialect in load_dialects(["tei", "openai"])] == ["tei", "openai"]


@pytest.mark.parametrize("name", ["opnai", "", "base", "folder", "..errors", "openai.ERRORS"])
def test_another_name_lists_what_there_is(name):
    """Neither a typing error, nor a module that is no dialect, nor a path out of the folder loads anything."""
    with pytest.raises(ConfigError, match="openai, tei"):
        load_dialects([name])


@pytest.mark.parametrize("dialect", load_dialects(dialect_names()), ids=lambda dialect: dialect.name)
def test_no_route_stands_twice(dialect):
    """One method and path, one route."""
    routes = [(route.method, route.path) for route in dialect.routes]
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
    """Every POST has a body for OpenAPI, a key to be told by, and that key is required."""
    if route.method == "GET":
        assert route.body is None
        return
    required = {field.name for field in msgspec.structs.fields(route.body) if field.required}
    assert route.keys
    assert route.keys <= required
