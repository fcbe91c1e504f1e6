"""Ollama: requests and answers of its Go and Python clients."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from tests.products.results import embed_result, incoming, model_info, model_list

from vectord import __version__, errors
from vectord.errors import InvalidField, WrongType
from vectord.products.common.dialect import Incoming, Route
from vectord.products.ollama import DIALECT
from vectord.schema import EmbedRequest, ListModels, LoadModel, TextOptions

CUTS = TextOptions(truncate_by_default=True)
SERVED = (model_info("org/model"), model_info("qwen3:0.6b"), model_info("tagged:latest"))


def route(path: str, key: str = "") -> Route:
    (found,) = (route for route in DIALECT.routes if route.path == path and (not key or key in route.keys))
    return found


def parse(path: str, body: object, key: str = "") -> Any:
    sent = Incoming(body=incoming(body).body, models=SERVED)
    return route(path, key).parse(sent)


def get(path: str, result: object) -> Any:
    return json.loads(route(path).parse(Incoming()).render(result).body)


# --- requests -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dimensions", "kept"), [(383, 383), (384, 384), (385, None), (10**6, None)])
@pytest.mark.parametrize("names", [{}, {"model": SERVED[0].name}], ids=["no model", "a model"])
def test_more_dimensions_than_the_model_has_are_all(dimensions: int, kept: int | None, names: dict[str, str]):
    """As in Ollama."""
    assert parse("/api/embed", {"input": "a", "dimensions": dimensions, **names}).request.dimensions == kept


@pytest.mark.parametrize(
    ("body", "request_"),
    [
        pytest.param(
            {"model": "org/model", "input": "Why?"},
            EmbedRequest(inputs=["Why?"], model="org/model", text=CUTS),
            id="one text",
        ),
        pytest.param({"input": ["a", ""]}, EmbedRequest(inputs=["a", ""], text=CUTS), id="several, no model"),
        pytest.param(
            {
                "model": "org/model",
                "input": ["a"],
                "truncate": False,
                "dimensions": 64,
                "force_dimensions": True,
                "options": {"num_ctx": 128, "temperature": 0.8, "stop": ["x"]},
                "keep_alive": "5m",
            },
            EmbedRequest(
                inputs=["a"],
                model="org/model",
                text=TextOptions(truncate=False, truncate_by_default=True, max_tokens=128),
                dimensions=64,
                force_dimensions=True,
            ),
            id="every option",
        ),
        pytest.param(
            {"input": ["a"], "model": None, "truncate": None, "dimensions": 0, "options": None, "keep_alive": -1},
            EmbedRequest(inputs=["a"], text=CUTS),
            id="options that say nothing",
        ),
        pytest.param(
            {"input": ["a"], "options": {"num_ctx": 0}}, EmbedRequest(inputs=["a"], text=CUTS), id="num_ctx 0"
        ),
        pytest.param({"model": "org/model", "input": ""}, LoadModel(model="org/model"), id="the empty text"),
        pytest.param({"model": "org/model", "input": []}, LoadModel(model="org/model"), id="no texts"),
        pytest.param({"model": "org/model"}, LoadModel(model="org/model"), id="no input"),
        pytest.param({"input": None}, LoadModel(model="org/model"), id="null"),
    ],
)
def test_embed(body, request_):
    """Over-long texts are truncated by default. Without input the engine loads the model, and embeds nothing."""
    assert parse("/api/embed", body).request == request_


@pytest.mark.parametrize(
    ("body", "request_"),
    [
        pytest.param(
            {"model": "org/model", "prompt": "a", "options": {"num_ctx": 64}, "keep_alive": 5},
            EmbedRequest(
                inputs=["a"],
                model="org/model",
                text=TextOptions(truncate_by_default=True, max_tokens=64),
                normalize=False,
            ),
            id="prompt",
        ),
        pytest.param({"model": "org/model", "prompt": ""}, LoadModel(model="org/model"), id="the empty prompt"),
        pytest.param({"model": "org/model"}, LoadModel(model="org/model"), id="no prompt"),
    ],
)
def test_the_older_embeddings_route(body, request_):
    """One text, whose vector Ollama does not normalize there."""
    assert parse("/api/embeddings", body).request == request_


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        pytest.param("org/model", "org/model", id="as it is"),
        pytest.param("org/model:latest", "org/model", id="tagged by the client"),
        pytest.param("alias:latest", "alias", id="another name of a model"),
        pytest.param("qwen3:0.6b", "qwen3:0.6b", id="another tag"),
        pytest.param("tagged:latest", "tagged:latest", id="served with that tag"),
        pytest.param("unknown:7b", "unknown:7b", id="nobody's"),
        pytest.param(":latest", None, id="a tag alone"),
    ],
)
def test_an_appended_tag_is_dropped(name, asked):
    """Ollama's clients send "model:latest" for "model". A name served with the tag keeps it."""
    assert parse("/api/embed", {"model": name, "input": "a"}).request.model == asked


