"""Jina's bodies, answers and errors, as LlamaIndex, LangChain, LiteLLM and RAGFlow send and read them."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.products.results import VECTORS, embed_result, incoming, model_info, rerank_result, usage

from vectord.errors import (
    EmptyInput,
    InferenceFailed,
    InputTooLong,
    InvalidField,
    MalformedBody,
    ModelCannot,
    ModelNotFound,
    Overloaded,
    TooManyInputs,
    Unauthorized,
    WrongType,
)
from vectord.products import jina
from vectord.products.common.dialect import Call, Incoming
from vectord.products.jina import Embeddings, MultiVectors, Ranking
from vectord.schema import (
    ChunkedDocument,
    DocumentChunk,
    DocumentsRequest,
    DocumentsResult,
    EmbedRequest,
    EmbedResult,
    RerankRequest,
    Span,
    TextOptions,
)

ROUTES = {route.path: route for route in jina.DIALECT.routes}
EMBEDDINGS, MULTIVECTOR, RERANK = "/v1/embeddings", "/v1/multi-vector", "/v1/rerank"
QUESTION = {"query": "q", "documents": ["a", "b", "c"]}
CUT = TextOptions(truncate_by_default=True)
BITS = np.array([[87, 255], [0, 1]], np.uint8)
SIGNED_BITS = (BITS.astype(np.int16) - 128).astype(np.int8)
MATRICES = (np.array([[0.5, -0.5], [1, 0]], np.float32), np.array([[0, 1]], np.float32))


def call(path: str, **body: Any) -> Call:
    return ROUTES[path].parse(incoming(body))


def answer(asked: Call, result: Any, kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The body, checked against the type that OpenAPI shows."""
    rendered = asked.render(result)
    assert (rendered.status, rendered.content_type) == (200, "application/json")
    msgspec.json.decode(rendered.body, type=kind)
    shown: dict[str, Any] = json.loads(rendered.body)
    return shown


def vectors(asked: Call, result: Any, under: str = "embedding") -> list[Any]:
    return [item[under] for item in answer(asked, result, Embeddings)["data"]]


def in_every_precision() -> EmbedResult:
    dense = {"float": VECTORS, "ubinary": BITS, "binary": SIGNED_BITS}
    return EmbedResult(model="served", fingerprint="f00d", dense=dense, usage=usage())


def multivectors() -> EmbedResult:
    return EmbedResult(model="served", fingerprint="f00d", colbert=MATRICES, usage=usage([(3, 3)] * 2))


def chunked() -> DocumentsResult:
    chunks = [DocumentChunk(span=Span(0, 1), tokens=1), DocumentChunk(span=Span(2, 3), tokens=1)]
    document = ChunkedDocument(chunks=chunks, vectors={"float": VECTORS})
    return DocumentsResult(model="served", fingerprint="f00d", documents=[document], usage=usage([(4, 4)]))


def floats(text: str) -> list[float]:
    return np.frombuffer(b64decode(text), "<f4").tolist()


# --- embeddings -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "inputs"),
    [
        pytest.param("a", ["a"], id="text"),
        pytest.param("", [""], id="empty text"),
        pytest.param(["a", "b"], ["a", "b"], id="texts"),
        pytest.param({"text": "a"}, ["a"], id="object"),
        pytest.param([{"text": "a"}, "b", {"text": "c", "id": "1"}], ["a", "b", "c"], id="objects, as RAGFlow sends"),
        pytest.param([1, 2], [[1, 2]], id="ids"),
        pytest.param([[1, 2], "a"], [[1, 2], "a"], id="ids among texts"),
    ],
)
def test_the_shapes_of_input(value, inputs):
    """Texts, objects with texts, and ids as well, which OpenAI's clients send to the same path."""
    assert list(call(EMBEDDINGS, input=value).request.inputs) == inputs


def test_a_bare_request_takes_every_default():
    """As LangChain sends: floats of length 1, over-long texts cut."""
    assert call(EMBEDDINGS, input=["a"]).request == EmbedRequest(inputs=["a"], text=CUT)


