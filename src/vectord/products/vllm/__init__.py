"""vLLM's pooling API: vectors, classes, scores and tokens. Its /v2/embed is Cohere's, which that product serves.

Sentences of errors are vLLM's where clients may look for them. Over-long text is an error unless the body has
`truncate_prompt_tokens`. numbers.py writes vectors as base64 in the type and byte order of a body.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from itertools import accumulate, chain
from typing import Annotated, Any, Literal, TypeAlias, cast

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from vectord import __version__
from vectord.errors import EmptyInput, InputTooLong, InvalidField, MissingField, VectordError, WrongType
from vectord.products.common.body import Count, PositiveCount, TokenId
from vectord.products.common.chat import (
    Continue,
    Conversations,
    GenerationPrompt,
    Messages,
    RequestTemplate,
    TemplateVariables,
    TextsIdsOrMessages,
    conversations_of,
    read_conversation,
    refuse_chat_fields,
)
from vectord.products.common.dialect import Call, Dialect, Incoming, Rendered, Routes, random_id
from vectord.products.common.errors import STATUSES, error_response, row_of
from vectord.products.common.fields import about, no_effect, refused
from vectord.products.common.inputs import (
    TextsOrIds,
    Truncate,
    Use,
    User,
    check_count,
    read_inputs,
    read_truncate,
    with_nvidia_keys,
)
from vectord.products.common.models import ModelItem, model_item, named_models, served_names
from vectord.products.common.ranking import (
    SCORES,
    ContentItem,
    DocumentItem,
    Documents,
    Instruction,
    Query,
    QueryTokens,
    RankedItem,
    ShownDocument,
    Variables,
    best_labels,
    ranked,
    read_documents,
    read_query,
    rerank_request,
    shown_documents,
)
from vectord.products.common.vectors import TokenUsage, json_answer, token_usage
from vectord.products.vllm.numbers import Numbers, read_numbers
from vectord.schema import (
    ChunkOptions,
    ClassifyRequest,
    ClassifyResult,
    Conversation,
    DecodeRequest,
    DecodeResult,
    DocumentsRequest,
    DocumentsResult,
    EmbedRequest,
    EmbedResult,
    Float32,
    Input,
    Item,
    ModelInfo,
    ModelList,
    MultiRequest,
    MultiResult,
    RerankRequest,
    RerankResult,
    TextOptions,
    TokenizeRequest,
    TokenizeResult,
    VectorKind,
)

ROUTES = Routes()
NAMES: Mapping[str, str] = {
    "inputs": "input",
    "max_tokens": "truncate_prompt_tokens",
    "truncate_side": "truncation_side",
    "conversations": "messages",
}
SCORING_NAMES: Mapping[str, str] = {**NAMES, "max_passage_tokens": "max_tokens_per_doc"}

OTHER_TASKS = ("plugin", "score", "embed&token_classify")  # of vLLM, and not supported here
MAX_DESCRIBED = 480  # inputs in the header `metadata`, of up to 120 bytes each: clients accept lines of 64 KiB

RequestId = Annotated[str, msgspec.Meta(max_length=256, description="becomes part of the response's id")]
CacheSalt = Annotated[
    str,
    msgspec.Meta(
        min_length=1, max_length=1024, description="only requests with the same salt share cached vectors with this one"
    ),
]
Tokens = Annotated[
    int,
    msgspec.Meta(
        ge=-1,
        le=2**31 - 1,
        description="truncate to this many tokens, special tokens included; -1: to the model's limit",
    ),
]

OfMedia = Annotated[Any, refused("the model's own settings apply", {})]

# --- what bodies and answers have in common -------------------------------------------------------------------


class CommonFields(msgspec.Struct, kw_only=True):
    """The keys of every body."""

    model: str | None = None
    truncate_prompt_tokens: Tokens | None = None
    truncation_side: Literal["left", "right"] | None = None
    request_id: RequestId | None = None
    cache_salt: CacheSalt | None = None
    use_activation: Annotated[bool | None, about("false: vectors are not normalized, and scores are logits")] = None
    normalize: Annotated[Any, about("refused, as vLLM does; `use_activation` replaced it")] = None
    padding: Annotated[Any, refused("texts are not padded", "do_not_pad")] = None
    user: User = None
    priority: Annotated[Any, no_effect("the header x-vectord-lane selects the priority")] = None
    mm_processor_kwargs: OfMedia = None


class InputBody(CommonFields, kw_only=True):
    """`input`, or else `messages`. Messages in `input` are read as those in `messages`."""

    input: TextsIdsOrMessages | None = None
    messages: Conversations | None = None
    add_generation_prompt: GenerationPrompt | None = None
    continue_final_message: Continue = False
    chat_template: RequestTemplate = None
    chat_template_kwargs: TemplateVariables | None = None
    media_io_kwargs: OfMedia = None
    add_special_tokens: Annotated[bool | None, about("null: of `input`, not of `messages`")] = None


_post_input = partial(ROUTES.post, one_of=["input", "messages"], names=NAMES)


class _Given(msgspec.Struct, frozen=True):
    """The inputs of a body, texts and ids or else conversations, and how they become tokens."""

    field: str  # the body's
    text: TextOptions
    inputs: Sequence[Input] = ()
    conversations: Sequence[Conversation] = ()

    @property
    def names(self) -> Mapping[str, str]:
        return {"inputs": self.field, "conversations": self.field}


def _given(body: InputBody, incoming: Incoming) -> _Given:
    given, field = (body.messages, "messages") if body.input is None else (body.input, "input")
    if given is None:
        raise MissingField("{field} is required.", field="inputs")
    found = conversations_of(given, field)
    if body.input is not None and (body.messages or not found):
        refuse_chat_fields(body, body.messages)
        return _Given(field, _text_options(body, incoming), inputs=read_inputs(cast("TextsOrIds", body.input)))
    conversations = []
    for index, messages in enumerate(found or [[]]):
        try:
            conversations.append(read_conversation(body, messages))
        except InvalidField as error:
            if error.field != "conversations":
                raise
            raise error.at(field=f"{field}[{index}]" if len(found) > 1 else field) from None
    # The template has all words around the messages.
    text = replace(_text_options(body, incoming, add_special_tokens=False), prompt="")
    return _Given(field, text, conversations=conversations)


def _text_options(body: CommonFields, incoming: Incoming, *, add_special_tokens: bool = True) -> TextOptions:
    """add_special_tokens: the default."""
    if body.normalize is not None:
        template = "Parameter {field} was removed; use `use_activation` instead."
        raise InvalidField(template, field="normalize")
    most = body.truncate_prompt_tokens
    if most == 0:
        raise InvalidField("{field} must be -1, for the model's limit, or at least 1.", field="max_tokens")
    # Of the named model, or of the only one; otherwise the engine chooses the model.
    models = named_models(body.model, incoming.models)
    if most is not None and len(models) == 1 and most > models[0].max_input_tokens:
        template = "{field} may be at most {limit} here; got {given}. Please request a smaller truncation size."
        raise InvalidField(template, field="max_tokens", limit=models[0].max_input_tokens, given=most)
    if isinstance(body, InputBody) and body.add_special_tokens is not None:
        add_special_tokens = body.add_special_tokens
    options = TextOptions(
        truncate=None if most is None else True,
        truncate_side=body.truncation_side or "right",
        max_tokens=None if most == -1 else most,
        add_special_tokens=add_special_tokens,
        own_ids=True,
        cache_salt=body.cache_salt or "",
    )
    if isinstance(body, EmbeddingBody):
        return with_nvidia_keys(options, body.truncate, body.input_type, body.truncation_side)
    return options


class Usage(TokenUsage, kw_only=True):
    completion_tokens: Literal[0]
    prompt_tokens_details: None


class BaseAnswer(msgspec.Struct):
    """The keys of every list."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    usage: Usage


