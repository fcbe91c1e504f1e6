"""Smart Embedder: requests, answers, warnings and errors of its document."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from tests.products.results import incoming, model_info, model_list, rerank_result, usage

from vectord import errors
from vectord.products import smart_embedder
from vectord.products.common.dialect import Guards, Rendered
from vectord.products.smart_embedder import TRUNCATED
from vectord.products.smart_embedder.metrics import health
from vectord.schema import EmbedRequest, EmbedResult, Gpu, RerankRequest, ShowStatistics, Sparse, Statistics, TextLength

ALL = frozenset({"dense", "sparse", "colbert"})
BGE = model_info("BAAI/bge-m3", outputs=ALL | {"tokens"})
QWEN = model_info("Qwen/Qwen3-Embedding-0.6B")
BOTH = model_info("both", outputs=ALL, sources={"dense": QWEN.name, "sparse": BGE.name, "colbert": BGE.name})
RERANKER = model_info("reranker", outputs=frozenset(), reranks=True, labels=("LABEL_0",))
JUDGE = replace(RERANKER, labels=())


def route(path, method="POST"):
    (found,) = [one for one in smart_embedder.DIALECT.routes if (one.method, one.path) == (method, path)]
    return found


def call(path, body, models=(BGE, RERANKER), guards=None):
    return route(path).parse(replace(incoming(body), models=models, guards=guards or Guards()))


def answer(path, body, result, models=(BGE, RERANKER)):
    """The rendered body, which must fit the type that OpenAPI shows."""
    rendered = call(path, body, models).render(result)
    msgspec.json.decode(rendered.body, type=route(path).answer)
    return json.loads(rendered.body)


# --- embeddings -----------------------------------------------------------------------------------------------


def test_all_three_vectors_are_the_default():
    """The document's curl sends return_dense only, and gets all three."""
    request = call("/embeddings", {"sentences": ["a"], "return_dense": True}).request
    assert request == EmbedRequest(inputs=["a"], model="BAAI/bge-m3", text=TRUNCATED, outputs=ALL, normalize=True)


def test_null_and_unknown_keys_are_ignored():
    """As in every dialect."""
    options = dict.fromkeys(
        (*(name for name in msgspec.structs.asdict(smart_embedder.EmbeddingsBody([])) if name != "sentences"), "x")
    )
    assert (
        call("/embeddings", {"sentences": ["a"], **options}).request
        == call("/embeddings", {"sentences": ["a"]}).request
    )


@pytest.mark.parametrize("flags", [("dense",), ("sparse", "colbert"), ()], ids=str)
def test_flags_choose_the_vectors(flags):
    """With all flags off no vectors are requested."""
    body = {"sentences": ["a"], **{f"return_{kind}": kind in flags for kind in ALL}}
    assert call("/embeddings", body).request.outputs == frozenset(flags)


@pytest.mark.parametrize(
    ("value", "meaning"),
    [
        *((value, True) for value in (True, 1, 1.0, "1", "on", "t", "true", "True", "y", "YES")),
        *((value, False) for value in (False, 0, 0.0, "0", "off", "f", "false", "FALSE", "n", "No")),
    ],
    ids=repr,
)
def test_booleans_may_be_words_and_numbers(value, meaning):
    """In every boolean field, as in pydantic."""
    body = {"sentences": ["a"], **{f"return_{kind}": value for kind in ALL}, "normalize_dense": value}
    request = call("/embeddings", body, (QWEN, BGE, BOTH)).request
    assert (request.outputs == ALL, request.normalize) == (meaning, meaning)
    shown = answer("/embeddings", {"sentences": ["a", "b"], "sparse_as_indices": value}, embedded(sparse=SPARSE))
    assert ("indices" in shown["data"][0]["embeddings"]["sparse"]) is meaning
    assert call("/rerank", {"query": "q", "passages": ["a"], "normalize": value}).request.raw is not meaning


@pytest.mark.parametrize("value", [2, -1, 0.5, "", "null", " true", "oui", [], {}], ids=repr)
@pytest.mark.parametrize(
    ("path", "field"), [("/embeddings", "return_dense"), ("/embeddings", "sparse_as_indices"), ("/rerank", "normalize")]
)
def test_other_words_are_no_booleans(path, field, value):
    """422, with the place."""
    rendered = refused(path, {"sentences": ["a"], "query": "q", "passages": ["a"], field: value})
    (fault,) = json.loads(rendered.body)["detail"]
    assert (rendered.status, fault["loc"]) == (422, ["body", field])


