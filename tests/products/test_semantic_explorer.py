"""Semantic Explorer: the routes of its document and of its source."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from tests.products.results import embed_result, incoming, model_info, model_list, rerank_result, usage

from vectord import errors
from vectord.errors import InvalidField, WrongType
from vectord.products.common.dialect import Incoming, Route
from vectord.products.semantic_explorer import DIALECT
from vectord.schema import EmbedRequest, ListModels, RerankRequest, TextOptions

READ = TextOptions(truncate_by_default=True)
SHOWN_VECTORS = "[[0.1,-0.2,0.33333334],[1e-45,3.4028235e+38,-0.0]]"
RERANKER = model_info("ranks", outputs=frozenset(), dimensions=0, reranks=True)


def route(path: str) -> Route:
    (found,) = (route for route in DIALECT.routes if route.path == path)
    return found


def parse(path: str, body: object) -> Any:
    return route(path).parse(incoming(body))


def get(path: str, result: object) -> Any:
    return json.loads(route(path).parse(Incoming()).render(result).body)


# --- requests -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "request_"),
    [
        pytest.param(
            "/embed",
            {"input": ["hello world", "semantic search"], "model": "m"},
            EmbedRequest(inputs=["hello world", "semantic search"], model="m", text=READ),
            id="the document's",
        ),
        pytest.param("/embed", {"input": "a"}, EmbedRequest(inputs=["a"], text=READ), id="one text"),
        pytest.param(
            "/embed", {"input": "a", "model": None, "x": 1}, EmbedRequest(inputs=["a"], text=READ), id="null, unknown"
        ),
        pytest.param("/embed", {"input": "a", "model": ""}, EmbedRequest(inputs=["a"], text=READ), id="no name"),
        pytest.param(
            "/api/embed",
            {"text": "a", "model": "m"},
            EmbedRequest(inputs=["a"], model="m", text=READ),
            id="the source's",
        ),
        pytest.param(
            "/api/embed/batch",
            {"texts": ["a", "b"], "model": "m"},
            EmbedRequest(inputs=["a", "b"], model="m", text=READ),
            id="the source's batch",
        ),
        pytest.param("/api/embed/batch", {"texts": [], "model": "m"}, ListModels(model="m"), id="no texts, no work"),
        pytest.param("/embed", {"input": [], "model": "m"}, ListModels(model="m"), id="no input, no work"),
        pytest.param("/embed", {"input": ""}, EmbedRequest(inputs=[""], text=READ), id="an empty text is one"),
        pytest.param("/rerank", {"query": "q", "documents": []}, ListModels(), id="nothing to rank, no work"),
        pytest.param("/api/rerank", {"query": "q", "documents": []}, ListModels(), id="no documents, no work"),
        pytest.param(
            "/rerank",
            {"query": "q", "documents": ["a", {"text": "b", "title": "x"}], "model": "m", "top_n": 2},
            RerankRequest(query="q", passages=["a", "b"], model="m", text=READ, raw=False),
            id="rerank",
        ),
        pytest.param(
            "/api/rerank",
            {"query": "q", "documents": [{"text": "a", "id": "i"}, {"text": "b", "id": None}], "top_k": 1},
            RerankRequest(query="q", passages=["a", "b"], text=READ, raw=False),
            id="the source's rerank",
        ),
    ],
)
def test_bodies(path, body, request_):
    """Long texts are truncated, and scores are probabilities."""
    assert parse(path, body).request == request_


@pytest.mark.parametrize(
    ("path", "body", "kind", "field"),
    [
        pytest.param("/embed", {"model": "m"}, WrongType, "input", id="no input"),
        pytest.param("/embed", {"input": [1, 2]}, WrongType, "input", id="ids"),
        pytest.param("/rerank", {"query": "q", "documents": [1]}, WrongType, "documents", id="a number to rank"),
        pytest.param("/rerank", {"documents": ["a"]}, WrongType, "query", id="no query"),
        pytest.param("/rerank", {"query": "q", "documents": ["a"], "top_n": -1}, WrongType, "top_n", id="negative"),
        pytest.param(
            "/rerank",
            {"query": "q", "documents": ["a"], "return_documents": "yes"},
            InvalidField,
            "return_documents",
            id="neither true nor false",
        ),
        pytest.param("/api/rerank", {"query": "q", "documents": [7]}, WrongType, "documents", id="a number"),
        pytest.param(
            "/api/rerank",
            {"query": "q", "documents": [{"text": "a", "id": 7}]},
            WrongType,
            "documents",
            id="a number id",
        ),
    ],
)
def test_invalid_bodies_are_rejected(path, body, kind, field):
    """The error names the field."""
    with pytest.raises(kind) as refused:
        parse(path, body)
    assert refused.value.field_name == field


@pytest.mark.parametrize("route_", [route for route in DIALECT.routes if route.body], ids=lambda route: route.path)
def test_examples_are_accepted(route_):
    """Those of the documentation."""
    assert not isinstance(route_.parse(incoming(route_.example)).request, ListModels)


# --- vectors --------------------------------------------------------------------------------------------------


def test_the_documents_embeddings():
    """Embeddings, model and usage, with the truncated inputs."""
    rendered = parse("/embed", {"input": ["a", "b"]}).render(embed_result())
    assert rendered.body.decode() == (
        f'{{"embeddings":{SHOWN_VECTORS},"model":"served",'
        '"usage":{"prompt_tokens":7,"total_tokens":7,"truncated_inputs":[1]}}'
    )


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param("/api/embed", {"text": "a"}, id="one"),
        pytest.param("/api/embed/batch", {"texts": ["a", "b"]}, id="batch"),
    ],
)
def test_the_sources_embeddings_are_counted(path, body):
    """With their number and width."""
    rendered = parse(path, body).render(embed_result())
    assert rendered.body.decode() == (f'{{"embeddings":{SHOWN_VECTORS},"model":"served","count":2,"dimensions":3}}')


@pytest.mark.parametrize(
    ("path", "body", "figures"),
    [
        pytest.param("/embed", {"input": []}, {"usage": {"prompt_tokens": 0, "total_tokens": 0}}, id="document"),
        pytest.param("/api/embed/batch", {"texts": []}, {"count": 0, "dimensions": 0}, id="source"),
    ],
)
def test_no_texts_have_no_embeddings(path, body, figures):
    """200, as in the source. The model is the requested one, or the first that embeds."""
    rendered = parse(path, body).render(model_list(RERANKER, "first", "second"))
    assert rendered.status == 200
    assert json.loads(rendered.body) == {"embeddings": [], "model": "first", **figures}
    msgspec.json.decode(rendered.body, type=route(path).answer)


# --- scores ---------------------------------------------------------------------------------------------------


def test_the_documents_ranking():
    """The best `top_n` with index, score and text, and the keys of other products on this path."""
    body = {"query": "q", "documents": ["a", "b", "c"], "top_n": 2}
    shown = json.loads(parse("/rerank", body).render(rerank_result(0.25, 0.125, 0.5)).body)
    assert shown.pop("id").startswith("rerank-")
    assert shown == {
        "object": "rerank",
        "results": [
            {"index": 2, "relevance_score": 0.5, "score": 0.5, "text": "c"},
            {"index": 0, "relevance_score": 0.25, "score": 0.25, "text": "a"},
        ],
        "model": "served",
        "usage": {"prompt_tokens": 27, "total_tokens": 27},
        "meta": {"api_version": {"version": "1"}, "billed_units": {"search_units": 1}},
    }


@pytest.mark.parametrize("top_n", [None, 0, 3, 2**31 - 1])
def test_top_n_limits_the_results(top_n):
    """A number above the number of documents returns all."""
    call = parse("/rerank", {"query": "q", "documents": ["a", "b", "c"], "top_n": top_n})
    shown = json.loads(call.render(rerank_result(0.25, 0.125, 0.5)).body)
    assert [result["text"] for result in shown["results"]] == ["c", "a", "b"]


@pytest.mark.parametrize(("asked", "shown"), [(True, True), ("true", True), (False, False), (None, False)])
def test_documents_are_returned_on_request(asked, shown):
    """In addition to the text, which is always there."""
    call = parse("/rerank", {"query": "q", "documents": ["a"], "return_documents": asked})
    (result,) = json.loads(call.render(rerank_result(0.5)).body)["results"]
    assert result.get("document") == ({"text": "a"} if shown else None)
    assert result["text"] == "a"


@pytest.mark.parametrize(
    ("options", "results"),
    [
        pytest.param(
            {},
            [{"index": 1, "text": "b", "score": 0.5}, {"index": 0, "text": "a", "id": "i", "score": 0.25}],
            id="with scores",
        ),
        pytest.param({"top_k": 1}, [{"index": 1, "text": "b", "score": 0.5}], id="the best"),
        pytest.param(
            {"top_k": 0, "return_scores": False},
            [{"index": 1, "text": "b"}, {"index": 0, "text": "a", "id": "i"}],
            id="0 is all",
        ),
        pytest.param(
            {"return_scores": False},
            [{"index": 1, "text": "b"}, {"index": 0, "text": "a", "id": "i"}],
            id="without scores",
        ),
    ],
)
def test_the_sources_ranking(options, results):
    """A document's id is returned, also an empty one."""
    body = {"query": "q", "documents": [{"text": "a", "id": "i"}, {"text": "b"}], **options}
    rendered = parse("/api/rerank", body).render(rerank_result(0.25, 0.5))
    assert json.loads(rendered.body) == {"results": results, "model": "served"}


