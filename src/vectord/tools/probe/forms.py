"""How each make of server is asked for vectors and scores, and how its answers are read. Pure but for `find_form`.

A form is a path, a body and a reader. The first form that a server answers with vectors is the one it is asked by.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from vectord.tools.probe.server import Reply, Server

Vectors: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"  # (texts, D)

HELLO = ("Hello, world", "A second text")
QUERY = "What is machine learning?"
PASSAGES = (
    "The weather is nice today.",
    "Machine learning is a subset of artificial intelligence that learns from data.",
    "My neighbour's cat sleeps on the roof.",
)


@dataclass(frozen=True, slots=True)
class EmbedForm:
    name: str
    path: str
    body: Callable[[Sequence[str], str | None], dict[str, Any]]  # texts, model
    read: Callable[[Any], list[Any]]  # the decoded answer to rows; may raise anything that bad shapes raise


@dataclass(frozen=True, slots=True)
class RerankForm:
    name: str
    path: str
    body: Callable[[str, Sequence[str], str | None], dict[str, Any]]  # query, passages, model
    read: Callable[[Any], dict[int, float]]  # index to score, in the order of the answer


def _named(model: str | None) -> dict[str, Any]:
    return {} if model is None else {"model": model}


def _openai(texts: Sequence[str], model: str | None) -> dict[str, Any]:
    return {**_named(model), "input": list(texts)}


def _data(answer: Any) -> list[Any]:
    return [row["embedding"] for row in sorted(answer["data"], key=lambda row: row["index"])]


def _decoded(row: Any) -> Any:
    return np.frombuffer(base64.b64decode(row), "<f4") if isinstance(row, str) else row


def _smart(texts: Sequence[str], model: str | None) -> dict[str, Any]:
    return {"sentences": list(texts), "return_dense": True, "return_sparse": False, "return_colbert": False}


# Our own API is tried last: the others are what clients come with.
EMBED_FORMS: tuple[EmbedForm, ...] = (
    EmbedForm("OpenAI", "/v1/embeddings", _openai, _data),
    EmbedForm(
        "text-embeddings-inference", "/embed", lambda texts, model: {"inputs": list(texts)}, lambda answer: answer
    ),
    EmbedForm(
        "Smart Embedder",
        "/embeddings/",
        _smart,
        lambda answer: [row["embeddings"]["dense"] for row in sorted(answer["data"], key=lambda row: row["id"])],
    ),
    EmbedForm("infinity", "/embeddings", _openai, _data),
    EmbedForm("Embedding Inference API", "/embed", _openai, lambda answer: answer["embeddings"]),
    EmbedForm("Ollama", "/api/embed", _openai, lambda answer: answer["embeddings"]),
    EmbedForm(
        "Cohere",
        "/v2/embed",
        lambda texts, model: {
            **_named(model),
            "texts": list(texts),
            "input_type": "search_document",
            "embedding_types": ["float"],
        },
        lambda answer: answer["embeddings"]["float"],
    ),
    EmbedForm(
        "vectord",
        "/vectord/embed",
        lambda texts, model: {**_named(model), "inputs": list(texts)},
        lambda answer: [row["dense"] for row in answer["data"]],
    ),
)


def _documents(query: str, passages: Sequence[str], model: str | None) -> dict[str, Any]:
    return {**_named(model), "query": query, "documents": list(passages)}


def _results(answer: Any) -> dict[int, float]:
    return {row["index"]: row.get("relevance_score", row.get("score")) for row in answer["results"]}


RERANK_FORMS: tuple[RerankForm, ...] = (
    RerankForm(
        "text-embeddings-inference",
        "/rerank",
        lambda query, passages, model: {"query": query, "texts": list(passages)},
        lambda answer: {row["index"]: row["score"] for row in answer},
    ),
    RerankForm(
        "Smart Embedder",
        "/rerank",
        lambda query, passages, model: {"query": query, "passages": list(passages)},
        _results,
    ),
    RerankForm("Cohere, Jina, vLLM, Embedding Inference API", "/rerank", _documents, _results),
    RerankForm("Cohere, Jina, vLLM", "/v1/rerank", _documents, _results),
    RerankForm("Cohere", "/v2/rerank", _documents, _results),
    RerankForm(
        "vectord",
        "/vectord/rerank",
        lambda query, passages, model: {**_named(model), "query": query, "passages": list(passages)},
        _results,
    ),
)


def embed(server: Server, form: EmbedForm, texts: Sequence[str], model: str | None) -> tuple[Reply, Vectors | None]:
    """The answer, and its vectors if it has one finite vector a text, all of one width."""
    reply = server.post(form.path, form.body(texts, model))
    return reply, read_vectors(form, reply, len(texts))


def read_vectors(form: EmbedForm, reply: Reply, texts: int) -> Vectors | None:
    if reply.status != 200:
        return None
    try:
        vectors = np.array([_decoded(row) for row in form.read(reply.json())], np.float64)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        return None
    is_good = vectors.ndim == 2 and vectors.shape[0] == texts and vectors.shape[1] > 0 and np.isfinite(vectors).all()
    return vectors if is_good else None


def rerank(
    server: Server, form: RerankForm, query: str, passages: Sequence[str], model: str | None
) -> tuple[Reply, dict[int, float] | None]:
    """The answer, and its scores by index, in the answer's order, if every passage has one."""
    reply = server.post(form.path, form.body(query, passages, model))
    if reply.status != 200:
        return reply, None
    try:
        scores = {int(index): float(score) for index, score in form.read(reply.json()).items()}
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        return reply, None
    is_good = set(scores) == set(range(len(passages))) and all(np.isfinite(score) for score in scores.values())
    return reply, scores if is_good else None


def find_embed_form(server: Server, model: str | None) -> EmbedForm | None:
    """The first one that the server answers with vectors."""
    return next((form for form in EMBED_FORMS if embed(server, form, HELLO, model)[1] is not None), None)


def find_rerank_form(server: Server, model: str | None) -> RerankForm | None:
    return next((form for form in RERANK_FORMS if rerank(server, form, QUERY, PASSAGES, model)[1] is not None), None)
