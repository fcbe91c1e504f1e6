"""Routes decode bodies, and errors get the field names of the body that they are about."""

from __future__ import annotations

import pkgutil
from typing import Annotated, Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.dialects import all_dialects
from tests.products.results import embed_result, incoming, model_list

from vectord import products
from vectord.errors import ConfigError, InvalidField, MissingField, ModelNotFound
from vectord.products.common.dialect import Call, Dialect, Incoming, Rendered, Routes, load_dialects
from vectord.products.common.fields import no_effect
from vectord.schema import EmbedRequest, EmbedResult, ListModels, ModelList, Result


class Body(msgspec.Struct):
    input: list[str]
    width: int | None = None


def no_answer(result: Result) -> Rendered:
    raise AssertionError("no result is rendered here")


def declared() -> Routes:
    """A product with one POST on two paths, and one GET."""
    routes = Routes()

    @routes.post(
        "/embed",
        "/v1/embed",
        answer=list[float],
        summary="Embed",
        example={"input": ["a"]},
        names={"inputs": "input", "dimensions": "width"},
    )
    def embed(body: Body, incoming: Incoming) -> Call:
        if not body.input:
            raise InvalidField("{field} is empty, with {body.dimensions}.", field="inputs")
        names = {"dimensions": "size"} if len(body.input) > 1 else {}
        return Call(EmbedRequest(inputs=body.input, dimensions=body.width), no_answer, names)

    @routes.get("/models", "/models/{model:path}", summary="List models", public=True)
    def models(result: ModelList) -> Rendered:
        return Rendered(body=b"models")

    return routes


def test_a_declaration_makes_one_route_for_each_path() -> None:
    """In order, with the body's type and the keys that select the route."""
    routes = list(declared())
    assert [(route.method, route.path) for route in routes] == [
        ("POST", "/embed"),
        ("POST", "/v1/embed"),
        ("GET", "/models"),
        ("GET", "/models/{model:path}"),
    ]
    assert (routes[0].body, routes[0].required, routes[2].public) == (Body, {"input"}, True)


def test_a_body_has_the_required_fields_and_one_of_the_given_keys() -> None:
    """Its type states the required ones. Fields without effect are known, too."""

    class Reranking(msgspec.Struct):
        query: str
        texts: list[str] | None = None
        documents: list[str] | None = None
        user: Annotated[Any, no_effect("names the end user")] = None

    def rerank(body: Reranking, incoming: Incoming) -> Call:
        raise AssertionError("no body is parsed here")

    rerank.__annotations__["body"] = Reranking  # local, so its name cannot be looked up
    routes = Routes()
    routes.post("/rerank", answer=None, summary="Rerank", example={}, one_of=["texts", "documents"])(rerank)
    (route,) = routes
    assert (route.required, route.effective) == ({"query"}, {"query", "texts", "documents"})
    assert route.known == route.effective | {"user"}
    bodies = ({"query", "texts"}, {"query", "documents", "more"}, {"query"}, {"texts"})
    assert [route.accepts(keys) for keys in bodies] == [True, True, False, False]


def test_a_parser_receives_the_decoded_body() -> None:
    """A missing field is reported before the parser runs."""
    route = next(iter(declared()))
    assert route.parse(incoming({"input": ["a"], "width": 3})).request == EmbedRequest(inputs=["a"], dimensions=3)
    with pytest.raises(MissingField) as caught:
        route.parse(incoming({"width": 3}))
    assert caught.value.message == "`input` is required."


def test_errors_of_a_parser_have_the_names_of_its_route() -> None:
    """Also the other fields that the message mentions."""
    with pytest.raises(InvalidField) as caught:
        next(iter(declared())).parse(incoming({"input": []}))
    assert (caught.value.field_name, caught.value.message) == ("input", "`input` is empty, with `width`.")


def test_names_of_a_call_take_precedence_over_those_of_its_route() -> None:
    """For names that depend on the body."""
    call = next(iter(declared())).parse(incoming({"input": ["a", "b"]}))
    assert call.names == {"inputs": "input", "dimensions": "size"}


def test_a_get_renders_all_models_or_the_one_in_its_path() -> None:
    """The engine raises ModelNotFound for a name that is not served."""
    *_, every, one = declared()
    assert every.parse(Incoming()).request == ListModels()
    call = one.parse(Incoming(path={"model": "org/m"}))
    assert call.request == ListModels(model="org/m")
    assert call.answered(model_list()).body == b"models"


def test_an_engine_error_has_the_names_of_the_body() -> None:
    """The class and the numbers stay, and the original error is unchanged: other requests may share it."""
    error = InvalidField("{field} must be at most {limit}; got {given}.", field="dimensions", limit=8, given=9)
    named = Call(ListModels(), no_answer, names={"dimensions": "output_dimension"}).named(error)
    assert isinstance(named, InvalidField)
    assert (named.field_name, named.message) == ("output_dimension", "`output_dimension` must be at most 8; got 9.")
    assert (named.limit, named.given) == (8, 9)
    assert (error.field_name, error.message[:12]) == ("dimensions", "`dimensions`")


def test_an_error_without_a_field_is_unchanged() -> None:
    """Names apply to fields only."""
    call = Call(ListModels(), no_answer, names={"inputs": "input"})
    assert call.named(ModelNotFound("There is no model of this name.")).message == "There is no model of this name."


def test_an_error_in_one_part_has_the_names_of_that_part() -> None:
    """Errors of the whole body have the body's names."""
    call = Call(ListModels(), no_answer, {"requests": "pairs"}, lambda part: {"inputs": f"pairs[{part}].text"})
    error = InvalidField("{field} is wrong", field="inputs").at(part=2)
    assert (call.named(error).field_name, call.named(error).message) == ("pairs[2].text", "`pairs[2].text` is wrong")
    assert call.named(InvalidField("{field}", field="requests")).field_name == "pairs"


def test_errors_of_single_inputs_are_named_in_the_answer() -> None:
    """The engine's result is unchanged: the cache and other requests may share it."""
    rendered: list[Result] = []

    def render(result: Result) -> Rendered:
        rendered.append(result)
        return Rendered(body=b"")

    failures = {1: InvalidField("{field}", field="inputs", index=1)}
    Call(ListModels(), render, {"inputs": "input"}).answered(replace(embed_result(), failures=failures))
    (result,) = rendered
    assert isinstance(result, EmbedResult)
    assert (result.failures[1].field_name, result.failures[1].message) == ("input", "`input[1]`")
    assert failures[1].field_name == "inputs"


def test_errors_of_a_renderer_have_the_names_of_the_body() -> None:
    """Some faults are known only once there is a result."""

    def render(result: Result) -> Rendered:
        raise InvalidField("{field} is wrong", field="dimensions")

    with pytest.raises(InvalidField) as caught:
        Call(ListModels(), render, {"dimensions": "width"}).answered(embed_result())
    assert caught.value.message == "`width` is wrong"


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
