"""vectord's own API, under /vectord/: every field of schema.py, and everything that a result contains.

wire.py has the types of bodies and answers; this file has the parser and the renderer of each route. metrics.py has the
vectord_* metrics. Runs on the event loop; large bodies are parsed in a thread.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from vectord.errors import InvalidField, MissingField, VectordError
from vectord.products.common.dialect import Call, Dialect, Incoming, Rendered, Route, Routes
from vectord.products.common.errors import STATUSES, error_response
from vectord.products.common.inputs import read_fingerprint, read_inputs
from vectord.products.common.ranking import best_first
from vectord.products.common.vectors import Encoding, encoded_rows, json_answer
from vectord.products.vectord import wire
from vectord.schema import (
    ChunkedDocument,
    ChunkOptions,
    ClassifyRequest,
    ClassifyResult,
    DecodeRequest,
    DecodeResult,
    DocumentsRequest,
    DocumentsResult,
    EmbedRequest,
    EmbedResult,
    Float32,
    LoadModel,
    ModelInfo,
    ModelList,
    Precision,
    RerankRequest,
    RerankResult,
    SimilarityRequest,
    SimilarityResult,
    TextLength,
    TextOptions,
    TokenizeRequest,
    TokenizeResult,
    UnloadModel,
    Usage,
)

ROUTES = Routes()

# --- errors ---------------------------------------------------------------------------------------------------

ERRORS = STATUSES

_word_ends = re.compile(r"(?<=[a-z])(?=[A-Z])")


def render_error(error: VectordError) -> Rendered:
    return error_response(error, {"error": error_object(error)}, ERRORS)


def error_object(error: VectordError) -> dict[str, Any]:
    """The same keys for every error; a key that does not apply is null."""
    return {
        "type": type_of(type(error)),
        "message": error.message,
        "field": error.field_name,
        "index": error.index,
        "limit": error.limit,
        "given": error.given,
    }


def type_of(kind: type[VectordError]) -> str:
    """The class's name in snake case, such as "model_not_found"; "internal_error" for the base class."""
    if kind is VectordError:
        return "internal_error"
    return _word_ends.sub("_", ("WrongType" if kind is MissingField else kind.__name__)).lower()


# --- vectors --------------------------------------------------------------------------------------------------


@ROUTES.post(
    "/vectord/embed",
    body=wire.EmbedBody,
    answer=wire.EmbedAnswer,
    summary="Turn texts into dense, sparse, ColBERT and token vectors at once",
    example={"inputs": ["a happy person"], "dimensions": 384},
    keys=["inputs"],
)
def parse_embed(body: wire.EmbedBody, incoming: Incoming) -> Call:
    precisions = tuple(dict.fromkeys(body.precisions or ("float",)))
    request = EmbedRequest(
        inputs=read_inputs(body.inputs),
        model=body.model or None,
        text=_prompted_text(body),
        outputs=frozenset(body.outputs or ("dense",)),
        normalize=body.normalize is not False,
        dimensions=body.dimensions,
        force_dimensions=body.force_dimensions is True,
        precisions=precisions,
        expect_fingerprint=read_fingerprint(body.expect_fingerprint),
        partial=body.partial_results is True,
    )
    return Call(request, partial(render_embed, precisions, body.encoding or "float"))


def render_embed(precisions: Sequence[Precision], encoding: Encoding, result: EmbedResult) -> Rendered:
    dense = {precision: encoded_rows(rows, encoding) for precision, rows in result.dense.items()}
    data = []
    for index in range(len(result.usage.lengths)):
        if index in result.failures:
            data.append({"index": index, "error": error_object(result.failures[index])})
            continue
        item: dict[str, Any] = {"index": index}
        if dense:
            by_precision = {precision: rows[index] for precision, rows in dense.items()}
            item["dense"] = by_precision if len(precisions) > 1 else by_precision[precisions[0]]
        if result.sparse is not None:
            sparse = result.sparse[index]
            item["sparse"] = {"indices": sparse.indices, "values": sparse.values}
        if result.colbert is not None:
            item["colbert"] = _token_vectors(result.colbert[index], encoding)
        if result.tokens is not None:
            item["tokens"] = _token_vectors(result.tokens[index], encoding)
        data.append(item | _truncated(result.lengths, result.limits, index))
    return _result_answer(result, data=data, sources=dict(result.sources))


