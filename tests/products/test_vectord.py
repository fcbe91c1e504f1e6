"""vectord's own API reads every option of schema.py, returns everything in a result, and bounds its numbers."""

from __future__ import annotations

import base64
import json
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.products.results import (
    VECTORS,
    classify_result,
    embed_result,
    incoming,
    model_info,
    model_list,
    rerank_result,
    usage,
)

from vectord.errors import EmptyInput, FingerprintMismatch, InputTooLong, InvalidField, TooManyInputs, VectordError
from vectord.products import vectord
from vectord.products.common.dialect import Incoming
from vectord.products.common.vectors import to_base64
from vectord.products.vectord.fields import render_error
from vectord.products.vectord.models import ModelAnswer, ModelsAnswer, PullAnswer, RemoveAnswer
from vectord.products.vectord.scores import ClassifyAnswer, RerankAnswer, SimilarityAnswer
from vectord.products.vectord.tokens import DecodeAnswer, TokenizeAnswer
from vectord.products.vectord.vectors import DocumentsAnswer, EmbedAnswer
from vectord.schema import (
    ChunkedDocument,
    ChunkOptions,
    ClassifyRequest,
    DecodeRequest,
    DecodeResult,
    DocumentChunk,
    DocumentsRequest,
    DocumentsResult,
    EmbedRequest,
    EmbedResult,
    ListModels,
    LoadModel,
    PullModel,
    PullResult,
    RemoveModel,
    RemoveResult,
    RerankRequest,
    SimilarityRequest,
    SimilarityResult,
    Span,
    Sparse,
    TextLength,
    TextOptions,
    Token,
    TokenizeRequest,
    TokenizeResult,
    UnloadModel,
)

FIGURES = {
    "usage": {"tokens": 7, "texts": 2, "characters": 40},
    "timings": {"tokenize_ms": 1.9, "queue_ms": 3.0, "inference_ms": 35.1, "total_ms": 1234.5},
}
READING = {"model": "m", "truncate": True, "truncate_side": "left"}
PROMPTING = {**READING, "kind": "query", "prompt_name": "q", "prompt": "find: "}
READ = TextOptions(truncate=True, truncate_side="left")
PROMPTED = replace(READ, kind="query", prompt_name="q", prompt="find: ")

# --- requests: path, body, request; with every option, and with none ---------------------

