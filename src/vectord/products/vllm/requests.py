"""Bodies of vLLM's pooling API -> canonical requests, and how each is answered. Pure; __init__.py puts these on routes.

Texts of errors are vLLM's where clients may know them. Over-long text is an error unless `truncate_prompt_tokens` says
otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import msgspec

from vectord.errors import EmptyInput, InvalidField, MissingField, WrongType
from vectord.products.common.body import decode
from vectord.products.common.dialect import Call, Incoming
from vectord.products.common.inputs import check_count, read_inputs
from vectord.products.common.ranking import read_documents
from vectord.products.vllm.answers import (
    render_classes,
    render_detokenized,
    render_embeddings,
    render_models,
    render_pooled,
    render_pooled_scores,
    render_pooled_tokens,
    render_reranked,
    render_scores,
    render_tokens,
    render_version,
)
from vectord.products.vllm.numbers import Numbers, read_numbers
from vectord.products.vllm.wire import (
    ClassifyBody,
    DetokenizeBody,
    EmbeddingBody,
    InputBody,
    Options,
    PoolingBody,
    RerankBody,
    ScoreBody,
    TokenizeBody,
)
from vectord.schema import (
    ClassifyRequest,
    DecodeRequest,
    EmbedRequest,
    Input,
    ListModels,
    ModelInfo,
    RerankRequest,
    Several,
    TextOptions,
    TokenizeRequest,
    VectorKind,
)

# First names, second names: which pair a body has tells what it compares.
PAIRS = (("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2"))

FIELDS: Mapping[str, str] = {"inputs": "input", "max_tokens": "truncate_prompt_tokens"}

_embedding_body = msgspec.json.Decoder(EmbeddingBody)
_pooling_body = msgspec.json.Decoder(PoolingBody)
_classify_body = msgspec.json.Decoder(ClassifyBody)
_score_body = msgspec.json.Decoder(ScoreBody)
_rerank_body = msgspec.json.Decoder(RerankBody)
_tokenize_body = msgspec.json.Decoder(TokenizeBody)
_detokenize_body = msgspec.json.Decoder(DetokenizeBody)


# --- vectors --------------------------------------------------------------------------------------------------


def parse_embeddings(incoming: Incoming) -> Call:
    body = decode(_embedding_body, incoming.body)
    numbers = read_numbers(body)
    request = _embed_request(body, "dense")
    request = replace(request, text=replace(request.text, own_ids=False))  # OpenAI's clients send their models' ids
    return Call(request, partial(render_embeddings, body.request_id, numbers), FIELDS)


def parse_pooling(incoming: Incoming) -> Call:
    """The task named, else the one that the model asked for, or the first served, is for."""
    body = decode(_pooling_body, incoming.body)
    numbers = read_numbers(body)
    model = _asked_for(body.model, incoming.models)
    match body.task or _usual_task(model):
        case "embed":
            return Call(_embed_request(body, "dense"), partial(render_pooled, body.request_id, numbers), FIELDS)
        case "token_embed":
            return _token_call(body, numbers, model)
        case "classify":
            return Call(_classify_request(body), partial(render_pooled_scores, body.request_id, numbers), FIELDS)
    raise InvalidField("`task` must be 'embed', 'classify' or 'token_embed'.", field="task")


def _embed_request(body: EmbeddingBody, output: VectorKind) -> EmbedRequest:
    return EmbedRequest(
        inputs=_inputs(body),
        model=body.model or None,
        text=_text_options(body, add_special_tokens=body.add_special_tokens is not False),
        outputs=frozenset({output}),
        normalize=body.use_activation is not False,
        dimensions=body.dimensions,
    )


def _token_call(body: PoolingBody, numbers: Numbers, model: ModelInfo | None) -> Call:
    """ColBERT's vectors of a model that makes them, else what its last layer has for each token."""
    colbert = model is not None and "colbert" in model.outputs
    if colbert and body.use_activation is False:
        message = "`use_activation` cannot be false for ColBERT's vectors: they have a length of 1."
        raise InvalidField(message, field="use_activation")
    request = _embed_request(body, "colbert" if colbert else "tokens")
    unit = not colbert and body.use_activation is not False
    return Call(request, partial(render_pooled_tokens, body.request_id, numbers, unit), FIELDS, binary=not unit)


def _asked_for(name: str | None, models: Sequence[ModelInfo]) -> ModelInfo | None:
    """None for a name that is not listed: an alias, or nothing at all, which the engine tells apart."""
    return next((model for model in models if not name or model.name == name), None)


def _usual_task(model: ModelInfo | None) -> str:
    if model is None or "dense" in model.outputs:
        return "embed"
    return "classify" if model.labels else "token_embed"


# --- scores ---------------------------------------------------------------------------------------------------


def parse_classify(incoming: Incoming) -> Call:
    body = decode(_classify_body, incoming.body)
    return Call(_classify_request(body), partial(render_classes, body.request_id), FIELDS)