def test_every_option_of_embeddings_arrives():
    """Beside keys that nobody knows."""
    asked = call(
        EMBEDDINGS,
        input=["a"],
        model="m",
        task="retrieval.query",
        dimensions=2,
        force_dimensions=True,
        normalized=False,
        embedding_type="ubinary",
        truncate=False,
        prompt_name="p",
        late_chunking=False,
        return_multivector=False,
        unknown={"deep": [1]},
    )
    assert asked.request == EmbedRequest(
        inputs=["a"],
        model="m",
        text=TextOptions(truncate=False, truncate_by_default=True, prompt_name="p", kind="query"),
        normalize=False,
        dimensions=2,
        force_dimensions=True,
        precisions=("ubinary",),
    )


@pytest.mark.parametrize(
    ("path", "body"),
    [(EMBEDDINGS, {"input": ["a"]}), (MULTIVECTOR, {"input": ["a"]}), (RERANK, QUESTION)],
    ids=["embeddings", "multi-vector", "rerank"],
)
def test_null_is_the_same_as_absent(path, body):
    """Of every field that need not be there."""
    options = [name for name in ROUTES[path].body.__struct_fields__ if name not in body]
    assert call(path, **body, **dict.fromkeys(options)).request == call(path, **body).request


def test_no_width_is_the_whole_width():
    """0, as others say it."""
    assert call(EMBEDDINGS, input="a", dimensions=0).request.dimensions is None


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        pytest.param({"task": "retrieval.query"}, "query", id="retrieval query"),
        pytest.param({"task": "retrieval.passage"}, "document", id="retrieval passage"),
        pytest.param({"task": "nl2code.query"}, "query", id="code query"),
        pytest.param({"task": "code2code.passage"}, "document", id="code passage"),
        pytest.param({"input_type": "document"}, "document", id="type of input"),
        pytest.param({"task": "classification", "input_type": "query"}, "query", id="the task says nothing"),
        pytest.param({"task": "text-matching"}, None, id="neither"),
        pytest.param({"task": ""}, None, id="empty"),
    ],
)
def test_tasks_tell_queries_from_documents(options, kind):
    """Whatever they are for; the others mean nothing to a model without adapters."""
    assert call(EMBEDDINGS, input="a", **options).request.text.kind == kind


def test_switches_may_be_words():
    """As some clients send them."""
    words = {"normalized": "False", "truncate": "true", "late_chunking": "false", "force_dimensions": "True"}
    request = call(EMBEDDINGS, input="a", **words).request
    assert isinstance(request, EmbedRequest)
    assert (request.normalize, request.text.truncate, request.force_dimensions) == (False, True, True)


def test_the_whole_answer():
    """Numbers of the shortest float32 form, and tokens as they were run."""
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


# --- types of embeddings --------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["embedding_type", "encoding_type"])
@pytest.mark.parametrize(
    ("name", "first"),
    [
        pytest.param("binary", [-41, 127], id="binary"),
        pytest.param("ubinary", [87, 255], id="ubinary"),
    ],
)
def test_bits_are_numbers(key, name, first):
    """By Jina's key and by LlamaIndex's, and both kinds as it unpacks them."""
    asked = call(EMBEDDINGS, input=["a", "b"], **{key: name})
    assert asked.request.precisions == (name,)
    assert vectors(asked, in_every_precision())[0] == first


@pytest.mark.parametrize("key", ["embedding_type", "encoding_format"])
def test_base64_is_of_float32(key):
    """By Jina's key, and by OpenAI's, whose SDKs take a list for base64 if they asked for that."""
    asked = call(EMBEDDINGS, input=["a", "b"], **{key: "base64"})
    assert asked.request.precisions == ("float",)
    assert [floats(text) for text in vectors(asked, in_every_precision())] == VECTORS.tolist()


def test_jinas_key_outranks_openais():
    """It is the one that the caller wrote; the SDK writes the other by itself."""
    asked = call(EMBEDDINGS, input="a", embedding_type="binary", encoding_format="base64")
    assert asked.request.precisions == ("binary",)


def test_several_types_are_an_object():
    """Each under its name; float and base64 are one precision of the engine."""
    asked = call(EMBEDDINGS, input=["a", "b"], embedding_type=["base64", "ubinary", "float", "binary"])
    assert asked.request.precisions == ("float", "ubinary", "binary")
    first, _ = vectors(asked, in_every_precision())
    assert list(first) == ["base64", "ubinary", "float", "binary"]
    assert (floats(first["base64"]), first["ubinary"], first["binary"]) == (VECTORS[0].tolist(), [87, 255], [-41, 127])
    assert first["float"] == [0.1, -0.2, 0.33333334]


