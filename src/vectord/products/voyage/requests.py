"""Voyage's bodies -> canonical requests, and how each is answered. Pure; __init__.py puts these on routes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from vectord.errors import EmptyInput, InvalidField
from vectord.products.common.body import decode
from vectord.products.common.dialect import Call, Incoming
from vectord.products.common.inputs import check_count, join_chunks, read_inputs, read_kind, read_switch
from vectord.products.common.vectors import read_encoding
from vectord.products.voyage.answers import render_chunks, render_embeddings, render_queries, render_rerank
from vectord.products.voyage.wire import ContextualizedBody, EmbeddingsBody, RerankBody
from vectord.schema import ChunkOptions, DocumentsRequest, EmbedRequest, RerankRequest, Span, TextOptions

FIELDS: Mapping[str, str] = {"inputs": "input", "dimensions": "output_dimension"}
CONTEXTUALIZED_FIELDS: Mapping[str, str] = {
    "documents": "inputs",
    "spans": "inputs",
    "dimensions": "output_dimension",
    "chunk.max_tokens": "chunk_size",
    "chunk.overlap_tokens": "chunk_overlap",
    "late": "model",  # such chunks are all that this path is for: it is the model that cannot
}
CHUNK_TOKENS = 512  # where the body asks for chunks and does not say how long

_embeddings_body = msgspec.json.Decoder(EmbeddingsBody)
_contextualized_body = msgspec.json.Decoder(ContextualizedBody)
_rerank_body = msgspec.json.Decoder(RerankBody)


def parse_embeddings(incoming: Incoming) -> Call:
    body = decode(_embeddings_body, incoming.body)
    dtype = body.output_dtype or "float"
    request = EmbedRequest(
        inputs=read_inputs(body.input, "input"),
        model=body.model or None,
        text=TextOptions(
            truncate=read_switch(body.truncation, "truncation"),
            truncate_by_default=True,
            kind=read_kind(body.input_type),
        ),
        dimensions=body.output_dimension or None,
        force_dimensions=read_switch(body.force_dimensions, "force_dimensions") is True,
        precisions=(dtype,),
    )
    return Call(request, partial(render_embeddings, dtype, read_encoding(body.encoding_format)), FIELDS)


def parse_contextualized(incoming: Incoming) -> Call:
    """Queries have no context to be read in: they are embedded as anywhere else. Chunks are, by late chunking."""
    body = decode(_contextualized_body, incoming.body)
    check_count(len(body.inputs), incoming.guards.max_inputs, "inputs")
    check_count(sum(map(len, body.inputs)), incoming.guards.max_inputs, "inputs", "chunk")
    _refuse_empty(body.inputs)
    if read_kind(body.input_type) == "query":
        return _queries(body)
    if read_switch(body.enable_auto_chunking, "enable_auto_chunking"):
        return _documents(body, _alone(body.inputs), _chunk_options(body), None)
    documents = [join_chunks(chunks) for chunks in body.inputs]
    return _documents(body, [text for text, _ in documents], None, [spans for _, spans in documents])


def parse_rerank(incoming: Incoming) -> Call:
    body = decode(_rerank_body, incoming.body)
    shown = read_switch(body.return_documents, "return_documents")
    request = RerankRequest(
        query=body.query,
        passages=body.documents,
        model=body.model or None,
        text=TextOptions(truncate=read_switch(body.truncation, "truncation"), truncate_by_default=True),
        raw=False,
    )
    return Call(
        request, partial(render_rerank, body.documents if shown else None, body.top_k), {"passages": "documents"}
    )


# --- contextualized -------------------------------------------------------------------------------------------


def _queries(body: ContextualizedBody) -> Call:
    dtype = body.output_dtype or "float"
    request = EmbedRequest(
        inputs=_alone(body.inputs),
        model=body.model or None,
        text=TextOptions(truncate_by_default=True, kind="query"),
        dimensions=body.output_dimension or None,
        force_dimensions=read_switch(body.force_dimensions, "force_dimensions") is True,
        precisions=(dtype,),
    )
    return Call(request, partial(render_queries, dtype, read_encoding(body.encoding_format)), CONTEXTUALIZED_FIELDS)


def _documents(
    body: ContextualizedBody,
    texts: Sequence[str],
    chunks: ChunkOptions | None,
    spans: Sequence[Sequence[Span]] | None,
) -> Call:
    """Either `chunks` says how to cut the texts, and the answer shows the pieces, or `spans` where they are cut."""
    dtype = body.output_dtype or "float"
    request = DocumentsRequest(
        documents=texts,
        chunks=chunks,
        spans=spans,
        model=body.model or None,
        text=TextOptions(kind=read_kind(body.input_type)),
        late=True,
        dimensions=body.output_dimension or None,
        force_dimensions=read_switch(body.force_dimensions, "force_dimensions") is True,
        precisions=(dtype,),
    )
    render = partial(render_chunks, dtype, texts if chunks else None, read_encoding(body.encoding_format))
    return Call(request, render, CONTEXTUALIZED_FIELDS)


def _refuse_empty(inputs: Sequence[Sequence[str]]) -> None:
    """A chunk of blanks has no tokens that its vector could be made of."""
    if not inputs:
        raise EmptyInput("`inputs` cannot be empty", field="inputs")
    for index, texts in enumerate(inputs):
        if not texts or not all(text.strip() for text in texts):
            raise EmptyInput(f"`inputs[{index}]` must hold texts, and none that is blank.", field="inputs", index=index)


def _alone(inputs: Sequence[Sequence[str]]) -> list[str]:
    """The one text of each list."""
    for index, texts in enumerate(inputs):
        if len(texts) > 1:
            raise InvalidField(
                f"`inputs[{index}]` must hold one text: a query, or a document that is to be cut into chunks here.",
                field="inputs",
                index=index,
                limit=1,
                given=len(texts),
            )
    return [text for (text,) in inputs]


def _chunk_options(body: ContextualizedBody) -> ChunkOptions:
    size, overlap = body.chunk_size or CHUNK_TOKENS, body.chunk_overlap or 0
    if overlap >= size:
        raise InvalidField(
            f"`chunk_overlap` must be below `chunk_size`, {size}; got {overlap}.",
            field="chunk_overlap",
            limit=size - 1,
            given=overlap,
        )
    return ChunkOptions(max_tokens=size, overlap_tokens=overlap)