def test_documents_may_be_strings():
    """As the clients of other APIs send them; they read `relevance_score`."""
    rendered = parse("/api/rerank", {"query": "q", "documents": ["a", "b"]}).render(rerank_result(0.25, 0.5))
    assert json.loads(rendered.body)["results"] == [
        {"index": 1, "text": "b", "relevance_score": 0.5, "score": 0.5},
        {"index": 0, "text": "a", "relevance_score": 0.25, "score": 0.25},
    ]


def test_no_documents_have_no_results():
    """As in the source."""
    rendered = parse("/api/rerank", {"query": "q", "documents": [], "model": "m"}).render(model_list("m"))
    assert json.loads(rendered.body) == {"results": [], "model": "m"}
    rendered = parse("/rerank", {"query": "q", "documents": []}).render(model_list("m", RERANKER))
    shown = msgspec.json.decode(rendered.body, type=route("/rerank").answer)
    assert (shown.results, shown.model, shown.usage.total_tokens) == ([], "ranks", 0)


# --- models ---------------------------------------------------------------------------------------------------


def test_the_documents_models():
    """By purpose, with the list that other products have on this path."""
    shown = get("/models", model_list("embeds", RERANKER))
    assert (shown["embedding_models"], shown["reranking_models"]) == (["embeds"], ["ranks"])
    assert [item["id"] for item in shown["data"]] == ["embeds", "ranks"]