def test_a_list_of_one_type_is_an_object_too():
    """The shape of the answer hangs on the shape of the question, not on its length."""
    assert vectors(call(EMBEDDINGS, input=["a"], embedding_type=["ubinary"]), in_every_precision())[0] == {
        "ubinary": [87, 255]
    }


# --- late chunking --------------------------------------------------------------------------------------------


def test_late_chunks_are_pieces_of_one_document():
    """Joined by a blank, so that no token is half of each; every option stays."""
    asked = call(
        EMBEDDINGS,
        input=["a b", {"text": "cd"}],
        model="m",
        late_chunking=True,
        task="retrieval.passage",
        dimensions=2,
        force_dimensions=True,
        normalized=False,
    )
    assert asked.request == DocumentsRequest(
        documents=["a b cd"],
        chunks=None,
        spans=[[Span(0, 3), Span(4, 6)]],
        model="m",
        text=TextOptions(truncate_by_default=True, kind="document"),
        late=True,
        normalize=False,
        dimensions=2,
        force_dimensions=True,
    )


@pytest.mark.parametrize(
    ("pieces", "document"),
    [
        pytest.param(["a", "b", "c"], "a b c", id="no blanks"),
        pytest.param(["a ", "b\n", "c"], "a b\nc", id="blanks behind"),
        pytest.param(["a", " b", "\tc"], "a b\tc", id="blanks before"),
        pytest.param(["𝄞é", "ñ"], "𝄞é ñ", id="beyond ASCII"),
        pytest.param([" a "], " a ", id="one piece"),
    ],
)
def test_spans_show_the_pieces_again(pieces, document):
    """In order, with a blank between each two and no second one where they bring their own."""
    request = call(EMBEDDINGS, input=pieces, late_chunking="true").request
    assert isinstance(request, DocumentsRequest) and request.spans is not None
    assert list(request.documents) == [document]
    assert [document[span.start : span.stop] for span in request.spans[0]] == pieces


def test_a_vector_for_each_piece():
    """As of texts of their own, in both forms of floats."""
    asked = call(EMBEDDINGS, input=["a", "b"], late_chunking=True, embedding_type=["float", "base64"])
    shown = answer(asked, chunked(), Embeddings)
    assert [item["index"] for item in shown["data"]] == [0, 1]
    assert [floats(item["embedding"]["base64"]) for item in shown["data"]] == VECTORS.tolist()
    assert shown["data"][0]["embedding"]["float"] == [0.1, -0.2, 0.33333334]
    assert shown["usage"] == {"prompt_tokens": 4, "total_tokens": 4}


# --- multi-vectors --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "options"),
    [
        pytest.param(MULTIVECTOR, {"input_type": "document", "dimensions": 2}, id="a route of its own"),
        pytest.param(EMBEDDINGS, {"task": "retrieval.passage", "return_multivector": True}, id="as RAGFlow asks"),
    ],
)
def test_a_vector_for_each_token(path, options):
    """Under `embeddings`, which is what the item is called, too."""
    asked = call(path, input=["a", "b"], **options)
    text = TextOptions(truncate_by_default=True, kind="document")
    assert asked.request == EmbedRequest(inputs=["a", "b"], text=text, outputs=frozenset({"colbert"}))
    assert answer(asked, multivectors(), MultiVectors) == {
        "object": "list",
        "data": [
            {"object": "embeddings", "index": 0, "embeddings": [[0.5, -0.5], [1.0, 0.0]]},
            {"object": "embeddings", "index": 1, "embeddings": [[0.0, 1.0]]},
        ],
        "model": "served",
        "usage": {"prompt_tokens": 6, "total_tokens": 6},
    }


def test_multivectors_in_base64():
    """A string for each token, and by name beside floats."""
    one = call(MULTIVECTOR, input=["a", "b"], embedding_type="base64")
    assert [list(map(floats, texts)) for texts in vectors(one, multivectors(), "embeddings")] == [
        matrix.tolist() for matrix in MATRICES
    ]
    both = call(MULTIVECTOR, input=["a", "b"], embedding_type=["float", "base64"])
    shown = vectors(both, multivectors(), "embeddings")[1]
    assert (shown["float"], [floats(text) for text in shown["base64"]]) == ([[0.0, 1.0]], [[0.0, 1.0]])


def test_another_width_of_multivectors_is_refused():
    """Which is found out when the vectors are there."""
    asked = call(MULTIVECTOR, input=["a"], dimensions=64)
    with pytest.raises(InvalidField, match="must be 2: multi-vectors are not cut") as caught:
        asked.render(multivectors())
    assert (caught.value.field_name, caught.value.limit, caught.value.given) == ("dimensions", 2, 64)


