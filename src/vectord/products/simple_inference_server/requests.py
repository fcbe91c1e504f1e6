"""Bodies of Simple Inference Server -> canonical requests, and how each is answered.

Pure; __init__.py puts these on routes.
"""

from __future__ import annotations

from functools import partial

import msgspec

from vectord.errors import InvalidField, TooManyInputs
from vectord.products.common.body import decode
from vectord.products.common.dialect import Call, Incoming
from vectord.products.common.inputs import check_characters, read_inputs
from vectord.products.common.vectors import Encoding
from vectord.products.simple_inference_server.answers import render_embeddings, render_models, render_ranking
from vectord.products.simple_inference_server.wire import EmbeddingsBody, RerankBody
from vectord.schema import EmbedRequest, ListModels, RerankRequest, TextOptions

CUT_IN_SILENCE = TextOptions(truncate_by_default=True)

_embeddings_body = msgspec.json.Decoder(EmbeddingsBody)
_rerank_body = msgspec.json.Decoder(RerankBody)


def parse_embeddings(incoming: Incoming) -> Call:
    """Encoding, count, characters, and only then the model: the product's order."""
    body = decode(_embeddings_body, incoming.body)
    encoding = _encoding(body.encoding_format)
    inputs = read_inputs(body.input, "input")
    _check_count(len(inputs), incoming.guards.max_inputs)
    check_characters(inputs, incoming.guards.max_text_chars, "input")
    request = EmbedRequest(inputs=inputs, model=body.model or None, text=CUT_IN_SILENCE)
    return Call(request, partial(render_embeddings, encoding), {"inputs": "input"})


def parse_rerank(incoming: Incoming) -> Call:
    body = decode(_rerank_body, incoming.body)
    request = RerankRequest(
        query=body.query,
        passages=body.documents,
        model=body.model or None,
        text=CUT_IN_SILENCE,
        raw=False,
    )
    return Call(request, partial(render_ranking, body.documents, body.top_n), {"passages": "documents"})


def parse_models(incoming: Incoming) -> Call:
    return Call(ListModels(), render_models)


def _check_count(count: int, limit: int | None) -> None:
    if limit is not None and count > limit:
        raise TooManyInputs(f"Batch too large; max {limit} items", field="input", limit=limit, given=count)


def _encoding(name: str | None) -> Encoding:
    """base64 too, which the OpenAI SDK asks for when its user did not choose."""
    if name == "base64":
        return "base64"
    if name not in (None, "float"):
        raise InvalidField("Only 'float' encoding_format is supported", field="encoding_format")
    return "float"
