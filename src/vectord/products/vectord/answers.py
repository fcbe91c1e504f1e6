"""Results -> answers of our own dialect. Pure; requests.py says which of these answers what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from vectord.products.common.dialect import Rendered
from vectord.products.common.ranking import best_first
from vectord.products.common.vectors import Encoding, dump_json, encoded_rows
from vectord.products.vectord.errors import shown_error
from vectord.schema import (
    ChunkedDocument,
    ClassifyResult,
    DecodeResult,
    DocumentsResult,
    EmbedResult,
    Float32,
    ModelInfo,
    ModelList,
    Precision,
    RerankResult,
    Result,
    SimilarityResult,
    TextLength,
    Timings,
    TokenizeResult,
    Usage,
)

# --- vectors --------------------------------------------------------------------------------------------------


def render_embed(precisions: Sequence[Precision], encoding: Encoding, result: Result) -> Rendered:
    assert isinstance(result, EmbedResult)
    return _answer(
        model=result.model,
        fingerprint=result.fingerprint,
        data=list(_embedded(precisions, encoding, result)),
        sources=dict(result.sources),
        **_figures(result.usage),
    )


def _embedded(precisions: Sequence[Precision], encoding: Encoding, result: EmbedResult) -> Iterator[dict[str, Any]]:
    dense = {precision: encoded_rows(rows, encoding) for precision, rows in result.dense.items()}
    for index in range(len(result.usage.lengths)):
        if index in result.failures:
            yield {"index": index, "error": shown_error(result.failures[index])}
            continue
        item: dict[str, Any] = {"index": index}
        if dense:
            by_precision = {precision: rows[index] for precision, rows in dense.items()}
            item["dense"] = by_precision if len(precisions) > 1 else by_precision[precisions[0]]
        if result.sparse is not None:
            sparse = result.sparse[index]
            item["sparse"] = {"indices": sparse.indices, "values": sparse.values}
        if result.colbert is not None:
            item["colbert"] = _each_token(result.colbert[index], encoding)
        if result.tokens is not None:
            item["tokens"] = _each_token(result.tokens[index], encoding)
        yield item | _cut(result.lengths, result.limits, index)


def _each_token(rows: Float32, encoding: Encoding) -> Any:
    """A vector a token, rows (n, C); in base64 each by itself, so that the answer says how many there are."""
    return encoded_rows(rows, encoding) if encoding == "base64" else np.ascontiguousarray(rows)


def _cut(lengths: Mapping[str, Sequence[TextLength]], limits: Mapping[str, int], index: int) -> dict[str, Any]:
    """`truncated` if any model did not read the whole text, else nothing."""
    cut = []
    for model, read in lengths.items():
        if read[index].truncated:
            shown = {"model": model, "seen": read[index].seen, "kept": read[index].kept}
            if model in limits:
                shown["max_tokens"] = limits[model]
            if read[index].characters_cut:
                shown["characters_cut"] = read[index].characters_cut
            cut.append(shown)
    return {"truncated": cut} if cut else {}


def render_documents(encoding: Encoding, result: Result) -> Rendered:
    assert isinstance(result, DocumentsResult)
    return _answer(
        model=result.model,
        fingerprint=result.fingerprint,
        data=[_document(index, document, encoding) for index, document in enumerate(result.documents)],
        **_figures(result.usage),
    )


def _document(index: int, document: ChunkedDocument, encoding: Encoding) -> dict[str, Any]:
    vectors = encoded_rows(document.vectors["float"], encoding)
    chunks = [
        {"start": chunk.span.start, "stop": chunk.span.stop, "tokens": chunk.tokens, "vector": vector}
        for chunk, vector in zip(document.chunks, vectors, strict=True)
    ]
    shown: dict[str, Any] = {"index": index, "chunks": chunks}
    if document.mean is not None:
        (shown["mean"],) = encoded_rows([document.mean], encoding)
    return shown


# --- scores ---------------------------------------------------------------------------------------------------


def render_rerank(top_n: int | None, passages: Sequence[str] | None, result: Result) -> Rendered:
    """top_n: None and 0 show all; passages: None shows none of their texts."""
    assert isinstance(result, RerankResult)
    order = best_first(result.scores)[: top_n or None]
    return _answer(
        model=result.model,
        fingerprint=result.fingerprint,
        score_kind=result.kind,
        results=[_ranked(passages, result, index) for index in order],
        warnings=list(_warnings(result)),
        **_figures(result.usage),
    )


def _ranked(passages: Sequence[str] | None, result: RerankResult, index: int) -> dict[str, Any]:
    shown: dict[str, Any] = {"index": index, "score": result.scores[index]}
    if result.spans is not None:
        span = result.spans[index]
        shown["span"] = {"start": span.start, "stop": span.stop}
    if passages is not None:
        shown["passage"] = passages[index]
    return shown


def _warnings(result: RerankResult) -> Iterator[dict[str, Any]]:
    if result.query.truncated:
        yield {"type": "query_truncated", **_cut_at(result.query, result.max_tokens)}
    for index, passage in enumerate(result.passages):
        if passage.truncated:
            yield {"type": "passage_truncated", "index": index, **_cut_at(passage, result.max_tokens)}


def _cut_at(length: TextLength, max_tokens: int) -> dict[str, int]:
    return {"seen": length.seen, "kept": length.kept, "max_tokens": max_tokens}


def render_classify(result: Result) -> Rendered:
    assert isinstance(result, ClassifyResult)
    lengths = {result.model: result.usage.lengths}
    return _answer(
        model=result.model,
        fingerprint=result.fingerprint,
        score_kind=result.kind,
        data=[
            {"index": index, "labels": _labels(result.labels, scores), **_cut(lengths, {}, index)}
            for index, scores in enumerate(result.scores)
        ],
        **_figures(result.usage),
    )


def _labels(labels: Sequence[str], scores: Float32) -> list[dict[str, Any]]:
    return [{"label": labels[place], "score": scores[place]} for place in best_first(scores)]


def render_similarity(result: Result) -> Rendered:
    assert isinstance(result, SimilarityResult)
    return _answer(
        model=result.model,
        fingerprint=result.fingerprint,
        score_kind="cosine",
        scores=result.scores,
        **_figures(result.usage),
    )


# --- tokens ---------------------------------------------------------------------------------------------------


def render_tokenize(result: Result) -> Rendered:
    assert isinstance(result, TokenizeResult)
    data = [{"index": index, "tokens": tokens} for index, tokens in enumerate(result.tokens)]
    return _answer(model=result.model, data=data, **_figures(result.usage))


def render_decode(result: Result) -> Rendered:
    assert isinstance(result, DecodeResult)
    return _answer(model=result.model, data=[{"index": index, "text": text} for index, text in enumerate(result.texts)])


# --- models ---------------------------------------------------------------------------------------------------


def render_models(result: Result) -> Rendered:
    assert isinstance(result, ModelList)
    limits = asdict(result.limits)
    limits["max_batch_requests"] = limits.pop("max_batch_texts")
    return _answer(models=[_model(info) for info in result.models], limits=limits)


def render_model(result: Result) -> Rendered:
    assert isinstance(result, ModelList)
    (info,) = result.models
    return _answer(**_model(info))


def _model(info: ModelInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "model_id": info.model_id,
        "revision": info.revision,
        "fingerprint": info.fingerprint,
        "architecture": info.architecture,
        "outputs": sorted(info.outputs),
        "reranks": info.reranks,
        "labels": info.labels,
        "pooling": info.pooling or None,
        "dimensions": info.dimensions,
        "matryoshka": info.matryoshka,
        "max_input_tokens": info.max_input_tokens,
        "prompts": dict(info.prompts),
        "dtype": info.dtype,
        "device": info.device,
        "devices": dict(info.devices),
        "backend": info.backend,
        "state": info.state,
        "pinned": info.pinned,
        "created": info.created_unix_s,
    }


# --- all ------------------------------------------------------------------------------------------------------


def _answer(**shown: Any) -> Rendered:
    return Rendered(body=dump_json(shown))


def _figures(usage: Usage) -> dict[str, Any]:
    return {
        "usage": {"tokens": usage.tokens, "texts": len(usage.lengths), "characters": usage.characters},
        "timings": _timings(usage.timings),
    }


def _timings(timings: Timings) -> dict[str, float]:
    return {
        "tokenize_ms": _ms(timings.tokenize_s),
        "queue_ms": _ms(timings.queue_s),
        "inference_ms": _ms(timings.inference_s),
        "total_ms": _ms(timings.total_s),
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
