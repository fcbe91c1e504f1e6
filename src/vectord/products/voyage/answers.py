"""Results -> Voyage's answers. Pure; requests.py says which call reads how."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vectord.products.common.dialect import Rendered
from vectord.products.common.ranking import best_first
from vectord.products.common.usage import token_usage
from vectord.products.common.vectors import Encoding, dump_json, embedding_items
from vectord.schema import ChunkedDocument, DocumentsResult, EmbedResult, Precision, RerankResult, Result, Usage


def render_embeddings(dtype: Precision, encoding: Encoding, result: Result) -> Rendered:
    assert isinstance(result, EmbedResult)
    return _list(embedding_items(result.dense[dtype], encoding), result.model, result.usage)


def render_queries(dtype: Precision, encoding: Encoding, result: Result) -> Rendered:
    """Each vector in a list of its own, as chunks of a document are."""
    assert isinstance(result, EmbedResult)
    rows = result.dense[dtype]
    alone = [embedding_items(rows[index : index + 1], encoding) for index in range(len(rows))]
    return _lists(alone, result.model, result.usage)


def render_chunks(dtype: Precision, texts: Sequence[str] | None, encoding: Encoding, result: Result) -> Rendered:
    """texts: the documents, to show each chunk's text; None: the client has them in pieces."""
    assert isinstance(result, DocumentsResult)
    chunks = [embedding_items(document.vectors[dtype], encoding) for document in result.documents]
    if texts is not None:
        for items, document, text in zip(chunks, result.documents, texts, strict=True):
            _add_texts(items, document, text)
    return _lists(chunks, result.model, result.usage)


def render_rerank(documents: Sequence[str] | None, top_k: int | None, result: Result) -> Rendered:
    """documents: to show beside their scores; None: they are not shown."""
    assert isinstance(result, RerankResult)
    best = best_first(result.scores)[: top_k or None]
    data: list[dict[str, Any]] = [{"index": index, "relevance_score": result.scores[index]} for index in best]
    if documents is not None:
        for item in data:
            item["document"] = documents[item["index"]]
    return _list(data, result.model, result.usage)


def _add_texts(items: Sequence[dict[str, object]], document: ChunkedDocument, text: str) -> None:
    for item, chunk in zip(items, document.chunks, strict=True):
        item["text"] = text[chunk.span.start : chunk.span.stop]


def _lists(items: Sequence[Sequence[dict[str, object]]], model: str, usage: Usage) -> Rendered:
    data = [{"object": "list", "index": index, "data": each} for index, each in enumerate(items)]
    return _list(data, model, usage)


def _list(data: Sequence[dict[str, Any]], model: str, usage: Usage) -> Rendered:
    shown = token_usage(usage)
    del shown["prompt_tokens"]  # of which Voyage knows the total only
    return Rendered(body=dump_json({"object": "list", "data": data, "model": model, "usage": shown}))