FULL = [
    pytest.param(
        "embed",
        {
            **PROMPTING,
            "inputs": ["a", [1, 2]],
            "outputs": ["dense", "sparse", "colbert", "tokens"],
            "normalize": False,
            "dimensions": 64,
            "force_dimensions": True,
            "precisions": ["int8", "float", "int8"],
            "encoding": "base64",
            "expect_fingerprint": "f00d:64",
            "partial_results": True,
        },
        EmbedRequest(
            inputs=["a", [1, 2]],
            model="m",
            text=PROMPTED,
            outputs=frozenset({"dense", "sparse", "colbert", "tokens"}),
            normalize=False,
            dimensions=64,
            force_dimensions=True,
            precisions=("int8", "float"),
            expect_fingerprint="f00d:64",
            partial=True,
        ),
        id="embed",
    ),
    pytest.param(
        "documents",
        {
            **PROMPTING,
            "documents": ["a b c"],
            "chunk": {"max_tokens": 8, "by": "sentences", "overlap_tokens": 7},
            "late": True,
            "mean": True,
            "normalize": False,
            "dimensions": 64,
            "force_dimensions": True,
            "encoding": "base64",
            "expect_fingerprint": "f00d:64",
        },
        DocumentsRequest(
            documents=["a b c"],
            chunks=ChunkOptions(max_tokens=8, by="sentences", overlap_tokens=7),
            model="m",
            text=PROMPTED,
            late=True,
            mean=True,
            normalize=False,
            dimensions=64,
            force_dimensions=True,
            expect_fingerprint="f00d:64",
        ),
        id="documents",
    ),
    pytest.param(
        "rerank",
        {
            **READING,
            "query": "q",
            "passages": ["a", "b"],
            "method": "weighted",
            "weights": {"dense": 1, "sparse": 0.3, "colbert": 1},
            "instruction": "judge",
            "chunk": {"max_tokens": 8},
            "top_n": 1,
            "return_passages": True,
        },
        RerankRequest(
            query="q",
            passages=["a", "b"],
            model="m",
            text=READ,
            method="weighted",
            weights=(1.0, 0.3, 1.0),
            instruction="judge",
            chunks=ChunkOptions(max_tokens=8),
        ),
        id="rerank",
    ),
    pytest.param(
        "classify",
        {**READING, "inputs": ["a", ["b", "c"]], "raw": True},
        ClassifyRequest(inputs=["a", ("b", "c")], model="m", text=READ, raw=True),
        id="classify",
    ),
    pytest.param(
        "similarity",
        {**PROMPTING, "source": "a", "sentences": ["b"]},
        SimilarityRequest(source="a", sentences=["b"], model="m", text=PROMPTED),
        id="similarity",
    ),
    pytest.param(
        "tokenize",
        {"model": "m", "inputs": ["a"], "add_special_tokens": False, "prompt_name": "q"},
        TokenizeRequest(inputs=["a"], model="m", add_special_tokens=False, prompt_name="q"),
        id="tokenize",
    ),
    pytest.param(
        "decode",
        {"model": "m", "ids": [[1, 2]], "skip_special_tokens": False},
        DecodeRequest(ids=[[1, 2]], model="m", skip_special_tokens=False),
        id="decode",
    ),
]
BARE = [
    pytest.param("embed", {"inputs": "a"}, EmbedRequest(inputs=("a",)), id="embed"),
    pytest.param(
        "documents",
        {"documents": ["a"], "chunk": {"max_tokens": 8}},
        DocumentsRequest(documents=["a"], chunks=ChunkOptions(max_tokens=8)),
        id="documents",
    ),
    pytest.param("rerank", {"query": "q", "passages": ["a"]}, RerankRequest(query="q", passages=["a"]), id="rerank"),
    pytest.param("classify", {"inputs": "a"}, ClassifyRequest(inputs=["a"]), id="classify"),
    pytest.param(
        "similarity",
        {"source": "a", "sentences": ["b"]},
        SimilarityRequest(source="a", sentences=["b"]),
        id="similarity",
    ),
    pytest.param("tokenize", {"inputs": "a"}, TokenizeRequest(inputs=["a"]), id="tokenize"),
    pytest.param("decode", {"ids": [[1]]}, DecodeRequest(ids=[[1]]), id="decode"),
]


def route(name, method="POST"):
    (found,) = [one for one in vectord.DIALECT.routes if (one.method, one.path) == (method, f"/vectord/{name}")]
    return found


def parse(name, **body):
    return route(name).parse(incoming(body)).request


@pytest.mark.parametrize(("name", "body", "request_"), FULL)
def test_every_option_is_read(name, body, request_):
    """Into the canonical request."""
    assert parse(name, **body) == request_


@pytest.mark.parametrize(("name", "body", "request_"), BARE)
def test_a_minimal_body_has_the_defaults(name, body, request_):
    """Only required fields are set."""
    assert parse(name, **body) == request_


@pytest.mark.parametrize(("name", "body", "request_"), BARE)
def test_null_is_the_same_as_absent(name, body, request_):
    """Every optional field may be null."""
    options = {field.name for field in msgspec.structs.fields(route(name).body) if not field.required}
    assert parse(name, **dict.fromkeys(options), **body) == request_


@pytest.mark.parametrize(
    ("name", "body", "field"),
    [
        *((param.values[0], {**param.values[1], "dimension": 64}, "dimension") for param in BARE),
        ("documents", {"documents": ["a"], "chunk": {"max_tokens": 9, "overlap": 2}}, "chunk.overlap"),
        ("rerank", {"query": "q", "passages": ["a"], "weights": {"lexical": 1}}, "weights.lexical"),
    ],
)
def test_an_unknown_field_is_refused(name, body, field):
    """A misspelt option would otherwise be ignored."""
    with pytest.raises(InvalidField) as refused:
        parse(name, **body)
    assert (refused.value.field_name, refused.value.message) == (field, f"There is no field `{field}`.")