def _token_vectors(rows: Float32, encoding: Encoding) -> Any:
    """One vector for each token, rows (n, C). Each is base64 of its own, so that the answer shows their number."""
    return encoded_rows(rows, encoding) if encoding == "base64" else np.ascontiguousarray(rows)


def _truncated(lengths: Mapping[str, Sequence[TextLength]], limits: Mapping[str, int], index: int) -> dict[str, Any]:
    """`truncated` if a model did not read the whole text, else nothing."""
    cuts = []
    for model, texts in lengths.items():
        length = texts[index]
        if length.truncated:
            cut = {"model": model, "seen": length.seen, "kept": length.kept}
            if model in limits:
                cut["max_tokens"] = limits[model]
            if length.characters_cut:
                cut["characters_cut"] = length.characters_cut
            cuts.append(cut)
    return {"truncated": cuts} if cuts else {}


@ROUTES.post(
    "/vectord/documents",
    body=wire.DocumentsBody,
    answer=wire.DocumentsAnswer,
    summary="Cut documents into chunks and embed each",
    example={
        "documents": ["The river rose after two days of rain. The bridge was closed by noon."],
        "chunk": {"max_tokens": 20, "by": "sentences"},
        "late": True,
    },
    keys=["documents"],
)
def parse_documents(body: wire.DocumentsBody, incoming: Incoming) -> Call:
    request = DocumentsRequest(
        documents=body.documents,
        chunks=_chunk_options(body.chunk),
        model=body.model or None,
        text=_prompted_text(body),
        late=body.late is True,
        mean=body.mean is True,
        normalize=body.normalize is not False,
        dimensions=body.dimensions,
        force_dimensions=body.force_dimensions is True,
        expect_fingerprint=read_fingerprint(body.expect_fingerprint),
    )
    return Call(request, partial(render_documents, body.encoding or "float"))


def render_documents(encoding: Encoding, result: DocumentsResult) -> Rendered:
    data = [_document(index, document, encoding) for index, document in enumerate(result.documents)]
    return _result_answer(result, data=data)


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

LEAST_WEIGHTS = 0.001  # their least sum: float32 products with a much smaller one underflow


@ROUTES.post(
    "/vectord/rerank",
    body=wire.RerankBody,
    answer=wire.RerankAnswer,
    summary="Rank passages by how well they answer a query",
    example={"query": "happy", "passages": ["rain", "joy"], "return_passages": True},
    keys=["passages"],
)
def parse_rerank(body: wire.RerankBody, incoming: Incoming) -> Call:
    weights = None
    if body.weights is not None:
        weights = (body.weights.dense, body.weights.sparse, body.weights.colbert)
        if body.method != "weighted":
            raise InvalidField("{field} are for the method 'weighted'.", field="weights")
        if sum(weights) < LEAST_WEIGHTS:
            raise InvalidField("{field} must have a sum of at least {least}.", field="weights", least=LEAST_WEIGHTS)
    scores = body.scores or "model"
    if scores != "model" and body.method not in (None, "scores"):
        raise InvalidField("{field} is for the method 'scores'; others have one kind of score.", field="scores")
    request = RerankRequest(
        query=body.query,
        passages=body.passages,
        model=body.model or None,
        text=_text(body),
        method=body.method,
        weights=weights,
        raw=None if scores == "model" else scores == "raw",
        instruction=body.instruction,
        chunks=_chunk_options(body.chunk) if body.chunk else None,
    )
    return Call(request, partial(render_rerank, body.top_n, body.passages if body.return_passages else None))