def test_models_are_described_by_kind():
    """The source's two lists. A reranker has no width."""
    models = model_list("embeds", RERANKER)
    assert get("/api/embedders", models) == [
        {
            "id": "embeds",
            "name": "embeds",
            "description": "A bert model that reads 256 tokens",
            "model_type": "embedding",
            "dimensions": 384,
        }
    ]
    assert get("/api/rerankers", models) == [
        {
            "id": "ranks",
            "name": "ranks",
            "description": "A bert model that reads 256 tokens",
            "model_type": "reranker",
        }
    ]


@pytest.mark.parametrize(
    ("state", "ready"),
    [("ready", True), ("unloaded", True), ("loading", True), ("failed", False), ("stalled", False)],
)
def test_the_status_lists_ready_kinds(state, ready):
    """An unloaded model counts as ready. The whole is ready if a model embeds."""
    embeds = model_info("embeds", state=state)
    assert get("/health/status", model_list(embeds)) == {
        "status": "ok" if ready else "not_ready",
        "embedding_ready": ready,
        "reranker_ready": False,
    }
    ranks = model_info("ranks", outputs=frozenset(), reranks=True, state=state)
    assert get("/health/status", model_list(ranks)) == {
        "status": "not_ready",
        "embedding_ready": False,
        "reranker_ready": ready,
    }


def test_no_kind_is_ready_while_the_server_starts():
    """Even if one model is loaded."""
    assert get("/health/status", model_list("embeds", RERANKER, starting=True)) == {
        "status": "not_ready",
        "embedding_ready": False,
        "reranker_ready": False,
    }


