"""Bodies of Ollama -> canonical requests, and how each is answered. Pure; __init__.py puts these on routes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from vectord.errors import InvalidField
from vectord.products.common.body import decode
from vectord.products.common.dialect import Call, Incoming
from vectord.products.ollama.answers import (
    LATEST,
    render_embedding,
    render_embeddings,
    render_front,
    render_no_embedding,
    render_no_embeddings,
    render_running,
    render_shown,
    render_tags,
    render_version,
)
from vectord.products.ollama.wire import EmbedBody, Options, PromptBody, ShowBody, ShowNameBody
from vectord.schema import EmbedRequest, ListModels, ModelInfo, TextOptions

FIELDS: Mapping[str, str] = {"inputs": "input", "max_tokens": "options.num_ctx"}
PROMPT_FIELDS: Mapping[str, str] = {"inputs": "prompt", "max_tokens": "options.num_ctx"}

_embed_body = msgspec.json.Decoder(EmbedBody)
_prompt_body = msgspec.json.Decoder(PromptBody)
_show_body = msgspec.json.Decoder(ShowBody)
_show_name_body = msgspec.json.Decoder(ShowNameBody)


def parse_embed(incoming: Incoming) -> Call:
    body = decode(_embed_body, incoming.body)
    model = _model(body.model, incoming.models)
    if not body.input:
        return Call(ListModels(model=model), render_no_embeddings)
    request = EmbedRequest(
        inputs=[body.input] if isinstance(body.input, str) else body.input,
        model=model,
        text=_read(body.options, body.truncate),
        dimensions=body.dimensions or None,
        force_dimensions=body.force_dimensions is True,
    )
    return Call(request, render_embeddings, FIELDS)


def parse_prompt(incoming: Incoming) -> Call:
    """What came before /api/embed. Its vectors are as the model gives them, not of length 1."""
    body = decode(_prompt_body, incoming.body)
    model = _model(body.model, incoming.models)
    if not body.prompt:
        return Call(ListModels(model=model), render_no_embedding)
    request = EmbedRequest(inputs=[body.prompt], model=model, text=_read(body.options), normalize=False)
    return Call(request, render_embedding, PROMPT_FIELDS)


def parse_show(incoming: Incoming) -> Call:
    body = decode(_show_body, incoming.body)
    return _show(body.model or body.name, incoming.models)


def parse_show_name(incoming: Incoming) -> Call:
    return _show(decode(_show_name_body, incoming.body).name, incoming.models)


def parse_tags(incoming: Incoming) -> Call:
    return Call(ListModels(), render_tags)


def parse_running(incoming: Incoming) -> Call:
    return Call(ListModels(), render_running)


def parse_version(incoming: Incoming) -> Call:
    return Call(ListModels(), render_version)


def parse_front(incoming: Incoming) -> Call:
    return Call(ListModels(), render_front)


def _show(name: str | None, models: Sequence[ModelInfo]) -> Call:
    model = _model(name, models)
    if model is None:
        raise InvalidField("`model` is required.", field="model")
    return Call(ListModels(model=model), render_shown)


def _model(name: str | None, models: Sequence[ModelInfo]) -> str | None:
    """The served name: without the tag that Ollama's clients add to a name that has none, unless it is served so."""
    if name and all(info.name != name for info in models):
        name = name.removesuffix(LATEST)
    return name or None


def _read(options: Options | None, truncate: bool | None = None) -> TextOptions:
    max_tokens = (options.num_ctx or None) if options else None
    return TextOptions(truncate=truncate, truncate_by_default=True, max_tokens=max_tokens)
