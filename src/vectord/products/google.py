"""Google's embedding API, as served for Gemini: `embedContent`, `batchEmbedContents`, `countTokens` and the list of
models.

Runs on the event loop. Clients name the model in the path, and as `models/NAME` in every request of a batch. Names of
options and files may be written with underscores, as in Google's own examples.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from vectord.errors import EmptyInput, InvalidField, VectordError
from vectord.products.common.body import Count
from vectord.products.common.dialect import Call, Dialect, Incoming, Names, Rendered, Routes
from vectord.products.common.errors import STATUSES, error_response, row_of
from vectord.products.common.fields import about, no_effect, refused
from vectord.products.common.inputs import Medium, agreed, check_count, refuse_none
from vectord.products.common.media import read_image
from vectord.products.common.models import check_one_model
from vectord.products.common.vectors import json_answer
from vectord.schema import (
    EmbedRequest,
    EmbedResult,
    InputKind,
    Item,
    Media,
    ModelInfo,
    ModelList,
    MultiRequest,
    MultiResult,
    TextOptions,
    TokenizeRequest,
    Usage,
    item_of,
)

ROUTES = Routes()
ERRORS = STATUSES

# The use of a text by its task. None: the model's default prompt.
_KINDS: Mapping[str | None, InputKind | None] = {
    **dict.fromkeys((None, "TASK_TYPE_UNSPECIFIED", "SEMANTIC_SIMILARITY")),
    **dict.fromkeys(("RETRIEVAL_QUERY", "QUESTION_ANSWERING", "FACT_VERIFICATION", "CODE_RETRIEVAL_QUERY"), "query"),
    "RETRIEVAL_DOCUMENT": "document",
    "CLASSIFICATION": "classification",
    "CLUSTERING": "clustering",
}

_METHODS = ("embedContent", "batchEmbedContents", "countTokens")
_CODES = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    412: "FAILED_PRECONDITION",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


def render_error(error: VectordError) -> Rendered:
    status = row_of(ERRORS, error)
    code = _CODES.get(status, "INVALID_ARGUMENT")
    return error_response(error, {"error": {"code": status, "message": error.message, "status": code}}, ERRORS)


# --- wire types -----------------------------------------------------------------------------------------------


File = Annotated[Any, about("an image, only to embed: `mimeType`, and base64 `data` or a URL as `fileUri`")]


class Part(msgspec.Struct, rename="camel"):
    text: str | None = None
    inline_data: File = None
    file_data: File = None
    underscored_inline_data: Medium = msgspec.field(name="inline_data", default=None)
    underscored_file_data: Medium = msgspec.field(name="file_data", default=None)

    def read(self) -> str | Media:
        """The text or the image. Raises InvalidField for several, none, or another file."""
        data = self.inline_data or self.underscored_inline_data
        file = self.file_data or self.underscored_file_data
        if [self.text is not None, bool(data), bool(file)].count(True) != 1:
            raise InvalidField("{field} must each hold a text, `inlineData` or `fileData`.", field="parts")
        if self.text is not None:
            return self.text
        image = data or file
        kind = image.get("mimeType", image.get("mime_type")) if isinstance(image, dict) else None
        if not isinstance(kind, str) or not kind.startswith("image/"):
            raise InvalidField("{field}: the `mimeType` of a file must be an image's.", field="parts")
        return read_image(image.get("data") if data else image.get("fileUri", image.get("file_uri")), "parts")


class Content(msgspec.Struct):
    """`parts`: texts, which are joined by newlines into one input, or an image."""

    parts: list[Part]
    role: Annotated[Any, no_effect("an input is no message")] = None

    def read(self, title: str | None = None) -> Item:
        """The input. title: a first line. Raises EmptyInput, or InvalidField for one of the parts."""
        if not self.parts:
            raise EmptyInput("{field} must hold a text.", field="parts")
        read = [title or "", *(part.read() for part in self.parts)]
        return item_of([part for part in read if part])


class Options(msgspec.Struct, kw_only=True, rename="camel"):
    task_type: str | None = None
    title: Annotated[str | None, about("the first line of a text; only with RETRIEVAL_DOCUMENT")] = None
    output_dimensionality: Count | None = None
    auto_truncate: bool | None = None
    underscored_task_type: str | None = msgspec.field(name="task_type", default=None)
    underscored_output_dimensionality: Count | None = msgspec.field(name="output_dimensionality", default=None)
    underscored_auto_truncate: bool | None = msgspec.field(name="auto_truncate", default=None)


class EmbedBody(Options, kw_only=True, rename="camel"):
    content: Content
    model: str | None = None  # models/NAME
    embed_content_config: Annotated[Options | None, about("replaces the options next to `content`")] = None
    underscored_embed_content_config: Options | None = msgspec.field(name="embed_content_config", default=None)


class BatchBody(msgspec.Struct):
    requests: list[EmbedBody]


class CountBody(msgspec.Struct, rename="camel"):
    contents: list[Content]
    generate_content_request: Annotated[Any, refused("send `contents`")] = None


class CountAnswer(msgspec.Struct, rename="camel"):
    total_tokens: int


class Values(msgspec.Struct):
    values: list[float]


class ModalityTokens(msgspec.Struct, rename="camel"):
    modality: Literal["TEXT", "IMAGE"]
    token_count: int


class UsageMetadata(msgspec.Struct, rename="camel"):
    prompt_token_count: int
    prompt_tokens_details: list[ModalityTokens] | UnsetType = UNSET  # only with images


class EmbedAnswer(msgspec.Struct, rename="camel"):
    embedding: Values
    usage_metadata: UsageMetadata


class BatchAnswer(msgspec.Struct, rename="camel"):
    embeddings: list[Values]
    usage_metadata: UsageMetadata


class Model(msgspec.Struct, rename="camel"):
    name: str
    display_name: str
    input_token_limit: int
    supported_generation_methods: list[str]


class Models(msgspec.Struct):
    models: list[Model]


# --- embeddings -----------------------------------------------------------------------------------------------

_CONTENT = {"parts": [{"text": "a happy person"}]}
_NAMES = {
    "inputs": "content",
    "parts": "content.parts",
    "task": "taskType",
    "dimensions": "outputDimensionality",
    "truncate": "autoTruncate",
    "config": "embedContentConfig",
}
_FIELDS = (*_NAMES, "model", "title", "task_type", "output_dimensionality", "auto_truncate", "embed_content_config")


@ROUTES.post(
    "/v1beta/models/{model:path}:embedContent",
    "/v1/models/{model:path}:embedContent",
    answer=EmbedAnswer,
    summary="Embed one content",
    example={"content": _CONTENT, "taskType": "RETRIEVAL_QUERY"},
    names=_NAMES,
)
def parse_embed(body: EmbedBody, incoming: Incoming) -> Call:
    return Call(_read(body, incoming), render_embed)


def render_embed(result: EmbedResult) -> Rendered:
    (vector,) = result.dense["float"]  # (D,)
    return json_answer(embedding={"values": vector}, usageMetadata=_usage(result.usage))


@ROUTES.post(
    "/v1beta/models/{model:path}:batchEmbedContents",
    "/v1/models/{model:path}:batchEmbedContents",
    answer=BatchAnswer,
    summary="Embed contents",
    example={"requests": [{"content": _CONTENT, "taskType": "RETRIEVAL_DOCUMENT", "title": "Mood"}]},
)
def parse_batch(body: BatchBody, incoming: Incoming) -> Call:
    """One request to the engine if all contents have the same options, else one for each."""
    refuse_none(body.requests, "requests")
    check_count(len(body.requests), incoming.guards.max_inputs, "requests")
    parts = []
    for index, one in enumerate(body.requests):
        try:
            parts.append(_read(one, incoming))
        except VectordError as error:
            raise error.named(_names_within(index)) from None
    if len({replace(part, inputs=()) for part in parts}) == 1:
        whole = replace(parts[0], inputs=[text for part in parts for text in part.inputs])
        names = {**_names_within(0), "inputs": "requests"}  # errors about an input have its index
        return Call(whole, lambda result: render_batch(result, [result]), names)
    return Call(MultiRequest(requests=parts), lambda result: render_batch(result, result.results), {}, _names_within)


def render_batch(result: EmbedResult | MultiResult, results: Sequence[EmbedResult]) -> Rendered:
    embeddings = [{"values": vector} for one in results for vector in one.dense["float"]]
    return json_answer(embeddings=embeddings, usageMetadata=_usage(result.usage))


def _usage(usage: Usage) -> dict[str, Any]:
    shown: dict[str, Any] = {"promptTokenCount": usage.tokens}
    if usage.pixels:
        counts = {"TEXT": usage.tokens - usage.image_tokens, "IMAGE": usage.image_tokens}
        shown["promptTokensDetails"] = [{"modality": kind, "tokenCount": count} for kind, count in counts.items()]
    return shown


def _names_within(index: int) -> Names:
    return {field: f"requests[{index}].{_NAMES.get(field, field)}" for field in _FIELDS}


def _read(body: EmbedBody, incoming: Incoming) -> EmbedRequest:
    model = incoming.path.get("model", "")  # the description of the API parses examples without a path
    check_one_model(model, body.model and body.model.removeprefix("models/"), incoming.models)
    config, underscored_config = body.embed_content_config, body.underscored_embed_content_config
    options = agreed(config=config, embed_content_config=underscored_config) or body
    truncate = agreed(truncate=options.auto_truncate, auto_truncate=options.underscored_auto_truncate)
    task = agreed(task=options.task_type, task_type=options.underscored_task_type)
    if task not in _KINDS:
        raise InvalidField("{field} must be one of {known}.", field="task", known=", ".join(filter(None, _KINDS)))
    kind = _KINDS[task]
    if options.title and kind != "document":
        raise InvalidField("{field} is for the task RETRIEVAL_DOCUMENT.", field="title")
    return EmbedRequest(
        inputs=[body.content.read(options.title)],
        model=model or None,
        text=TextOptions(truncate=truncate, truncate_by_default=True, kind=kind),
        dimensions=agreed(
            dimensions=options.output_dimensionality,
            output_dimensionality=options.underscored_output_dimensionality,
        )
        or None,
    )


# --- tokens ---------------------------------------------------------------------------------------------------


@ROUTES.post(
    "/v1beta/models/{model:path}:countTokens",
    "/v1/models/{model:path}:countTokens",
    computes=None,
    answer=CountAnswer,
    summary="Count the tokens of texts",
    example={"contents": [_CONTENT]},
    names={"inputs": "contents", "parts": "contents.parts"},
)
def parse_count(body: CountBody, incoming: Incoming) -> Call:
    texts = []
    for i, content in enumerate(body.contents):
        text = content.read()
        if not isinstance(text, str):
            raise InvalidField("{field} must be a text: the tokens of images are not counted.", field="inputs", index=i)
        texts.append(text)
    request = TokenizeRequest(inputs=texts, model=incoming.path.get("model") or None)
    return Call(request, lambda result: json_answer(totalTokens=result.usage.tokens))


# --- models ---------------------------------------------------------------------------------------------------


@ROUTES.get("/v1beta/models", answer=Models, summary="List the models that embed")
def render_models(result: ModelList) -> Rendered:
    return json_answer(models=[_model(info) for info in result.models if "dense" in info.outputs])


@ROUTES.get("/v1beta/models/{model:path}", answer=Model, summary="Show one model")
def render_model(result: ModelList) -> Rendered:
    (info,) = result.models
    return json_answer(**_model(info))


def _model(info: ModelInfo) -> dict[str, Any]:
    return {
        "name": f"models/{info.name}",
        "displayName": info.name,
        "inputTokenLimit": info.max_input_tokens,
        "supportedGenerationMethods": _METHODS if "dense" in info.outputs else [],
    }


DIALECT = Dialect(name="google", title="Google", routes=tuple(ROUTES), render_error=render_error, prefix="/v1beta/")
