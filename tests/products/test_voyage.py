"""Voyage's bodies, answers and errors."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.products.results import VECTORS, embed_result, incoming, rerank_result, usage

from vectord.errors import (
    EmptyInput,
    InputTooLong,
    InvalidField,
    MalformedBody,
    ModelNotFound,
    Overloaded,
    VectordError,
    WrongType,
)
from vectord.products import voyage
from vectord.products.common.dialect import Call
from vectord.products.voyage import ContextualizedEmbeddings, Embeddings, Ranking
from vectord.schema import (
    ChunkedDocument,
    ChunkOptions,
    DocumentChunk,
    DocumentsRequest,
    DocumentsResult,
    EmbedRequest,
    EmbedResult,
    RerankRequest,
    Span,
    TextOptions,
)

ROUTES = {route.path: route for route in voyage.DIALECT.routes}
EMBEDDINGS, CONTEXTUALIZED, RERANK = "/v1/embeddings", "/v1/contextualizedembeddings", "/v1/rerank"
QUESTION = {"query": "q", "documents": ["a", "b", "c"]}


def call(path: str, **body: Any) -> Call:
    return ROUTES[path].parse(incoming(body))


def answer(parsed: Call, result: Any) -> dict[str, Any]:
    rendered = parsed.render(result)
    assert (rendered.status, rendered.content_type) == (200, "application/json")
    shown: dict[str, Any] = json.loads(rendered.body)
    return shown


def result_of(dtype: str, rows: np.ndarray) -> EmbedResult:
    return EmbedResult(model="served", fingerprint="f00d", dense={dtype: rows}, usage=usage([(3, 3)] * len(rows)))


def chunked(*documents: list[tuple[int, int]]) -> DocumentsResult:
    """documents: the spans of the chunks of each; chunk i of document d has the vector (d, i)."""
    made = [
        ChunkedDocument(
            chunks=[DocumentChunk(span=Span(*span), tokens=2) for span in spans],
            vectors={"float": np.array([[d, i] for i in range(len(spans))], np.float32).reshape(-1, 2)},
        )
        for d, spans in enumerate(documents)
    ]
    return DocumentsResult(model="served", fingerprint="f00d", documents=made, usage=usage([(5, 5)] * len(made)))


# --- embeddings -----------------------------------------------------------------------------------------------


def test_every_field_of_embeddings_is_read():
    """The SDK's body. Unknown keys are ignored."""
    parsed = call(
        EMBEDDINGS,
        input=["a", "b"],
        model="m",
        input_type="document",
        truncation=False,
        output_dtype="int8",
        output_dimension=64,
        encoding_format="base64",
        surprise=1,
    )
    assert parsed.request == EmbedRequest(
        inputs=["a", "b"],
        model="m",
        text=TextOptions(truncate=False, truncate_by_default=True, kind="document"),
        dimensions=64,
        precisions=("int8",),
    )


def test_null_is_the_same_as_absent():
    """The SDK sends null for unset fields: texts are truncated, and numbers are floats."""
    null = dict.fromkeys(
        ("model", "input_type", "truncation", "output_dtype", "output_dimension", "encoding_format", "force_dimensions")
    )
    parsed = call(EMBEDDINGS, input="a", **null).request
    assert parsed == call(EMBEDDINGS, input="a").request
    assert parsed == EmbedRequest(inputs=("a",), text=TextOptions(truncate_by_default=True))


@pytest.mark.parametrize(
    ("input_type", "kind"), [("query", "query"), ("document", "document"), ("", None), (None, None)]
)
def test_an_input_type_selects_the_prompt(input_type, kind):
    """The model's own prompt, not Voyage's."""
    request = call(EMBEDDINGS, input="a", input_type=input_type).request
    assert isinstance(request, EmbedRequest)
    assert request.text.kind == kind


@pytest.mark.parametrize(
    ("body", "field"),
    [
        pytest.param({}, "input", id="no input"),
        pytest.param({"input": [1, 2]}, "input", id="token ids"),
        pytest.param({"input": "a", "output_dtype": "int4"}, "output_dtype", id="unknown dtype"),
        pytest.param({"input": "a", "output_dimension": -1}, "output_dimension", id="negative dimension"),
        pytest.param({"input": "a", "encoding_format": "hex"}, "encoding_format", id="unknown encoding"),
        pytest.param({"input": "a", "truncation": "END"}, "truncation", id="Cohere's word"),
    ],
)
def test_an_invalid_field_of_embeddings_is_named(body, field):
    """The error has the field."""
    with pytest.raises(InvalidField) as caught:
        call(EMBEDDINGS, **body)
    assert f"`{field}" in caught.value.message


