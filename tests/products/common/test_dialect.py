"""Routes decode bodies, and errors get the field names of the body that they are about."""

from __future__ import annotations

import pkgutil

import pytest
from tests.dialects import all_dialects

from vectord import products
from vectord.errors import ConfigError
from vectord.products.common.dialect import Dialect, load_dialects

# --- all products ---------------------------------------------------------------------------------------------

DIALECTS = all_dialects()


def test_a_dialect_has_the_name_of_its_module() -> None:
    """It is also the name in the configuration and in the URL prefix."""
    modules = [module.name for module in pkgutil.iter_modules(products.__path__) if module.name != "common"]
    assert [dialect.name for dialect in DIALECTS] == modules
    assert set(modules) == set(products.ORDER)


def test_dialects_are_loaded_in_the_given_order() -> None:
    """The order decides which product answers on a shared path."""
    assert [dialect.name for dialect in load_dialects(["vectord", "openai"])] == ["vectord", "openai"]


@pytest.mark.parametrize("name", ["opnai", "", "common", "..errors", "openai.ERRORS"])
def test_an_unknown_dialect_stops_the_start(name: str) -> None:
    """The error lists the names that exist. Modules that are not dialects, and paths, are unknown names."""
    with pytest.raises(ConfigError, match="openai, semantic_explorer"):
        load_dialects(["openai", name])


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_routes_are_distinct_and_selected_by_keys_of_their_bodies(dialect: Dialect) -> None:
    """A route with a body has keys of that body, and an example with the required ones. Other routes read no body."""
    routes = [(route.method, route.path, route.required, route.one_of) for route in dialect.routes]
    assert len(set(routes)) == len(routes)
    for route in dialect.routes:
        if route.method == "GET" or route.admin or route.answer is None:
            assert route.body is None
            continue
        assert route.body is not None
        assert route.required | route.one_of
        assert route.one_of <= route.known
        assert route.accepts(route.example.keys())
