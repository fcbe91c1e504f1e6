"""Bodies of llama.cpp's server -> canonical requests, and how each is answered. Pure; __init__.py puts these on routes.

Texts of errors are llama.cpp's where clients may know them. Over-long text is an error there, and so it is here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from vectord.errors import EmptyInput, InvalidField, WrongType
from vectord.products.common.body import decode
from vectord.products.common.dialect import Call, Incoming, Rendered
from vectord.products.common.inputs import read_inputs
from vectord.products.common.vectors import read_encoding
from vectord.products.llamacpp import norms
from vectord.products.llamacpp.answers import (
    render_detokenized,
    render_health,
    render_models,
    render_native,
    render_openai,
    render_props,
    render_ranks,
    render_results,
    render_slots,
    render_tokens,
)
from vectord.products.llamacpp.wire import (
    DetokenizeBody,
    EmbeddingBody,
    PromptObject,
    Prompts,
    RerankBody,
    TokenizeBody,
)
from vectord.schema import (
    DecodeRequest,
    EmbedRequest,
    Input,
    ListModels,
    RerankRequest,
    Result,
    TextOptions,
    TokenizeRequest,
)

_embedding_body = msgspec.json.Decoder(EmbeddingBody)
_rerank_body = msgspec.json.Decoder(RerankBody)
_tokenize_body = msgspec.json.Decoder(TokenizeBody)
_detokenize_body = msgspec.json.Decoder(DetokenizeBody)


# --- vectors --------------------------------------------------------------------------------------------------


def parse_native(incoming: Incoming) -> Call:
    body = decode(_embedding_body, incoming.body)
    return _embed_call(body, incoming, partial(render_native, _norm(body)))


def parse_openai(incoming: Incoming) -> Call:
    """`content` is no key of OpenAI's: it gets the native array on this path, too."""
    body = decode(_embedding_body, incoming.body)
    if body.input is None:
        return _embed_call(body, incoming, partial(render_native, _norm(body)))
    render = partial(render_openai, body.model or None, _norm(body), read_encoding(body.encoding_format))
    return _embed_call(body, incoming, render, own_ids=False)  # OpenAI's clients send ids of OpenAI's models


def _embed_call(
    body: EmbeddingBody, incoming: Incoming, render: Callable[[Result], Rendered], *, own_ids: bool = True
) -> Call:
    field = "content" if body.input is None else "input"
    prompts = body.content if body.input is None else body.input
    if prompts is None:
        raise WrongType('"input" or "content" must be provided', field="input")
    request = EmbedRequest(
        inputs=_inputs(prompts, field),
        model=_model(body.model, incoming),
        text=TextOptions(own_ids=own_ids),
        normalize=_norm(body) == norms.EUCLIDEAN,
    )
    return Call(request, render, {"inputs": field}, binary=_norm(body) in (norms.EUCLIDEAN, norms.RAW))


def _inputs(prompts: Prompts, field: str) -> Sequence[Input]:
    if isinstance(prompts, PromptObject):
        return [_text(prompts, field)]
    if isinstance(prompts, str):
        return [prompts]
    plain = [
        _text(prompt, field, index) if isinstance(prompt, PromptObject) else prompt
        for index, prompt in enumerate(prompts)
    ]
    return read_inputs(plain, field)


def _text(prompt: PromptObject, field: str, index: int | None = None) -> str:
    place = f"`{field}`" if index is None else f"`{field}[{index}]`"
    if prompt.multimodal_data:
        raise InvalidField(f"{place}: `multimodal_data` is refused: texts only.", field=field, index=index)
    if prompt.prompt_string is not None:
        return prompt.prompt_string
    if prompt.content is not None:
        return "".join(part.text for part in prompt.content)
    raise WrongType(f"{place}: an object must have `prompt_string` or `content`.", field=field, index=index)


def _norm(body: EmbeddingBody) -> int:
    return norms.EUCLIDEAN if body.embd_normalize is None else body.embd_normalize


# --- scores ---------------------------------------------------------------------------------------------------


def parse_rerank(incoming: Incoming) -> Call:
    """Logits, as llama.cpp answers."""
    body = decode(_rerank_body, incoming.body)
    if body.query is None:
        raise WrongType('"query" must be provided', field="query")
    field = "documents" if body.texts is None else "texts"
    passages = body.documents if body.texts is None else body.texts
    if not passages:
        raise EmptyInput('"documents" must be a non-empty string array', field=field)
    request = RerankRequest(query=body.query, passages=passages, model=_model(body.model, incoming), raw=True)
    render = partial(render_results, body.model or None, body.top_n)
    if body.texts is not None:
        render = partial(render_ranks, body.top_n, passages if body.return_text else None)
    return Call(request, render, {"passages": field})


# --- tokens ---------------------------------------------------------------------------------------------------


def parse_tokenize(incoming: Incoming) -> Call:
    body = decode(_tokenize_body, incoming.body)
    if body.parse_special is False:
        raise InvalidField("`parse_special` cannot be turned off.", field="parse_special")
    request = TokenizeRequest(
        inputs=[body.content], model=_model(body.model, incoming), add_special_tokens=body.add_special is True
    )
    return Call(request, partial(render_tokens, body.with_pieces is True), {"inputs": "content"})


def parse_detokenize(incoming: Incoming) -> Call:
    body = decode(_detokenize_body, incoming.body)
    request = DecodeRequest(ids=[body.tokens], model=_model(body.model, incoming), skip_special_tokens=False)
    return Call(request, render_detokenized, {"ids": "tokens"})


# --- facts ----------------------------------------------------------------------------------------------------


def parse_models(incoming: Incoming) -> Call:
    return Call(ListModels(), render_models)


def parse_health(incoming: Incoming) -> Call:
    return Call(ListModels(), render_health)


def parse_props(incoming: Incoming) -> Call:
    return Call(ListModels(), render_props)


def parse_slots(incoming: Incoming) -> Call:
    return Call(ListModels(), render_slots)


def _model(name: str | None, incoming: Incoming) -> str | None:
    """Of one model llama.cpp's clients write anything; where several are served, the name has to be right."""
    return None if len(incoming.models) == 1 else name or None
