"""infinity: requests, answers and errors, as infinity_client and LiteLLM send and read them."""

from __future__ import annotations

import json
from base64 import b64decode
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.products.results import (
    VECTORS,
    classify_result,
    embed_result,
    model_info,
    model_list,
    rerank_result,
)

from vectord.errors import (
    EmptyInput,
    Forbidden,
    InferenceFailed,
    InputTooLong,
    InvalidField,
    MalformedBody,
    MethodNotAllowed,
    ModelCannot,
    ModelNotFound,
    NoSuchRoute,
    Overloaded,
    PayloadTooLarge,
    Unauthorized,
    VectordError,
    WrongType,
)
from vectord.products import infinity
from vectord.products.common.dialect import Call, Incoming
from vectord.products.infinity import MAX_TEXT_CHARS, Classes, Embeddings, Ranking
from vectord.schema import ClassifyRequest, EmbedRequest, ListModels, RerankRequest, TextOptions

ROUTES = {(route.method, route.path): route for route in infinity.DIALECT.routes}
EMBEDDINGS, RERANK, CLASSIFY = "/embeddings", "/rerank", "/classify"
QUESTION = {"query": "q", "documents": ["a", "b", "c"]}
ONE, TWO = ("small",), ("small", "large")
CUT = TextOptions(truncate_by_default=True)


def call(path: str, *, served: tuple[str, ...] = TWO, **body: Any) -> Call:
    models = [model_info(name) for name in served]
    return ROUTES["POST", path].parse(Incoming(body=json.dumps(body).encode(), models=models))


def answer(asked: Call, result: Any, kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The body, checked against the type that OpenAPI shows, less what differs each time."""
    rendered = asked.render(result)
    assert (rendered.status, rendered.content_type) == (200, "application/json")
    msgspec.json.decode(rendered.body, type=kind)
    shown: dict[str, Any] = json.loads(rendered.body)
    assert shown.pop("id").startswith("infinity-")
    assert shown.pop("created") > 1_700_000_000
    return shown


def failed(error: VectordError) -> tuple[int, dict[str, Any]]:
    rendered = infinity.DIALECT.render_error(error)
    return rendered.status, json.loads(rendered.body)


# --- embeddings -----------------------------------------------------------------------------------------------


def test_what_infinity_client_sends_for_texts():
    """It sends every default, and a model name that stands for the first model."""
    asked = call(
        EMBEDDINGS,
        input=["a", "b"],
        model="default/not-specified",
        encoding_format="float",
        dimensions=0,
        modality="text",
    )
    assert asked.request == EmbedRequest(inputs=["a", "b"], text=CUT)


@pytest.mark.parametrize(
    ("value", "inputs"),
    [
        pytest.param("a", ["a"], id="text"),
        pytest.param(["a", "b"], ["a", "b"], id="texts"),
        pytest.param([" a\n", "\tb c "], ["a", "b c"], id="blanks around texts"),
        pytest.param("  ", [""], id="blanks alone"),
        pytest.param([1, 2], [[1, 2]], id="ids"),
        pytest.param([[1, 2], [3]], [[1, 2], [3]], id="lists of ids"),
    ],
)
def test_input_is_texts_or_ids(value, inputs):
    """Blanks around texts are dropped. infinity itself rejects ids."""
    assert list(call(EMBEDDINGS, input=value).request.inputs) == inputs


def test_every_option_of_embeddings_arrives():
    """The model, the width, and the permission to cut vectors of any model."""
    asked = call(EMBEDDINGS, input="a", model="large", dimensions=2, force_dimensions="true", user="u", unknown=1)
    assert asked.request == EmbedRequest(inputs=["a"], model="large", text=CUT, dimensions=2, force_dimensions=True)


def test_litellm_sends_output_dimension():
    """LiteLLM renames OpenAI's `dimensions` for infinity."""
    assert call(EMBEDDINGS, input="a", output_dimension=2).request.dimensions == 2


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (EMBEDDINGS, {"input": ["a"]}),
        (RERANK, QUESTION),
        (CLASSIFY, {"input": ["a"]}),
    ],
)
def test_null_is_the_same_as_absent(path, body):
    """For every optional field."""
    options = [name for name in ROUTES["POST", path].body.__struct_fields__ if name not in body]
    assert call(path, **body, **dict.fromkeys(options)).request == call(path, **body).request