def _classify_request(body: InputBody) -> ClassifyRequest:
    if isinstance(body, EmbeddingBody) and body.dimensions is not None:
        raise InvalidField("`dimensions` applies to vectors alone.", field="dimensions")
    inputs = _inputs(body)
    texts = [text for text in inputs if isinstance(text, str)]
    if len(texts) < len(inputs):
        raise InvalidField("`input`: token ids cannot be classified here; send text.", field="input")
    return ClassifyRequest(
        inputs=texts,
        model=body.model or None,
        text=_text_options(body, add_special_tokens=body.add_special_tokens is not False),
        raw=body.use_activation is False,
    )


def parse_score(incoming: Incoming) -> Call:
    body = decode(_score_body, incoming.body)
    names = next((pair for pair in PAIRS if None not in (getattr(body, pair[0]), getattr(body, pair[1]))), None)
    if names is None:
        known = ", or ".join(f"`{first}` and `{second}`" for first, second in PAIRS)
        raise WrongType(f"The body must have {known}.", field=PAIRS[0][0])
    first, second = _as_list(getattr(body, names[0])), _as_list(getattr(body, names[1]))
    _check_pairs(first, second, names)
    check_count(len(second), incoming.guards.max_inputs, names[1], "input" if len(first) == 1 else "request")
    render = partial(render_scores, body.request_id)
    if len(first) == 1:
        return Call(_score_request(body, first[0], second), render, _score_fields(names))
    requests = [_score_request(body, query, [passage]) for query, passage in zip(first, second, strict=True)]
    return Call(Several(requests=requests), render, {"requests": names[1]}, partial(_pair_fields, names))


def _pair_fields(names: tuple[str, str], place: int) -> Mapping[str, str]:
    return _score_fields((f"{names[0]}[{place}]", f"{names[1]}[{place}]"))


def _score_fields(names: tuple[str, str]) -> Mapping[str, str]:
    return {**FIELDS, "query": names[0], "passages": names[1]}


def _score_request(body: Options, query: str, passages: Sequence[str]) -> RerankRequest:
    return RerankRequest(
        query=query,
        passages=passages,
        model=body.model or None,
        text=_text_options(body),
        raw=body.use_activation is False,
    )


def _check_pairs(first: Sequence[str], second: Sequence[str], names: tuple[str, str]) -> None:
    if not first:
        raise EmptyInput("At least one text element must be given", field=names[0])
    if not second:
        raise EmptyInput("At least one text_pair element must be given", field=names[1])
    if len(first) > 1 and len(first) != len(second):
        raise InvalidField("Input lengths must be either 1:1, 1:N or N:N", field=names[0])


def parse_rerank(incoming: Incoming) -> Call:
    body = decode(_rerank_body, incoming.body)
    documents = [body.documents] if isinstance(body.documents, str) else read_documents(body.documents)
    request = _score_request(body, body.query, documents)
    render = partial(render_reranked, body.request_id, documents, body.top_n)
    return Call(request, render, _score_fields(("query", "documents")))


# --- tokens and facts -----------------------------------------------------------------------------------------


def parse_tokenize(incoming: Incoming) -> Call:
    body = decode(_tokenize_body, incoming.body)
    _refuse_messages(body.messages)
    if body.prompt is None:
        raise MissingField("{field} is required.", field="prompt")
    request = TokenizeRequest(
        inputs=[body.prompt], model=body.model or None, add_special_tokens=body.add_special_tokens is not False
    )
    limits = {model.name: model.max_input_tokens for model in incoming.models}
    return Call(request, partial(render_tokens, body.return_token_strs is True, limits), {"inputs": "prompt"})


def parse_detokenize(incoming: Incoming) -> Call:
    body = decode(_detokenize_body, incoming.body)
    request = DecodeRequest(ids=[body.tokens], model=body.model or None, skip_special_tokens=False)
    return Call(request, render_detokenized, {"ids": "tokens"})


def parse_version(incoming: Incoming) -> Call:
    return Call(ListModels(), render_version)


def parse_models(incoming: Incoming) -> Call:
    return Call(ListModels(), render_models)


# --- fields ---------------------------------------------------------------------------------------------------


def _inputs(body: InputBody) -> Sequence[Input]:
    _refuse_messages(body.messages)
    if body.input is None:
        raise MissingField("{field} is required.", field="input")
    return read_inputs(body.input, "input")


def _refuse_messages(messages: object) -> None:
    if messages is not None:
        message = "`messages` need a chat template, and none is run here; send the text itself."
        raise InvalidField(message, field="messages")


def _text_options(body: Options, *, add_special_tokens: bool = True) -> TextOptions:
    if body.normalize is not None:
        message = "Parameter `normalize` was removed; use `use_activation` instead."
        raise InvalidField(message, field="normalize")
    most = body.truncate_prompt_tokens
    if most == 0:
        message = "`truncate_prompt_tokens` must be -1, for what the model reads, or at least 1."
        raise InvalidField(message, field="truncate_prompt_tokens")
    return TextOptions(
        truncate=None if most is None else True,
        truncate_side=body.truncation_side or "right",
        max_tokens=None if most == -1 else most,
        add_special_tokens=add_special_tokens,
        own_ids=True,
    )


def _as_list(texts: str | list[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else texts
