"""Simple Inference Server: requests, answers and the sentences of its document and source."""

from __future__ import annotations

import json

import msgspec
import pytest
from tests.products.results import (
    VECTORS,
    embed_result,
    incoming,
    model_info,
    model_list,
    parsers,
    rerank_result,
    usage,
)

from vectord.errors import (
    EmptyInput,
    InferenceFailed,
    InvalidField,
    InvalidRequest,
    MalformedBody,
    ModelNotFound,
    OutOfMemory,
    Overloaded,
    ShuttingDown,
    TooManyInputs,
    Unavailable,
    VectordError,
    WrongType,
)
from vectord.products.common.body import decode
from vectord.products.common.dialect import Guards, Incoming
from vectord.products.common.vectors import to_base64
from vectord.products.simple_inference_server import (
    DIALECT,
    Embeddings,
    EmbeddingsBody,
    Ranking,
    render_error,
    render_rerank_error,
)
from vectord.schema import EmbedRequest, ListModels, RerankRequest, TextOptions

parse_embeddings, parse_rerank = (parsers(DIALECT)[path] for path in ("/v1/embeddings", "/v1/rerank"))
SILENT = TextOptions(truncate_by_default=True)


def detail(error: VectordError) -> object:
    shown = json.loads(render_error(error).body)
    assert set(shown) == {"detail"}
    return shown["detail"]


# --- embeddings -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "inputs"),
    [
        pytest.param("hello", ["hello"], id="text"),
        pytest.param(["hello", ""], ["hello", ""], id="texts, also an empty one"),
        pytest.param([[1, 2], [3]], [[1, 2], [3]], id="ids, as OpenAI's clients send"),
    ],
)
def test_requests_of_bodies(value, inputs):
    """Texts for the named model; over-long texts are truncated."""
    request = parse_embeddings(incoming({"model": "bge-m3", "input": value, "user": "u"})).request
    assert isinstance(request, EmbedRequest)
    assert list(request.inputs) == inputs
    assert (request.model, request.text) == ("bge-m3", SILENT)


def test_null_and_unknown_keys_are_ignored():
    bare = parse_embeddings(incoming({"input": "a"})).request
    options = {"model": None, "encoding_format": None, "user": None, "dimensions": None, "unknown": [1]}
    assert (
        parse_embeddings(incoming({"input": "a", **options})).request
        == bare
        == EmbedRequest(inputs=("a",), text=SILENT)
    )


def test_dimensions_of_openais_sdk_are_applied():
    """The product does not have the key."""
    request = parse_embeddings(incoming({"input": "a", "dimensions": 8, "force_dimensions": True})).request
    assert (request.dimensions, request.force_dimensions) == (8, True)


def test_the_documents_answer():
    """The curl example's answer has these keys only, with completion_tokens null."""
    call = parse_embeddings(incoming({"model": "bge-m3", "input": ["hello", "world"]}))
    assert json.loads(call.render(embed_result(used=usage([(3, 3), (4, 4)]))).body) == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": json.loads("[0.1, -0.2, 0.33333334]")},
            {"object": "embedding", "index": 1, "embedding": json.loads("[1e-45, 3.4028235e38, -0.0]")},
        ],
        "model": "served",
        "usage": {"prompt_tokens": 7, "total_tokens": 7, "completion_tokens": None},
    }


def test_usage_counts_processed_tokens():
    """It also lists the indices of truncated inputs."""
    body = parse_embeddings(incoming({"input": ["a", "b"]})).render(embed_result(used=usage([(3, 3), (9, 4)]))).body
    assert json.loads(body)["usage"] == {
        "prompt_tokens": 7,
        "total_tokens": 7,
        "completion_tokens": None,
        "truncated_inputs": [1],
    }


def test_base64_is_served():
    """OpenAI's SDK requests it by default."""
    rendered = parse_embeddings(incoming({"input": ["a", "b"], "encoding_format": "base64"})).render(embed_result())
    data = msgspec.json.decode(rendered.body, type=Embeddings).data
    assert [item.embedding for item in data] == [to_base64(vector) for vector in VECTORS]