def test_vectors_as_numbers():
    """The whole answer. Usage counts tokens; infinity counts characters."""
    shown = answer(call(EMBEDDINGS, input=["a", "b"]), embed_result(), Embeddings)
    assert shown == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": [0.1, -0.2, 0.33333334]},
            {"object": "embedding", "index": 1, "embedding": [1e-45, 3.4028235e38, -0.0]},
        ],
        "model": "served",
        "usage": {"prompt_tokens": 7, "total_tokens": 7, "truncated_inputs": [1]},
    }


def test_vectors_in_base64():
    """float32, little-endian, byte for byte."""
    shown = answer(call(EMBEDDINGS, input=["a", "b"], encoding_format="base64"), embed_result(), Embeddings)
    for item, vector in zip(shown["data"], VECTORS, strict=True):
        assert b64decode(item["embedding"]) == vector.astype("<f4").tobytes()


def test_a_colbert_has_a_row_for_each_token():
    """Without an option, as in infinity; in base64 the rows follow each other."""
    colbert = model_info("late", outputs=frozenset({"colbert", "tokens"}), pooling="", dimensions=0)
    parse = ROUTES["POST", EMBEDDINGS].parse
    asked = parse(Incoming(body=b'{"input": ["a", "b"]}', models=[colbert]))
    assert asked.request.outputs == {"colbert"}
    result = replace(embed_result(), dense={}, colbert=[VECTORS, VECTORS[:1]])
    assert [len(item["embedding"]) for item in answer(asked, result, Embeddings)["data"]] == [2, 1]
    asked = parse(Incoming(body=b'{"input": "a", "encoding_format": "base64"}', models=[colbert]))
    (item,) = answer(asked, replace(result, colbert=[VECTORS]), Embeddings)["data"]
    assert b64decode(item["embedding"]) == VECTORS.astype("<f4").tobytes()


# --- models ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "path"),
    [({"input": ["a"]}, EMBEDDINGS), (QUESTION, RERANK), ({"input": ["a"]}, CLASSIFY)],
    ids=["embeddings", "rerank", "classify"],
)
@pytest.mark.parametrize(
    ("name", "served", "model"),
    [
        pytest.param("any name", ONE, None, id="one model answers to every name"),
        pytest.param("any name", TWO, "any name", id="of several one is named"),
        pytest.param("default/not-specified", TWO, None, id="the client's default"),
        pytest.param("", TWO, None, id="empty"),
    ],
)
def test_the_requested_model(body, path, name, served, model):
    """As in infinity; the engine rejects unknown names."""
    assert call(path, served=served, model=name, **body).request.model == model


def test_models_are_listed_as_infinity_client_reads_them():
    """It requires its own owner and `stats`."""
    asked = ROUTES["GET", "/models"].parse(Incoming())
    assert asked.request == ListModels()
    shown = json.loads(asked.render(model_list("small", "large")).body)
    assert [(item["id"], item["owned_by"]) for item in shown["data"]] == [("small", "infinity"), ("large", "infinity")]
    assert all(isinstance(item["stats"], dict) for item in shown["data"])


# --- images and audio -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("modality", ["image", "audio"])
def test_other_modalities_are_rejected(modality):
    """On the shared route and on the old routes; the message names the modality."""
    with pytest.raises(ModelCannot, match=f"The modality {modality} is not served") as common:
        call(EMBEDDINGS, input=["data:,"], modality=modality)
    with pytest.raises(ModelCannot, match=f"The modality {modality} is not served"):
        call(f"/embeddings_{modality}", input=["data:,"])
    assert failed(common.value)[0] == 400


def test_an_unknown_modality_is_a_fault_of_the_body():
    """The answer does not repeat it."""
    with pytest.raises(InvalidField, match=r"^`modality` must be 'text'\.$"):
        call(EMBEDDINGS, input=["a"], modality="smell")