@pytest.mark.parametrize("scores", ["raw", "probability"])
def test_a_kind_of_scores_selects_a_model_with_scores(scores):
    """Cosines have no such kinds."""
    assert parse("rerank", query="q", passages=["a"], scores=scores).method == "scores"


def test_unnormalized_vectors_are_dense():
    with pytest.raises(InvalidField, match="applies to dense vectors only"):
        parse("embed", inputs="a", outputs=["sparse"], normalize=False)


@pytest.mark.parametrize("method", ["dense", "sparse", "colbert", "weighted", "scores"])
def test_every_method_of_reranking_can_be_requested(method):
    """By its name in the schema."""
    assert parse("rerank", query="q", passages=["a"], method=method).method == method


@pytest.mark.parametrize(("scores", "raw"), [(None, None), ("model", None), ("raw", True), ("probability", False)])
def test_scores_select_logits_or_probabilities(scores, raw):
    """The default is the model's own."""
    assert parse("rerank", query="q", passages=["a"], method="scores", scores=scores).raw is raw


def test_two_texts_are_not_a_pair():
    """Unlike in TEI, a pair is a nested list."""
    assert parse("classify", inputs=["a", "b"]).inputs == ["a", "b"]
    assert parse("classify", inputs=[["a", "b"]]).inputs == [("a", "b")]


EMBED, RERANK = {"inputs": "a"}, {"query": "q", "passages": ["a"]}
DOCUMENTS = {"documents": ["a"], "chunk": {"max_tokens": 8}}
WEIGHTED = {**RERANK, "method": "weighted"}


