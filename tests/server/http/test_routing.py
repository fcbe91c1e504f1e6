"""The endpoint for a method and a path."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any, get_args

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.dialects import all_dialects
from tests.server.fakes import dialect, route

from vectord.errors import InvalidField, MethodNotAllowed, NoSuchRoute
from vectord.products.common.dialect import Dialect, Incoming, Rendered
from vectord.products.common.errors import render_any
from vectord.products.common.fields import no_effect
from vectord.schema import Operation
from vectord.server.http.routing import Page, Table

CAT = dialect("cat", route("cat", "/say", keys=("meow", "purr"), also=("loud",)), route("cat", "/cat"))
DOG = dialect("dog", route("dog", "/say", keys=("woof",), also=("loud",)), route("dog", "/dogs/{name}", "GET"))
REAL = Table(all_dialects(), [], render_any)
OWL = dialect(
    "owl", route("owl", "/say", keys=("hoot", "purr"), also=("night",)), route("owl", "/owls/{name:path}", "GET")
)


def table(*dialects: Dialect, pages: Sequence[Page] = ()) -> Table:
    return Table(dialects, pages, render_any)


def speaker(body: object, *dialects: Dialect) -> str:
    endpoint = table(*dialects).find("POST", "/say").endpoint
    return endpoint.choose(json.dumps(body).encode()).dialect.name


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"woof": 1}, "dog"),
        ({"hoot": 1}, "owl"),
        ({"meow": 1}, "cat"),
        ({"purr": 1}, "cat"),
        ({"purr": 1, "loud": 1}, "cat"),
        ({"purr": 1, "night": 1}, "owl"),
        ({"purr": 1, "night": None}, "owl"),
        ({"loud": 1}, "cat"),
        ({"moo": 1}, "cat"),
        ({"deep": {"woof": 1}}, "cat"),
        (["woof"], "cat"),
        ({}, "cat"),
    ],
    ids=str,
)
def test_the_first_product_that_knows_every_key_answers(body: object, name: str) -> None:
    """If its required keys are at the top of the body; else the first, which reports what is missing."""
    assert speaker(body, CAT, DOG, OWL) == name


def test_the_profiles_order_selects_between_equal_keys() -> None:
    assert speaker({"purr": 1}, CAT, OWL) == "cat"
    assert speaker({"purr": 1}, OWL, CAT) == "owl"


@pytest.mark.parametrize(
    ("body", "name", "refused"),
    [
        ({"meow": 1, "night": 1}, "cat", "night"),
        ({"purr": 1, "loud": 1, "night": 1}, "cat", "night"),
        ({"night": 1, "woof": 1, "loud": 1}, "dog", "night"),
        ({"hoot": 1, "woof": 1}, "dog", "hoot"),
    ],
    ids=str,
)
def test_a_key_of_another_product_is_refused_by_name(body: dict[str, int], name: str, refused: str) -> None:
    """By the first product whose required keys are there, if no product knows all keys."""
    sent = json.dumps(body).encode()
    choice = table(CAT, DOG, OWL).find("POST", "/say").endpoint.choose(sent)
    assert choice.dialect.name == name
    with pytest.raises(InvalidField) as error:
        choice.route.parse(Incoming(body=sent))
    assert error.value.field_name == refused


@pytest.mark.parametrize("more", [{"moo": 1}, {"user": "x"}, {"night": None}], ids=str)
def test_a_key_that_changes_no_response_is_disregarded(more: dict[str, object]) -> None:
    """It belongs to no product on the path, has no effect in any of them, or is null."""

    class Body(msgspec.Struct):
        purr: Any
        user: Annotated[Any, no_effect("names the end user")] = None

    ant = dialect("ant", replace(route("ant", "/say"), body=Body, one_of=frozenset()))
    sent = json.dumps({"meow": 1, **more}).encode()
    choice = table(CAT, ant, OWL).find("POST", "/say").endpoint.choose(sent)
    assert choice.dialect.name == "cat"
    assert choice.route.parse(Incoming(body=sent)).request


@given(
    orders=st.permutations([CAT, DOG, OWL]),
    keys=st.sets(st.sampled_from(["meow", "purr", "woof", "hoot", "moo", "loud", "night"])),
)
def test_dropping_unreachable_routes_changes_no_result(orders: list[Dialect], keys: set[str]) -> None:
    """`loud` and `night` are no product's required keys."""
    claims = [(each, each.routes[0]) for each in orders]
    accepting = [(each, claim) for each, claim in claims if claim.one_of & keys]
    knowing = [each for each, claim in accepting if keys - {"moo"} <= claim.known]
    winner = next(iter(knowing or [each for each, _ in accepting]), orders[0])
    assert speaker(dict.fromkeys(keys, 1), *orders) == winner.name


