"""The folder is the registry of dialects."""

from __future__ import annotations

import msgspec
import pytest

from vectord.config import ServerConfig
from vectord.errors import ConfigError
from vectord.products.common.folder import dialect_names, load_dialects


def test_every_dialect_is_named_as_its_module():
    """A name in the configuration, a module and a URL prefix are one word."""
    names = dialect_names()
    assert set(names) == set(ServerConfig().dialects)
    assert [dialect.name for dialect in load_dialects(names)] == names


def test_dialects_come_in_the_order_asked_for():
    """The order decides who answers on a shared path."""
    assert [dialect.name for dialect in load_dialects(["tei", "openai"])] == ["tei", "openai"]


@pytest.mark.parametrize("name", ["opnai", "", "base", "folder", "..errors", "openai.ERRORS"])
def test_another_name_lists_what_there_is(name):
    """Neither a typing error, nor a module that is no dialect, nor a path out of the folder loads anything."""
    with pytest.raises(ConfigError, match="openai, semantic_explorer"):
        load_dialects([name])


@pytest.mark.parametrize("dialect", load_dialects(dialect_names()), ids=lambda dialect: dialect.name)
def test_no_route_stands_twice(dialect):
    """One method, path, and set of keys and signs, one route."""
    routes = [(route.method, route.path, route.keys, route.signs) for route in dialect.routes]
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
    """What reads a body shows it in OpenAPI, has keys of it to be told by, and an example that has one of them; what
    changes the server, or only says that something is not served, reads none."""
    if route.method == "GET" or route.admin or route.answer is None:
        assert route.body is None
        return
    names = {field.encode_name for field in msgspec.structs.fields(route.body)}
    assert route.keys
    assert route.keys <= names
    assert not route.keys.isdisjoint(route.example)