@pytest.mark.parametrize(
    ("key", "body"),
    [
        pytest.param("model", {"model": "org/model:latest"}, id="model"),
        pytest.param("model", {"model": "", "name": "org/model", "verbose": False, "options": None}, id="Go's older"),
        pytest.param("name", {"name": "org/model"}, id="Python's older"),
    ],
)
def test_show_takes_either_name(key, body):
    """Clients of three generations differ."""
    assert parse("/api/show", body, key).request == ListModels(model="org/model")


@pytest.mark.parametrize(
    ("path", "key", "body", "kind", "field"),
    [
        pytest.param("/api/show", "model", {"model": ""}, InvalidField, "model", id="show nothing"),
        pytest.param("/api/show", "name", {"name": ":latest"}, InvalidField, "model", id="show a tag"),
        pytest.param("/api/show", "model", {}, WrongType, "model", id="show, no name"),
        pytest.param("/api/embed", "", {"input": [1]}, WrongType, "input", id="ids"),
        pytest.param("/api/embed", "", {"input": "a", "dimensions": -1}, WrongType, "dimensions", id="negative width"),
        pytest.param(
            "/api/embed", "", {"input": "a", "options": {"num_ctx": 2**31}}, WrongType, "options.num_ctx", id="num_ctx"
        ),
        pytest.param("/api/embeddings", "", {"prompt": ["a"]}, WrongType, "prompt", id="several prompts"),
    ],
)
def test_invalid_bodies_are_rejected(path, key, body, kind, field):
    """The error names the field."""
    with pytest.raises(kind) as refused:
        parse(path, body, key)
    assert refused.value.field_name == field


# --- answers --------------------------------------------------------------------------------------------------


def test_embeddings():
    """Durations are whole nanoseconds; the count is of processed tokens."""
    assert parse("/api/embed", {"input": ["a", "b"]}).render(embed_result()).body.decode() == (
        '{"model":"served","embeddings":[[0.1,-0.2,0.33333334],[1e-45,3.4028235e+38,-0.0]],'
        '"total_duration":1234500000,"load_duration":0,"prompt_eval_count":7}'
    )


def test_no_input_has_no_embeddings():
    """Without counts, as in Ollama. The model is the requested one, or the first."""
    rendered = parse("/api/embed", {"input": []}).render(model_list("first", "second"))
    assert json.loads(rendered.body) == {"model": "first", "embeddings": []}


def test_the_older_answer():
    """One vector; an empty one for an empty prompt."""
    call = parse("/api/embeddings", {"prompt": "a"})
    assert call.render(embed_result()).body == b'{"embedding":[0.1,-0.2,0.33333334]}'
    assert parse("/api/embeddings", {"prompt": ""}).render(model_list()).body == b'{"embedding":[]}'


@pytest.mark.parametrize("body", [{"model": "org/model"}, {"name": "org/model:latest", "stream": False}], ids=str)
def test_pulling_a_served_model_succeeds(body: dict[str, object]) -> None:
    """As a model that Ollama has. The engine answers 404 for another."""
    call = parse("/api/pull", body)
    assert call.request == ListModels(model="org/model")
    assert json.loads(call.render(model_list("org/model")).body) == {"status": "success"}