def _listed(
    prefix: str,
    body: CommonFields,
    result: EmbedResult | DocumentsResult | ClassifyResult | RerankResult,
    data: Sequence[Any],
) -> Rendered:
    return json_answer(
        id=_id(prefix, body),
        object="list",
        created=int(time.time()),
        model=result.model,
        data=data,
        usage=token_usage(result.usage) | {"completion_tokens": 0, "prompt_tokens_details": None},
    )


def _id(prefix: str, body: CommonFields) -> str:
    return f"{prefix}-{body.request_id or random_id()}"


# --- vectors --------------------------------------------------------------------------------------------------


class LateChunking(msgspec.Struct, forbid_unknown_fields=True):
    chunk_size: PositiveCount


class EmbeddingBody(InputBody, kw_only=True):
    dimensions: Annotated[Count | None, about("leading numbers to keep")] = None
    encoding_format: Annotated[
        str | None,
        about(
            '"float", "base64", "bytes" (with the header `metadata`) or "bytes_only"; the last two answer '
            "with the bytes of all vectors"
        ),
    ] = None
    embed_dtype: Annotated[
        str | None, about('of base64 and bytes: "float32", "float16", "bfloat16", "fp8_e4m3" or "fp8_e5m2"')
    ] = None
    endianness: Annotated[str | None, about('of base64 and bytes: "native", "little" or "big"')] = None
    truncate: Truncate = None
    input_type: Use = None
    late_chunking_params: Annotated[LateChunking | None, about("a vector for each `chunk_size` tokens of a text")] = (
        None
    )