def test_only_the_status_is_public():
    """Every other route needs the key, if there is one."""
    assert [route.path for route in DIALECT.routes if route.public] == ["/health/status"]


RESULTS = {
    "/embed": embed_result(),
    "/rerank": rerank_result(0.25, 0.5),
    "/models": model_list(),
    "/api/embed": embed_result(),
    "/api/embed/batch": embed_result(used=usage([(3, 3)])),
    "/api/rerank": rerank_result(0.25, 0.5),
    "/api/embedders": model_list(),
    "/api/rerankers": model_list(RERANKER),
    "/health/status": model_list(),
}


@pytest.mark.parametrize("route_", DIALECT.routes, ids=lambda route: route.path)
def test_the_descriptions_of_answers_are_complete(route_):
    """OpenAPI shows the keys of every answer, and no other."""
    sent = incoming(route_.example) if route_.body else Incoming()
    body = route_.parse(sent).render(RESULTS[route_.path]).body
    assert msgspec.to_builtins(msgspec.json.decode(body, type=route_.answer)) == json.loads(body)


# --- errors ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "status", "code", "beginning"),
    [
        pytest.param(errors.VectordError, 500, "INTERNAL_ERROR", "Internal error", id="bug"),
        pytest.param(errors.InvalidField, 400, "BAD_REQUEST", "Bad request", id="field"),
        pytest.param(errors.EmptyInput, 400, "BAD_REQUEST", "Bad request", id="empty"),
        pytest.param(errors.PayloadTooLarge, 413, "BAD_REQUEST", "Bad request", id="too large"),
        pytest.param(errors.ModelNotFound, 400, "UNSUPPORTED_MODEL", "Unsupported model", id="unknown model"),
        pytest.param(errors.ModelCannot, 400, "UNSUPPORTED_MODEL", "Unsupported model", id="model cannot"),
        pytest.param(errors.Unavailable, 503, "SERVICE_UNAVAILABLE", "Service unavailable", id="not ready"),
        pytest.param(errors.Unauthorized, 401, "UNAUTHORIZED", "Unauthorized", id="key"),
    ],
)
def test_errors_in_the_sources_words(kind, status, code, beginning):
    """The message begins with the meaning of its code."""
    rendered = DIALECT.render_error(kind("What went wrong."))
    assert rendered.status == status
    assert json.loads(rendered.body) == {"error": f"{beginning}: What went wrong.", "code": code}


def test_the_wrong_method_has_a_code_of_its_own():
    """405 differs from an unknown path."""
    rendered = DIALECT.render_error(errors.MethodNotAllowed("This path answers POST only.", allowed=("POST",)))
    assert (rendered.status, rendered.headers["allow"]) == (405, "POST")
    assert json.loads(rendered.body) == {
        "error": "Method not allowed: This path answers POST only.",
        "code": "METHOD_NOT_ALLOWED",
    }


def test_overload_is_503():
    """The source's status, with Retry-After."""
    rendered = DIALECT.render_error(errors.Overloaded("The queue is full.", retry_after_s=4.2))
    assert (rendered.status, rendered.headers["retry-after"]) == (503, "5")
    assert json.loads(rendered.body)["code"] == "SERVICE_UNAVAILABLE"


@pytest.mark.parametrize(
    ("path", "code", "beginning"),
    [
        ("/embed", "EMBEDDING_ERROR", "Embedding generation failed"),
        ("/api/embed", "EMBEDDING_ERROR", "Embedding generation failed"),
        ("/api/embed/batch", "EMBEDDING_ERROR", "Embedding generation failed"),
        ("/rerank", "RERANK_ERROR", "Reranking failed"),
        ("/api/rerank", "RERANK_ERROR", "Reranking failed"),
    ],
)
def test_a_models_failure_has_the_routes_code(path, code, beginning):
    """500, also for lack of memory; other errors are the same on every route."""
    render_error = route(path).render_error
    rendered = render_error(errors.OutOfMemory("No room."))
    assert rendered.status == 500
    assert json.loads(rendered.body) == {"error": f"{beginning}: No room.", "code": code}
    assert json.loads(render_error(errors.EmptyInput("Nothing.")).body)["code"] == "BAD_REQUEST"