# --- rerank ---------------------------------------------------------------------------------------------------


def test_every_option_of_rerank_arrives():
    """Blanks around texts are dropped. LiteLLM may send documents as objects."""
    documents = [" a", {"text": "b ", "title": "t"}]
    asked = call(RERANK, query=" q ", documents=documents, model="large", raw_scores=True)
    expected = RerankRequest(query="q", passages=["a", "b"], model="large", text=CUT, raw=True)
    assert asked.request == expected


def test_scores_are_probabilities_by_default():
    """raw=False, whatever the model's default."""
    assert call(RERANK, **QUESTION).request.raw is False


@pytest.mark.parametrize(
    ("options", "results"),
    [
        pytest.param({}, [(1, 0.75, None), (2, 0.5, None), (0, 0.25, None)], id="no documents"),
        pytest.param({"return_documents": True, "top_n": 2}, [(1, 0.75, "b"), (2, 0.5, "c")], id="top documents"),
        pytest.param(
            {"return_documents": "true", "top_n": 9}, [(1, 0.75, "b"), (2, 0.5, "c"), (0, 0.25, "a")], id="all"
        ),
    ],
)
def test_documents_are_ranked(options, results):
    """Best first; `document` is always there, as a string or null."""
    shown = answer(call(RERANK, **QUESTION, **options), rerank_result(0.25, 0.75, 0.5), Ranking)
    assert shown == {
        "object": "rerank",
        "results": [
            {"index": index, "relevance_score": score, "score": score, "document": document}
            for index, score, document in results
        ],
        "model": "served",
        "usage": {"prompt_tokens": 27, "total_tokens": 27},
    }


# --- classify -------------------------------------------------------------------------------------------------


def test_every_option_of_classify_arrives():
    """Blanks around texts are dropped."""
    asked = call(CLASSIFY, input=[" a ", "b"], model="large", raw_scores="true")
    assert asked.request == ClassifyRequest(inputs=["a", "b"], model="large", text=CUT, raw=True)


@pytest.mark.parametrize("model", [None, "r"])
def test_a_reranker_does_not_classify(model):
    """infinity serves a model with one label for rerank alone."""
    models = [model_info("r", outputs=frozenset(), reranks=True, labels=("LABEL_0",))]
    with pytest.raises(ModelCannot, match="does not classify"):
        ROUTES["POST", CLASSIFY].parse(
            Incoming(body=json.dumps({"input": ["a"], "model": model}).encode(), models=models)
        )


def test_labels_come_best_first():
    """All labels of each text."""
    shown = answer(call(CLASSIFY, input=["a", "b"]), classify_result((0.25, 0.5, 0.125), (0.5, 0.25, 0.75)), Classes)
    assert shown == {
        "object": "classify",
        "data": [
            [
                {"score": 0.5, "label": "glad"},
                {"score": 0.25, "label": "sad"},
                {"score": 0.125, "label": "mad"},
            ],
            [
                {"score": 0.75, "label": "mad"},
                {"score": 0.5, "label": "sad"},
                {"score": 0.25, "label": "glad"},
            ],
        ],
        "model": "served",
        "usage": {"prompt_tokens": 6, "total_tokens": 6},
    }