def render_rerank(top_n: int | None, passages: Sequence[str] | None, result: RerankResult) -> Rendered:
    """top_n: None and 0 for all results. passages: their texts; None leaves them out."""
    results = []
    for index in best_first(result.scores)[: top_n or None]:
        item: dict[str, Any] = {"index": index, "score": result.scores[index]}
        if result.spans is not None:
            item["span"] = {"start": result.spans[index].start, "stop": result.spans[index].stop}
        if passages is not None:
            item["passage"] = passages[index]
        results.append(item)
    return _result_answer(result, score_kind=result.kind, results=results, warnings=list(_warnings(result)))


def _warnings(result: RerankResult) -> Iterator[dict[str, Any]]:
    def cut(length: TextLength) -> dict[str, int]:
        return {"seen": length.seen, "kept": length.kept, "max_tokens": result.max_tokens}

    if result.query.truncated:
        yield {"type": "query_truncated", **cut(result.query)}
    for index, passage in enumerate(result.passages):
        if passage.truncated:
            yield {"type": "passage_truncated", "index": index, **cut(passage)}


@ROUTES.post(
    "/vectord/classify",
    body=wire.ClassifyBody,
    answer=wire.ClassifyAnswer,
    summary="Score the labels of texts or pairs",
    example={"inputs": ["what a day", ["a pair", "of texts"]]},
    keys=["inputs"],
)
def parse_classify(body: wire.ClassifyBody, incoming: Incoming) -> Call:
    inputs = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    request = ClassifyRequest(inputs=inputs, model=body.model or None, text=_text(body), raw=body.raw is True)
    return Call(request, render_classify)


def render_classify(result: ClassifyResult) -> Rendered:
    lengths = {result.model: result.usage.lengths}
    data = []
    for index, scores in enumerate(result.scores):
        labels = [{"label": result.labels[label], "score": scores[label]} for label in best_first(scores)]
        data.append({"index": index, "labels": labels, **_truncated(lengths, {}, index)})
    return _result_answer(result, score_kind=result.kind, data=data)


@ROUTES.post(
    "/vectord/similarity",
    body=wire.SimilarityBody,
    answer=wire.SimilarityAnswer,
    summary="Compare a text with others",
    example={"source": "happy", "sentences": ["rain", "joy"]},
    keys=["sentences"],
)
def parse_similarity(body: wire.SimilarityBody, incoming: Incoming) -> Call:
    request = SimilarityRequest(
        source=body.source, sentences=body.sentences, model=body.model or None, text=_prompted_text(body)
    )
    return Call(request, render_similarity)


def render_similarity(result: SimilarityResult) -> Rendered:
    return _result_answer(result, score_kind="cosine", scores=result.scores)


# --- tokens ---------------------------------------------------------------------------------------------------


@ROUTES.post(
    "/vectord/tokenize",
    body=wire.TokenizeBody,
    answer=wire.TokenizeAnswer,
    summary="Tokenize texts",
    example={"inputs": "Hello, world"},
    keys=["inputs"],
)
def parse_tokenize(body: wire.TokenizeBody, incoming: Incoming) -> Call:
    request = TokenizeRequest(
        inputs=[body.inputs] if isinstance(body.inputs, str) else body.inputs,
        model=body.model or None,
        add_special_tokens=body.add_special_tokens is not False,
        prompt_name=body.prompt_name,
    )
    return Call(request, render_tokenize)


def render_tokenize(result: TokenizeResult) -> Rendered:
    data = [{"index": index, "tokens": tokens} for index, tokens in enumerate(result.tokens)]
    return json_answer(model=result.model, data=data, **_usage(result.usage))


@ROUTES.post(
    "/vectord/decode",
    body=wire.DecodeBody,
    answer=wire.DecodeAnswer,
    summary="Decode token ids",
    example={"ids": [[101, 7592, 102]]},
    keys=["ids"],
)
def parse_decode(body: wire.DecodeBody, incoming: Incoming) -> Call:
    skip = body.skip_special_tokens is not False
    return Call(DecodeRequest(ids=body.ids, model=body.model or None, skip_special_tokens=skip), render_decode)