class ChunkRange(msgspec.Struct):
    token_range: tuple[int, int]
    char_range: tuple[int, int] | None  # null: special tokens only


class ChunkRanges(msgspec.Struct):
    chunk_size: int
    input_tokens: int
    chunks: list[ChunkRange]
    strategy: Literal["fixed_tokens"]


class Embedded(msgspec.Struct):
    """With `late_chunking_params`, `embedding` has a vector for each chunk."""

    object: Literal["embedding"]
    index: int
    embedding: list[float | list[float]] | str
    late_chunking: ChunkRanges | UnsetType = UNSET


class Embeddings(BaseAnswer):
    data: list[Embedded]


@_post_input(
    "/v1/embeddings",
    "/embeddings",
    answer=Embeddings,
    summary="Embed texts or token ids",
    example={"input": ["A bank of a river.", "A bank for savings."], "truncate_prompt_tokens": -1},
)
def parse_embeddings(body: EmbeddingBody, incoming: Incoming) -> Call:
    given = _given(body, incoming)
    numbers = _numbers(body, given)
    if body.late_chunking_params is not None:
        return _late_chunks(body, given, body.late_chunking_params.chunk_size)
    request = _embed_request(body, given, "dense")
    # Without the profile, clients of OpenAI send the ids of OpenAI's models here.
    request = replace(request, text=replace(given.text, own_ids=incoming.guards.own_ids))
    render = partial(_render_arrays, ("embd", "embedding", "embedding"), body, numbers, _rows)
    return Call(request, render, given.names, binary=not numbers.as_bytes)


def _late_chunks(body: EmbeddingBody, given: _Given, size: int) -> Call:
    """The chunks of each text: `size` tokens of the sequence that the model reads, special tokens included."""
    others = {
        "encoding_format": body.encoding_format not in (None, "float"),
        "dimensions": body.dimensions is not None,
        "max_tokens": body.truncate_prompt_tokens is not None,
        "truncate": read_truncate(body.truncate)[0] is True,
        "input_type": bool(body.input_type),
        "add_special_tokens": body.add_special_tokens is False,
    }
    for field in (name for name, refused_here in others.items() if refused_here):
        raise InvalidField("{field} is not supported next to `late_chunking_params`; leave it out.", field=field)
    texts = [text for text in given.inputs if isinstance(text, str) and text]
    if not texts or len(texts) < len(given.inputs):
        raise InvalidField("{field} must be texts, and none empty, for `late_chunking_params`.", field=given.field)
    request = DocumentsRequest(
        documents=texts,
        chunks=ChunkOptions(max_tokens=size, by="rows"),
        model=body.model or None,
        text=replace(given.text, truncate=False, prompt=""),
        late=True,
        normalize=body.use_activation is not False,
    )

    def render(result: DocumentsResult) -> Rendered:
        data = []
        for index, (document, tokens) in enumerate(zip(result.documents, result.usage.lengths.kept, strict=True)):
            chunks = [
                {
                    "token_range": [place * size, min((place + 1) * size, tokens)],
                    # Special tokens alone are no part of the text.
                    "char_range": [chunk.span.start, chunk.span.stop] if chunk.span.stop else None,
                }
                for place, chunk in enumerate(document.chunks)
            ]
            late = {"chunk_size": size, "input_tokens": tokens, "chunks": chunks, "strategy": "fixed_tokens"}
            embedded = {"index": index, "object": "embedding", "embedding": document.vectors["float"]}
            data.append(embedded | {"late_chunking": late})
        return _listed("embd", body, result, data)

    names = {
        "documents": "input",
        "late": "late_chunking_params",
        "chunk.max_tokens": "late_chunking_params.chunk_size",
    }
    return Call(request, render, names, binary=False)


