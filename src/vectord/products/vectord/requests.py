"""Bodies of our own dialect -> canonical requests, and how each is answered. Pure; __init__.py puts these on routes."""

from __future__ import annotations

from functools import partial

import msgspec

from vectord.errors import InvalidField
from vectord.products.common.body import decode
from vectord.products.common.dialect import Call, Incoming
from vectord.products.common.inputs import read_fingerprint, read_inputs
from vectord.products.vectord.answers import (
    render_classify,
    render_decode,
    render_documents,
    render_embed,
    render_model,
    render_models,
    render_rerank,
    render_similarity,
    render_tokenize,
)
from vectord.products.vectord.wire import (
    Chunking,
    ClassifyBody,
    DecodeBody,
    DocumentsBody,
    EmbedBody,
    Prompting,
    Reading,
    RerankBody,
    SimilarityBody,
    TokenizeBody,
)
from vectord.schema import (
    ChunkOptions,
    ClassifyRequest,
    DecodeRequest,
    DocumentsRequest,
    EmbedRequest,
    ListModels,
    LoadModel,
    RerankRequest,
    SimilarityRequest,
    TextOptions,
    TokenizeRequest,
    UnloadModel,
)

LEAST_WEIGHTS = 0.001  # together; sums of float32 products by much less vanish

_embed_body = msgspec.json.Decoder(EmbedBody)
_documents_body = msgspec.json.Decoder(DocumentsBody)
_rerank_body = msgspec.json.Decoder(RerankBody)
_classify_body = msgspec.json.Decoder(ClassifyBody)
_similarity_body = msgspec.json.Decoder(SimilarityBody)
_tokenize_body = msgspec.json.Decoder(TokenizeBody)
_decode_body = msgspec.json.Decoder(DecodeBody)


def parse_embed(incoming: Incoming) -> Call:
    body = decode(_embed_body, incoming.body)
    precisions = tuple(dict.fromkeys(body.precisions or ("float",)))
    request = EmbedRequest(
        inputs=read_inputs(body.inputs, "inputs"),
        model=body.model or None,
        text=_prompted(body),
        outputs=frozenset(body.outputs or ("dense",)),
        normalize=body.normalize is not False,
        dimensions=body.dimensions,
        force_dimensions=body.force_dimensions is True,
        precisions=precisions,
        expect_fingerprint=read_fingerprint(body.expect_fingerprint, "expect_fingerprint"),
        partial=body.partial_results is True,
    )
    return Call(request, partial(render_embed, precisions, body.encoding or "float"))


def parse_documents(incoming: Incoming) -> Call:
    body = decode(_documents_body, incoming.body)
    request = DocumentsRequest(
        documents=body.documents,
        chunks=_chunks(body.chunk),
        model=body.model or None,
        text=_prompted(body),
        late=body.late is True,
        mean=body.mean is True,
        normalize=body.normalize is not False,
        dimensions=body.dimensions,
        force_dimensions=body.force_dimensions is True,
        expect_fingerprint=read_fingerprint(body.expect_fingerprint, "expect_fingerprint"),
    )
    return Call(request, partial(render_documents, body.encoding or "float"))


def parse_rerank(incoming: Incoming) -> Call:
    body = decode(_rerank_body, incoming.body)
    request = RerankRequest(
        query=body.query,
        passages=body.passages,
        model=body.model or None,
        text=_read(body),
        method=body.method,
        weights=_weights(body),
        raw=_raw(body),
        instruction=body.instruction,
        chunks=_chunks(body.chunk) if body.chunk else None,
    )
    return Call(request, partial(render_rerank, body.top_n, body.passages if body.return_passages else None))


def parse_classify(incoming: Incoming) -> Call:
    body = decode(_classify_body, incoming.body)
    inputs = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    request = ClassifyRequest(inputs=inputs, model=body.model or None, text=_read(body), raw=body.raw is True)
    return Call(request, render_classify)


def parse_similarity(incoming: Incoming) -> Call:
    body = decode(_similarity_body, incoming.body)
    request = SimilarityRequest(
        source=body.source, sentences=body.sentences, model=body.model or None, text=_prompted(body)
    )
    return Call(request, render_similarity)


def parse_tokenize(incoming: Incoming) -> Call:
    body = decode(_tokenize_body, incoming.body)
    request = TokenizeRequest(
        inputs=[body.inputs] if isinstance(body.inputs, str) else body.inputs,
        model=body.model or None,
        add_special_tokens=body.add_special_tokens is not False,
        prompt_name=body.prompt_name,
    )
    return Call(request, render_tokenize)


def parse_decode(incoming: Incoming) -> Call:
    body = decode(_decode_body, incoming.body)
    request = DecodeRequest(
        ids=body.ids, model=body.model or None, skip_special_tokens=body.skip_special_tokens is not False
    )
    return Call(request, render_decode)


def parse_models(incoming: Incoming) -> Call:
    return Call(ListModels(), render_models)


def parse_model(incoming: Incoming) -> Call:
    return Call(ListModels(model=incoming.path["model"]), render_model)


def parse_load(incoming: Incoming) -> Call:
    return Call(LoadModel(model=incoming.path["model"]), render_model)


def parse_unload(incoming: Incoming) -> Call:
    return Call(UnloadModel(model=incoming.path["model"]), render_model)


# --- fields ---------------------------------------------------------------------------------------------------


def _read(body: Reading) -> TextOptions:
    return TextOptions(truncate=body.truncate, truncate_side=body.truncate_side or "right")


def _prompted(body: Prompting) -> TextOptions:
    return TextOptions(
        truncate=body.truncate,
        truncate_side=body.truncate_side or "right",
        prompt_name=body.prompt_name,
        kind=body.kind,
        prompt=body.prompt,
    )


def _chunks(chunk: Chunking) -> ChunkOptions:
    overlap_tokens = chunk.overlap_tokens or 0
    if overlap_tokens >= chunk.max_tokens:
        raise InvalidField(
            f"`chunk.overlap_tokens` must be below `chunk.max_tokens`, {chunk.max_tokens}; got {overlap_tokens}.",
            field="chunk.overlap_tokens",
            limit=chunk.max_tokens - 1,
            given=overlap_tokens,
        )
    return ChunkOptions(max_tokens=chunk.max_tokens, by=chunk.by or "tokens", overlap_tokens=overlap_tokens)


def _weights(body: RerankBody) -> tuple[float, float, float] | None:
    if body.weights is None:
        return None
    if body.method != "weighted":
        raise InvalidField("`weights` are for the method 'weighted'.", field="weights")
    weights = (body.weights.dense, body.weights.sparse, body.weights.colbert)
    if sum(weights) < LEAST_WEIGHTS:
        raise InvalidField(f"`weights` must have a sum of at least {LEAST_WEIGHTS}.", field="weights")
    return weights


def _raw(body: RerankBody) -> bool | None:
    if body.scores in (None, "model"):
        return None
    if body.method not in (None, "scores"):
        raise InvalidField("`scores` is for the method 'scores'; others have one kind of score.", field="scores")
    return body.scores == "raw"