def render_decode(result: DecodeResult) -> Rendered:
    data = [{"index": index, "text": text} for index, text in enumerate(result.texts)]
    return json_answer(model=result.model, data=data)


# --- models ---------------------------------------------------------------------------------------------------


@ROUTES.get("/vectord/models", answer=wire.ModelsAnswer, summary="List served models and the limits in force")
def render_models(result: ModelList) -> Rendered:
    limits = asdict(result.limits)
    limits["max_batch_requests"] = limits.pop("max_batch_texts")
    return json_answer(models=[_model(info) for info in result.models], limits=limits)


@ROUTES.get("/vectord/models/{model:path}", answer=wire.ModelAnswer, summary="Show one served model")
def render_model(result: ModelList) -> Rendered:
    (info,) = result.models
    return json_answer(**_model(info))


def _model(info: ModelInfo) -> dict[str, Any]:
    """A body of ModelAnswer: the facts of the same names, and `created`."""
    facts = {name: getattr(info, name) for name in wire.ModelAnswer.__struct_fields__ if name != "created"}
    return {
        **facts,
        "outputs": sorted(info.outputs),
        "pooling": info.pooling or None,
        "prompts": dict(info.prompts),
        "devices": dict(info.devices),
        "created": info.created_unix_s,
    }


def parse_load(incoming: Incoming) -> Call:
    return Call(LoadModel(model=incoming.path["model"]), render_model)


def parse_unload(incoming: Incoming) -> Call:
    return Call(UnloadModel(model=incoming.path["model"]), render_model)


for _path, _parse, _summary in (
    ("/vectord/models/{model:path}/load", parse_load, "Load a model now"),
    ("/vectord/models/{model:path}/unload", parse_unload, "Unload a model"),
):
    ROUTES.add(Route(method="POST", path=_path, parse=_parse, summary=_summary, answer=wire.ModelAnswer, admin=True))

# --- shared fields --------------------------------------------------------------------------------------------


def _text(body: wire.TextFields) -> TextOptions:
    return TextOptions(truncate=body.truncate, truncate_side=body.truncate_side or "right")


def _prompted_text(body: wire.PromptFields) -> TextOptions:
    return TextOptions(
        truncate=body.truncate,
        truncate_side=body.truncate_side or "right",
        prompt_name=body.prompt_name,
        kind=body.kind,
        prompt=body.prompt,
    )


def _chunk_options(chunk: wire.ChunkFields) -> ChunkOptions:
    overlap = chunk.overlap_tokens or 0
    if overlap >= chunk.max_tokens:
        raise InvalidField(
            "{field} must be below {body.chunk.max_tokens}, {max_tokens}; got {given}.",
            field="chunk.overlap_tokens",
            limit=chunk.max_tokens - 1,
            given=overlap,
            max_tokens=chunk.max_tokens,
        )
    return ChunkOptions(max_tokens=chunk.max_tokens, by=chunk.by or "tokens", overlap_tokens=overlap)


def _result_answer(
    result: EmbedResult | DocumentsResult | RerankResult | ClassifyResult | SimilarityResult, **shown: Any
) -> Rendered:
    return json_answer(model=result.model, fingerprint=result.fingerprint, **shown, **_usage(result.usage))


def _usage(usage: Usage) -> dict[str, Any]:
    timings = usage.timings
    seconds = {
        "tokenize_ms": timings.tokenize_s,
        "queue_ms": timings.queue_s,
        "inference_ms": timings.inference_s,
        "total_ms": timings.total_s,
    }
    return {
        "usage": {"tokens": usage.tokens, "texts": len(usage.lengths), "characters": usage.characters},
        "timings": {name: round(value * 1000, 3) for name, value in seconds.items()},
    }


DIALECT = Dialect(name="vectord", title="vectord", routes=tuple(ROUTES), render_error=render_error, prefix="/vectord/")