@pytest.mark.parametrize(
    ("first", "second", "reachable"),
    [
        pytest.param({"keys": ["a"]}, {"keys": ["a"]}, False, id="equal"),
        pytest.param({"keys": ["a"]}, {"keys": ["a"], "also": ["b"]}, True, id="it knows more"),
        pytest.param({"keys": ["a"], "also": ["b"]}, {"keys": ["a"]}, False, id="it knows less"),
        pytest.param({"keys": ["a"], "also": ["b"]}, {"keys": ["a", "b"]}, True, id="it requires less"),
        pytest.param({"keys": ["a", "b"]}, {"keys": ["a"], "also": ["b"]}, False, id="it requires more"),
    ],
)
def test_only_selectable_routes_share_a_path(first: Any, second: Any, reachable: bool) -> None:
    """Otherwise the first product answers every body, and its keys are not read."""
    both = [dialect("a", route("a", "/say", **first)), dialect("b", route("b", "/say", **second))]
    assert len(table(*both).find("POST", "/say").endpoint.choices) == 1 + reachable


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000, b'{"a":' * 100_000], ids=lambda body: body[:6])
def test_a_body_without_keys_goes_to_the_owner(body: bytes) -> None:
    """However deep or broken it is."""
    assert table(CAT, DOG).find("POST", "/say").endpoint.choose(body).dialect.name == "cat"


def test_every_product_has_its_own_prefix() -> None:
    """Under /dialects/NAME no other product answers."""
    endpoint = table(CAT, DOG).find("POST", "/dialects/dog/say").endpoint
    assert endpoint.choose(b'{"meow": 1}').dialect.name == "dog"


@pytest.mark.parametrize("path", ["/cat", "/cat/"])
def test_a_trailing_slash_changes_nothing(path: str) -> None:
    """The same endpoint answers, without a redirect."""
    assert table(CAT).find("POST", path).endpoint.path == "/cat"


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("/dogs/rex", {"name": "rex"}),
        ("/owls/org/model", {"name": "org/model"}),
        ("/owls/line\nbreak", {"name": "line\nbreak"}),
        ("/dialects/owl/owls/a/b", {"name": "a/b"}),
    ],
)
def test_placeholders_match_segments(path: str, values: dict[str, str]) -> None:
    """{name} matches one segment, {name:path} the rest of the path."""
    assert table(DOG, OWL).find("GET", path).values == values


@pytest.mark.parametrize("path", ["/dogs/a/b", "/dogs", "/dogs/", "/owls/", "/nothing", "", "//", "/\x00"])
def test_an_unserved_path_has_an_error(path: str) -> None:
    """Partial matches do not count."""
    endpoint = table(DOG, OWL).find("GET", path).endpoint
    assert type(endpoint.error) is NoSuchRoute
    assert endpoint.path == ""


def test_a_wrong_method_lists_the_allowed_ones() -> None:
    """With HEAD wherever GET is."""
    error = table(DOG).find("POST", "/dogs/rex").endpoint.error
    assert isinstance(error, MethodNotAllowed)
    assert error.allowed == ("GET", "HEAD")


@pytest.mark.parametrize(
    ("method", "path", "template", "name"),
    [
        ("POST", "/m/org/x/load", "/m/{name:path}/load", "org/x"),
        ("POST", "/m/load/load", "/m/{name:path}/load", "load"),
        ("GET", "/m/org/x/load", "/m/{name:path}", "org/x/load"),
        ("HEAD", "/m/org/x/load", "/m/{name:path}", "org/x/load"),
    ],
)
def test_the_method_selects_between_templates(method: str, path: str, template: str, name: str) -> None:
    """A name with slashes may match a longer template."""
    ant = dialect("ant", route("ant", "/m/{name:path}", "GET"), route("ant", "/m/{name:path}/load"))
    found = table(ant).find(method, path)
    assert (found.endpoint.path, found.endpoint.error, found.values) == (template, None, {"name": name})


def test_a_product_may_have_two_routes_on_a_path() -> None:
    """Selected by keys; the first is the default."""
    twice = dialect("a", route("a", "/say", keys=("inputs",)), route("a", "/say", keys=("texts",)))
    endpoint = table(twice).find("POST", "/say").endpoint
    assert endpoint.choices[0] is endpoint.choose(b'{"inputs": 1}')
    assert endpoint.choices[0].route is endpoint.choose(b"{}").route
    assert endpoint.choices[1] is endpoint.choose(b'{"texts": 1}')