@pytest.mark.parametrize(
    ("models", "flag", "normalize"),
    [
        pytest.param((BGE,), False, True, id="BGE-M3 is always of length 1"),
        pytest.param((QWEN, BGE, BOTH), False, False, id="Qwen as it is"),
        pytest.param((QWEN, BGE, BOTH), True, True, id="Qwen normalised"),
    ],
)
def test_normalize_dense_has_no_effect_on_bge_m3(models, flag, normalize):
    """FlagEmbedding always normalizes BGE-M3's vectors."""
    assert call("/embeddings", {"sentences": ["a"], "normalize_dense": flag}, models).request.normalize is normalize


@pytest.mark.parametrize("kinds", [("dense",), ("dense", "sparse"), ("dense", "sparse", "colbert")], ids=str)
def test_a_composite_takes_precedence_over_its_members(kinds):
    """Otherwise a request for sparse vectors would change the model of the dense vectors."""
    body = {"sentences": ["a"], **{f"return_{kind}": kind in kinds for kind in ALL}}
    assert call("/embeddings", body, (QWEN, BGE, BOTH)).request.model == "both"


def test_a_failed_model_is_not_chosen():
    """Its composite neither. Kinds that only the failed model makes are refused by the engine, not left out."""
    failed = (replace(BOTH, state="failed"), replace(BGE, state="failed"))
    dense = {"return_sparse": False, "return_colbert": False}
    assert call("/embeddings", {"sentences": ["a"], **dense}, (*failed, QWEN)).request.model == QWEN.name
    request = call("/embeddings", {"sentences": ["a"]}, (*failed, QWEN)).request
    assert (request.model, request.outputs) == (None, set(ALL))


def test_the_default_body_gets_the_vectors_that_the_model_makes():
    """null and a warning for each other kind."""
    parsed = call("/embeddings", {"sentences": ["a"]}, (QWEN, RERANKER))
    assert (parsed.request.outputs, parsed.request.model) == ({"dense"}, QWEN.name)
    result = embedded(dense={"float": np.array([[0.5, -0.25]], np.float32)})
    shown = answer("/embeddings", {"sentences": ["a"]}, result, (QWEN, RERANKER))
    assert shown["data"][0]["embeddings"] == {"dense": [0.5, -0.25], "sparse": None, "colbert": None}
    assert shown["warnings"] == [
        {
            "code": "vectors_unavailable",
            "severity": "warning",
            "message": f"The model makes no {kind} vectors.",
            "target": {"field": f"return_{kind}", "index": None, "pointer": f"/return_{kind}"},
            "details": {"model": QWEN.name},
        }
        for kind in ("sparse", "colbert")
    ]


@pytest.mark.parametrize(
    "body",
    [{"return_sparse": True}, {"return_dense": False}, {"return_dense": False, "return_sparse": True}],
    ids=str,
)
def test_demanded_vectors_that_no_model_makes_are_left_to_the_engine(body):
    """The engine has the error for them, and for a request without any vectors that a model makes."""
    request = call("/embeddings", {"sentences": ["a"], **body}, (QWEN,)).request
    assert request.model is None and not request.outputs <= QWEN.outputs


def embedded(**facts):
    return EmbedResult(model="BAAI/bge-m3", fingerprint="f00d", usage=usage(), **facts)


SPARSE = [
    Sparse(np.array([435, 12], np.int32), np.array([0.5, 0.25], np.float32)),
    Sparse(np.zeros(0, np.int32), np.zeros(0, np.float32)),
]
COLBERT = [np.array([[1, 0]], np.float32), np.array([[0, 1], [0.6, 0.8]], np.float32)]


