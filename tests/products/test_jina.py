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


def answer(parsed: Call, result: Any, kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The body, checked against the type that OpenAPI shows."""
    rendered = parsed.render(result)
    assert (rendered.status, rendered.content_type) == (200, "application/json")
    msgspec.json.decode(rendered.body, type=kind)
    shown: dict[str, Any] = json.loads(rendered.body)
    return shown


def vectors(parsed: Call, result: Any, under: str = "embedding") -> list[Any]:
    return [item[under] for item in answer(parsed, result, Embeddings)["data"]]


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
def test_inputs_are_read_in_order(value, inputs):
    """Texts, objects with texts, and ids, which OpenAI's clients send to the same path."""
    assert list(call(EMBEDDINGS, input=value).request.inputs) == inputs


def test_a_minimal_body_has_the_defaults():
    """LangChain sends one: floats of length 1, and truncation."""
    assert call(EMBEDDINGS, input=["a"]).request == EmbedRequest(inputs=["a"], text=CUT)


def test_every_option_of_embeddings_is_read():
    """Unknown keys are ignored."""
    parsed = call(
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
    assert parsed.request == EmbedRequest(
        inputs=["a"],
        model="m",
        text=TextOptions(
            truncate=False, truncate_by_default=True, prompt_name="p", kind="query", task="retrieval.query"
        ),
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
    """For every optional field."""
    options = [name for name in ROUTES[path].body.__struct_fields__ if name not in body]
    assert call(path, **body, **dict.fromkeys(options)).request == call(path, **body).request


def test_zero_dimensions_are_all_of_them():
    """Other products use 0, too."""
    assert call(EMBEDDINGS, input="a", dimensions=0).request.dimensions is None


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        pytest.param({"task": "retrieval.query"}, "query", id="retrieval query"),
        pytest.param({"task": "retrieval.passage"}, "document", id="retrieval passage"),
        pytest.param({"task": "nl2code.query"}, "query", id="code query"),
        pytest.param({"task": "code2code.passage"}, "document", id="code passage"),
        pytest.param({"input_type": "document"}, "document", id="type of input"),
        pytest.param({"task": "text-matching", "input_type": "query"}, "query", id="the task says nothing"),
        pytest.param({"task": "separation"}, "clustering", id="separation"),
        pytest.param({"task": "text-matching"}, None, id="neither"),
        pytest.param({"task": ""}, None, id="empty"),
    ],
)
def test_a_task_selects_queries_or_documents(options, kind):
    """By its last part; and the whole of it names an adapter."""
    text = call(EMBEDDINGS, input="a", **options).request.text
    assert (text.kind, text.task) == (kind, options.get("task") or None)


def test_a_switch_may_be_a_string():
    """Some clients send those."""
    words = {"normalized": "False", "truncate": "true", "late_chunking": "false", "force_dimensions": "True"}
    request = call(EMBEDDINGS, input="a", **words).request
    assert isinstance(request, EmbedRequest)
    assert (request.normalize, request.text.truncate, request.force_dimensions) == (False, True, True)


def test_the_answer_has_every_key():
    """Numbers have the shortest float32 form, and usage counts processed tokens."""
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
def test_bits_are_lists_of_numbers(key, name, first):
    """By Jina's key and by LlamaIndex's, which unpacks both kinds."""
    parsed = call(EMBEDDINGS, input=["a", "b"], **{key: name})
    assert parsed.request.precisions == (name,)
    assert vectors(parsed, in_every_precision())[0] == first


@pytest.mark.parametrize("key", ["embedding_type", "encoding_format"])
def test_base64_is_of_float32(key):
    """By Jina's key, and by OpenAI's, whose SDKs request base64 by default."""
    parsed = call(EMBEDDINGS, input=["a", "b"], **{key: "base64"})
    assert parsed.request.precisions == ("float",)
    assert [floats(text) for text in vectors(parsed, in_every_precision())] == VECTORS.tolist()


@pytest.mark.parametrize("types", ["binary", "ubinary", ["float", "binary"]], ids=str)
def test_base64_next_to_other_types_is_refused(types):
    """A client that asked for base64 would read those as something else."""
    with pytest.raises(InvalidField) as refused:
        call(EMBEDDINGS, input="a", embedding_type=types, encoding_format="base64")
    assert (refused.value.field, refused.value.message) == (
        "encoding_format",
        "`encoding_format` base64 is of float vectors; set it to 'float' for other types.",
    )


def test_base64_next_to_floats_is_base64():
    """Under OpenAI's key, next to Jina's."""
    parsed = call(EMBEDDINGS, input=["a", "b"], embedding_type="float", encoding_format="base64")
    assert [floats(text) for text in vectors(parsed, in_every_precision())] == VECTORS.tolist()


def test_a_vector_in_several_types_is_an_object():
    """float and base64 are one precision of the engine."""
    parsed = call(EMBEDDINGS, input=["a", "b"], embedding_type=["base64", "ubinary", "float", "binary"])
    assert parsed.request.precisions == ("float", "ubinary", "binary")
    first, _ = vectors(parsed, in_every_precision())
    assert list(first) == ["base64", "ubinary", "float", "binary"]
    assert (floats(first["base64"]), first["ubinary"], first["binary"]) == (VECTORS[0].tolist(), [87, 255], [-41, 127])
    assert first["float"] == [0.1, -0.2, 0.33333334]


def test_a_list_of_one_type_also_makes_an_object():
    """The form of the response depends on the form of the request, not on the number of types."""
    assert vectors(call(EMBEDDINGS, input=["a"], embedding_type=["ubinary"]), in_every_precision())[0] == {
        "ubinary": [87, 255]
    }


# --- late chunking --------------------------------------------------------------------------------------------


def test_late_chunks_are_joined_to_one_document():
    """With a space between two, so that no token belongs to both. Every option is read."""
    parsed = call(
        EMBEDDINGS,
        input=["a b", {"text": "cd"}],
        model="m",
        late_chunking=True,
        task="retrieval.passage",
        dimensions=2,
        force_dimensions=True,
        normalized=False,
    )
    assert parsed.request == DocumentsRequest(
        documents=["a b cd"],
        chunks=None,
        spans=[[Span(0, 3), Span(4, 6)]],
        model="m",
        text=TextOptions(truncate_by_default=True, kind="document", task="retrieval.passage"),
        late=True,
        normalize=False,
        dimensions=2,
        force_dimensions=True,
    )


@pytest.mark.parametrize(
    ("pieces", "document"),
    [
        pytest.param(["a", "b", "c"], "a b c", id="no blanks"),
        pytest.param(["a ", "b\n", "c"], "a b\nc", id="trailing blanks"),
        pytest.param(["a", " b", "\tc"], "a b\tc", id="blanks before"),
        pytest.param(["𝄞é", "ñ"], "𝄞é ñ", id="beyond ASCII"),
        pytest.param([" a "], " a ", id="one piece"),
    ],
)
def test_spans_are_the_chunks(pieces, document):
    """In order, with one space between two unless a chunk has it."""
    request = call(EMBEDDINGS, input=pieces, late_chunking="true").request
    assert isinstance(request, DocumentsRequest) and request.spans is not None
    assert list(request.documents) == [document]
    assert [document[span.start : span.stop] for span in request.spans[0]] == pieces


def test_each_chunk_has_a_vector():
    """In both encodings of floats."""
    parsed = call(EMBEDDINGS, input=["a", "b"], late_chunking=True, embedding_type=["float", "base64"])
    shown = answer(parsed, chunked(), Embeddings)
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
def test_multivectors_have_a_vector_for_each_token(path, options):
    """Under `embeddings`, which is also the item's `object`."""
    parsed = call(path, input=["a", "b"], **options)
    text = TextOptions(truncate_by_default=True, kind="document", task=options.get("task"))
    assert parsed.request == EmbedRequest(inputs=["a", "b"], text=text, outputs=frozenset({"colbert"}))
    assert answer(parsed, multivectors(), MultiVectors) == {
        "object": "list",
        "data": [
            {"object": "embeddings", "index": 0, "embeddings": [[0.5, -0.5], [1.0, 0.0]]},
            {"object": "embeddings", "index": 1, "embeddings": [[0.0, 1.0]]},
        ],
        "model": "served",
        "usage": {"prompt_tokens": 6, "total_tokens": 6},
    }


def test_multivectors_are_encoded_token_by_token():
    """One string for each token; with several types, under the type's name."""
    one = call(MULTIVECTOR, input=["a", "b"], embedding_type="base64")
    assert [list(map(floats, texts)) for texts in vectors(one, multivectors(), "embeddings")] == [
        matrix.tolist() for matrix in MATRICES
    ]
    both = call(MULTIVECTOR, input=["a", "b"], embedding_type=["float", "base64"])
    shown = vectors(both, multivectors(), "embeddings")[1]
    assert (shown["float"], [floats(text) for text in shown["base64"]]) == ([[0.0, 1.0]], [[0.0, 1.0]])


def test_another_width_of_multivectors_is_rejected():
    """The width is known only once the vectors exist."""
    parsed = call(MULTIVECTOR, input=["a"], dimensions=64)
    with pytest.raises(InvalidField, match="must be 2: multi-vectors are not cut") as caught:
        parsed.render(multivectors())
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
def test_a_colbert_model_returns_multivectors_by_default(name, outputs):
    """jina-colbert-v2 does so at /v1/embeddings."""
    models = [
        model_info("m3", model_id="org/m3", outputs=frozenset({"dense", "colbert"})),
        model_info("colbert", outputs=frozenset({"colbert", "tokens"}), aliases=("org/model",)),
    ]
    body = json.dumps({"input": ["a"], "model": name}).encode()
    request = ROUTES[EMBEDDINGS].parse(Incoming(body=body, models=models)).request
    assert isinstance(request, EmbedRequest)
    assert request.outputs == outputs


# --- rerank ---------------------------------------------------------------------------------------------------


def test_every_option_of_rerank_is_read():
    """Documents are texts or objects; scores are probabilities."""
    parsed = call(
        RERANK,
        query="q",
        documents=["a", {"text": "b", "title": "t"}],
        model="m",
        truncation=False,
        max_doc_length=8,
    )
    assert parsed.request == RerankRequest(
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
def test_documents_are_ranked_best_first(options, places):
    """Each has its document by default, and the keys of Semantic Explorer and Xinference."""
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
    """Then the response has no text of the client."""
    shown = answer(call(RERANK, **QUESTION, return_documents=False), rerank_result(0.25, 0.75, 0.5), Ranking)
    assert shown["results"][0] == {"index": 1, "relevance_score": 0.75, "score": 0.75}


def test_ragflows_body_for_xinference_is_accepted():
    """Switches are strings, and `return_len` selects Jina's route."""
    parsed = call(RERANK, **QUESTION, model="m", return_documents="true", return_len="true")
    shown = answer(parsed, rerank_result(0.25, 0.75, 0.5), Ranking)
    assert shown["results"][0]["document"] == {"text": "b"}
    assert "return_len" in ROUTES[RERANK].signs


# --- errors ---------------------------------------------------------------------------------------------------

NO_PICTURES = "must be a text, or an object with a `text` alone: this model embeds texts only."


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
            "`return_tokenized_input` is not supported: use /tokenize.",
            id="tokenized input requested",
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
            "`return_embeddings` is not supported: a ranking has no vectors; use /v1/embeddings.",
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
def test_an_invalid_body_is_rejected(path, body, error, message):
    """The status is 422, with a string under `detail`, which Jina's clients raise."""
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
def test_engine_errors_have_one_form(error, status):
    """A string under `detail`."""
    rendered = jina.DIALECT.render_error(error)
    assert (rendered.status, json.loads(rendered.body)) == (status, {"detail": "m"})


# --- routes ---------------------------------------------------------------------------------------------------


def test_every_path_exists_with_and_without_v1():
    """Clients differ in the base URL."""
    assert set(ROUTES) == {
        f"{prefix}/{name}" for prefix in ("", "/v1") for name in ("embeddings", "multi-vector", "rerank")
    }


@pytest.mark.parametrize("sign", sorted(ROUTES[EMBEDDINGS].signs))
def test_signs_are_fields_of_the_body(sign):
    """A body is routed here for fields that are read."""
    assert sign in ROUTES[EMBEDDINGS].body.__struct_fields__


def test_the_query_may_be_limited_to_some_tokens():
    """Also next to an instruction."""
    limited = call(RERANK, **QUESTION, max_query_length=7).request
    assert limited.max_query_tokens == 7
    assert call(RERANK, **QUESTION, max_query_length=7, instruction="i").request.max_query_tokens == 7