def test_the_answer_has_every_key():
    """OpenAI's list; usage has the total only."""
    parsed = call(EMBEDDINGS, input=["a", "b"])
    assert answer(parsed, embed_result(VECTORS, usage([(3, 3), (4, 4)]))) == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": json.loads("[0.1, -0.2, 0.33333334]")},
            {"object": "embedding", "index": 1, "embedding": json.loads("[1e-45, 3.4028235e38, -0.0]")},
        ],
        "model": "served",
        "usage": {"total_tokens": 7},
    }


@pytest.mark.parametrize(
    ("dtype", "rows", "read_as"),
    [
        pytest.param(None, VECTORS, "<f4", id="null"),
        pytest.param("float", VECTORS, "<f4", id="float"),
        pytest.param("int8", np.array([[-127, 5]], np.int8), "i1", id="int8"),
        pytest.param("binary", np.array([[-128, 127]], np.int8), "i1", id="binary"),
        pytest.param("uint8", np.array([[0, 255]], np.uint8), "u1", id="uint8"),
        pytest.param("ubinary", np.array([[255, 1]], np.uint8), "u1", id="ubinary"),
    ],
)
def test_base64_has_numbers_of_the_requested_type(dtype, rows, read_as):
    """The SDK always requests base64, and reads the bytes as numbers of `output_dtype`."""
    parsed = call(EMBEDDINGS, input="a", output_dtype=dtype, encoding_format="base64")
    data = answer(parsed, result_of(dtype or "float", rows))["data"]
    assert [np.frombuffer(b64decode(item["embedding"]), read_as).tolist() for item in data] == rows.tolist()


def test_integers_are_numbers_without_base64():
    """Lists of integers."""
    parsed = call(EMBEDDINGS, input="a", output_dtype="ubinary")
    (item,) = answer(parsed, result_of("ubinary", np.array([[255, 1]], np.uint8)))["data"]
    assert item["embedding"] == [255, 1]


def test_the_usage_has_truncated_inputs():
    """With the total of processed tokens."""
    used = usage([(3, 3), (9, 4)])
    assert answer(call(EMBEDDINGS, input=["a", "b"]), embed_result(used=used))["usage"] == {
        "total_tokens": 7,
        "truncated_inputs": [1],
    }


@pytest.mark.parametrize("encoding", [None, "base64"])
def test_an_embeddings_answer_fits_its_schema(encoding):
    """OpenAPI shows the type."""
    rendered = call(EMBEDDINGS, input=["a", "b"], encoding_format=encoding).render(embed_result())
    assert msgspec.json.decode(rendered.body, type=Embeddings).model == "served"


# --- contextualized embeddings --------------------------------------------------------------------------------


def test_chunks_are_joined_to_one_document():
    """In order, with the span of each, for late chunking."""
    parsed = call(
        CONTEXTUALIZED,
        inputs=[["One two.", "Three."], ["Four."]],
        model="m",
        input_type="document",
        output_dimension=64,
    )
    assert parsed.request == DocumentsRequest(
        documents=["One two. Three.", "Four."],
        chunks=None,
        spans=[[Span(0, 8), Span(9, 15)], [Span(0, 5)]],
        model="m",
        text=TextOptions(kind="document"),
        late=True,
        dimensions=64,
    )


@pytest.mark.parametrize(
    ("chunks", "document"),
    [
        pytest.param(["a ", "b"], "a b", id="ends in a blank"),
        pytest.param(["a", "\nb"], "a\nb", id="begins with a blank"),
        pytest.param(["a", "b", "c"], "a b c", id="neither"),
    ],
)
def test_a_space_separates_two_chunks(chunks, document):
    """Unless a chunk has one. Each span is exactly its chunk."""
    request = call(CONTEXTUALIZED, inputs=[chunks]).request
    assert isinstance(request, DocumentsRequest) and request.spans is not None
    assert request.documents == [document]
    assert [document[span.start : span.stop] for span in request.spans[0]] == chunks