def test_the_answer_of_the_document():
    """All of its keys; sparse weights are in the order of their tokens in the text."""
    result = embedded(dense={"float": np.array([[0.5, -0.25], [1, 0]], np.float32)}, sparse=SPARSE, colbert=COLBERT)
    shown = answer("/embeddings", {"sentences": ["Hello world!", "Ciao"]}, result)
    assert shown["data"][0] == {
        "id": 0,
        "text": "Hello world!",
        "embeddings": {"dense": [0.5, -0.25], "sparse": {"435": 0.5, "12": 0.25}, "colbert": [[1, 0]]},
    }
    assert list(shown["data"][0]["embeddings"]["sparse"]) == ["435", "12"]
    del shown["data"]
    assert shown == {
        **dict.fromkeys(("model_name", "dense_model_name", "sparse_model_name", "colbert_model_name"), "BAAI/bge-m3"),
        "processing_time_ms": 1234.5,
        "warnings": [],
    }


def test_sparse_as_indices_is_qdrants_form():
    """Two lists."""
    shown = answer("/embeddings", {"sentences": ["a", "b"], "sparse_as_indices": True}, embedded(sparse=SPARSE))
    assert shown["data"][0]["embeddings"]["sparse"] == {"indices": [435, 12], "values": [0.5, 0.25]}


def test_vectors_not_requested_are_null():
    """Their keys stay."""
    shown = answer("/embeddings", {"sentences": ["a", "b"]}, embedded())
    assert [each["embeddings"] for each in shown["data"]] == [{"dense": None, "sparse": None, "colbert": None}] * 2


def test_each_kind_of_vectors_has_its_models_name():
    """With Qwen only the dense vectors' model differs."""
    shown = answer("/embeddings", {"sentences": ["a", "b"]}, embedded(), (QWEN, BGE, BOTH))
    assert {name: model for name, model in shown.items() if name.endswith("name")} == {
        "model_name": QWEN.name,
        "dense_model_name": QWEN.name,
        "sparse_model_name": BGE.name,
        "colbert_model_name": BGE.name,
    }


def test_each_truncation_has_a_warning():
    """The document's example: BGE-M3 truncates 9,000 tokens, and Qwen does not."""
    result = embedded(
        lengths={
            BGE.name: [TextLength(9000, 8192), TextLength(3, 3)],
            QWEN.name: [TextLength(9100, 9100), TextLength(40000, 32768)],
        },
        limits={BGE.name: 8192, QWEN.name: 32768},
    )
    first, second = answer("/embeddings", {"sentences": ["a", "b"]}, result, (QWEN, BGE, BOTH))["warnings"]
    assert first == {
        "code": "input_truncated",
        "severity": "warning",
        "message": "Input text was truncated to the model token limit.",
        "target": {"field": "sentences", "index": 0, "pointer": "/sentences/0"},
        "details": {
            "model": "BAAI/bge-m3",
            "max_tokens": 8192,
            "original_tokens": 9000,
            "truncated_tokens": 808,
            "truncation_side": "end",
        },
    }
    assert (second["target"]["pointer"], second["details"]["model"]) == ("/sentences/1", QWEN.name)


# --- rerank ---------------------------------------------------------------------------------------------------

PASSAGES = {"query": "q", "passages": ["a", "b", "c"]}


@pytest.mark.parametrize(
    ("models", "normalize", "raw"),
    [
        pytest.param((RERANKER,), None, True, id="logits by default"),
        pytest.param((RERANKER,), True, False, id="probabilities"),
        pytest.param((JUDGE,), False, None, id="a language model has probabilities only"),
        pytest.param((BGE,), True, False, id="no reranker"),
    ],
)
def test_normalize_chooses_the_scores(models, normalize, raw):
    """BGE's reranker only: Qwen's scores are always probabilities."""
    request = call("/rerank", {**PASSAGES, "normalize": normalize}, models).request
    assert request == RerankRequest(query="q", passages=["a", "b", "c"], text=TRUNCATED, raw=raw)


def test_every_passage_is_ranked():
    """Best first, equal scores in order."""
    shown = answer("/rerank", PASSAGES, replace(rerank_result(0.5, 2, 0.5), model="reranker", usage=usage()))
    assert shown == {
        "results": [
            {"index": 1, "passage": "b", "score": 2.0},
            {"index": 0, "passage": "a", "score": 0.5},
            {"index": 2, "passage": "c", "score": 0.5},
        ],
        "model_name": "reranker",
        "processing_time_ms": 1234.5,
        "warnings": [],
    }