class PoolingBody(EmbeddingBody, kw_only=True):
    task: Annotated[
        str | None, about('"embed", "classify", "token_embed" or "token_classify"; null: the model\'s purpose')
    ] = None
    data: Annotated[Any, refused("it is the input of plugins; use `input`")] = None
    late_chunking_params: Annotated[Any, refused("/v1/embeddings has the vectors of chunks")] = None


class Pooled(msgspec.Struct):
    """`data`: a vector, scores, or a vector for each token; in base64 the numbers of all tokens in order."""

    index: int
    object: Literal["pooling"]
    data: list[float | list[float]] | str


class Pooling(BaseAnswer):
    data: list[Pooled]


@_post_input(
    "/pooling",
    answer=Pooling,
    summary="Embed or classify texts, or embed their tokens",
    example={"input": "A bank of a river.", "task": "token_embed", "encoding_format": "base64"},
)
def parse_pooling(body: PoolingBody, incoming: Incoming) -> Call:
    """Without `task`, the purpose of the named model, or of the first served model, decides."""
    given = _given(body, incoming)
    numbers = _numbers(body, given)
    model = _model_of(body, incoming)
    task = body.task or _usual_task(model)
    if body.model and model is not None and task in NEEDED:
        labels = {"labels": model.labels, "token_labels": model.token_labels}
        if NEEDED[task].isdisjoint({*model.outputs, *(name for name, own in labels.items() if own)}):
            template = "Unsupported task: '{task}'. The model was trained for another."
            raise InvalidField(template, field="task", task=task)
    request: EmbedRequest | ClassifyRequest
    arrays_of: Callable[[Any], Sequence[Float32]]
    unit = False
    match task:
        case "embed":
            request, arrays_of = _embed_request(body, given, "dense"), _rows
        case "token_embed":
            # ColBERT vectors of a model that makes them, else the last layer's vector of each token.
            colbert = model is not None and "colbert" in model.outputs
            if colbert and body.use_activation is False:
                template = "{field} cannot be false for ColBERT's vectors: they have a length of 1."
                raise InvalidField(template, field="use_activation")
            unit = not colbert and body.use_activation is not False  # vLLM's activation scales them to a length of 1
            request = _embed_request(body, given, "colbert" if colbert else "tokens")
            arrays_of = partial(_token_vectors, unit)
        case "classify":
            request, arrays_of = _classify_request(body, given), lambda result: list(result.scores)
        case "token_classify":
            request, arrays_of = (
                replace(_classify_request(body, given), each_token=True),
                # (n_i, L) for each input, special tokens included
                lambda result: np.split(result.scores, np.cumsum(result.tokens)[:-1]),
            )
        case _:
            known = f": '{body.task}'" if body.task in OTHER_TASKS else ""
            template = (
                "Unsupported task{known}. {field} must be 'embed', 'classify', 'token_embed' or 'token_classify'."
            )
            raise InvalidField(template, field="task", known=known)
    render = partial(_render_arrays, ("pool", "pooling", "data"), body, numbers, arrays_of)
    return Call(request, render, given.names, binary=not (unit or numbers.as_bytes))


def _model_of(body: CommonFields, incoming: Incoming) -> ModelInfo | None:
    return next(iter(named_models(body.model, incoming.models)), None)