@pytest.mark.parametrize(
    ("name", "outputs"),
    [
        pytest.param("colbert", {"colbert"}, id="it has nothing else"),
        pytest.param("org/model", {"colbert"}, id="by the hub's name"),
        pytest.param("m3", {"dense"}, id="it has dense vectors, too"),
        pytest.param(None, {"dense"}, id="another one has"),
        pytest.param("unknown", {"dense"}, id="not served"),
    ],
)
def test_a_colbert_need_not_be_asked_for_multivectors(name, outputs):
    """jina-colbert-v2 answers so on the common route."""
    models = [
        model_info("m3", model_id="org/m3", outputs=frozenset({"dense", "colbert"})),
        model_info("colbert", outputs=frozenset({"colbert", "tokens"})),
    ]
    body = json.dumps({"input": ["a"], "model": name}).encode()
    request = ROUTES[EMBEDDINGS].parse(Incoming(body=body, models=models)).request
    assert isinstance(request, EmbedRequest)
    assert request.outputs == outputs


# --- rerank ---------------------------------------------------------------------------------------------------


def test_every_option_of_rerank_arrives():
    """Documents as texts and as objects; scores from 0 to 1."""
    asked = call(
        RERANK,
        query="q",
        documents=["a", {"text": "b", "title": "t"}],
        model="m",
        truncation=False,
        max_doc_length=8,
    )
    assert asked.request == RerankRequest(
        query="q",
        passages=["a", "b"],
        model="m",
        text=TextOptions(truncate=False, truncate_by_default=True),
        raw=False,
        max_passage_tokens=8,
    )


@pytest.mark.parametrize(
    ("options", "places"),
    [
        pytest.param({}, [1, 2, 0], id="all"),
        pytest.param({"top_n": 2}, [1, 2], id="the best two"),
        pytest.param({"top_n": 0}, [1, 2, 0], id="none means all"),
        pytest.param({"top_n": 9}, [1, 2, 0], id="more than there are"),
    ],
)
def test_documents_are_ranked(options, places):
    """Best first, each with its document unless told otherwise, and with Semantic Explorer's and Xinference's keys."""
    shown = answer(call(RERANK, **QUESTION, **options), rerank_result(0.25, 0.75, 0.5), Ranking)
    assert shown.pop("id").startswith("rerank-")
    scores, texts = [0.25, 0.75, 0.5], QUESTION["documents"]
    assert shown == {
        "object": "list",
        "results": [
            {
                "index": index,
                "relevance_score": scores[index],
                "score": scores[index],
                "text": texts[index],
                "document": {"text": texts[index]},
            }
            for index in places
        ],
        "model": "served",
        "usage": {"prompt_tokens": 27, "total_tokens": 27},
        "meta": {"tokens": {"input_tokens": 27, "output_tokens": 0}},
    }


def test_documents_can_be_left_out():
    """No text of the caller's comes back then."""
    shown = answer(call(RERANK, **QUESTION, return_documents=False), rerank_result(0.25, 0.75, 0.5), Ranking)
    assert shown["results"][0] == {"index": 1, "relevance_score": 0.75, "score": 0.75}


def test_what_ragflow_sends_to_xinference():
    """Booleans as words, and `return_len`, which alone brings it to Jina's route."""
    asked = call(RERANK, **QUESTION, model="m", return_documents="true", return_len="true")
    shown = answer(asked, rerank_result(0.25, 0.75, 0.5), Ranking)
    assert shown["results"][0]["document"] == {"text": "b"}
    assert "return_len" in ROUTES[RERANK].signs


# --- errors ---------------------------------------------------------------------------------------------------

NO_PICTURES = "must have a `text`: images and PDFs are not served."


