"""OpenAI's bodies -> canonical requests, and how each is answered. Pure; __init__.py puts these on routes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import msgspec

from vectord.errors import InvalidField
from vectord.products.common.body import decode
from vectord.products.common.dialect import Call, Incoming
from vectord.products.common.inputs import check_characters, read_fingerprint, read_inputs, read_kind, read_switch
from vectord.products.common.vectors import Encoding, read_encoding
from vectord.products.openai.answers import render_embeddings, render_model, render_models
from vectord.products.openai.wire import EmbeddingsBody
from vectord.schema import EmbedRequest, ListModels, Precision, TextOptions

WHOLE_MODEL = -1  # vLLM's `truncate_prompt_tokens` for as many as the model reads

_embeddings_body = msgspec.json.Decoder(EmbeddingsBody)


def parse_embeddings(incoming: Incoming) -> Call:
    body = decode(_embeddings_body, incoming.body)
    precision, encoding = _form(body)
    inputs = read_inputs(body.input, "input")
    check_characters(inputs, incoming.guards.max_text_chars, "input")
    request = EmbedRequest(
        inputs=inputs,
        model=body.model or None,
        text=_text_options(body),
        normalize=read_switch(body.normalized, "normalized") is not False,
        dimensions=body.dimensions or body.output_dimension or None,
        force_dimensions=read_switch(body.force_dimensions, "force_dimensions") is True,
        precisions=(precision,),
        expect_fingerprint=read_fingerprint(body.expect_fingerprint, "expect_fingerprint"),
        partial=read_switch(body.partial_results, "partial_results") is True,
    )
    return Call(request, partial(render_embeddings, precision, encoding), _fields(body))


def parse_models(incoming: Incoming) -> Call:
    return Call(ListModels(), render_models)


def parse_model(incoming: Incoming) -> Call:
    return Call(ListModels(model=incoming.path["model"]), render_model)


# --- fields ---------------------------------------------------------------------------------------------------


def _fields(body: EmbeddingsBody) -> Mapping[str, str]:
    """Of two words for one thing, the one that counted."""
    return {
        "inputs": "input",
        "max_tokens": "truncate_prompt_tokens",
        "normalize": "normalized",
        "dimensions": "dimensions" if body.dimensions else "output_dimension",
        "precisions": "output_dtype" if body.output_dtype else "embedding_type",
    }


def _form(body: EmbeddingsBody) -> tuple[Precision, Encoding]:
    """What the numbers are, and how they are written; Jina's one word says the one or the other."""
    encoding = read_encoding(body.encoding_format)
    if body.embedding_type == "base64":
        return body.output_dtype or "float", "base64"
    return body.output_dtype or body.embedding_type or "float", encoding


def _text_options(body: EmbeddingsBody) -> TextOptions:
    tokens = body.truncate_prompt_tokens
    if tokens is not None and tokens != WHOLE_MODEL and tokens < 1:
        raise InvalidField("`truncate_prompt_tokens` must be -1 or at least 1.", field="truncate_prompt_tokens")
    truncate = read_switch(body.truncate, "truncate")
    if truncate is None:
        truncate = read_switch(body.truncation, "truncation")
    return TextOptions(
        truncate=truncate if tokens is None else True,
        prompt_name=body.prompt_name,
        kind=read_kind(body.task, body.input_type),
        max_tokens=None if tokens == WHOLE_MODEL else tokens,
    )