def _numbers(body: EmbeddingBody, given: _Given) -> Numbers:
    """Raises InvalidField for more inputs than the header `metadata` describes, before anything is computed."""
    numbers = read_numbers(body.encoding_format, body.embed_dtype, body.endianness)
    count = len(given.inputs) + len(given.conversations)
    if numbers.encoding == "bytes" and count > MAX_DESCRIBED:
        template = "{field}: `bytes` describes at most {limit} inputs in a header; got {given}. Use `bytes_only`."
        raise InvalidField(template, field="encoding_format", limit=MAX_DESCRIBED, given=count)
    return numbers


def _embed_request(body: EmbeddingBody, given: _Given, output: VectorKind) -> EmbedRequest:
    return EmbedRequest(
        inputs=given.inputs,
        model=body.model or None,
        text=given.text,
        conversations=given.conversations,
        outputs=frozenset({output}),
        normalize=body.use_activation is not False,
        dimensions=body.dimensions,
    )


NEEDED: Mapping[str, frozenset[str]] = {
    "embed": frozenset({"dense"}),
    "token_embed": frozenset({"tokens", "colbert"}),
    "classify": frozenset({"labels"}),
    "token_classify": frozenset({"token_labels"}),
}


def _usual_task(model: ModelInfo | None) -> str:
    if model is not None and model.token_labels:
        return "token_classify"
    if model is None or "dense" in model.outputs:
        return "embed"
    return "classify" if model.labels else "token_embed"


def _token_vectors(unit: bool, result: EmbedResult) -> Sequence[Float32]:
    # In float: no other precision was requested.
    each = cast("Sequence[Float32]", result.tokens if result.colbert is None else result.colbert)
    if not unit:
        return each
    lengths = [np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True) for rows in each]  # (n, 1) each
    # A row of zeros stays.
    return [(rows / np.where(own > 0, own, 1)).astype(np.float32) for rows, own in zip(each, lengths, strict=True)]


def _rows(result: EmbedResult) -> list[Float32]:
    rows: Any = result.dense["float"]  # (N, D) float32: no other precision was requested
    return list(rows)


def _render_arrays(
    form: tuple[str, str, str],
    body: EmbeddingBody,
    numbers: Numbers,
    arrays_of: Callable[[Any], Sequence[Float32]],
    result: EmbedResult | ClassifyResult,
) -> Rendered:
    """Each array of the result in an item, or the bytes of all, which the header `metadata` describes.

    form: the beginning of the response's id, the items' `object`, and the key of their array.
    """
    prefix, kind, key = form
    arrays = arrays_of(result)
    if not numbers.as_bytes:
        data: list[dict[str, Any]] = [
            {"index": index, "object": kind, key: numbers.shown(array)} for index, array in enumerate(arrays)
        ]
        return _listed(prefix, body, result, data)
    packed = [numbers.packed(array) for array in arrays]
    content = Rendered(body=b"".join(packed), content_type="application/octet-stream")
    if numbers.encoding == "bytes_only":
        return content
    parts = [
        {
            "index": index,
            "embed_dtype": numbers.embed_dtype,
            "endianness": numbers.endianness,
            "start": end - len(packed[index]),
            "end": end,
            "shape": arrays[index].shape,
        }
        for index, end in enumerate(accumulate(map(len, packed)))
    ]
    metadata = _listed(prefix, body, result, parts).body
    # Header values are ASCII; a request id or a model's name may not be.
    return replace(content, headers={"metadata": json.dumps(json.loads(metadata), separators=(",", ":"))})


# --- classes --------------------------------------------------------------------------------------------------


class Classified(msgspec.Struct):
    index: int
    label: str
    probs: list[float]
    num_classes: int


class Classification(BaseAnswer):
    data: list[Classified]


@_post_input(
    "/classify",
    computes="classify",
    answer=Classification,
    summary="Classify texts",
    example={"input": ["I love it.", "I do not."], "use_activation": True},
)
def parse_classify(body: InputBody, incoming: Incoming) -> Call:
    given = _given(body, incoming)
    return Call(_classify_request(body, given), partial(render_classes, body), given.names)


