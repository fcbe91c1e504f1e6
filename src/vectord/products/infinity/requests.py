"""infinity's bodies -> canonical requests, and how each is answered. Pure; __init__.py puts these on routes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NoReturn

import msgspec

from vectord.errors import EmptyInput, InvalidField, ModelCannot
from vectord.products.common.body import decode
from vectord.products.common.dialect import Call, Incoming
from vectord.products.common.inputs import read_inputs, read_switch
from vectord.products.common.vectors import read_encoding
from vectord.products.infinity.answers import render_classes, render_embeddings, render_models, render_ranking
from vectord.products.infinity.wire import ClassifyBody, EmbeddingsBody, RerankBody, TextDocument
from vectord.schema import ClassifyRequest, EmbedRequest, ListModels, ModelInfo, RerankRequest, TextOptions

ANY_MODEL = "default/not-specified"  # what infinity's client sends for the first model
TEXT = TextOptions(truncate_by_default=True)

_embeddings_body = msgspec.json.Decoder(EmbeddingsBody)
_rerank_body = msgspec.json.Decoder(RerankBody)
_classify_body = msgspec.json.Decoder(ClassifyBody)


def parse_embeddings(incoming: Incoming) -> Call:
    body = decode(_embeddings_body, incoming.body)
    _check_modality(body.modality)
    request = EmbedRequest(
        inputs=[one.strip() if isinstance(one, str) else one for one in read_inputs(body.input, "input")],
        model=_model(body.model, incoming.models),
        text=TEXT,
        dimensions=body.dimensions or body.output_dimension or None,
        force_dimensions=read_switch(body.force_dimensions, "force_dimensions") is True,
    )
    fields = {"inputs": "input", "dimensions": "dimensions" if body.dimensions else "output_dimension"}
    return Call(request, partial(render_embeddings, read_encoding(body.encoding_format)), fields)


def parse_rerank(incoming: Incoming) -> Call:
    body = decode(_rerank_body, incoming.body)
    documents = [_text(document).strip() for document in body.documents]
    _refuse_none(documents, "documents")
    request = RerankRequest(
        query=body.query.strip(),
        passages=documents,
        model=_model(body.model, incoming.models),
        text=TEXT,
        raw=read_switch(body.raw_scores, "raw_scores") is True,
    )
    shows = read_switch(body.return_documents, "return_documents") is True
    return Call(request, partial(render_ranking, documents, body.top_n, shows=shows), {"passages": "documents"})


def parse_classify(incoming: Incoming) -> Call:
    body = decode(_classify_body, incoming.body)
    _refuse_none(body.input, "input")
    request = ClassifyRequest(
        inputs=[text.strip() for text in body.input],
        model=_model(body.model, incoming.models),
        text=TEXT,
        raw=read_switch(body.raw_scores, "raw_scores") is True,
    )
    return Call(request, render_classes, {"inputs": "input"})


def parse_models(incoming: Incoming) -> Call:
    return Call(ListModels(), render_models)


def refuse_modality(modality: str, incoming: Incoming) -> NoReturn:
    raise ModelCannot(f"The modality {modality} is not served; texts are, at /embeddings.", field="input")


def _check_modality(modality: str | None) -> None:
    if modality in ("image", "audio"):
        raise ModelCannot(f"The modality {modality} is not served; `modality` must be 'text'.", field="modality")
    if modality not in (None, "text"):
        raise InvalidField("`modality` must be 'text'.", field="modality")


def _model(name: str | None, models: Sequence[ModelInfo]) -> str | None:
    """The model asked for; None for whichever can. Where one is served infinity answers to every name."""
    return None if not name or name == ANY_MODEL or len(models) == 1 else name


def _text(document: str | TextDocument) -> str:
    return document if isinstance(document, str) else document.text


def _refuse_none(texts: Sequence[str], field: str) -> None:
    if not texts:
        raise EmptyInput(f"`{field}` cannot be empty", field=field)