def test_head_is_served_by_get() -> None:
    """HEAD finds what GET would."""
    assert table(DOG).find("HEAD", "/dogs/rex").endpoint.error is None


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("/v1/nothing", {"dialect", "error", "message"}),
        ("/nothing", {"detail", "error", "error_type", "message"}),
        ("/vectord/nothing", {"dialect", "error", "message"}),
        ("/dialects/cat/nothing", {"dialect", "error", "message"}),
        ("/dialects/cow/nothing", {"detail", "error", "error_type", "message"}),
    ],
)
def test_an_unserved_path_has_the_error_form_of_its_prefix(path: str, shape: set[str]) -> None:
    """A declared prefix or /dialects/NAME; elsewhere the error has the keys of all products."""
    first = replace(dialect("bee", route("bee", "/v1/embed")), prefix="/v1/")
    second = replace(dialect("ant", route("ant", "/vectord/embed")), prefix="/vectord/")
    endpoint = table(first, second, CAT).find("GET", path).endpoint
    assert endpoint.error is not None
    assert set(json.loads(endpoint.render_error(endpoint.error).body)) == shape


def test_a_page_precedes_a_products_route() -> None:
    """GET / is the server's, and a product may still have POST /."""
    page = Page(path="/", show=lambda headers: Rendered(body=b"page"), summary="")
    both = table(dialect("a", route("a", "/", "GET"), route("a", "/")), pages=[page])
    assert both.find("GET", "/").endpoint.page is page
    assert both.find("POST", "/").endpoint.owner == "a"


@pytest.mark.parametrize("path", ["/api/say", "/api/say/", "/api/owls/a/b", "/say"])
def test_a_url_prefix_serves_every_path(path: str) -> None:
    """In addition to the paths without it."""
    prefixed = Table([CAT, OWL], (), render_any, "/api")
    method = "GET" if "owls" in path else "POST"
    assert prefixed.find(method, path).endpoint.error is None
    assert prefixed.find(method, path.replace("/api/", "/apis/")).endpoint.error is not None or path == "/say"


@pytest.mark.parametrize("path", ["/wild/say", "/wild/say/", "/api/wild/say"])
def test_an_alias_stands_for_a_products_prefix(path: str) -> None:
    """For the routes of every product below it, under the server's prefix, too."""
    owner = replace(dialect("owl", route("owl", "/zoo/owls")), prefix="/zoo/", aliases=("/wild/", "/in/the/wild/"))
    both = Table([owner, dialect("cat", route("cat", "/zoo/say"))], (), render_any, "/api")
    found = both.find("POST", path).endpoint
    assert (found.owner, found.path) == ("cat", "/zoo/say")
    assert both.find("POST", "/in/the/wild/owls").endpoint.owner == "owl"
    assert both.find("POST", "/wilder/say").endpoint.error is not None


def test_pages_are_served_under_every_products_prefix() -> None:
    """A client with the base URL /dialects/cat looks for /health there."""
    page = Page(path="/health", show=lambda headers: Rendered(body=b""), summary="")
    served = Table([CAT, DOG], [page], render_any)
    assert served.find("GET", "/dialects/cat/health/").endpoint.page is page
    assert served.find("GET", "/dialects/bird/health").endpoint.error is not None
    assert served.find("GET", "/dialects/cat/dogs/rex").endpoint.error is not None


def test_an_exact_path_precedes_the_prefix() -> None:
    both = Table([dialect("v", route("v", "/v1/say")), CAT], (), render_any, "/v1")
    assert both.find("POST", "/v1/say").endpoint.owner == "v"
    assert both.find("POST", "/v1/cat").endpoint.owner == "cat"


@pytest.mark.parametrize(
    ("path", "computes"),
    [
        ("/dialects/tei/embed", "embed"),
        ("/v1/rerank", "rerank"),
        ("/v1/retrieval/m/reranking", "rerank"),
        ("/dialects/tei/tokenize", None),
        ("/embed", None),  # embedding_server's requests wait for a place, TEI's do not
        ("/embeddings_image", "embed"),
    ],
)
def test_a_path_computes_if_all_its_routes_do(path: str, computes: str | None) -> None:
    """Else its requests are not refused before they are parsed."""
    assert REAL.find("POST", path).endpoint.computes == computes


def test_every_route_states_what_its_example_computes() -> None:
    """A busy engine refuses by this statement, before it reads a body."""
    for product in all_dialects():
        for each in product.routes:
            if each.example is None:
                continue
            path = dict.fromkeys(re.findall(r"\{(\w+)(?::path)?\}", each.path), "m")
            request: Any = each.parse(Incoming(body=orjson.dumps(each.example), path=path)).request
            request = getattr(request, "requests", [request])[0]
            operation = type(request).__name__.removesuffix("Request").lower()
            computes = operation in get_args(Operation) and not getattr(request, "waits", False)
            assert each.computes == (operation if computes else None), f"{product.name} {each.path}"