def test_other_encodings_are_rejected_in_its_words():
    """400 for any word."""
    with pytest.raises(InvalidField) as caught:
        parse_embeddings(incoming({"input": "a", "encoding_format": "int7"}))
    assert render_error(caught.value).status == 400
    assert detail(caught.value) == "Only 'float' encoding_format is supported"


def test_a_text_of_too_many_characters_is_rejected_in_its_words():
    """400 with the text's index; MAX_TEXT_CHARS is the limit."""
    body = json.dumps({"input": ["x" * 20_001]}).encode()
    with pytest.raises(InvalidRequest) as caught:
        parse_embeddings(Incoming(body=body, guards=Guards(max_text_chars=20_000)))
    assert render_error(caught.value).status == 400
    assert detail(caught.value) == "Input at index 0 exceeds max length 20000 chars"


@pytest.mark.parametrize(
    ("inputs", "encoding", "text"),
    [
        pytest.param(["a"] * 2 + ["x" * 9], "float", "Batch too large; max 2 items", id="before the characters"),
        pytest.param(["a"] * 3, "int7", "Only 'float' encoding_format is supported", id="behind the encoding"),
    ],
)
def test_limits_are_checked_in_the_products_order(inputs, encoding, text):
    """Before the model: too many inputs for an unknown model are 400, not 404."""
    body = json.dumps({"model": "unknown", "input": inputs, "encoding_format": encoding}).encode()
    with pytest.raises(InvalidRequest) as caught:
        parse_embeddings(Incoming(body=body, guards=Guards(max_inputs=2, max_text_chars=8)))
    assert (render_error(caught.value).status, detail(caught.value)) == (400, text)


def test_no_inputs_are_rejected():
    """The document does not mention them, and OpenAI's SDK raises on an empty `data`."""
    with pytest.raises(EmptyInput) as caught:
        parse_embeddings(incoming({"input": []}))
    assert render_error(caught.value).status == 400


# --- rerank ---------------------------------------------------------------------------------------------------


def test_rerank_requests():
    """Probabilities, as in the document's example; over-long documents are truncated."""
    request = parse_rerank(incoming({"model": "m", "query": "q", "documents": ["a", "b"], "top_n": 1})).request
    assert request == RerankRequest(query="q", passages=["a", "b"], model="m", text=SILENT, raw=False)


@pytest.mark.parametrize(
    ("top_n", "places"),
    [
        pytest.param(2, [2, 0], id="some"),
        pytest.param(9, [2, 0, 1], id="more than there are"),
        pytest.param(0, [2, 0, 1], id="0 is all"),
        pytest.param(None, [2, 0, 1], id="null is all"),
    ],
)
def test_results_are_best_first_up_to_top_n(top_n, places):
    """`index` is the document's place in the request."""
    call = parse_rerank(incoming({"query": "q", "documents": ["a", "b", "c"], "top_n": top_n}))
    answer = json.loads(call.render(rerank_result(0.5, 0.25, 0.75)).body)
    assert [result["index"] for result in answer["results"]] == places


def test_the_later_versions_answer():
    """A document is a string; `score` is an addition to `relevance_score`."""
    call = parse_rerank(incoming({"query": "q", "documents": ["no", "yes"]}))
    rendered = call.render(rerank_result(0.25, 0.75))
    assert json.loads(rendered.body) == {
        "model": "served",
        "results": [
            {"index": 1, "relevance_score": 0.75, "score": 0.75, "document": "yes"},
            {"index": 0, "relevance_score": 0.25, "score": 0.25, "document": "no"},
        ],
        "usage": {"prompt_tokens": 18, "total_tokens": 18},
    }
    assert msgspec.json.decode(rendered.body, type=Ranking).results[0].document == "yes"


# --- models ---------------------------------------------------------------------------------------------------