def test_truncated_queries_and_passages_have_warnings():
    """Each with its pointer."""
    result = rerank_result(
        1, 2, 3, query=TextLength(90, 64), passages=[TextLength(7, 7), TextLength(700, 400), TextLength(7, 7)]
    )
    query, passage = answer("/rerank", PASSAGES, result)["warnings"]
    assert (query["code"], query["target"]) == (
        "query_truncated",
        {"field": "query", "index": None, "pointer": "/query"},
    )
    assert query["details"]["truncated_tokens"] == 26
    assert (passage["code"], passage["target"]["pointer"]) == ("passage_truncated", "/passages/1")
    assert passage["details"]["original_tokens"] - passage["details"]["max_tokens"] == 300


# --- stats ----------------------------------------------------------------------------------------------------


def test_stats_come_from_the_engine():
    """Hours continue above 24."""
    asked = route("/stats", "GET").parse(incoming({}))
    assert asked.request == ShowStatistics()
    figures = Statistics(
        uptime_s=90_187.9, embed_requests=3, embed_texts=9, batches=2, refused_requests=1, device="cpu"
    )
    rendered = asked.render(figures)
    msgspec.json.decode(rendered.body, type=smart_embedder.StatsAnswer)
    assert json.loads(rendered.body) == {
        "uptime": "25h 3m 7s",
        "uptime_seconds": 90_187,
        "total_requests": 3,
        "total_sentences": 9,
        "total_batches": 2,
        "rejected_requests": 1,
        "hardware": "CPU",
    }


# --- errors ---------------------------------------------------------------------------------------------------


def refused(path, body, guards=None) -> Rendered:
    with pytest.raises(errors.VectordError) as caught:
        call(path, body, guards=guards)
    return smart_embedder.render_error(caught.value)


@pytest.mark.parametrize(
    ("path", "body", "detail"),
    [
        ("/embeddings", {"sentences": []}, "The 'sentences' list cannot be empty."),
        ("/rerank", {"query": " \n", "passages": ["a"]}, "The 'query' field cannot be empty."),
        ("/rerank", {"query": "q", "passages": []}, "The 'passages' list cannot be empty."),
    ],
)
def test_empty_requests_are_400_in_its_own_words(path, body, detail):
    """Verbatim, because scripts compare the sentences."""
    rendered = refused(path, body)
    assert (rendered.status, json.loads(rendered.body)) == (400, {"detail": detail})


@pytest.mark.parametrize(
    ("body", "kind", "place"),
    [
        ({}, "missing", ["body", "sentences"]),
        ({"sentences": ["a", 1]}, "value_error", ["body", "sentences", 1]),
        ({"sentences": "a"}, "value_error", ["body", "sentences"]),
    ],
    ids=str,
)
def test_a_wrong_shape_is_fastapis_list(body, kind, place):
    """422. `input`, where FastAPI repeats the value, is null."""
    rendered = refused("/embeddings", body)
    (fault,) = json.loads(rendered.body)["detail"]
    assert (rendered.status, fault["type"], fault["loc"], fault["input"]) == (422, kind, place, None)


@pytest.mark.parametrize(
    ("path", "body"), [("/embeddings", {"sentences": ["a"] * 3}), ("/rerank", {"query": "q", "passages": ["a"] * 3})]
)
def test_a_guard_counts_items(path, body):
    """Only if its limit is set."""
    call(path, body)
    call(path, body, guards=Guards(max_sentences=3, max_passages=3))
    rendered = refused(path, body, Guards(max_sentences=2, max_passages=2))
    assert rendered.status == 422
    assert "at most 2 items; got 3" in json.loads(rendered.body)["detail"][0]["msg"]


@pytest.mark.parametrize(
    ("path", "body", "guards", "place", "words"),
    [
        (
            "/embeddings",
            {"sentences": ["ab", "abc"]},
            {"max_sentence_chars": 2},
            ["sentences", 1],
            "2 characters; got 3",
        ),
        (
            "/embeddings",
            {"sentences": ["ab", "c"]},
            {"max_total_chars": 2},
            ["sentences"],
            "2 characters in all; got 3",
        ),
        (
            "/rerank",
            {"query": "abc", "passages": ["a"]},
            {"max_rerank_text_chars": 2},
            ["query"],
            "2 characters; got 3",
        ),
        (
            "/rerank",
            {"query": "a", "passages": ["a", "abc"]},
            {"max_rerank_text_chars": 2},
            ["passages", 1],
            "2 characters; got 3",
        ),
        ("/rerank", {"query": "ab", "passages": ["c"]}, {"max_rerank_total_chars": 2}, ["passages"], "in all; got 3"),
    ],
)
def test_a_guard_counts_characters(path, body, guards, place, words):
    """Version 1.1's limits, only if they are set: 422 with the place."""
    call(path, body)
    call(path, body, guards=Guards(**dict.fromkeys(guards, 3)))
    rendered = refused(path, body, Guards(**guards))
    (fault,) = json.loads(rendered.body)["detail"]
    assert (rendered.status, fault["loc"]) == (422, ["body", *place])
    assert words in fault["msg"]