def test_queries_are_embedded_one_by_one():
    """They have no context, so every type of number is available."""
    parsed = call(CONTEXTUALIZED, inputs=[["a"], ["b"]], input_type="query", output_dtype="int8")
    assert parsed.request == EmbedRequest(
        inputs=["a", "b"],
        text=TextOptions(truncate_by_default=True, kind="query"),
        precisions=("int8",),
    )
    assert answer(parsed, result_of("int8", np.array([[1, 2], [3, 4]], np.int8))) == {
        "object": "list",
        "data": [
            {"object": "list", "index": 0, "data": [{"object": "embedding", "index": 0, "embedding": [1, 2]}]},
            {"object": "list", "index": 1, "data": [{"object": "embedding", "index": 0, "embedding": [3, 4]}]},
        ],
        "model": "served",
        "usage": {"total_tokens": 6},
    }


@pytest.mark.parametrize(
    ("body", "chunks"),
    [
        pytest.param({}, ChunkOptions(max_tokens=512), id="Voyage's defaults"),
        pytest.param(
            {"chunk_size": 64, "chunk_overlap": 8}, ChunkOptions(max_tokens=64, overlap_tokens=8), id="both set"
        ),
    ],
)
def test_documents_can_be_chunked_by_the_server(body, chunks):
    """With enable_auto_chunking a document is one text, and the response has its chunks."""
    parsed = call(CONTEXTUALIZED, inputs=[["One two."], ["Three."]], enable_auto_chunking=True, **body)
    assert parsed.request == DocumentsRequest(documents=["One two.", "Three."], chunks=chunks, late=True)
    shown = answer(parsed, chunked([(0, 3), (4, 8)], [(0, 6)]))
    assert [[item["text"] for item in document["data"]] for document in shown["data"]] == [["One", "two."], ["Three."]]


def test_chunks_are_listed_by_document():
    """Nested lists; indices start at 0 in each."""
    parsed = call(CONTEXTUALIZED, inputs=[["a", "b"], ["c"]])
    assert answer(parsed, chunked([(0, 1), (2, 3)], [(0, 1)])) == {
        "object": "list",
        "data": [
            {
                "object": "list",
                "index": 0,
                "data": [
                    {"object": "embedding", "index": 0, "embedding": [0.0, 0.0]},
                    {"object": "embedding", "index": 1, "embedding": [0.0, 1.0]},
                ],
            },
            {"object": "list", "index": 1, "data": [{"object": "embedding", "index": 0, "embedding": [1.0, 0.0]}]},
        ],
        "model": "served",
        "usage": {"total_tokens": 10},
    }


@pytest.mark.parametrize("inputs", [[], [[]], [["a"], []], [["a", ""]], [["a", " \n"]]], ids=str)
def test_an_empty_chunk_is_rejected(inputs):
    """It would have no vector."""
    with pytest.raises(EmptyInput, match="`inputs"):
        call(CONTEXTUALIZED, inputs=inputs)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        pytest.param({"inputs": ["a"]}, "inputs", id="texts, not lists of them"),
        pytest.param({"inputs": [["a", "b"]], "input_type": "query"}, "inputs[0]", id="two queries in one list"),
        pytest.param({"inputs": [["a"], ["b", "c"]], "enable_auto_chunking": True}, "inputs[1]", id="chunks to cut"),
        pytest.param(
            {"inputs": [["a"]], "enable_auto_chunking": True, "chunk_size": 8, "chunk_overlap": 8},
            "chunk_overlap",
            id="overlap as long as a chunk",
        ),
        pytest.param({"inputs": [["a"]], "chunk_size": 0}, "chunk_size", id="chunks of no tokens"),
    ],
)
def test_an_invalid_field_of_contextualized_embeddings_is_named(body, field):
    """The error has the field."""
    with pytest.raises(InvalidField) as caught:
        call(CONTEXTUALIZED, **body)
    assert f"`{field}" in caught.value.message


@pytest.mark.parametrize("dtype", ["int8", "uint8", "binary", "ubinary"])
def test_chunks_are_available_in_every_type(dtype):
    """The engine quantizes them."""
    parsed = call(CONTEXTUALIZED, inputs=[["a b"]], output_dtype=dtype)
    assert parsed.request.precisions == (dtype,)
    chunk = DocumentChunk(span=Span(0, 3), tokens=2)
    document = ChunkedDocument(chunks=[chunk], vectors={dtype: np.array([[1, 2]], np.uint8)})
    result = DocumentsResult(model="served", fingerprint="f00d", documents=[document], usage=usage([(5, 5)]))
    ((shown,),) = [each["data"] for each in json.loads(parsed.render(result).body)["data"]]
    assert shown["embedding"] == [1, 2]