@pytest.mark.parametrize(
    ("name", "body", "field"),
    [
        pytest.param("embed", {}, "inputs", id="no inputs"),
        pytest.param("embed", {**EMBED, "outputs": []}, "outputs", id="no outputs"),
        pytest.param("embed", {**EMBED, "outputs": ["zq"]}, "outputs", id="an unknown output"),
        pytest.param("embed", {**EMBED, "outputs": ["dense"] * 5}, "outputs", id="more outputs than there are"),
        pytest.param("embed", {**EMBED, "precisions": []}, "precisions", id="no precisions"),
        pytest.param("embed", {**EMBED, "precisions": ["float16"]}, "precisions", id="an unknown precision"),
        pytest.param("embed", {**EMBED, "dimensions": 0}, "dimensions", id="no dimensions"),
        pytest.param("embed", {**EMBED, "dimensions": 2**31}, "dimensions", id="dimensions without end"),
        pytest.param("embed", {**EMBED, "encoding": "hex"}, "encoding", id="an unknown encoding"),
        pytest.param("embed", {**EMBED, "kind": "passage"}, "kind", id="an unknown kind"),
        pytest.param("embed", {**EMBED, "truncate": "END"}, "truncate", id="truncate's type"),
        pytest.param("embed", {**EMBED, "truncate_side": "up"}, "truncate_side", id="an unknown side"),
        pytest.param("embed", {**EMBED, "prompt": "zq" * 2049}, "prompt", id="a long prompt"),
        pytest.param("embed", {**EMBED, "expect_fingerprint": "zq"}, "expect_fingerprint", id="no fingerprint"),
        pytest.param("documents", {"documents": ["a"]}, "chunk", id="no chunk"),
        pytest.param("documents", {**DOCUMENTS, "chunk": {}}, "chunk.max_tokens", id="no chunk size"),
        pytest.param("documents", {**DOCUMENTS, "chunk": {"max_tokens": 0}}, "chunk.max_tokens", id="empty chunks"),
        pytest.param(
            "documents",
            {**DOCUMENTS, "chunk": {"max_tokens": 8, "overlap_tokens": 8}},
            "chunk.overlap_tokens",
            id="chunks that do not advance",
        ),
        pytest.param(
            "documents",
            {**DOCUMENTS, "chunk": {"max_tokens": 8, "overlap_tokens": -1}},
            "chunk.overlap_tokens",
            id="chunks with gaps",
        ),
        pytest.param("documents", {**DOCUMENTS, "chunk": {"max_tokens": 8, "by": "word"}}, "chunk.by", id="by words"),
        pytest.param("documents", {**DOCUMENTS, "expect_fingerprint": ""}, "expect_fingerprint", id="empty print"),
        pytest.param("rerank", {**RERANK, "method": "best"}, "method", id="an unknown method"),
        pytest.param("rerank", {**RERANK, "top_n": -1}, "top_n", id="negative top_n"),
        pytest.param("rerank", {**RERANK, "instruction": "zq" * 2049}, "instruction", id="a long instruction"),
        pytest.param("rerank", {**RERANK, "weights": {"dense": 1}}, "weights", id="weights without their method"),
        pytest.param("rerank", {**WEIGHTED, "weights": {}}, "weights", id="no weight"),
        pytest.param("rerank", {**WEIGHTED, "weights": {"dense": 1e-320}}, "weights", id="a weight that vanishes"),
        pytest.param("rerank", {**WEIGHTED, "weights": {"dense": -1}}, "weights.dense", id="a negative weight"),
        pytest.param("rerank", {**WEIGHTED, "weights": {"sparse": 1001}}, "weights.sparse", id="a huge weight"),
        pytest.param("rerank", {**WEIGHTED, "weights": [1, 1, 1]}, "weights", id="weights in a list"),
        pytest.param("rerank", {**RERANK, "scores": "logit"}, "scores", id="unknown scores"),
        pytest.param("rerank", {**RERANK, "method": "dense", "scores": "raw"}, "scores", id="raw cosines"),
        pytest.param("classify", {"inputs": [["a"]]}, "inputs", id="half a pair"),
        pytest.param("classify", {"inputs": [["a", "b", "c"]]}, "inputs", id="more than a pair"),
        pytest.param("decode", {"ids": [[-1]]}, "ids", id="a negative id"),
        pytest.param("decode", {"ids": [1]}, "ids", id="ids in one list"),
    ],
)
def test_an_invalid_field_is_named(name, body, field):
    """The status is 400; the message has the field's path, and not the value."""
    with pytest.raises(InvalidField) as caught:
        parse(name, **body)
    rendered = render_error(caught.value)
    shown = json.loads(rendered.body)["error"]
    assert (rendered.status, shown["field"]) == (400, field)
    assert f"`{field}" in shown["message"]
    assert "zq" not in shown["message"]


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"1e999", b"-1e999"])
def test_a_weight_is_finite(number):
    """NaN and infinity are not JSON, and 1e999 is out of range."""
    body = b'{"query": "q", "passages": ["a"], "method": "weighted", "weights": {"dense": %b}}' % number
    with pytest.raises(VectordError) as caught:
        route("rerank", "POST").parse(Incoming(body=body))
    assert render_error(caught.value).status == 400


def test_an_overlap_that_is_too_large_has_its_limit():
    """As numbers, for programs."""
    with pytest.raises(InvalidField) as caught:
        parse("documents", documents=["a"], chunk={"max_tokens": 8, "overlap_tokens": 9})
    assert (caught.value.limit, caught.value.given) == (7, 9)


@pytest.mark.parametrize("inputs", [[], [[]], ["a", []]], ids=str)
def test_an_empty_list_of_inputs_is_rejected(inputs):
    """Also inside the list."""
    with pytest.raises(EmptyInput):
        parse("embed", inputs=inputs)


# --- vectors --------------------------------------------------------------------------------------------------

ASKED = {"inputs": ["a", "b"]}
INT8 = np.array([[1, -127, 3], [0, 5, 127]], np.int8)
COLBERT = [np.array([[1, 0]], np.float32), np.array([[0, 1], [0.6, 0.8]], np.float32)]


def answer(name, sent, result, answer_type, method="POST"):
    """The rendered body, which must fit the type in OpenAPI. sent: a body, or an Incoming."""
    sent = sent if isinstance(sent, Incoming) else incoming(sent)
    rendered = route(name, method).parse(sent).render(result)
    assert (rendered.status, rendered.content_type) == (200, "application/json")
    msgspec.json.decode(rendered.body, type=answer_type)
    return json.loads(rendered.body)


