"""Results -> Jina's answers. Pure but for an answer's `id`; requests.py says which call reads how."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

from vectord.errors import InvalidField
from vectord.products.common.dialect import Rendered
from vectord.products.common.ranking import as_object, ranked
from vectord.products.common.usage import token_usage
from vectord.products.common.vectors import Encoding, dump_json, encoded_rows
from vectord.products.jina.wire import EmbeddingType, EmbeddingTypes
from vectord.schema import DocumentsResult, EmbedResult, Precision, RerankResult, Result


def render_embeddings(types: EmbeddingTypes, result: Result) -> Rendered:
    """Bits are lists of numbers, as Jina's clients unpack them: binary -128 to 127, ubinary 0 to 255."""
    assert isinstance(result, EmbedResult)
    dense = result.dense
    vectors = _in_types(types, lambda one: encoded_rows(dense[precision_of(one)], _encoding(one)))
    return _list("embedding", vectors, result)


def render_chunks(types: EmbeddingTypes, result: Result) -> Rendered:
    """A vector for each piece of the one document."""
    assert isinstance(result, DocumentsResult)
    (document,) = result.documents
    dense = document.vectors
    vectors = _in_types(types, lambda one: encoded_rows(dense[precision_of(one)], _encoding(one)))
    return _list("embedding", vectors, result)


def render_multivectors(types: EmbeddingTypes, dimensions: int | None, result: Result) -> Rendered:
    """dimensions: asked for. Raises InvalidField if the vectors, whose width is known only now, have others."""
    assert isinstance(result, EmbedResult) and result.colbert is not None
    matrices = result.colbert
    width = matrices[0].shape[1]
    if dimensions not in (None, width):
        raise InvalidField(
            f"`dimensions` must be {width}: multi-vectors are not cut.",
            field="dimensions",
            limit=width,
            given=dimensions,
        )
    vectors = _in_types(types, lambda one: [encoded_rows(matrix, _encoding(one)) for matrix in matrices])
    return _list("embeddings", vectors, result)


def render_ranking(documents: Sequence[str], top_n: int | None, result: Result, *, shows: bool) -> Rendered:
    """shows: whether each result has its document."""
    assert isinstance(result, RerankResult)
    tokens = result.usage.tokens
    shown = {
        "object": "list",
        "results": ranked(result, documents, top_n=top_n, document=as_object if shows else None, text=shows),
        "model": result.model,
        "usage": token_usage(result.usage),
        "id": f"rerank-{uuid.uuid4().hex}",
        "meta": {"tokens": {"input_tokens": tokens, "output_tokens": 0}},
    }
    return Rendered(body=dump_json(shown))


def precision_of(one: EmbeddingType) -> Precision:
    return "float" if one == "base64" else one


def _encoding(one: EmbeddingType) -> Encoding:
    return "base64" if one == "base64" else "float"


def _in_types(types: EmbeddingTypes, rows: Callable[[EmbeddingType], list[Any]]) -> list[Any]:
    """What each input's vector reads as: itself in one type, or of a list of them an object with all."""
    if isinstance(types, str):
        return rows(types)
    columns = {one: rows(one) for one in types}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _list(key: str, vectors: Sequence[Any], result: EmbedResult | DocumentsResult) -> Rendered:
    """key: what the vector stands under, which is the item's `object` too."""
    data = [{"object": key, "index": index, key: vector} for index, vector in enumerate(vectors)]
    shown = {"object": "list", "data": data, "model": result.model, "usage": token_usage(result.usage)}
    return Rendered(body=dump_json(shown))
