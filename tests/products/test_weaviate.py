"""Weaviate's text2vec-transformers and reranker-transformers: the bodies and keys of its Go client."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from tests.products.results import embed_result, incoming, model_info, model_list, rerank_result

from vectord import errors
from vectord.errors import MissingField, WrongType
from vectord.products.common.dialect import Incoming, Route
from vectord.products.weaviate import DIALECT
from vectord.schema import EmbedRequest, ListModels, TextOptions

CUTS = TextOptions(truncate_by_default=True)
RERANKER = model_info("ranks", outputs=frozenset(), reranks=True)


def route(path: str, key: str = "") -> Route:
    (found,) = (route for route in DIALECT.routes if route.path == path and (not key or key in route.keys))
    return found


def parse(key: str, body: object) -> Any:
    return route("/vectors", key).parse(incoming(body))


def get(path: str, result: object) -> Any:
    call = route(path).parse(Incoming())
    assert call.request == ListModels()
    return call.render(result)


# --- vectors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "body", "request_"),
    [
        pytest.param(
            "text",
            {
                "text": "a",
                "dims": 0,
                "vector": None,
                "error": "",
                "config": {"pooling_strategy": "masked_mean", "task_type": "query", "dimensions": 128},
            },
            EmbedRequest(
                inputs=["a"],
                text=TextOptions(truncate_by_default=True, kind="query"),
                dimensions=128,
            ),
            id="Weaviate's",
        ),
        pytest.param("text", {"text": "a"}, EmbedRequest(inputs=["a"], text=CUTS), id="curl's"),
        pytest.param(
            "text",
            {"text": "a", "config": {"pooling_strategy": None, "task_type": "", "dimensions": None}},
            EmbedRequest(inputs=["a"], text=CUTS),
            id="a config of nulls",
        ),
        pytest.param(
            "texts",
            {"texts": ["a", "b"], "config": {"task_type": "passage"}},
            EmbedRequest(inputs=["a", "b"], text=TextOptions(truncate_by_default=True, kind="document")),
            id="a batch",
        ),
    ],
)
def test_a_body_is_read(key, body, request_):
    """The task selects the model's prompt. The client's pooling is ignored."""
    assert parse(key, body).request == request_


@pytest.mark.parametrize(
    ("key", "body", "field"),
    [
        pytest.param("text", {"text": ["a"]}, "text", id="a list as text"),
        pytest.param("texts", {"texts": "a"}, "texts", id="a text as list"),
        pytest.param("text", {"text": "a", "config": {"dimensions": -1}}, "config.dimensions", id="negative width"),
    ],
)
def test_an_invalid_field_is_named(key, body, field):
    """The error has its path."""
    with pytest.raises(WrongType) as refused:
        parse(key, body)
    assert refused.value.field == field


def test_one_text_has_one_vector():
    """With the text. Weaviate reads `dims`; the container has `dim`."""
    rendered = parse("text", {"text": "a"}).render(embed_result(embed_result().dense["float"][:1]))
    assert rendered.body == b'{"text":"a","vector":[0.1,-0.2,0.33333334],"dim":3,"dims":3}'


def test_several_texts_have_their_vectors_in_order():
    """One for each text."""
    rendered = parse("texts", {"texts": ["a", "b"]}).render(embed_result())
    assert rendered.body == b'{"vectors":[[0.1,-0.2,0.33333334],[1e-45,3.4028235e+38,-0.0]],"dims":3}'


@pytest.mark.parametrize("key", ["text", "texts"])
def test_an_answer_fits_its_schema(key):
    """OpenAPI shows the type. The example is accepted."""
    route_ = route("/vectors", key)
    result = embed_result(embed_result().dense["float"][:1])
    body = route_.parse(incoming(route_.example)).render(result).body
    assert msgspec.to_builtins(msgspec.json.decode(body, type=route_.answer)) == json.loads(body)


# --- rerank ---------------------------------------------------------------------------------------------------


def test_scores_are_in_the_order_of_the_documents() -> None:
    call = route("/rerank").parse(incoming({"query": "q", "documents": ["a", "b"], "property": ""}))
    assert (call.request.query, call.request.passages, call.request.raw) == ("q", ["a", "b"], False)
    assert json.loads(call.render(rerank_result(0.25, 0.5)).body) == {
        "query": "q",
        "scores": [{"document": "a", "score": 0.25}, {"document": "b", "score": 0.5}],
    }


def test_a_body_without_documents_is_refused() -> None:
    with pytest.raises(MissingField) as refused:
        route("/rerank").parse(incoming({"query": "q"}))
    assert refused.value.message == "`documents` is required."


def test_a_property_is_scored_alone() -> None:
    """The body of older versions."""
    call = route("/rerank").parse(incoming({"query": "q", "property": "a"}))
    assert call.request.passages == ["a"]
    assert json.loads(call.render(rerank_result(0.25)).body) == {"query": "q", "property": "a", "score": 0.25}


# --- the model ------------------------------------------------------------------------------------------------


def test_meta_shows_the_model_that_embeds():
    """The first that makes dense vectors; requests use it."""
    assert json.loads(get("/meta", model_list(RERANKER, "embeds")).body) == {
        "model": {
            "model_name": "embeds",
            "model_type": "bert",
            "pooling": "mean",
            "dimensions": 384,
            "max_input_tokens": 256,
        },
        "model_path": "org/model",
    }


def test_meta_is_empty_without_a_model_that_embeds():
    """Weaviate accepts objects only."""
    assert get("/meta", model_list(RERANKER)).body == b"{}"


@pytest.mark.parametrize(
    ("models", "status"),
    [
        pytest.param([model_info(state="ready")], 204, id="ready"),
        pytest.param([model_info(state="unloaded")], 204, id="loads on its next use"),
        pytest.param([model_info(state="loading")], 204, id="its first use loads it"),
        pytest.param([model_info(state="failed")], 503, id="failed"),
        pytest.param([model_info(state="failed"), model_info("second")], 204, id="another one answers"),
        pytest.param([model_info(state="stalled"), model_info("second")], 503, id="another is not used"),
        pytest.param([RERANKER, model_info("second")], 204, id="not the first served"),
        pytest.param([RERANKER], 503, id="none that embeds"),
    ],
)
def test_the_server_is_ready_if_a_text_would_be_answered(models, status):
    """Weaviate waits for this when it starts."""
    rendered = get("/.well-known/ready", model_list(*models))
    assert rendered.status == status
    assert rendered.body == (b"" if status == 204 else b'{"error":"No model that embeds is ready."}')


def test_the_server_is_not_ready_while_it_starts():
    """Requests would be rejected."""
    loading = model_list(model_info(state="loading"), starting=True)
    assert get("/.well-known/ready", loading).status == 503


def test_the_server_is_live_in_every_state():
    """The status is 204, like the container's."""
    rendered = get("/.well-known/live", model_list(model_info(state="failed")))
    assert (rendered.status, rendered.body) == (204, b"")


def test_only_the_probes_are_public():
    """They reveal only whether a model answers."""
    assert [route.path for route in DIALECT.routes if route.public] == ["/.well-known/live", "/.well-known/ready"]


def test_an_error_has_the_key_that_weaviate_shows():
    """The statuses are those of most products."""
    rendered = DIALECT.render_error(errors.InputTooLong("It has 9 tokens."))
    assert (rendered.status, json.loads(rendered.body)) == (400, {"error": "It has 9 tokens."})