def test_embed_returns_dense_vectors():
    """In one precision, with the shortest float32 digits."""
    result = replace(embed_result(used=usage([(3, 3), (4, 4)])), sources={"dense": "served"})
    assert answer("embed", ASKED, result, EmbedAnswer) == {
        "model": "served",
        "fingerprint": "f00d",
        "data": [
            {"index": 0, "dense": [0.1, -0.2, 0.33333334]},
            {"index": 1, "dense": json.loads("[1e-45, 3.4028235e38, -0.0]")},
        ],
        "sources": {"dense": "served"},
        **FIGURES,
    }


def test_several_precisions_are_an_object():
    """In the requested order."""
    result = replace(embed_result(), dense={"int8": INT8, "float": VECTORS})
    shown = answer("embed", ASKED | {"precisions": ["int8", "float"]}, result, EmbedAnswer)
    assert shown["data"][0]["dense"] == {"int8": [1, -127, 3], "float": [0.1, -0.2, 0.33333334]}


def test_one_precision_is_a_list():
    """For every precision."""
    shown = answer("embed", ASKED | {"precisions": ["int8"]}, embed_of(dense={"int8": INT8}), EmbedAnswer)
    assert shown["data"][1]["dense"] == [0, 5, 127]


def embed_of(**vectors):
    return EmbedResult(model="served", fingerprint="f00d", usage=usage(), **vectors)


def test_base64_has_the_bytes_of_each_precision():
    """float32 is little-endian, int8 has one byte for each number, and token vectors are encoded one by one."""
    body = ASKED | {"precisions": ["float", "int8"], "encoding": "base64"}
    result = embed_of(dense={"float": VECTORS, "int8": INT8}, colbert=COLBERT, tokens=COLBERT)
    shown = answer("embed", body, result, EmbedAnswer)["data"][1]
    assert shown["dense"] == {"float": to_base64(VECTORS[1]), "int8": base64.b64encode(bytes([0, 5, 127])).decode()}
    assert shown["colbert"] == shown["tokens"] == [to_base64(row) for row in COLBERT[1]]


def test_every_kind_of_vector_is_returned():
    """Keys that were not requested are absent."""
    sparse = [Sparse(np.array([9, 2], np.int32), np.array([0.1, 3], np.float32)), Sparse(*np.zeros((2, 0), np.int32))]
    result = embed_of(sparse=sparse, colbert=COLBERT, tokens=COLBERT)
    assert answer("embed", ASKED, result, EmbedAnswer)["data"] == [
        {"index": 0, "sparse": {"indices": [9, 2], "values": [0.1, 3.0]}, "colbert": [[1, 0]], "tokens": [[1, 0]]},
        {
            "index": 1,
            "sparse": {"indices": [], "values": []},
            "colbert": [[0, 1], [0.6, 0.8]],
            "tokens": [[0, 1], [0.6, 0.8]],
        },
    ]


def test_a_truncated_text_has_the_model_that_truncated_it():
    """Each model of a composite has its own tokenizer."""
    lengths = {
        "a": [TextLength(4, 4), TextLength(9, 6), TextLength(9, 6)],
        "b": [TextLength(3, 3), TextLength(7, 7), TextLength(12, 8, characters_cut=100)],
    }
    result = embed_of(dense={"float": np.zeros((3, 2), np.float32)}, lengths=lengths, limits={"a": 6, "b": 8})
    result = replace(result, usage=usage([(3, 3)] * 3))
    shown = answer("embed", {"inputs": ["a", "b", "c"]}, result, EmbedAnswer)["data"]
    a = {"model": "a", "seen": 9, "kept": 6, "max_tokens": 6}
    b = {"model": "b", "seen": 12, "kept": 8, "max_tokens": 8, "characters_cut": 100}
    assert [item.get("truncated") for item in shown] == [None, [a], [a, b]]


