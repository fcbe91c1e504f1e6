"""Bodies of Semantic Explorer -> canonical requests, and how each is answered. Pure; __init__.py has the routes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from vectord.products.common.body import decode
from vectord.products.common.dialect import Call, Incoming
from vectord.products.common.inputs import read_switch
from vectord.products.common.ranking import read_documents
from vectord.products.semantic_explorer.answers import (
    render_counted,
    render_embed,
    render_embedders,
    render_models,
    render_no_counted,
    render_no_embeddings,
    render_no_ranking,
    render_no_results,
    render_rerank,
    render_rerank_named,
    render_rerankers,
    render_status,
)
from vectord.products.semantic_explorer.wire import EmbedBody, RerankBody, RerankNamedBody, TextBody, TextsBody
from vectord.schema import EmbedRequest, ListModels, RerankRequest, TextOptions

RERANK_FIELDS: Mapping[str, str] = {"passages": "documents"}

_embed_body = msgspec.json.Decoder(EmbedBody)
_text_body = msgspec.json.Decoder(TextBody)
_texts_body = msgspec.json.Decoder(TextsBody)
_rerank_body = msgspec.json.Decoder(RerankBody)
_rerank_named_body = msgspec.json.Decoder(RerankNamedBody)

_READ = TextOptions(truncate_by_default=True)  # as FastEmbed, which always cuts


def parse_embed(incoming: Incoming) -> Call:
    """No texts are no work, as in the source; that the model is served is still looked at."""
    body = decode(_embed_body, incoming.body)
    texts = [body.input] if isinstance(body.input, str) else body.input
    if not texts:
        return Call(ListModels(model=body.model or None), render_no_embeddings)
    return Call(_embed(texts, body.model), render_embed, {"inputs": "input"})


def parse_embed_text(incoming: Incoming) -> Call:
    body = decode(_text_body, incoming.body)
    return Call(_embed([body.text], body.model), render_counted, {"inputs": "text"})


def parse_embed_texts(incoming: Incoming) -> Call:
    """As parse_embed."""
    body = decode(_texts_body, incoming.body)
    if not body.texts:
        return Call(ListModels(model=body.model or None), render_no_counted)
    return Call(_embed(body.texts, body.model), render_counted, {"inputs": "texts"})


def parse_rerank(incoming: Incoming) -> Call:
    """No documents are no work, as in the source."""
    body = decode(_rerank_body, incoming.body)
    passages = read_documents(body.documents)
    if not passages:
        return Call(ListModels(model=body.model or None), render_no_ranking)
    with_documents = read_switch(body.return_documents, "return_documents") is True
    request = _rerank(body.query, passages, body.model)
    return Call(request, partial(render_rerank, passages, body.top_n, with_documents), RERANK_FIELDS)


def parse_rerank_named(incoming: Incoming) -> Call:
    """As parse_rerank, of documents that may have ids."""
    body = decode(_rerank_named_body, incoming.body)
    if not body.documents:
        return Call(ListModels(model=body.model or None), render_no_results)
    request = _rerank(body.query, [document.text for document in body.documents], body.model)
    with_scores = body.return_scores is not False
    return Call(request, partial(render_rerank_named, body.documents, body.top_k, with_scores), RERANK_FIELDS)


def parse_models(incoming: Incoming) -> Call:
    return Call(ListModels(), render_models)


def parse_embedders(incoming: Incoming) -> Call:
    return Call(ListModels(), render_embedders)


def parse_rerankers(incoming: Incoming) -> Call:
    return Call(ListModels(), render_rerankers)


def parse_status(incoming: Incoming) -> Call:
    return Call(ListModels(), render_status)


def _embed(texts: Sequence[str], model: str | None) -> EmbedRequest:
    return EmbedRequest(inputs=texts, model=model or None, text=_READ)


def _rerank(query: str, passages: Sequence[str], model: str | None) -> RerankRequest:
    return RerankRequest(query=query, passages=passages, model=model or None, text=_READ, raw=False)