@_post_input(
    "/invocations",
    answer=Embeddings | Classification | Pooling,
    summary="Embed or classify texts or their tokens, as the model does",
    example={"input": ["A bank of a river.", "A bank for savings."], "truncate_prompt_tokens": -1},
)
def parse_invocation(body: PoolingBody, incoming: Incoming) -> Call:
    """`task` selects another one for models whose purpose is neither to embed nor to classify texts, as in vLLM."""
    usual = _usual_task(_model_of(body, incoming))
    if usual in ("embed", "classify") and body.task not in (None, usual):
        raise InvalidField("{field} can only be '{usual}' here; use /pooling.", field="task", usual=usual)
    match usual:
        case "embed":
            return parse_embeddings(body, incoming)
        case "classify":
            if _numbers(body, _given(body, incoming)).encoding != "float":
                raise InvalidField("{field} applies to vectors alone here; use /pooling.", field="encoding_format")
            return parse_classify(body, incoming)
    return parse_pooling(body, incoming)


def _classify_request(body: InputBody, given: _Given) -> ClassifyRequest:
    if isinstance(body, EmbeddingBody) and body.dimensions is not None:
        raise InvalidField("{field} applies to vectors alone.", field="dimensions")
    texts = [text for text in given.inputs if isinstance(text, str)]
    ids = tuple([token for token in one if isinstance(token, int)] for one in given.inputs if isinstance(one, list))
    if texts and ids:
        raise InvalidField("{field} must be texts or lists of token ids, not both.", field="inputs")
    return ClassifyRequest(
        inputs=texts,
        ids=ids,
        model=body.model or None,
        text=given.text,
        conversations=given.conversations,
        raw=body.use_activation is False,
    )


def render_classes(body: InputBody, result: ClassifyResult) -> Rendered:
    data = [
        {"index": index, "label": labels[0][0], "probs": scores, "num_classes": len(scores)}
        for index, (scores, labels) in enumerate(zip(result.scores, best_labels(result), strict=True))
    ]
    return _listed("classify", body, result, data)


# --- scores ---------------------------------------------------------------------------------------------------


# A single object is as many items as it has parts; within a list, an object is one item.
Items: TypeAlias = str | ContentItem | list[str | ContentItem]

# The names of the first and of the second texts of pairs; the pair of names that a body has decides.
PAIRS = (("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2"))


class ScoringFields(CommonFields, kw_only=True):
    """The keys of the bodies of `/score` and `/rerank`."""

    max_tokens_per_doc: Annotated[int | None, about("most tokens of a document; 0 and null: the model's limit")] = None
    instruction: Instruction = None
    chat_template_kwargs: Variables = None
    max_tokens_per_query: QueryTokens = None


class ScoreBody(ScoringFields, kw_only=True):
    """First and second texts, under one of four pairs of names. A single first text is scored with each second text.

    Otherwise both lists have the same length, and their texts pair in order. Models of images also read `content`.
    """

    queries: Items | None = None
    documents: Items | None = None
    items: Items | None = None
    data_1: Items | None = None
    data_2: Items | None = None
    text_1: Items | None = None
    text_2: Items | None = None


class Score(msgspec.Struct):
    index: int
    object: Literal["score"]
    score: float


class Scores(BaseAnswer):
    data: list[Score]


@ROUTES.post(
    "/score",
    "/v1/score",
    "/invocations",
    computes="rerank",
    answer=Scores,
    summary="Score pairs of texts, in order",
    example={"queries": "Where do pandas live?", "documents": ["In China.", "In a can."]},
    one_of=["queries", "data_1", "text_1"],
    names=SCORING_NAMES,
)
def parse_score(body: ScoreBody, incoming: Incoming) -> Call:
    given = {name for name in chain(*PAIRS) if getattr(body, name) is not None}
    names = next((pair for pair in PAIRS if given == {*pair}), None)
    if names is None:
        known = ", or ".join(f"`{first}` and `{second}`" for first, second in PAIRS)
        raise WrongType("The body must have either {known}.", field=PAIRS[0][0], known=known)
    first, second = (_items(getattr(body, name), name) for name in names)
    if not first:
        raise EmptyInput("At least one text element must be given", field=names[0])
    if not second:
        raise EmptyInput("At least one text_pair element must be given", field=names[1])
    if len(first) > 1 and len(first) != len(second):
        raise InvalidField("Input lengths must be either 1:1, 1:N or N:N", field=names[0])
    check_count(len(second), incoming.guards.max_inputs, names[1], "input" if len(first) == 1 else "request")
    render = partial(render_scores, body)
    if len(first) == 1:
        return Call(_score_request(body, incoming, first[0], second), render, {"query": names[0], "passages": names[1]})
    requests = [_score_request(body, incoming, query, [passage]) for query, passage in zip(first, second, strict=True)]

    def part_names(index: int) -> Mapping[str, str]:
        return {**SCORING_NAMES, "query": f"{names[0]}[{index}]", "passages": f"{names[1]}[{index}]"}

    return Call(MultiRequest(requests=requests), render, {"requests": names[1]}, part_names)