def test_documents_returns_chunks_with_their_spans():
    """A vector for each chunk, and the mean on request."""
    chunks = [DocumentChunk(span=Span(0, 5), tokens=2), DocumentChunk(span=Span(6, 9), tokens=1)]
    documents = [
        ChunkedDocument(chunks=chunks, vectors={"float": VECTORS}, mean=np.array([0.5, 0.5, 0], np.float32)),
        ChunkedDocument(chunks=chunks[:1], vectors={"float": VECTORS[:1]}),
    ]
    result = DocumentsResult(model="served", fingerprint="f00d", documents=documents, usage=usage())
    body = {"documents": ["a", "b"], "chunk": {"max_tokens": 8}}
    shown = answer("documents", body, result, DocumentsAnswer)
    first = {"start": 0, "stop": 5, "tokens": 2, "vector": [0.1, -0.2, 0.33333334]}
    assert shown["data"][0]["chunks"][0] == first
    assert shown["data"][0]["mean"] == [0.5, 0.5, 0]
    assert shown["data"][1] == {"index": 1, "chunks": [first]}
    assert shown | FIGURES == shown
    coded = answer("documents", body | {"encoding": "base64"}, result, DocumentsAnswer)
    assert coded["data"][0]["chunks"][0]["vector"] == to_base64(VECTORS[0])
    assert coded["data"][0]["mean"] == to_base64(np.array([0.5, 0.5, 0], np.float32))


# --- scores ---------------------------------------------------------------------------------------------------

PASSAGES = {"query": "q", "passages": ["a", "b", "c", "d"]}


def test_rerank_returns_passages_best_first():
    """Each passage once, with the kind of score. Equal scores stay in order."""
    result = rerank_result(0.1, 0.9, -3, 0.9, usage=usage())
    assert answer("rerank", PASSAGES, result, RerankAnswer) == {
        "model": "served",
        "fingerprint": "f00d",
        "score_kind": "logit",
        "results": [
            {"index": 1, "score": 0.9},
            {"index": 3, "score": 0.9},
            {"index": 0, "score": 0.1},
            {"index": 2, "score": -3.0},
        ],
        "warnings": [],
        **FIGURES,
    }


@pytest.mark.parametrize(
    ("top_n", "indices"), [(None, [1, 3, 0, 2]), (0, [1, 3, 0, 2]), (1, [1]), (3, [1, 3, 0]), (9, [1, 3, 0, 2])]
)
def test_top_n_bounds_the_results(top_n, indices):
    """null and 0 are no bound."""
    shown = answer("rerank", PASSAGES | {"top_n": top_n}, rerank_result(0.1, 0.9, -3, 0.9), RerankAnswer)
    assert [result["index"] for result in shown["results"]] == indices


def test_passages_and_spans_belong_to_their_index():
    """In every order of the results."""
    spans = [Span(0, 1), Span(1, 2), Span(2, 3), Span(3, 4)]
    body = PASSAGES | {"return_passages": True, "top_n": 2}
    shown = answer("rerank", body, rerank_result(0.1, 0.9, -3, 0.8, spans=spans), RerankAnswer)
    assert [(each["passage"], each["span"]) for each in shown["results"]] == [
        ("b", {"start": 1, "stop": 2}),
        ("d", {"start": 3, "stop": 4}),
    ]


def test_truncated_texts_have_warnings():
    """The query, and each passage by its index, also those that top_n leaves out."""
    result = rerank_result(
        0.2, 0.1, query=TextLength(90, 64), passages=[TextLength(7, 7), TextLength(700, 400)], max_tokens=512
    )
    shown = answer("rerank", PASSAGES | {"passages": ["a", "b"], "top_n": 1}, result, RerankAnswer)
    assert shown["warnings"] == [
        {"type": "query_truncated", "seen": 90, "kept": 64, "max_tokens": 512},
        {"type": "passage_truncated", "index": 1, "seen": 700, "kept": 400, "max_tokens": 512},
    ]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20),
    st.integers(1, 25) | st.none(),
)
def test_results_are_finite_sorted_and_each_passage_once(scores, top_n):
    """For all finite scores."""
    body = incoming({"query": "q", "passages": ["p"] * len(scores), "top_n": top_n})
    shown = json.loads(route("rerank").parse(body).render(rerank_result(*scores)).body)["results"]
    assert len(shown) == min(len(scores), top_n or len(scores))
    assert [(-each["score"], each["index"]) for each in shown] == sorted(
        (-each["score"], each["index"]) for each in shown
    )
    assert all(np.float32(each["score"]) == np.float32(scores[each["index"]]) for each in shown)