@pytest.mark.parametrize(
    ("path", "body", "error", "message"),
    [
        pytest.param(EMBEDDINGS, {"input": []}, EmptyInput, "`input` cannot be empty", id="no texts"),
        pytest.param(EMBEDDINGS, {}, WrongType, "`input` is required.", id="no input"),
        pytest.param(
            EMBEDDINGS, {"input": ["a", {"image": "i"}]}, InvalidField, f"`input[1]` {NO_PICTURES}", id="an image"
        ),
        pytest.param(EMBEDDINGS, {"input": {"pdf": "p"}}, InvalidField, f"`input[0]` {NO_PICTURES}", id="a PDF"),
        pytest.param(
            EMBEDDINGS, {"input": [{"url": "u"}]}, InvalidField, f"`input[0]` {NO_PICTURES}", id="LlamaIndex's image"
        ),
        pytest.param(
            EMBEDDINGS,
            {"input": "a", "embedding_type": "int8"},
            WrongType,
            "`embedding_type` must be one of the values that /docs lists for it.",
            id="unknown type",
        ),
        pytest.param(
            EMBEDDINGS,
            {"input": "a", "normalized": "maybe"},
            InvalidField,
            "`normalized` must be true or false.",
            id="no boolean",
        ),
        pytest.param(
            EMBEDDINGS,
            {"input": "a", "return_tokenized_input": True},
            InvalidField,
            "`return_tokenized_input` is not served; leave it out.",
            id="tokens wanted back",
        ),
        pytest.param(
            EMBEDDINGS,
            {"input": "a", "late_chunking": True, "return_multivector": True},
            InvalidField,
            "`late_chunking` and `return_multivector` exclude each other.",
            id="two ways at once",
        ),
        pytest.param(
            EMBEDDINGS,
            {"input": ["a", [1, 2]], "late_chunking": True},
            InvalidField,
            "`late_chunking` takes texts, not ids.",
            id="late chunks of ids",
        ),
        pytest.param(
            EMBEDDINGS,
            {"input": ["a", " \n"], "late_chunking": True},
            EmptyInput,
            "`input[1]` must not be blank with `late_chunking`.",
            id="a blank late chunk",
        ),
        pytest.param(
            MULTIVECTOR,
            {"input": "a", "embedding_type": "ubinary"},
            InvalidField,
            "`embedding_type` of multi-vectors must be float or base64.",
            id="bits of multi-vectors",
        ),
        pytest.param(RERANK, {"query": "q", "documents": []}, EmptyInput, "`documents` cannot be empty", id="nothing"),
        pytest.param(
            RERANK,
            {"query": "q", "documents": ["a", {"image": "i"}]},
            InvalidField,
            f"`documents[1]` {NO_PICTURES}",
            id="an image to rank",
        ),
        pytest.param(
            RERANK,
            {**QUESTION, "return_embeddings": True},
            InvalidField,
            "`return_embeddings` is not served; leave it out.",
            id="vectors of documents",
        ),
        pytest.param(
            RERANK,
            {**QUESTION, "max_doc_length": 0},
            WrongType,
            "`max_doc_length` must be an integer >= 1.",
            id="documents of no tokens",
        ),
    ],
)
def test_a_faulty_body_is_refused_in_words(path, body, error, message):
    """422, and a string under `detail`, which Jina's clients raise."""
    with pytest.raises(error) as caught:
        call(path, **body)
    rendered = jina.DIALECT.render_error(caught.value)
    assert (rendered.status, json.loads(rendered.body)) == (422, {"detail": message})


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (MalformedBody("m"), 422),
        (InputTooLong("m"), 422),
        (TooManyInputs("m"), 422),
        (ModelNotFound("m"), 400),
        (ModelCannot("m"), 400),
        (Unauthorized("m"), 401),
        (Overloaded("m", retry_after_s=2), 429),
        (InferenceFailed("m"), 500),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_of_the_engine(error, status):
    """One shape for all."""
    rendered = jina.DIALECT.render_error(error)
    assert (rendered.status, json.loads(rendered.body)) == (status, {"detail": "m"})


# --- routes ---------------------------------------------------------------------------------------------------


def test_every_route_answers_with_and_without_v1():
    """Clients disagree on what belongs to the base URL."""
    assert set(ROUTES) == {
        f"{prefix}/{name}" for prefix in ("", "/v1") for name in ("embeddings", "multi-vector", "rerank")
    }


@pytest.mark.parametrize("route", jina.DIALECT.routes, ids=lambda route: route.path)
def test_examples_can_be_read(route):
    """And hold a key of their route."""
    assert route.parse(incoming(route.example)).request
    assert not route.keys.isdisjoint(route.example)


@pytest.mark.parametrize("sign", sorted(ROUTES[EMBEDDINGS].signs))
def test_signs_are_fields(sign):
    """A body is brought here for what is then read."""
    assert sign in ROUTES[EMBEDDINGS].body.__struct_fields__
