"""Clients that are no Python or Node package: the requests that they send, and the fields that they read."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest
from tests.clients.texts import MAX_TOKENS, MODEL, PASSAGES, QUERY, TEXTS, TOO_LONG, assert_same_vectors

RERANKER = "tiny-reranker"
HTTP = httpx.Client(timeout=60)  # shared, because a client reads a file of certificates


def get(url: str) -> Any:
    return HTTP.get(url).raise_for_status().json()


def post(url: str, body: Any, **headers: str) -> Any:
    return HTTP.post(url, json=body, headers=headers).raise_for_status().json()


def scores_in_order(results: list[dict[str, Any]], key: str = "relevance_score") -> list[float]:
    """In the order of the documents, as some clients read them."""
    return [item[key] for item in sorted(results, key=lambda item: item["index"])]


@pytest.fixture(scope="module")
def expected(own) -> list[float]:
    """The score of each passage, in order."""
    return pytest.approx([score for _, score in sorted(own.rank(QUERY, PASSAGES))], abs=1e-3)


# --- Dify: models/helper.py of its plugin for text-embeddings-inference ---------------------------------------


def test_dify_reads_the_kind_of_model_from_info(server, serve, written):
    """The first key of `model_type` must be `embedding` for embeddings, and `reranker` for reranking."""
    info = get(f"{server}/info")
    assert next(iter(info["model_type"])) == "embedding"
    assert info["max_input_length"] == MAX_TOKENS
    assert info["max_client_batch_size"] >= 1
    reranker = serve(str(written / RERANKER))
    assert next(iter(get(f"{reranker}/info")["model_type"])) == "reranker"


def test_dify_embeds_without_a_model(server, own):
    """It counts tokens with /tokenize first, and bills by `usage`."""
    tokens = post(f"{server}/tokenize", {"inputs": TEXTS})
    assert [[token["id"] for token in text] for text in tokens] == [own.token_ids(text) for text in TEXTS]
    assert tokens[0][0] == {"id": 101, "text": "[CLS]", "special": True, "start": None, "stop": None}
    assert tokens[0][1] == {"id": 2008, "text": "That", "special": False, "start": 0, "stop": 4}
    answer = post(f"{server}/v1/embeddings", {"input": TEXTS})
    assert_same_vectors([item["embedding"] for item in answer["data"]], own.embed(TEXTS))
    assert answer["usage"]["total_tokens"] == sum(len(text) for text in tokens)


def test_dify_reranks(server, expected):
    """`text`, `score` and `index` of each, in a plain list."""
    ranks = post(f"{server}/rerank", {"query": QUERY, "texts": PASSAGES, "return_text": True})
    assert scores_in_order(ranks, "score") == expected
    assert {rank["index"]: rank["text"] for rank in ranks} == dict(enumerate(PASSAGES))


# --- RAGFlow: rag/llm/embedding_model.py and rerank_model.py --------------------------------------------------


def test_ragflow_embeds(server, own):
    """With OpenAI's SDK, floats and a parameter of LiteLLM; with TEI's route for built-in models."""
    body = {"input": TEXTS, "model": MODEL, "encoding_format": "float", "drop_params": True}
    answer = post(f"{server}/v1/embeddings", body)
    assert_same_vectors([item["embedding"] for item in answer["data"]], own.embed(TEXTS))
    assert answer["usage"]["total_tokens"] > 0
    assert_same_vectors(post(f"{server}/embed", {"inputs": TEXTS}), own.embed(TEXTS))
    assert_same_vectors(post(f"{server}/embed", {"inputs": QUERY}), own.embed([QUERY]))


def test_ragflow_embeds_by_jinas_api(server, own):
    """Texts in objects, a task, and `truncate`; it averages vectors of tokens."""
    texts = [{"text": text} for text in [*TEXTS, TOO_LONG]]
    body = {"model": MODEL, "input": texts, "task": "retrieval.passage", "truncate": True}
    answer = post(f"{server}/v1/embeddings", body)
    assert_same_vectors([item["embedding"] for item in answer["data"]], own.embed([*TEXTS, TOO_LONG], truncate=True))
    assert answer["usage"]["total_tokens"] > MAX_TOKENS
    many = post(f"{server}/v1/embeddings", {**body, "model": "tiny-bge-m3", "return_multivector": True})
    assert [np.asarray(item["embeddings"]).shape[1] for item in many["data"]] == [32] * len(texts)


@pytest.mark.parametrize(
    ("path", "more"),
    [
        pytest.param("/v1/rerank", {"top_n": 3}, id="Jina"),
        pytest.param("/v1/rerank", {"return_documents": "true", "return_len": "true"}, id="Xinference"),
        pytest.param("/rerank", {"top_n": 3}, id="OpenAI-API-compatible, LocalAI"),
        pytest.param("/v1/v1/rerank", {"top_n": 3, "return_documents": False}, id="Cohere, VLLM"),
    ],
)
def test_ragflow_reranks(server, expected, path, more):
    """Scores keep the order of the documents, and tokens are billed by `usage`."""
    answer = post(f"{server}{path}", {"model": RERANKER, "query": QUERY, "documents": PASSAGES, **more})
    assert scores_in_order(answer["results"]) == expected
    assert answer["usage"]["total_tokens"] > 0


def test_ragflow_counts_xinferences_tokens(server):
    """Versions of 2025 read them from `meta`."""
    body = {"query": QUERY, "return_documents": "true", "return_len": "true", "documents": PASSAGES}
    answer = post(f"{server}/v1/rerank", {"model": RERANKER, **body}, accept="application/json")
    tokens = answer["meta"]["tokens"]
    assert tokens["input_tokens"] + tokens["output_tokens"] == answer["usage"]["total_tokens"] > 0


def test_ragflow_reranks_by_tei(server, expected):
    """Eight at a time, without a model."""
    ranks = post(f"{server}/rerank", {"query": QUERY, "texts": PASSAGES, "raw_scores": False, "truncate": True})
    assert scores_in_order(ranks, "score") == expected


# --- Open WebUI: retrieval/models/external.py and retrieval/utils.py ------------------------------------------

USER = {
    "Authorization": "Bearer any key",
    "X-OpenWebUI-User-Name": "Zo%C3%AB",
    "X-OpenWebUI-User-Id": "6f1c1f0e",
    "X-OpenWebUI-User-Email": "zoe@example.org",
    "X-OpenWebUI-User-Role": "admin",
}


def test_open_webui_embeds(server, own):
    """With OpenAI's route, with a prefix in a field that the operator names, and with Ollama's."""
    answer = post(f"{server}/v1/embeddings", {"input": TEXTS, "model": MODEL, "prefix": "query: "}, **USER)
    assert_same_vectors([item["embedding"] for item in answer["data"]], own.embed(TEXTS))
    answer = post(f"{server}/api/embed", {"input": TEXTS, "model": MODEL}, **USER)
    assert_same_vectors(answer["embeddings"], own.embed(TEXTS))


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank"])
def test_open_webui_reranks(server, expected, path):
    """The operator sets the whole address; every document must have a score."""
    body = {"model": RERANKER, "query": QUERY, "documents": PASSAGES, "top_n": len(PASSAGES)}
    assert scores_in_order(post(f"{server}{path}", body, **USER)["results"]) == expected


# --- Continue: core/llm/llms/HuggingFaceTEI.ts ----------------------------------------------------------------


def test_continue_embeds(server, own):
    """As many texts at once as /info allows, of any length: it relies on truncation."""
    info = get(f"{server}/info")
    assert info["model_id"] == MODEL
    many = [f"line {number}" for number in range(min(info["max_client_batch_size"], 100) - 1)] + [TOO_LONG]
    assert_same_vectors(post(f"{server}/embed", {"inputs": many}), own.embed(many, truncate=True))


def test_continue_reranks(server, expected):
    """All of TEI's fields; it sorts by index and takes the scores."""
    body = {"query": QUERY, "return_text": False, "raw_scores": False, "texts": PASSAGES}
    ranks = post(f"{server}/rerank", {**body, "truncation_direction": "Right", "truncate": True})
    assert scores_in_order(ranks, "score") == expected


def test_continue_shows_an_error(server):
    """It makes its exception of `error` and `error_type`."""
    answer = HTTP.post(f"{server}/embed", json={"inputs": [""]})
    assert answer.status_code == 400
    assert answer.json()["error_type"] == "Empty"
    assert "`inputs" in answer.json()["error"]