# --- errors ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "error", "place"),
    [
        pytest.param(EMBEDDINGS, {"input": []}, EmptyInput, ["input"], id="no texts"),
        pytest.param(EMBEDDINGS, {}, WrongType, ["input"], id="no input"),
        pytest.param(EMBEDDINGS, {"input": ["a", True]}, WrongType, ["input", 1], id="a boolean among texts"),
        pytest.param(EMBEDDINGS, {"input": "a", "dimensions": -1}, WrongType, ["dimensions"], id="negative width"),
        pytest.param(
            EMBEDDINGS, {"input": "a", "encoding_format": "hex"}, InvalidField, ["encoding_format"], id="unknown format"
        ),
        pytest.param(
            EMBEDDINGS, {"input": ["a", "b" * (MAX_TEXT_CHARS + 1)]}, WrongType, ["input", 1], id="too many characters"
        ),
        pytest.param(RERANK, {**QUESTION, "documents": []}, EmptyInput, ["documents"], id="no documents"),
        pytest.param(RERANK, {**QUESTION, "top_n": 0}, WrongType, ["top_n"], id="no results"),
        pytest.param(RERANK, {**QUESTION, "raw_scores": "maybe"}, InvalidField, ["raw_scores"], id="no boolean"),
        pytest.param(RERANK, {"documents": ["a"]}, WrongType, ["query"], id="no query"),
        pytest.param(CLASSIFY, {"input": []}, EmptyInput, ["input"], id="nothing to classify"),
    ],
)
def test_a_faulty_body_is_answered_as_fastapi_does(path, body, error, place):
    """infinity_client reads a 422 as a list of places and messages, and fails on other statuses."""
    with pytest.raises(error) as caught:
        call(path, **body)
    status, shown = failed(caught.value)
    (fault,) = shown["detail"]
    assert (status, fault["loc"], fault["msg"]) == (422, ["body", *place], caught.value.message)
    assert isinstance(fault["type"], str)


def test_dimensions_out_of_range_are_infinitys_400():
    """With its sentence, which names the range."""
    status, shown = failed(InvalidField("m", field="dimensions", limit=384, given=385))
    message = "matryoshka_dim=385 is not in a valid range. Select between 1 and 384."
    assert (status, shown["error"]["message"], shown["error"]["code"]) == (400, message, 400)


def test_a_text_may_be_as_long_as_infinity_takes():
    """The limit itself is accepted."""
    assert len(call(EMBEDDINGS, input="b" * MAX_TEXT_CHARS).request.inputs[0]) == MAX_TEXT_CHARS


@pytest.mark.parametrize(
    "error",
    [MalformedBody("m"), InvalidField("m"), InputTooLong("m", limit=1, given=2)],
    ids=lambda error: type(error).__name__,
)
def test_faults_that_the_engine_finds_are_422_too(error):
    """The client drops the message of another status."""
    status, shown = failed(error)
    assert (status, shown["detail"][0]["msg"]) == (422, "m")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ModelNotFound("m"), 400),
        (ModelCannot("m"), 400),
        (PayloadTooLarge("m"), 413),
        (Overloaded("m", retry_after_s=2), 429),
        (InferenceFailed("m"), 500),
    ],
    ids=lambda value: type(value).__name__,
)
def test_infinitys_own_errors(error, status):
    """OpenAI's form, with the status as the code."""
    shape = {"error": {"message": "m", "type": None, "param": None, "code": status}}
    assert failed(error) == (status, shape)


@pytest.mark.parametrize(
    ("error", "status", "detail"),
    [
        (Unauthorized("m"), 401, "Unauthorized"),
        (Forbidden("m"), 403, "m"),
        (NoSuchRoute("m"), 404, "m"),
        (MethodNotAllowed("m", allowed=("POST",)), 405, "m"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_of_infinitys_framework(error, status, detail):
    """`detail` is a string, and a constant one for a wrong key."""
    assert failed(error) == (status, {"detail": detail})


# --- routes ---------------------------------------------------------------------------------------------------


def test_every_route_has_its_twin_under_v1():
    """infinity has /v1 before its paths by configuration, except for the two old routes."""
    paths = {path for _, path in ROUTES if not path.startswith("/embeddings_")}
    bare = {path for path in paths if not path.startswith("/v1/")}
    assert bare == {"/embeddings", "/rerank", "/classify", "/models"}
    assert paths == bare | {f"/v1{path}" for path in bare}


@pytest.mark.parametrize(
    "route", [route for route in infinity.DIALECT.routes if route.body], ids=lambda route: route.path
)
def test_examples_select_their_route(route):
    """Each has a key and a sign of its route."""
    assert route.parse(Incoming(body=json.dumps(route.example).encode())).request
    assert not route.keys.isdisjoint(route.example)
    assert not route.signs.isdisjoint(route.example)
