"""text-embeddings-inference, as far as a model that embeds is asked: its own routes and its OpenAI routes.

Texts of errors are TEI's where clients may know them. Runs on the event loop, called by the server's handler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from vectord import __version__
from vectord.dialects.base import Dialect, Incoming, Rendered, Route
from vectord.dialects.body import decode
from vectord.dialects.inputs import TextsOrIds, read_inputs
from vectord.dialects.tei_errors import render_error, render_openai_error
from vectord.dialects.tei_wire import (
    AnyInputsBody,
    DecodeBody,
    EmbedAllBody,
    EmbedBody,
    Info,
    OpenAIAnswer,
    OpenAIBody,
    SimilarityBody,
    SimilarityParameters,
    TokenAnswer,
    TokenizeBody,
)
from vectord.dialects.vectors import dump_json, embedding_items, read_encoding
from vectord.errors import EmptyInput, InvalidField
from vectord.schema import (
    DecodeRequest,
    DecodeResult,
    EmbedRequest,
    EmbedResult,
    Input,
    ListModels,
    ModelList,
    Request,
    Result,
    Side,
    SimilarityRequest,
    SimilarityResult,
    TextOptions,
    TokenizeRequest,
    TokenizeResult,
    Usage,
)

TRUNCATES = True  # what TEI 1.9 does with over-long text when nobody says

# --- requests -------------------------------------------------------------------------------------------------

_embed_body = msgspec.json.Decoder(EmbedBody)
_any_inputs_body = msgspec.json.Decoder(AnyInputsBody)
_embed_all_body = msgspec.json.Decoder(EmbedAllBody)
_similarity_body = msgspec.json.Decoder(SimilarityBody)
_tokenize_body = msgspec.json.Decoder(TokenizeBody)
_decode_body = msgspec.json.Decoder(DecodeBody)
_openai_body = msgspec.json.Decoder(OpenAIBody)


def parse_embed(incoming: Incoming) -> EmbedRequest:
    body = decode(_embed_body, incoming.body)
    return EmbedRequest(
        inputs=_inputs(body.inputs, "inputs"),
        text=_text_options(body),
        normalize=body.normalize is not False,
        dimensions=_dimensions(body.dimensions),
        field="inputs",
    )


def parse_embed_all(incoming: Incoming) -> EmbedRequest:
    body = decode(_embed_all_body, incoming.body)
    return EmbedRequest(
        inputs=_inputs(body.inputs, "inputs"),
        text=_text_options(body),
        output="tokens",
        field="inputs",
    )


def parse_similarity(incoming: Incoming) -> SimilarityRequest:
    body = decode(_similarity_body, incoming.body)
    asked = body.inputs
    if not asked.sentences:
        raise EmptyInput("`inputs.sentences` cannot be empty", field="inputs.sentences")
    _refuse_empty([asked.source_sentence, *asked.sentences], "inputs")
    options = _text_options(body.parameters or SimilarityParameters())
    return SimilarityRequest(source=asked.source_sentence, sentences=asked.sentences, text=options)


def parse_root(incoming: Incoming) -> EmbedRequest | SimilarityRequest:
    """/embed, or /similarity for a body whose `inputs` is an object, as huggingface_hub's sentence_similarity sends."""
    inputs = memoryview(decode(_any_inputs_body, incoming.body).inputs)
    return parse_similarity(incoming) if bytes(inputs[:1]) == b"{" else parse_embed(incoming)


def parse_tokenize(incoming: Incoming) -> TokenizeRequest:
    body = decode(_tokenize_body, incoming.body)
    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    if not texts or "" in texts:
        raise EmptyInput("`inputs` cannot be empty", field="inputs")
    return TokenizeRequest(
        inputs=texts, add_special_tokens=body.add_special_tokens is not False, prompt_name=body.prompt_name
    )


def parse_decode(incoming: Incoming) -> DecodeRequest:
    body = decode(_decode_body, incoming.body)
    return DecodeRequest(ids=read_inputs(body.ids, "ids"), skip_special_tokens=body.skip_special_tokens is not False)


def parse_openai(incoming: Incoming) -> EmbedRequest:
    body = decode(_openai_body, incoming.body)
    return EmbedRequest(
        inputs=_inputs(body.input, "input"),
        text=TextOptions(truncate_by_default=TRUNCATES),
        dimensions=_dimensions(body.dimensions),
        encoding=read_encoding(body.encoding_format),
    )


def parse_info(incoming: Incoming) -> ListModels:
    return ListModels()


def _inputs(value: TextsOrIds, field: str) -> Sequence[Input]:
    inputs = read_inputs(value, field)
    _refuse_empty(inputs, field)
    return inputs


def _refuse_empty(inputs: Sequence[Input], field: str) -> None:
    if "" in inputs:
        raise EmptyInput(f"`{field}` cannot be empty", field=field, index=inputs.index(""))


def _text_options(body: EmbedBody | EmbedAllBody | SimilarityParameters) -> TextOptions:
    side = _side(body.truncation_direction)
    return TextOptions(
        truncate=body.truncate, truncate_by_default=TRUNCATES, truncate_side=side, prompt_name=body.prompt_name
    )


_SIDES: Mapping[str, Side] = {"right": "right", "left": "left"}


def _side(direction: str | None) -> Side:
    side = _SIDES.get("right" if direction is None else direction.lower())
    if side is None:
        raise InvalidField("`truncation_direction` must be 'Right' or 'Left'", field="truncation_direction")
    return side


def _dimensions(value: int | None) -> int | None:
    if value == 0:
        raise InvalidField("`dimensions` should be positive", field="dimensions")
    return value