@pytest.mark.parametrize("encoding", [None, "base64"])
@pytest.mark.parametrize("auto", [True, False], ids=["cut here", "in pieces"])
def test_a_contextualized_answer_fits_its_schema(encoding, auto):
    """OpenAPI shows the type."""
    parsed = call(CONTEXTUALIZED, inputs=[["a b"]], encoding_format=encoding, enable_auto_chunking=auto)
    rendered = parsed.render(chunked([(0, 1), (2, 3)]))
    (document,) = msgspec.json.decode(rendered.body, type=ContextualizedEmbeddings).data
    assert [chunk.index for chunk in document.data] == [0, 1]


# --- rerank ---------------------------------------------------------------------------------------------------


def test_every_field_of_rerank_is_read():
    """Scores are probabilities."""
    parsed = call(RERANK, **QUESTION, model="m", top_k=2, truncation=False, return_documents=True, surprise=1)
    assert parsed.request == RerankRequest(
        query="q",
        passages=["a", "b", "c"],
        model="m",
        text=TextOptions(truncate=False, truncate_by_default=True),
        raw=False,
    )


@pytest.mark.parametrize(
    ("shown", "first"),
    [
        pytest.param(None, {"index": 1, "relevance_score": 0.5}, id="null"),
        pytest.param(False, {"index": 1, "relevance_score": 0.5}, id="no"),
        pytest.param(True, {"index": 1, "relevance_score": 0.5, "document": "b"}, id="yes"),
    ],
)
def test_a_ranking_has_voyages_keys(shown, first):
    """`data` instead of `results`, and documents are strings."""
    parsed = call(RERANK, **QUESTION, top_k=1, return_documents=shown)
    assert answer(parsed, rerank_result(0.25, 0.5, 0.125)) == {
        "object": "list",
        "data": [first],
        "model": "served",
        "usage": {"total_tokens": 27},
    }


@pytest.mark.parametrize(("top_k", "order"), [(None, [2, 0, 1]), (0, [2, 0, 1]), (2, [2, 0]), (9, [2, 0, 1])])
def test_top_k_bounds_the_results(top_k, order):
    """Best first, with equal scores in order; null and 0 are no bound."""
    shown = answer(call(RERANK, **QUESTION, top_k=top_k), rerank_result(0.25, 0.25, 0.5))
    assert [item["index"] for item in shown["data"]] == order


@pytest.mark.parametrize("shown", [True, False], ids=["with documents", "without"])
def test_a_ranking_fits_its_schema(shown):
    """OpenAPI shows the type."""
    rendered = call(RERANK, **QUESTION, return_documents=shown).render(rerank_result(1, 2, 3))
    assert len(msgspec.json.decode(rendered.body, type=Ranking).data) == 3


# --- errors and routes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ModelNotFound("No such model.", field="model"), 400),
        (MalformedBody("Not JSON."), 422),
        (WrongType("`input` is required.", field="input"), 422),
        (EmptyInput("`input` cannot be empty", field="input"), 422),
        (InvalidField("`truncation` must be true or false.", field="truncation"), 400),
        (InputTooLong("Too long.", field="input", index=0, limit=512, given=600), 400),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, VectordError) else None,
)
def test_an_error_is_a_detail(error, status):
    """A string, which the SDK shows. It raises by 400, 401, 422 and 429."""
    rendered = voyage.DIALECT.render_error(error)
    assert (rendered.status, json.loads(rendered.body)) == (status, {"detail": error.message})


def test_an_overload_has_a_wait():
    """The SDK does not retry 429 by itself."""
    rendered = voyage.DIALECT.render_error(Overloaded("busy", retry_after_s=1.2))
    assert (rendered.status, rendered.headers) == (429, {"retry-after": "2"})


@pytest.mark.parametrize("path", [EMBEDDINGS, CONTEXTUALIZED, RERANK])
def test_a_base_url_may_lack_the_version(path):
    """The SDK appends the last part of the path only."""
    assert ROUTES[path.removeprefix("/v1")].signs == ROUTES[path].signs


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param(EMBEDDINGS, dict.fromkeys(("input_type", "output_dtype", "output_dimension")), id="embeddings"),
        pytest.param(RERANK, {"top_k": None}, id="rerank"),
    ],
)
def test_the_sdk_is_recognized_by_keys_that_it_always_sends(path, body):
    """Also with null. OpenAI, Jina, vLLM and others share the path and do not send them."""
    assert not ROUTES[path].signs.isdisjoint(body)