def test_classify_returns_labels_best_first():
    """For each input, in order; equal ones in the model's order."""
    shown = answer(
        "classify",
        {"inputs": ["a", "b"]},
        classify_result([0.2, 0.7, 0.1], [0, 0.5, 0.5]),
        ClassifyAnswer,
    )
    assert (shown["model"], shown["score_kind"]) == ("served", "probability")
    assert shown["data"][0] == {
        "index": 0,
        "labels": [
            {"label": "glad", "score": 0.7},
            {"label": "sad", "score": 0.2},
            {"label": "mad", "score": 0.1},
        ],
    }
    assert [label["label"] for label in shown["data"][1]["labels"]] == ["glad", "mad", "sad"]


def test_classify_reports_a_truncated_input():
    """With the numbers of tokens."""
    result = replace(classify_result([1, 0, 0], [1, 0, 0]), usage=usage())
    shown = answer("classify", {"inputs": ["a", "b"]}, result, ClassifyAnswer)
    assert [item.get("truncated") for item in shown["data"]] == [None, [{"model": "served", "seen": 9, "kept": 4}]]


def test_similarity_returns_cosines():
    """One for each sentence, in order."""
    result = SimilarityResult(model="served", fingerprint="f00d", scores=np.array([0.5, -1], np.float32), usage=usage())
    shown = answer("similarity", {"source": "a", "sentences": ["b", "c"]}, result, SimilarityAnswer)
    assert shown == {
        "model": "served",
        "fingerprint": "f00d",
        "score_kind": "cosine",
        "scores": [0.5, -1.0],
        **FIGURES,
    }


def test_a_failed_input_has_an_error_in_its_place():
    """The error is complete, and the other inputs have vectors."""
    failure = InputTooLong("Too long.", field="inputs", index=1, limit=4, given=9)
    shown = answer(
        "embed", ASKED | {"partial_results": True}, replace(embed_result(), failures={1: failure}), EmbedAnswer
    )
    assert shown["data"] == [
        {"index": 0, "dense": [0.1, -0.2, 0.33333334]},
        {
            "index": 1,
            "error": {
                "type": "input_too_long",
                "message": "Too long.",
                "field": "inputs",
                "index": 1,
                "limit": 4,
                "given": 9,
            },
        },
    ]


def test_the_refusal_of_a_long_text_has_the_ways_out():
    """As in OpenAI's API."""
    shown = json.loads(render_error(InputTooLong("Too long", field="inputs", index=1, limit=4, given=9)).body)["error"]
    assert (shown["type"], shown["limit"], shown["given"]) == ("input_too_long", 4, 9)
    assert all(way in shown["message"] for way in ('"truncate": true', "/vectord/documents", "--auto-truncate"))


# --- tokens and models ----------------------------------------------------------------------------------------


def test_tokenize_returns_tokens():
    """With byte offsets; null for special tokens."""
    tokens = [[Token(101, "[CLS]", True, None, None), Token(7, "é", False, 0, 2)], []]
    result = TokenizeResult(model="served", tokens=tokens, usage=usage())
    shown = answer("tokenize", {"inputs": ["é", ""]}, result, TokenizeAnswer)
    assert shown["data"] == [
        {
            "index": 0,
            "tokens": [
                {"id": 101, "text": "[CLS]", "special": True, "start": None, "stop": None},
                {"id": 7, "text": "é", "special": False, "start": 0, "stop": 2},
            ],
        },
        {"index": 1, "tokens": []},
    ]


def test_decode_returns_texts():
    """In order."""
    result = DecodeResult(model="served", texts=("a", "b"))
    shown = answer("decode", {"ids": [[1], [2]]}, result, DecodeAnswer)
    assert shown == {"model": "served", "data": [{"index": 0, "text": "a"}, {"index": 1, "text": "b"}]}