DETAILS = {
    "parent_model": "",
    "format": "",
    "family": "bert",
    "families": ["bert"],
    "parameter_size": "",
    "quantization_level": "bfloat16",
    "context_length": 256,
    "embedding_length": 384,
}


def test_tags():
    """Every served model, with a tag in its name."""
    reranker = model_info("qwen3:0.6b", outputs=frozenset(), reranks=True)
    first, second = get("/api/tags", model_list("org/model", reranker))["models"]
    assert first == {
        "name": "org/model:latest",
        "model": "org/model:latest",
        "modified_at": "2023-11-14T22:13:20+00:00",
        "size": 0,
        "digest": "f00d",
        "details": DETAILS,
        "capabilities": ["embedding"],
    }
    assert (second["name"], second["capabilities"]) == ("qwen3:0.6b", [])


def test_the_listed_name_is_accepted():
    """Clients request names from the list."""
    for listed in get("/api/tags", model_list(*SERVED))["models"]:
        asked = parse("/api/embed", {"model": listed["model"], "input": "a"}).request.model
        assert asked in {info.name for info in SERVED}


def test_running_models_are_those_in_memory():
    """Loading and unloaded models are left out."""
    states = [model_info(state, state=state) for state in ("unloaded", "loading", "ready", "failed")]
    assert get("/api/ps", model_list(*states))["models"] == [
        {
            "name": "ready:latest",
            "model": "ready:latest",
            "size": 0,
            "size_vram": 0,
            "digest": "f00d",
            "details": DETAILS,
            "context_length": 256,
        }
    ]


def test_show():
    """Facts are under the architecture's name, where Ollama's clients look."""
    rendered = parse("/api/show", {"model": "org/model"}, "model").render(model_list("org/model"))
    assert json.loads(rendered.body) == {
        "details": DETAILS,
        "model_info": {"general.architecture": "bert", "bert.context_length": 256, "bert.embedding_length": 384},
        "capabilities": ["embedding"],
        "modified_at": "2023-11-14T22:13:20+00:00",
    }


def test_the_version_and_the_front_need_no_key():
    """Other routes do."""
    assert [route.path for route in DIALECT.routes if route.public] == ["/api/version", "/"]
    assert get("/api/version", model_list()) == {"version": __version__}
    front = route("/").parse(Incoming()).render(model_list())
    assert (front.body, front.content_type) == (b"Ollama is running", "text/plain; charset=utf-8")


@pytest.mark.parametrize(
    "route_",
    [pytest.param(route, id=f"{route.path} {min(route.keys, default='')}") for route in DIALECT.routes if route.answer],
)
def test_the_descriptions_of_answers_are_complete(route_):
    """OpenAPI shows the keys of every answer, and examples are accepted."""
    sent = incoming(route_.example) if route_.body else Incoming()
    call = route_.parse(sent)
    body = call.render(embed_result() if isinstance(call.request, EmbedRequest) else model_list()).body
    assert msgspec.to_builtins(msgspec.json.decode(body, type=route_.answer)) == json.loads(body)


# --- errors ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        pytest.param(
            errors.ModelNotFound("No such model is served here."),
            404,
            "model not found: No such model is served here.",
            id="unknown model",
        ),
        pytest.param(
            errors.InputTooLong("It has 9 tokens."),
            400,
            "the input length exceeds the context length: It has 9 tokens.",
            id="too long",
        ),
        pytest.param(
            errors.InvalidField("{field} is 1.", field="max_tokens"),
            400,
            "input after truncation exceeds maximum context length: `max_tokens` is 1.",
            id="no room for a token",
        ),
        pytest.param(errors.WrongType("`input` is required."), 400, "`input` is required.", id="body"),
        pytest.param(errors.Overloaded("Full.", retry_after_s=1), 503, "Full.", id="full queue"),
        pytest.param(errors.InferenceFailed("It failed."), 500, "It failed.", id="inference"),
    ],
)
def test_errors(error, status, text):
    """One string, which begins as clients expect, and Ollama's statuses."""
    rendered = DIALECT.render_error(error)
    assert (rendered.status, json.loads(rendered.body)) == (status, {"error": text})
