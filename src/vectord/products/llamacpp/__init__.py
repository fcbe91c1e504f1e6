"""llama.cpp's server, where it embeds, reranks and tokenizes: its own routes and its OpenAI route.

Sentences of errors are llama.cpp's where clients may look for them. Over-long text is an error, as there.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import Annotated, Any, Literal, TypeAlias, cast

import msgspec
import numpy as np
import numpy.typing as npt
import orjson
from msgspec.structs import replace

from vectord import __version__, errors
from vectord.errors import (
    EmptyInput,
    InputTooLong,
    InvalidField,
    MissingField,
    ModelCannot,
    Unauthorized,
    Unavailable,
    VectordError,
    WrongType,
)
from vectord.products.common.body import Count, TokenId
from vectord.products.common.dialect import Call, Dialect, Incoming, Render, Rendered, Routes
from vectord.products.common.errors import STATUSES, Statuses, error_response, row_of
from vectord.products.common.fields import about, refused
from vectord.products.common.inputs import (
    EmbedFields,
    InputItem,
    refuse_none,
)
from vectord.products.common.media import read_image
from vectord.products.common.models import (
    ListedModels,
    first_model,
    named_models,
    none_can,
    ready_models,
    render_listed_models,
    requested_model,
)
from vectord.products.common.ranking import Rank, RerankFields, ranked, rerank_request
from vectord.products.common.vectors import (
    EmbeddingItem,
    Encoding,
    ListAnswer,
    Vector,
    dump_json,
    embedding_items,
    json_answer,
    read_encoding,
    token_usage,
)
from vectord.schema import (
    DecodeRequest,
    DecodeResult,
    EmbedResult,
    Float32,
    Input,
    Item,
    Media,
    ModelList,
    RerankResult,
    TextOptions,
    TokenizeRequest,
    TokenizeResult,
    item_of,
)

ROUTES = Routes({"truncate_side": "truncate"})

Model = Annotated[str | None, about("with one served model, any name; otherwise a served name")]

# --- errors ---------------------------------------------------------------------------------------------------

ERRORS: Statuses = {**STATUSES, errors.Overloaded: 503, errors.RateLimited: 429}

_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "unavailable_error",
}


def render_error(error: VectordError) -> Rendered:
    status = row_of(ERRORS, error)
    kind = _TYPES.get(status, "invalid_request_error")
    shown: dict[str, Any] = {"code": status, "message": error.message, "type": kind}
    if isinstance(error, Unauthorized):
        shown["message"] = "Invalid API Key"
    if isinstance(error, ModelCannot):  # its status in llama.cpp is 501, which clients would retry
        shown["type"] = "not_supported_error"
    if isinstance(error, InputTooLong):
        shown["type"] = "exceed_context_size_error"
        if error.limit is not None and error.given is not None:
            # Clients look for this sentence and its numbers. Ours follows, because it names the place.
            shown["message"] = (
                f"request ({error.given} tokens) exceeds the available context size ({error.limit} tokens), "
                f"it is too large to process. {error.message}"
            )
            shown |= {"n_prompt_tokens": error.given, "n_ctx": error.limit}
    return error_response(error, {"error": shown}, ERRORS)


# --- vectors --------------------------------------------------------------------------------------------------

Norm = Annotated[
    int,
    msgspec.Meta(
        ge=-1,
        le=2**31 - 1,
        description="of each vector: -1 none, 0 the largest number becomes 32760, 1 taxicab, 2 Euclidean, p the p-norm",
    ),
]


# Of `embd_normalize`.
RAW = -1
MAX_ABSOLUTE = 0
EUCLIDEAN = 2  # the default, which the engine computes
INT16_SCALE = 32760.0  # the largest number of a vector under MAX_ABSOLUTE

MARKER = "<__media__>"


class PromptObject(InputItem):
    """A text or an image in an object: whole, in parts of one input, or itself a part, with a `type`.

    `prompt_string` has MARKER in the place of each file of `multimodal_data`.
    """

    prompt_string: str | None = None
    content: list[InputItem] | None = None
    multimodal_data: list[Any] | None = None


# One text, or a list of texts; each may be token ids, a list of both, or an object. A list with an id is one text, and
# so is a list of parts.
Prompts: TypeAlias = str | list[str | TokenId | list[TokenId | str] | PromptObject] | PromptObject


class EmbeddingBody(EmbedFields, kw_only=True):
    """Requires `content` or `input`. If both are present, `input` applies. A `prompt_string` has <__media__> in the
    place of each image of its `multimodal_data`."""

    content: Prompts | None = None
    input: Prompts | None = None
    embd_normalize: Norm | None = None
    model: Model = None


class Embedded(msgspec.Struct):
    """`embedding` has one row; from a model served with `--pooling none`, a row for each token, not normalized."""

    index: int
    embedding: list[list[float]]


class OpenAIItem(EmbeddingItem):
    encoding_format: Literal["base64"] | msgspec.UnsetType = msgspec.UNSET  # only with base64


class OpenAIAnswer(ListAnswer):
    data: list[OpenAIItem]


@ROUTES.post(
    "/embedding",
    "/embeddings",
    answer=list[Embedded],
    summary="Embed texts or token ids, as a bare array",
    example={"content": ["A bank of a river.", "A bank for savings."], "embd_normalize": 2},
    one_of=["content", "input"],
)
def parse_native(body: EmbeddingBody, incoming: Incoming) -> Call:
    read_encoding(body.encoding_format)  # has no effect on this form, but must be valid, as in llama.cpp
    return _embed_call(body, incoming, partial(render_native, _norm(body)))


@ROUTES.post(
    "/v1/embeddings",
    answer=OpenAIAnswer | list[Embedded],
    summary="Embed texts or token ids, in OpenAI's shape",
    example={"input": "A bank of a river.", "embd_normalize": -1},
    one_of=["content", "input"],
)
def parse_openai(body: EmbeddingBody, incoming: Incoming) -> Call:
    """`content` is not a key of OpenAI's, so it gets the native array on this path too. Ids are the model's own."""
    if body.input is None:
        return parse_native(body, incoming)
    if _without_pooling(requested_model(body.model, incoming), incoming):
        raise ModelCannot("Pooling type 'none' is not OAI compatible. Use /embeddings, or a different pooling type.")
    render = partial(render_openai, body.model or None, _norm(body), read_encoding(body.encoding_format))
    return _embed_call(body, incoming, render)


def _embed_call(body: EmbeddingBody, incoming: Incoming, render: Render) -> Call:
    field = "content" if body.input is None else "input"
    prompts = body.content if body.input is None else body.input
    if prompts is None:
        raise MissingField('"input" or "content" must be provided', field="input")
    if none_can(incoming.models, lambda info: bool(info.outputs) or not info.reranks):
        raise ModelCannot("The model served here can rerank and makes no vectors.")
    model = requested_model(body.model, incoming)
    request = body.request(_inputs(prompts, field), model, TextOptions(own_ids=True))
    request = replace(request, normalize=_norm(body) == EUCLIDEAN)
    if _without_pooling(model, incoming):
        return Call(replace(request, outputs=frozenset({"tokens"})), render_token_vectors, {"inputs": field})
    return Call(request, render, {"inputs": field}, binary=_norm(body) in (EUCLIDEAN, RAW))


def _without_pooling(name: str | None, incoming: Incoming) -> bool:
    """Whether the model, or the first one that embeds, is served with `--pooling none`."""
    embedding = [model for model in named_models(name, incoming.models) if model.outputs]
    return bool(embedding) and embedding[0].outputs == {"tokens"}


def _inputs(prompts: Prompts, field: str) -> Sequence[Input]:
    if not isinstance(prompts, list):
        return [_input(prompts, field)]
    refuse_none(prompts, field)
    if any(isinstance(prompt, int) for prompt in prompts):
        for index, prompt in enumerate(prompts):
            if not isinstance(prompt, int | str):
                template = "{field}: a list with a token id is one text and holds only ids and texts."
                raise InvalidField(template, field=field, index=index)
        return [cast("Sequence[int | str]", prompts)]
    if any(isinstance(prompt, PromptObject) and prompt.type is not None for prompt in prompts):
        return [_joined([_part(prompt, field, index) for index, prompt in enumerate(prompts)])]
    return [_input(prompt, field, index) for index, prompt in enumerate(prompts)]


def _part(prompt: object, field: str, index: int) -> Item:
    if not isinstance(prompt, PromptObject) or prompt.type is None:
        raise InvalidField("{field}: a list with a part holds only parts.", field=field, index=index)
    return prompt.read_item(field, index)


def _input(prompt: str | int | list[int | str] | PromptObject, field: str, index: int | None = None) -> Input:
    if not isinstance(prompt, PromptObject):
        if isinstance(prompt, list) and not any(isinstance(piece, int) for piece in prompt):
            raise EmptyInput("{field} has no token ids", field=field, index=index)
        return cast("Input", prompt)
    if prompt.prompt_string is not None:
        texts = prompt.prompt_string.split(MARKER) if prompt.multimodal_data else [prompt.prompt_string]
        images = [read_image(one, field, index) for one in prompt.multimodal_data or ()]
        if len(texts) != len(images) + 1:
            template = "{field}: `prompt_string` needs {marker} once for each file in `multimodal_data`."
            raise InvalidField(template, field=field, index=index, marker=MARKER)
        return _joined([piece for pair in zip_longest(texts, images, fillvalue="") for piece in pair])
    if prompt.content is not None:
        return _joined([part.read_item(field, index) for part in prompt.content])
    if prompt == PromptObject():
        raise WrongType("{field}: an object must have `prompt_string` or `content`.", field=field, index=index)
    return prompt.read_item(field, index)


def _joined(items: Sequence[Item]) -> Item:
    """One item of all parts; texts next to each other are one text."""
    parts: list[str | Media] = []
    for item in items:
        for part in [item] if isinstance(item, str | Media) else item:
            if isinstance(part, str) and parts and isinstance(last := parts[-1], str):
                parts[-1] = last + part
            elif part:
                parts.append(part)
    return item_of(parts)


def _norm(body: EmbeddingBody) -> int:
    return EUCLIDEAN if body.embd_normalize is None else body.embd_normalize


def render_native(norm: int, result: EmbedResult) -> Rendered:
    """A bare array. `embedding` is a matrix of one row."""
    data = [{"index": index, "embedding": [vector]} for index, vector in enumerate(_vectors(norm, result))]
    return Rendered(body=dump_json(data))


def render_token_vectors(result: EmbedResult) -> Rendered:
    """A bare array. `embedding` has a row for each token, special tokens included."""
    assert result.tokens is not None
    return Rendered(body=dump_json([{"index": index, "embedding": rows} for index, rows in enumerate(result.tokens)]))


def render_openai(model: str | None, norm: int, encoding: Encoding, result: EmbedResult) -> Rendered:
    """model: the name in the request, if it has one."""
    data = embedding_items(_vectors(norm, result), encoding)
    if encoding == "base64":
        data = [item | {"encoding_format": "base64"} for item in data]
    return _listed(model or result.model, result, data=data)


def _vectors(norm: int, result: EmbedResult) -> Vector:
    rows: Any = result.dense["float"]  # (N, D); raw unless Euclidean, which the engine normalizes
    return rows if norm == EUCLIDEAN else scaled(rows, norm)


def scaled(vectors: Float32, norm: int) -> Float32:
    """vectors (N, D), raw, each divided by its norm; a vector of zeros stays.

    norm: RAW, MAX_ABSOLUTE, or p for the p-norm, 1 and more. Source: common_embd_normalize in llama.cpp.
    """
    if norm == RAW:
        return vectors
    largest = np.abs(vectors).max(axis=1, keepdims=True).astype(np.float64)  # (N, 1)
    # Divide by the largest number first: the p-th powers of small numbers would underflow.
    unit: npt.NDArray[np.float64] = np.zeros(vectors.shape)  # (N, D)
    np.divide(vectors, largest, out=unit, where=largest > 0)
    if norm == MAX_ABSOLUTE:
        unit *= INT16_SCALE
    else:
        sums = (np.abs(unit) ** norm).sum(axis=1, keepdims=True)  # (N, 1), from 1 to D; 0 for zeros
        unit /= np.maximum(sums, 1.0) ** (1 / norm)
    return unit.astype(np.float32)


def _listed(model: str, result: EmbedResult | RerankResult, **shown: Any) -> Rendered:
    return json_answer(model=model, object="list", usage=token_usage(result.usage), **shown)


# --- scores ---------------------------------------------------------------------------------------------------


class RerankBody(RerankFields):
    """`texts` get TEI's answer, `documents` get Jina's."""

    query: str | None = None
    documents: list[str] | None = None
    texts: list[str] | None = None
    top_n: Annotated[Count | None, about("null and 0: all")] = None
    top_k: Annotated[Any, refused("its name here is `top_n`", 0)] = None
    return_text: Annotated[bool | None, about("with `texts` only")] = None
    model: Model = None


class Relevance(msgspec.Struct):
    index: int
    relevance_score: float


class Reranked(ListAnswer):
    results: list[Relevance]


@ROUTES.post(
    "/rerank",
    "/reranking",
    "/v1/rerank",
    "/v1/reranking",
    computes="rerank",
    answer=list[Rank] | Reranked,
    summary="Rank texts by how well they answer a query, by logits",
    example={"query": "Where do pandas live?", "documents": ["In China.", "In a can."], "top_n": 1},
    one_of=["documents", "texts"],
)
def parse_rerank(body: RerankBody, incoming: Incoming) -> Call:
    """Scores are logits, as in llama.cpp."""
    if body.query is None:
        raise MissingField('"query" must be provided', field="query")
    field = "documents" if body.texts is None else "texts"
    passages = body.documents if body.texts is None else body.texts
    if body.documents is not None and body.texts is not None:
        raise InvalidField("{field}: give either `documents` or `texts`, not both.", field="documents")
    if not passages:
        raise EmptyInput('"documents" must be a non-empty string array', field=field)

    def render(result: RerankResult) -> Rendered:
        """`texts` get TEI's form, a bare array; `documents` get Jina's, without the documents."""
        if body.texts is None:
            results = ranked(result, body.top_n, "relevance_score")
            return _listed(body.model or result.model, result, results=results)
        shown = passages if body.return_text else None
        return Rendered(body=dump_json(ranked(result, body.top_n, "score", text=shown)))

    model = requested_model(body.model, incoming)
    return Call(rerank_request(body, body.query, passages, model, TextOptions(), raw=True), render, {"passages": field})


# --- tokens ---------------------------------------------------------------------------------------------------


class TokenizeBody(msgspec.Struct):
    content: str
    add_special: bool | None = None
    parse_special: Annotated[Any, refused("special tokens are always parsed", True)] = None
    with_pieces: bool | None = None
    model: Model = None


class Piece(msgspec.Struct):
    id: int
    piece: str


class TokenList(msgspec.Struct):
    tokens: list[int | Piece]  # pieces with with_pieces


@ROUTES.post(
    "/tokenize",
    computes=None,
    answer=TokenList,
    summary="Tokenize a text",
    example={"content": "A bank of a river.", "with_pieces": True},
    names={"inputs": "content"},
)
def parse_tokenize(body: TokenizeBody, incoming: Incoming) -> Call:
    request = TokenizeRequest(
        inputs=[body.content], model=requested_model(body.model, incoming), add_special_tokens=body.add_special is True
    )

    def render(result: TokenizeResult) -> Rendered:
        (tokens,) = result.tokens
        shown = [{"id": token.id, "piece": token.text} if body.with_pieces else token.id for token in tokens]
        return json_answer(tokens=shown)

    return Call(request, render)


class DetokenizeBody(msgspec.Struct):
    tokens: list[TokenId]
    model: Model = None


class Detokenized(msgspec.Struct):
    content: str
    prompt: str


@ROUTES.post(
    "/detokenize",
    computes=None,
    answer=Detokenized,
    summary="Decode token ids",
    example={"tokens": [1037, 2924]},
    names={"ids": "tokens"},
)
def parse_detokenize(body: DetokenizeBody, incoming: Incoming) -> Call:
    request = DecodeRequest(ids=[body.tokens], model=requested_model(body.model, incoming), skip_special_tokens=False)

    def render(result: DecodeResult) -> Rendered:
        """`prompt` is vLLM's key: both products share the path and the body."""
        (text,) = result.texts
        return json_answer(content=text, prompt=text)

    return Call(request, render)