MODEL = {
    "name": "served",
    "model_id": "org/model",
    "revision": "abc123",
    "fingerprint": "f00d",
    "architecture": "bert",
    "outputs": ["dense", "tokens"],
    "reranks": False,
    "labels": [],
    "pooling": "mean",
    "dimensions": 384,
    "matryoshka": [128, 256],
    "max_input_tokens": 256,
    "prompts": {"query": "find: "},
    "dtype": "bfloat16",
    "device": "cpu",
    "backend": "openvino",
    "state": "ready",
    "failure": None,
    "aliases": [],
    "pinned": True,
    "created": 1_700_000_000,
    "devices": {},
}


def test_models_have_every_fact():
    """And the limits in force."""
    assert route("models", "GET").parse(Incoming()).request == ListModels()
    info = model_info(matryoshka=(128, 256), prompts={"query": "find: "}, pinned=True)
    splade = model_info("other", outputs={"sparse"}, pooling="", dimensions=0, state="unloaded", revision=None)
    shown = answer("models", Incoming(), model_list(info, splade), ModelsAnswer, method="GET")
    assert shown["models"][0] == MODEL
    assert shown["models"][1] == MODEL | {
        "name": "other",
        "revision": None,
        "outputs": ["sparse"],
        "pooling": None,
        "dimensions": 0,
        "matryoshka": None,
        "prompts": {},
        "state": "unloaded",
        "pinned": False,
    }
    assert shown["limits"]["max_inputs_per_request"] == 2048


@pytest.mark.parametrize(
    ("path", "method", "kind"),
    [
        ("models/{model:path}", "GET", ListModels),
        ("models/{model:path}/load", "POST", LoadModel),
        ("models/{model:path}/unload", "POST", UnloadModel),
    ],
)
def test_one_model_is_shown_loaded_or_unloaded(path, method, kind):
    """Its name may contain slashes. Each route returns the model."""
    sent = Incoming(path={"model": "org/served"})
    assert route(path, method).parse(sent).request == kind(model="org/served")
    assert answer(path, sent, model_list(), ModelAnswer, method=method)["name"] == "served"


def test_a_pull_shows_its_bytes():
    """The answer of a running pull has the file of the repository, and how much of it is there."""
    sent = Incoming(path={"model": "org/model"})
    pulled = route("models/{model:path}/pull")
    assert pulled.admin
    assert pulled.parse(sent).request == PullModel(model="org/model")
    facts = {"model": "org/model", "state": "pulling", "done_bytes": 3, "total_bytes": 9}
    assert answer("models/{model:path}/pull", sent, PullResult(**facts), PullAnswer) == facts


def test_a_removal_shows_the_freed_bytes():
    """For the admin key only; the path is the model's own, with DELETE."""
    sent = Incoming(path={"model": "org/model"})
    assert route("models/{model:path}", "DELETE").admin
    assert route("models/{model:path}", "DELETE").parse(sent).request == RemoveModel(model="org/model")
    facts = {"model": "org/model", "freed_bytes": 9}
    assert answer("models/{model:path}", sent, RemoveResult(**facts), RemoveAnswer, method="DELETE") == facts


# --- errors ---------------------------------------------------------------------------------------------------


def test_an_error_has_every_key():
    """Keys that do not apply are null."""
    rendered = render_error(TooManyInputs("Too many.", field="inputs", limit=8, given=9))
    assert rendered.status == 400
    assert json.loads(rendered.body) == {
        "error": {
            "type": "too_many_inputs",
            "message": "Too many.",
            "field": "inputs",
            "index": None,
            "limit": 8,
            "given": 9,
        }
    }
    rendered = render_error(FingerprintMismatch("Another space.", field="expect_fingerprint"))
    assert rendered.status == 412
    assert json.loads(rendered.body)["error"] | {"message": ""} == {
        "type": "fingerprint_mismatch",
        "message": "",
        "field": "expect_fingerprint",
        "index": None,
        "limit": None,
        "given": None,
    }


def test_the_paths_are_not_shared():
    """All are below /vectord/."""
    assert all(one.path.startswith("/vectord/") for one in vectord.DIALECT.routes)