def _items(given: Items, field: str) -> list[Item]:
    if isinstance(given, str):
        return [given]
    if isinstance(given, ContentItem):
        return [part.read(field) for part in given.content]
    return [one if isinstance(one, str) else one.read(field, index) for index, one in enumerate(given)]


def _score_request(body: ScoringFields, incoming: Incoming, query: Item, passages: Sequence[Item]) -> RerankRequest:
    most = body.max_tokens_per_doc or None
    if most is not None and not 0 < most < 2**31:
        raise InvalidField("max_tokens_per_doc must be a positive integer below 2**31.", field="max_passage_tokens")
    text, raw = _text_options(body, incoming), body.use_activation is False
    return rerank_request(body, query, passages, body.model, text, raw=raw, max_passage_tokens=most)


def render_scores(body: ScoreBody, result: RerankResult | MultiResult) -> Rendered:
    """The scores in the order of the pairs. The results of several requests have one pair each."""
    if isinstance(result, MultiResult):
        results = [one for one in result.results if isinstance(one, RerankResult)]
        scores = [one.scores[0] for one in results]
        result = replace(results[0], usage=result.usage)
    else:
        scores = list(result.scores)
    data = [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)]
    return _listed("score", body, result, data)


class RerankBody(ScoringFields, kw_only=True):
    query: Query
    documents: str | ContentItem | Documents
    top_n: Annotated[Count | None, about("null and 0: all")] = None


class Ranked(RankedItem):
    document: ShownDocument


class Reranked(msgspec.Struct):
    id: str
    model: str
    usage: TokenUsage
    results: list[Ranked]


@ROUTES.post(
    "/rerank",
    "/v1/rerank",
    "/v2/rerank",
    "/invocations",
    computes="rerank",
    answer=Reranked,
    summary="Rank documents by how well they answer a query",
    example={"query": "Where do pandas live?", "documents": ["In China.", "In a can."], "use_activation": True},
    names={**SCORING_NAMES, "passages": "documents"},
)
def parse_rerank(body: RerankBody, incoming: Incoming) -> Call:
    given = body.documents
    if isinstance(given, str):
        given = [given]
    elif isinstance(given, ContentItem):
        given = [DocumentItem(content=[part]) for part in given.content]
    documents = read_documents(given)

    def render(result: RerankResult) -> Rendered:
        return json_answer(
            id=_id("rerank", body),
            model=result.model,
            usage=token_usage(result.usage),
            results=ranked(result, body.top_n, *SCORES, document=shown_documents(given, documents)),
        )

    return Call(_score_request(body, incoming, read_query(body.query), documents), render)


# --- tokens ---------------------------------------------------------------------------------------------------


