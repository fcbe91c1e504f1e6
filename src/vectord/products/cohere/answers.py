"""Results -> Cohere's answers. Pure but for an answer's `id`; requests.py says which call reads how."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from vectord.products.cohere.wire import EmbeddingType, Version
from vectord.products.common.dialect import Rendered
from vectord.products.common.ranking import as_object, ranked
from vectord.products.common.usage import token_usage
from vectord.products.common.vectors import dump_json, encoded_rows
from vectord.schema import DecodeResult, EmbedResult, RerankResult, Result, TextLength, TokenizeResult


def render_embed(
    version: Version, types: Sequence[EmbeddingType], texts: Sequence[str], field: str, result: Result
) -> Rendered:
    """types: none for v1's bare list of floats."""
    assert isinstance(result, EmbedResult)
    by_type = {one: _rows(one, result) for one in types}
    return _answer(
        id=_new_id(),
        response_type="embeddings_by_type" if types else "embeddings_floats",
        embeddings=by_type or _rows("float", result),
        texts=texts,
        meta=_meta(version, {"input_tokens": result.usage.tokens}, _truncated(field, result.usage.lengths)),
    )


def render_rerank(
    version: Version, documents: Sequence[str | dict[str, Any]] | None, top_n: int | None, result: Result
) -> Rendered:
    """documents: as they were sent, None where the answer does not show them."""
    assert isinstance(result, RerankResult)
    results = ranked(result, (), top_n=top_n, document=None, text=False)
    if documents is not None:
        for one in results:
            one["document"] = _shown(documents[one["index"]])
    return _answer(
        id=_new_id(),
        object="rerank",
        model=result.model,
        results=results,
        usage=token_usage(result.usage),
        meta=_meta(
            version, {"search_units": 1}, _truncated("query", [result.query]) + _truncated("documents", result.passages)
        ),
    )


def render_tokenize(result: Result) -> Rendered:
    assert isinstance(result, TokenizeResult)
    (tokens,) = result.tokens
    return _answer(
        tokens=[token.id for token in tokens], token_strings=[token.text for token in tokens], meta=_meta("1")
    )


def render_detokenize(result: Result) -> Rendered:
    assert isinstance(result, DecodeResult)
    (text,) = result.texts
    return _answer(text=text, meta=_meta("1"))


def _answer(**fields: Any) -> Rendered:
    return Rendered(body=dump_json(fields))


def _new_id() -> str:
    """A string on every answer: v1's SDK embeds in pages and joins their ids."""
    return str(uuid.uuid4())


def _rows(kind: EmbeddingType, result: EmbedResult) -> list[Any]:
    if kind == "base64":
        return encoded_rows(result.dense["float"], "base64")
    return encoded_rows(result.dense[kind], "float")


def _shown(document: str | dict[str, Any]) -> dict[str, str]:
    """A document as its object: the fields that are strings, which are all that Cohere's schema knows."""
    if isinstance(document, str):
        return as_object(document)
    return {name: value for name, value in document.items() if isinstance(value, str)}


def _meta(version: Version, billed_units: dict[str, int] | None = None, warnings: Sequence[str] = ()) -> dict[str, Any]:
    meta: dict[str, Any] = {"api_version": {"version": version}}
    if billed_units:
        meta["billed_units"] = billed_units
    if warnings:
        meta["warnings"] = warnings
    return meta


def _truncated(field: str, lengths: Sequence[TextLength]) -> list[str]:
    """A warning with the places of texts that were not read to their end; none if all were."""
    places = [str(index) for index, length in enumerate(lengths) if length.truncated]
    return [f"`{field}` truncated: {', '.join(places)}."] if places else []