@pytest.mark.parametrize(
    ("error", "status", "detail"),
    [
        (errors.Unauthorized("No key."), 401, "Invalid or missing bearer token."),
        (errors.Overloaded("Full.", retry_after_s=1), 503, "Server is overloaded. Please retry later."),
        (errors.QueueTimedOut("Late.", retry_after_s=1), 503, "Server is overloaded. Please retry later."),
        (errors.ShuttingDown(), 503, "Server is shutting down"),
        (errors.Unavailable("The model is still loading."), 503, "The model is still loading."),
        (errors.InferenceFailed("It broke."), 500, "Internal server error."),
    ],
    ids=str,
)
def test_its_other_errors_are_sentences(error, status, detail):
    """Those of its document, verbatim."""
    rendered = smart_embedder.render_error(error)
    assert (rendered.status, json.loads(rendered.body)) == (status, {"detail": detail})


# --- health ---------------------------------------------------------------------------------------------------


GIB = 2**30


@pytest.mark.parametrize(
    ("gpu", "longest", "sizes"),
    [
        (None, 8192, (1, 8)),
        (None, 512, (1, 8)),
        *((Gpu("RTX", int(gb * GIB)), 8192, sizes) for gb, sizes in ((4, (3, 16)), (8, (6, 16)), (8.1, (12, 16)))),
        *(
            (Gpu("RTX", gb * GIB), 512, sizes)
            for gb, sizes in ((4, (16, 16)), (6, (32, 16)), (8, (64, 32)), (9, (128, 64)))
        ),
    ],
    ids=str,
)
def test_health_has_its_version_and_batch_sizes(gpu, longest, sizes):
    """By the table of its document."""
    shown = health(model_list(model_info(max_input_tokens=longest, gpu=gpu)), True)
    assert (shown["version"], shown["batch_size"], shown["max_requests_in_batch"]) == ("1.2.0", *sizes)


def test_health_and_stats_describe_the_gpu():
    """By its name and memory."""
    gpu = Gpu("NVIDIA GeForce RTX 4060 Laptop GPU", 8_585_216_000)
    facts = health(model_list(model_info(device="cuda:0", gpu=gpu)), True)["gpu"]
    assert (facts["device_info"], facts["memory_gb"]) == (gpu.name, 8.0)
    figures = Statistics(
        uptime_s=1, embed_requests=0, embed_texts=0, batches=0, refused_requests=0, device="cuda:0", gpu=gpu
    )
    shown = route("/stats", "GET").parse(incoming({})).render(figures)
    assert json.loads(shown.body)["hardware"] == "NVIDIA GeForce RTX 4060 Laptop GPU (8.00 GB)"


def test_health_names_devices_of_loaded_models_only() -> None:
    """Before a model is loaded the device is "unknown"."""
    gpu = health(model_list(model_info(device="unknown")), True)["gpu"]
    assert (gpu["available"], gpu["device_info"], gpu["configured_devices"]) == (False, "unknown", [])
    gpu = health(model_list(model_info(device="NVIDIA H200"), model_info(device="cpu")), True)["gpu"]
    assert (gpu["available"], gpu["device_info"], gpu["device_count"]) == (True, "NVIDIA H200", 1)


def test_health_counts_each_gpu_once() -> None:
    """Several models or replicas may share a GPU."""
    both = model_info(device="cuda:0,cuda:1")
    gpu = health(model_list(both, model_info(device="cuda:1")), True)["gpu"]
    assert (gpu["device_count"], gpu["multi_gpu_enabled"]) == (2, True)
    assert gpu["configured_devices"] == ["cuda:0", "cuda:1"]
