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
from vectord.products.common.dialect import Call, Incoming
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


def answer(asked: Call, result: Any) -> dict[str, Any]:
    rendered = asked.render(result)
    assert (rendered.status, rendered.content_type) == (200, "application/json")
    shown: dict[str, Any] = json.loads(rendered.body)
    return shown


def result_of(dtype: str, rows: np.ndarray) -> EmbedResult:
    return EmbedResult(model="served", fingerprint="f00d", dense={dtype: rows}, usage=usage([(3, 3)] * len(rows)))


def chunked(*documents: list[tuple[int, int]]) -> DocumentsResult:
    """documents: the spans of each one's chunks; chunk i of document d has the vector (d, i)."""
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
    """As the SDK sends them, beside keys that nobody knows."""
    asked = call(
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
    assert asked.request == EmbedRequest(
        inputs=["a", "b"],
        model="m",
        text=TextOptions(truncate=False, truncate_by_default=True, kind="document"),
        dimensions=64,
        precisions=("int8",),
    )


def test_null_is_the_same_as_absent():
    """The SDK sends null for what was not set; texts are cut then, and numbers are floats."""
    null = dict.fromkeys(
        ("model", "input_type", "truncation", "output_dtype", "output_dimension", "encoding_format", "force_dimensions")
    )
    asked = call(EMBEDDINGS, input="a", **null).request
    assert asked == call(EMBEDDINGS, input="a").request
    assert asked == EmbedRequest(inputs=("a",), text=TextOptions(truncate_by_default=True))


@pytest.mark.parametrize(
    ("input_type", "kind"), [("query", "query"), ("document", "document"), ("other", None), (None, None)]
)
def test_input_types_choose_the_prompt(input_type, kind):
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
def test_a_bad_field_of_embeddings_is_named(body, field):
    """What is wrong is said by the field's name."""
    with pytest.raises(InvalidField) as caught:
        call(EMBEDDINGS, **body)
    assert f"`{field}" in caught.value.message


def test_embeddings_are_listed():
    """OpenAI's list, but that usage knows a total only."""
    asked = call(EMBEDDINGS, input=["a", "b"])
    assert answer(asked, embed_result(VECTORS, usage([(3, 3), (4, 4)]))) == {
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
def test_base64_is_read_by_the_dtype_asked_for(dtype, rows, read_as):
    """The SDK always asks for base64 and takes the bytes for numbers of `output_dtype`."""
    asked = call(EMBEDDINGS, input="a", output_dtype=dtype, encoding_format="base64")
    data = answer(asked, result_of(dtype or "float", rows))["data"]
    assert [np.frombuffer(b64decode(item["embedding"]), read_as).tolist() for item in data] == rows.tolist()


def test_integers_are_shown_as_numbers():
    """Without base64."""
    asked = call(EMBEDDINGS, input="a", output_dtype="ubinary")
    (item,) = answer(asked, result_of("ubinary", np.array([[255, 1]], np.uint8)))["data"]
    assert item["embedding"] == [255, 1]


def test_the_answer_says_which_inputs_were_cut():
    """Beside the total of tokens that ran."""
    used = usage([(3, 3), (9, 4)])
    assert answer(call(EMBEDDINGS, input=["a", "b"]), embed_result(used=used))["usage"] == {
        "total_tokens": 7,
        "truncated_inputs": [1],
    }


@pytest.mark.parametrize("encoding", [None, "base64"])
def test_an_embeddings_answer_fits_its_schema(encoding):
    """What OpenAPI promises is what is sent."""
    rendered = call(EMBEDDINGS, input=["a", "b"], encoding_format=encoding).render(embed_result())
    assert msgspec.json.decode(rendered.body, type=Embeddings).model == "served"


# --- contextualized embeddings --------------------------------------------------------------------------------


def test_chunks_are_read_as_one_document():
    """Joined in their order, each where it stands, for late chunking."""
    asked = call(
        CONTEXTUALIZED,
        inputs=[["One two.", "Three."], ["Four."]],
        model="m",
        input_type="document",
        output_dimension=64,
    )
    assert asked.request == DocumentsRequest(
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
def test_no_token_is_of_two_chunks(chunks, document):
    """A blank between chunks that have none; each span is its chunk and no more."""
    request = call(CONTEXTUALIZED, inputs=[chunks]).request
    assert isinstance(request, DocumentsRequest) and request.spans is not None
    assert request.documents == [document]
    assert [document[span.start : span.stop] for span in request.spans[0]] == chunks


def test_queries_are_embedded_as_anywhere_else():
    """There is nothing around them to be read; so they can have any dtype."""
    asked = call(CONTEXTUALIZED, inputs=[["a"], ["b"]], input_type="query", output_dtype="int8")
    assert asked.request == EmbedRequest(
        inputs=["a", "b"],
        text=TextOptions(truncate_by_default=True, kind="query"),
        precisions=("int8",),
    )
    assert answer(asked, result_of("int8", np.array([[1, 2], [3, 4]], np.int8))) == {
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
            {"chunk_size": 64, "chunk_overlap": 8}, ChunkOptions(max_tokens=64, overlap_tokens=8), id="as asked"
        ),
    ],
)
def test_documents_can_be_cut_here(body, chunks):
    """With enable_auto_chunking a document comes whole, and the answer shows its pieces."""
    asked = call(CONTEXTUALIZED, inputs=[["One two."], ["Three."]], enable_auto_chunking=True, **body)
    assert asked.request == DocumentsRequest(documents=["One two.", "Three."], chunks=chunks, late=True)
    shown = answer(asked, chunked([(0, 3), (4, 8)], [(0, 6)]))
    assert [[item["text"] for item in document["data"]] for document in shown["data"]] == [["One", "two."], ["Three."]]


def test_chunks_are_listed_by_document():
    """Lists in a list, indices from 0 in each."""
    asked = call(CONTEXTUALIZED, inputs=[["a", "b"], ["c"]])
    assert answer(asked, chunked([(0, 1), (2, 3)], [(0, 1)])) == {
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
def test_an_empty_chunk_is_refused(inputs):
    """It would have no vector, and those after it another's place."""
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
def test_a_bad_field_of_contextualized_embeddings_is_named(body, field):
    """What cannot be done is refused, not done otherwise."""
    with pytest.raises(InvalidField) as caught:
        call(CONTEXTUALIZED, **body)
    assert f"`{field}" in caught.value.message


@pytest.mark.parametrize("dtype", ["int8", "uint8", "binary", "ubinary"])
def test_chunks_come_in_any_dtype(dtype):
    """The engine makes them, and the answer shows those."""
    asked = call(CONTEXTUALIZED, inputs=[["a b"]], output_dtype=dtype)
    assert asked.request.precisions == (dtype,)
    chunk = DocumentChunk(span=Span(0, 3), tokens=2)
    document = ChunkedDocument(chunks=[chunk], vectors={dtype: np.array([[1, 2]], np.uint8)})
    result = DocumentsResult(model="served", fingerprint="f00d", documents=[document], usage=usage([(5, 5)]))
    ((shown,),) = [each["data"] for each in json.loads(asked.render(result).body)["data"]]
    assert shown["embedding"] == [1, 2]


@pytest.mark.parametrize("encoding", [None, "base64"])
@pytest.mark.parametrize("auto", [True, False], ids=["cut here", "in pieces"])
def test_a_contextualized_answer_fits_its_schema(encoding, auto):
    """What OpenAPI promises is what is sent."""
    asked = call(CONTEXTUALIZED, inputs=[["a b"]], encoding_format=encoding, enable_auto_chunking=auto)
    rendered = asked.render(chunked([(0, 1), (2, 3)]))
    (document,) = msgspec.json.decode(rendered.body, type=ContextualizedEmbeddings).data
    assert [chunk.index for chunk in document.data] == [0, 1]


# --- rerank ---------------------------------------------------------------------------------------------------


def test_every_field_of_rerank_is_read():
    """Scores are asked for as probabilities."""
    asked = call(RERANK, **QUESTION, model="m", top_k=2, truncation=False, return_documents=True, surprise=1)
    assert asked.request == RerankRequest(
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
def test_a_ranking_is_under_data(shown, first):
    """Not under `results`; documents are strings."""
    asked = call(RERANK, **QUESTION, top_k=1, return_documents=shown)
    assert answer(asked, rerank_result(0.25, 0.5, 0.125)) == {
        "object": "list",
        "data": [first],
        "model": "served",
        "usage": {"total_tokens": 27},
    }


@pytest.mark.parametrize(("top_k", "order"), [(None, [2, 0, 1]), (0, [2, 0, 1]), (2, [2, 0]), (9, [2, 0, 1])])
def test_top_k(top_k, order):
    """Best first; null and 0 are all; equal scores stay in their order."""
    shown = answer(call(RERANK, **QUESTION, top_k=top_k), rerank_result(0.25, 0.25, 0.5))
    assert [item["index"] for item in shown["data"]] == order


@pytest.mark.parametrize("shown", [True, False], ids=["with documents", "without"])
def test_a_ranking_fits_its_schema(shown):
    """What OpenAPI promises is what is sent."""
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
    """A string, which the SDK shows; its classes go by 400, 401, 422 and 429."""
    rendered = voyage.DIALECT.render_error(error)
    assert (rendered.status, json.loads(rendered.body)) == (status, {"detail": error.message})


def test_a_refusal_for_now_says_when_to_come_back():
    """429, which reaches the user: the SDK does not retry by itself."""
    rendered = voyage.DIALECT.render_error(Overloaded("busy", retry_after_s=1.2))
    assert (rendered.status, rendered.headers) == (429, {"retry-after": "2"})


@pytest.mark.parametrize("path", [EMBEDDINGS, CONTEXTUALIZED, RERANK])
def test_a_base_url_may_lack_the_version(path):
    """The SDK appends only the last word."""
    assert ROUTES[path.removeprefix("/v1")].signs == ROUTES[path].signs


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param(EMBEDDINGS, dict.fromkeys(("input_type", "output_dtype", "output_dimension")), id="embeddings"),
        pytest.param(RERANK, {"top_k": None}, id="rerank"),
    ],
)
def test_the_sdk_is_known_by_keys_that_it_always_sends(path, body):
    """Even as null: on a path of OpenAI, Jina, vLLM and others, none of whom has them."""
    assert not ROUTES[path].signs.isdisjoint(body)


@pytest.mark.parametrize("route", voyage.DIALECT.routes, ids=lambda route: route.path)
def test_the_example_is_a_request(route):
    """It has what the route is told by."""
    assert not route.keys.isdisjoint(route.example)
    assert route.parse(Incoming(body=json.dumps(route.example).encode())).request