def test_models_are_listed_with_their_widths():
    """With the document's four keys of an item, and more."""
    call = parsers(DIALECT, "GET")["/v1/models"](Incoming())
    assert call.request == ListModels()
    listed = json.loads(call.render(model_list(model_info("bge-m3", dimensions=1024))).body)
    assert listed["object"] == "list"
    assert (
        listed["data"][0].items()
        >= {
            "id": "bge-m3",
            "object": "model",
            "owned_by": "local",
            "embedding_dimensions": 1024,
        }.items()
    )


def test_its_health_is_ok():
    """Only while models answer; the server adds their names."""
    assert DIALECT.health(model_list(), True) == {"status": "ok"}
    assert DIALECT.health(model_list(), False).keys() == {"detail"}


def test_its_routes():
    """It has the routes of the document, and the rerank route of later versions."""
    assert {(route.method, route.path) for route in DIALECT.routes} == {
        ("POST", "/v1/embeddings"),
        ("POST", "/v1/rerank"),
        ("GET", "/v1/models"),
    }


# --- errors ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        pytest.param(
            TooManyInputs("ours", field="input", limit=32, given=33), 400, "Batch too large; max 32 items", id="items"
        ),
        pytest.param(TooManyInputs("ours"), 400, "ours", id="too much, but not of items"),
        pytest.param(ModelNotFound("ours"), 404, "Model not found", id="model"),
        pytest.param(InferenceFailed("ours"), 500, "Embedding generation failed", id="forward"),
        pytest.param(OutOfMemory("ours"), 500, "Embedding generation failed", id="memory"),
        pytest.param(Unavailable("Still loading."), 503, "Still loading.", id="not ready"),
        pytest.param(ShuttingDown(), 503, "Service is shutting down", id="shutting down"),
        pytest.param(InvalidField("{ours}"), 400, "{ours}", id="anything else"),
    ],
)
def test_sentences_that_its_clients_know(error, status, text):
    """`detail` only, as a string."""
    assert render_error(error).status == status
    assert detail(error) == text


def test_a_full_queue_has_retry_after():
    """429, with whole seconds."""
    rendered = render_error(Overloaded("ours", retry_after_s=2.0))
    assert (rendered.status, json.loads(rendered.body)) == (429, {"detail": "Request queue full"})
    assert rendered.headers["retry-after"] == "2"


def test_a_failed_ranking_has_its_own_sentence():
    """Other errors are the same on all routes."""
    assert json.loads(render_rerank_error(InferenceFailed("ours")).body) == {"detail": "Rerank failed"}
    assert json.loads(render_rerank_error(ModelNotFound("ours")).body) == {"detail": "Model not found"}
    (route,) = (route for route in DIALECT.routes if route.path == "/v1/rerank")
    assert route.render_error is render_rerank_error


@pytest.mark.parametrize(
    ("body", "kind", "fault"),
    [
        pytest.param(
            b'{"input": 3}',
            WrongType,
            {"type": "value_error", "loc": ["body", "input"]},
            id="wrong type",
        ),
        pytest.param(
            b'{"input": ["a", {}]}',
            WrongType,
            {"type": "value_error", "loc": ["body", "input", 1]},
            id="one of several",
        ),
        pytest.param(b"{}", WrongType, {"type": "missing", "loc": ["body", "input"]}, id="missing"),
        pytest.param(b"{", MalformedBody, {"type": "json_invalid", "loc": ["body"]}, id="no JSON"),
    ],
)
def test_a_body_of_the_wrong_shape_is_a_list_of_faults(body, kind, fault):
    """422, as from its web framework: the place and the fault."""
    with pytest.raises(kind) as caught:
        decode(msgspec.json.Decoder(EmbeddingsBody), body)
    (shown,) = json.loads(render_error(caught.value).body)["detail"]
    assert shown == fault | {"msg": caught.value.message, "input": None}
    assert render_error(caught.value).status == 422