class TokenizeBody(msgspec.Struct, kw_only=True):
    """`prompt`, or else `messages`. By default, `add_generation_prompt` is true."""

    prompt: str | None = None
    messages: Messages | None = None
    add_generation_prompt: GenerationPrompt | None = None
    continue_final_message: Continue = False
    chat_template: RequestTemplate = None
    chat_template_kwargs: TemplateVariables | None = None
    media_io_kwargs: OfMedia = None
    mm_processor_kwargs: OfMedia = None
    tools: Annotated[Any, refused("conversations are tokenized without tools", [])] = None
    model: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class Tokenized(msgspec.Struct):
    """`token_strs`: the part of the text that each token stands for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


@ROUTES.post(
    "/tokenize",
    computes=None,
    answer=Tokenized,
    summary="Tokenize a text",
    example={"prompt": "A bank of a river.", "return_token_strs": True},
    one_of=["prompt", "messages"],
    names={"inputs": "prompt", "conversations": "messages"},
)
def parse_tokenize(body: TokenizeBody, incoming: Incoming) -> Call:
    def render(result: TokenizeResult) -> Rendered:
        (tokens,) = result.tokens
        return json_answer(
            count=len(tokens),
            max_model_len=result.max_input_tokens,
            tokens=[token.id for token in tokens],
            token_strs=[token.text for token in tokens] if body.return_token_strs else None,
        )

    request = TokenizeRequest(inputs=(), model=body.model or None)
    if body.prompt is not None:
        refuse_chat_fields(body, body.messages)
        request = replace(request, inputs=[body.prompt], add_special_tokens=body.add_special_tokens is not False)
        return Call(request, render)
    if body.messages is None:
        raise MissingField("{field} is required.", field="inputs")
    conversation = read_conversation(body, body.messages, prompts=True)
    request = replace(request, conversations=[conversation], add_special_tokens=body.add_special_tokens is True)
    return Call(request, render, {"inputs": "messages"})


class DetokenizeBody(msgspec.Struct):
    tokens: list[TokenId]
    model: str | None = None


class Detokenized(msgspec.Struct):
    prompt: str
    content: str


@ROUTES.post(
    "/detokenize",
    computes=None,
    answer=Detokenized,
    summary="Decode token ids",
    example={"tokens": [101, 1037, 2924, 102]},
    names={"ids": "tokens"},
)
def parse_detokenize(body: DetokenizeBody, incoming: Incoming) -> Call:
    def render(result: DecodeResult) -> Rendered:
        """`content` is llama.cpp's key: both products share the path and the body."""
        (text,) = result.texts
        return json_answer(prompt=text, content=text)

    return Call(DecodeRequest(ids=[body.tokens], model=body.model or None, skip_special_tokens=False), render)


# --- facts ----------------------------------------------------------------------------------------------------


class Version(msgspec.Struct):
    version: str


@ROUTES.get("/version", summary="Show the version of this server", answer=Version)
def render_version(result: ModelList) -> Rendered:
    """vectord's: one of vLLM's would promise that version's features."""
    return json_answer(version=__version__)


class Model(ModelItem):
    root: str
    parent: str | None  # of an adapter: its model
    permission: list[Any]


class Models(msgspec.Struct):
    object: Literal["list"]
    data: list[Model]


@ROUTES.get("/v1/models", summary="List served models", answer=Models)
def render_models(result: ModelList) -> Rendered:
    data = [
        model_item(info)
        | {"id": name, "root": info.model_id, "parent": None if name == info.name else info.name, "permission": []}
        for info in result.models
        for name in served_names(info)
    ]
    return json_answer(object="list", data=data)


# --- errors ---------------------------------------------------------------------------------------------------

ERRORS = STATUSES

_TYPES: Mapping[int, str] = {400: "BadRequestError", 404: "NotFoundError", 500: "InternalServerError"}


def render_error(error: VectordError) -> Rendered:
    """OpenAI's error object, with the status as its code. Where vLLM has no class, its type is the status in words."""
    status = row_of(ERRORS, error)
    message = error.message
    if isinstance(error, InputTooLong) and error.limit is not None and error.given is not None:
        # LiteLLM and others look for vLLM's sentence. Ours follows, because it names the place.
        message = (
            f"This model's maximum context length is {error.limit} tokens. However, you requested {error.given} tokens "
            f"in the input. Please reduce the length of the input prompt, or set `truncate_prompt_tokens`. {message}"
        )
    kind = _TYPES.get(status, HTTPStatus(status).phrase)
    shown = {"message": message, "type": kind, "param": error.field_name, "code": status}
    return error_response(error, {"error": shown}, ERRORS)


DIALECT = Dialect(name="vllm", title="vLLM", routes=tuple(ROUTES), render_error=render_error)