# --- answers --------------------------------------------------------------------------------------------------


def render_embed(request: Request, result: Result) -> Rendered:
    assert isinstance(result, EmbedResult)
    vectors = np.ascontiguousarray(result.vectors, dtype=np.float32)  # (N, D), also where D was cut from more
    return Rendered(body=dump_json(vectors), headers=_compute_headers(result.usage))


def render_embed_all(request: Request, result: Result) -> Rendered:
    assert isinstance(result, EmbedResult)
    tokens = [np.ascontiguousarray(vectors, dtype=np.float32) for vectors in result.vectors]  # each (T_i, H)
    return Rendered(body=dump_json(tokens), headers=_compute_headers(result.usage))


def render_similarity(request: Request, result: Result) -> Rendered:
    assert isinstance(result, SimilarityResult)
    return Rendered(body=dump_json(result.scores), headers=_compute_headers(result.usage))


def render_root(request: Request, result: Result) -> Rendered:
    if isinstance(request, SimilarityRequest):
        return render_similarity(request, result)
    return render_embed(request, result)


def render_tokenize(request: Request, result: Result) -> Rendered:
    assert isinstance(result, TokenizeResult)
    return Rendered(body=dump_json(result.tokens))


def render_decode(request: Request, result: Result) -> Rendered:
    assert isinstance(result, DecodeResult)
    return Rendered(body=dump_json(list(result.texts)))


def render_openai(request: Request, result: Result) -> Rendered:
    assert isinstance(request, EmbedRequest) and isinstance(result, EmbedResult)
    tokens = result.usage.tokens
    shown = {
        "object": "list",
        "data": embedding_items(result.vectors, request.encoding),
        "model": result.model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    return Rendered(body=dump_json(shown), headers=_compute_headers(result.usage))


def render_info(request: Request, result: Result) -> Rendered:
    """The first served model: TEI's clients know of one."""
    assert isinstance(result, ModelList)
    model, limits = result.models[0], result.limits
    shown = {
        "model_id": model.model_id,
        "model_sha": model.revision,
        "model_dtype": model.dtype,
        "served_model_name": model.name,
        "model_type": {"embedding": {"pooling": model.pooling}},
        "max_concurrent_requests": limits.max_concurrent_requests,
        "max_input_length": model.max_input_tokens,
        "max_batch_tokens": limits.max_batch_tokens,
        "max_batch_requests": limits.max_batch_requests,
        "max_client_batch_size": limits.max_inputs_per_request,
        "auto_truncate": TRUNCATES if limits.truncates is None else limits.truncates,
        "tokenization_workers": limits.tokenization_workers,
        "version": __version__,
        "sha": None,
        "docker_label": None,
    }
    return Rendered(body=dump_json(shown))


def _compute_headers(usage: Usage) -> dict[str, str]:
    """TEI's figures, times in whole milliseconds. The type is a constant of TEI's, whatever the device."""
    timings = usage.timings
    total = _ms(timings.total_s)
    return {
        "x-compute-type": "gpu+optimized",
        "x-compute-time": total,
        "x-compute-characters": str(usage.characters),
        "x-compute-tokens": str(usage.tokens),
        "x-total-time": total,
        "x-tokenization-time": _ms(timings.tokenize_s),
        "x-queue-time": _ms(timings.queue_s),
        "x-inference-time": _ms(timings.inference_s),
    }


def _ms(seconds: float) -> str:
    return str(int(seconds * 1000))


# --- routes ---------------------------------------------------------------------------------------------------


def _post(
    path: str,
    parse: Callable[[Incoming], Request],
    render: Callable[[Request, Result], Rendered],
    body: type[msgspec.Struct],
    summary: str,
    *,
    answer: object,
) -> Route:
    return Route(
        method="POST",
        path=path,
        parse=parse,
        render=render,
        summary=summary,
        body=body,
        answer=answer,
        keys=frozenset(body.__struct_fields__[:1]),  # the required one: inputs, ids or input
        render_error=render_openai_error if body is OpenAIBody else None,
    )


_ROOT = "Embed texts, or compare sentences when `inputs` is an object"
_OPENAI = "Embed texts or token ids, in OpenAI's shape"
_VECTORS = list[list[float]]
_SCORES = list[float]
_TOKENS = list[list[TokenAnswer]]

DIALECT = Dialect(
    name="tei",
    title="text-embeddings-inference",
    routes=(
        _post("/embed", parse_embed, render_embed, EmbedBody, "Embed texts or token ids", answer=_VECTORS),
        _post("/embed_all", parse_embed_all, render_embed_all, EmbedAllBody, "Embed tokens", answer=list[_VECTORS]),
        _post("/similarity", parse_similarity, render_similarity, SimilarityBody, "Compare sentences", answer=_SCORES),
        _post("/tokenize", parse_tokenize, render_tokenize, TokenizeBody, "Tokenize texts", answer=_TOKENS),
        _post("/decode", parse_decode, render_decode, DecodeBody, "Decode token ids", answer=list[str]),
        _post("/", parse_root, render_root, EmbedBody, _ROOT, answer=_VECTORS),
        _post("/invocations", parse_root, render_root, EmbedBody, _ROOT, answer=_VECTORS),
        _post("/v1/embeddings", parse_openai, render_openai, OpenAIBody, _OPENAI, answer=OpenAIAnswer),
        _post("/embeddings", parse_openai, render_openai, OpenAIBody, _OPENAI, answer=OpenAIAnswer),
        Route(
            method="GET",
            path="/info",
            parse=parse_info,
            render=render_info,
            summary="Show the first served model and the limits in force",
            answer=Info,
        ),
    ),
    render_error=render_error,
)