# --- facts ----------------------------------------------------------------------------------------------------


class Health(msgspec.Struct):
    status: Literal["ok"]


@ROUTES.get("/v1/health", summary="Show whether the server accepts requests", answer=Health, probe=True)
def render_health(result: ModelList) -> Rendered:
    """200 if at least one model answers."""
    if ready_models(result):
        return json_answer(status="ok")
    return render_error(_not_ready(result))


def health(seen: ModelList, ready: bool) -> Mapping[str, Any]:
    """The keys of llama.cpp's /health, while a model answers and while none does."""
    if ready:
        return {"status": "ok"}
    body: dict[str, Any] = orjson.loads(render_error(_not_ready(seen)).body)
    return body


def _not_ready(served: ModelList) -> Unavailable:
    return Unavailable("Loading model" if served.starting else "No model could be loaded")


class GenerationSettings(msgspec.Struct):
    n_ctx: int


class Modalities(msgspec.Struct):
    vision: bool
    audio: bool


class Props(msgspec.Struct):
    default_generation_settings: GenerationSettings
    total_slots: int  # the most requests at once, of all models together
    model_alias: str
    model_path: str
    modalities: Modalities
    chat_template: str
    build_info: str
    is_sleeping: bool


@ROUTES.get("/props", summary="Show the first served model and the limits in force", answer=Props)
def render_props(result: ModelList) -> Rendered:
    """The first served model: llama.cpp's clients expect one."""
    model = first_model(result)
    return json_answer(
        default_generation_settings={"n_ctx": model.max_input_tokens},
        total_slots=result.limits.max_concurrent_requests,
        model_alias=model.name,
        model_path=model.model_id,
        modalities={"vision": False, "audio": False},
        chat_template="",
        build_info=f"vectord {__version__}",
        is_sleeping=model.state == "unloaded",
    )


class ModelSlot(msgspec.Struct):
    """One for each served model. llama.cpp's slot of a request has no counterpart: requests share batches."""

    id: int
    n_ctx: int
    model: str
    state: str


@ROUTES.get("/slots", summary="Show the state of each served model", answer=list[ModelSlot])
def render_slots(result: ModelList) -> Rendered:
    """The models as slots. `is_processing` is absent: it is not known for a single model."""
    slots = [
        {"id": place, "n_ctx": model.max_input_tokens, "model": model.name, "state": model.state}
        for place, model in enumerate(result.models)
    ]
    return Rendered(body=dump_json(slots))


ROUTES.get("/v1/models", "/models", summary="List served models", answer=ListedModels)(render_listed_models)


DIALECT = Dialect(
    name="llamacpp",
    title="llama.cpp",
    routes=tuple(ROUTES),
    render_error=render_error,
    health=health,
)
