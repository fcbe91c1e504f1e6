"""The errors of vectord's own API, and what the bodies and responses of its routes share."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from vectord.errors import MissingField, VectordError
from vectord.products.common.body import Count, PositiveCount
from vectord.products.common.dialect import Rendered
from vectord.products.common.errors import STATUSES, error_response, message_with_ways_out
from vectord.products.common.fields import about
from vectord.products.common.vectors import json_answer
from vectord.schema import (
    ClassifyResult,
    DocumentsResult,
    EmbedResult,
    InputKind,
    RerankResult,
    Side,
    SimilarityResult,
    TextLengths,
    TextOptions,
    Usage,
)

# --- errors ---------------------------------------------------------------------------------------------------

ERRORS = STATUSES

_word_ends = re.compile(r"(?<=[a-z])(?=[A-Z])")


def render_error(error: VectordError) -> Rendered:
    return error_response(error, {"error": {**error_object(error), "message": message_with_ways_out(error)}}, ERRORS)


def error_object(error: VectordError) -> dict[str, Any]:
    """The same keys for every error; a key that does not apply is null."""
    return {
        "type": type_of(type(error)),
        "message": error.message,
        "field": error.field_name,
        "index": error.index,
        "limit": error.limit,
        "given": error.given,
    }


def type_of(kind: type[VectordError]) -> str:
    """The class's name in snake case, such as "model_not_found"; "internal_error" for the base class."""
    if kind is VectordError:
        return "internal_error"
    return _word_ends.sub("_", ("WrongType" if kind is MissingField else kind.__name__)).lower()


# --- shared fields --------------------------------------------------------------------------------------------

MAX_PROMPT_CHARACTERS = 2000  # the limit of text/options.py: a prompt is prepended to every text
MAX_WEIGHT = 1000

Words: TypeAlias = Annotated[str, Meta(max_length=MAX_PROMPT_CHARACTERS)]
FusionWeight: TypeAlias = Annotated[float, Meta(ge=0, le=MAX_WEIGHT)]
Expected: TypeAlias = Annotated[str, about("fingerprint of the expected vector space; another one gets 412")]
EncodedVector: TypeAlias = list[float] | str  # a vector, or base64 of its little-endian numbers


class TextFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The model, and the treatment of texts that are too long for it."""

    model: str | None = None
    truncate: bool | None = None  # null: the server's setting, else texts that are too long are refused
    truncate_side: Side | None = None  # the end that is cut off; null: right


class PromptFields(TextFields, kw_only=True):
    """The prefix of the texts: `prompt`, else the model's prompt of that name, else that of `kind`."""

    kind: InputKind | None = None
    prompt_name: str | None = None
    prompt: Words | None = None


class VectorFields(PromptFields, kw_only=True):
    normalize: bool | None = True
    dimensions: PositiveCount | None = None
    force_dimensions: bool | None = False
    encoding: Literal["float", "base64"] | None = None
    expect_fingerprint: Expected | None = None


class ChunkFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    max_tokens: PositiveCount
    by: Literal["tokens", "sentences"] | None = None  # null: tokens
    overlap_tokens: Count | None = None  # at most half of max_tokens


class UsageAnswer(msgspec.Struct):
    tokens: int  # processed
    texts: int  # inputs, pairs, or chunks
    characters: int  # of the inputs, before truncation
    image_tokens: int | UnsetType = UNSET  # of `tokens`; only with images, as `pixels`
    pixels: int | UnsetType = UNSET  # of the images as sent


class TimingsAnswer(msgspec.Struct):
    """Of the request: tokenization, then until its first forward pass, from there until its last one ends; in all."""

    tokenize_ms: float
    queue_ms: float
    inference_ms: float
    total_ms: float


class ResultAnswer(msgspec.Struct):
    model: str
    fingerprint: str
    usage: UsageAnswer
    timings: TimingsAnswer


class TruncationAnswer(msgspec.Struct):
    """A text that `model` did not read to its end."""

    model: str
    seen: int  # the text's tokens; a lower bound if characters_cut is present
    kept: int  # tokens the model read
    max_tokens: int | UnsetType = UNSET  # the model's limit
    characters_cut: int | UnsetType = UNSET  # dropped before tokenization


def text_options(body: TextFields) -> TextOptions:
    options = TextOptions(truncate=body.truncate, truncate_side=body.truncate_side or "right")
    if isinstance(body, PromptFields):
        return replace(options, prompt_name=body.prompt_name, kind=body.kind, prompt=body.prompt)
    return options


def result_answer(
    result: EmbedResult | DocumentsResult | RerankResult | ClassifyResult | SimilarityResult, **shown: Any
) -> Rendered:
    return json_answer(model=result.model, fingerprint=result.fingerprint, **shown, **usage_answer(result.usage))


def usage_answer(usage: Usage) -> dict[str, Any]:
    timings = usage.timings
    seconds = {
        "tokenize_ms": timings.tokenizing_s,
        "queue_ms": timings.waiting_s,
        "inference_ms": timings.computing_s,
        "total_ms": timings.total_s,
    }
    images = {"image_tokens": usage.image_tokens, "pixels": usage.pixels} if usage.pixels else {}
    return {
        "usage": {"tokens": usage.tokens, "texts": len(usage.lengths), "characters": usage.characters, **images},
        "timings": {name: round(value * 1000, 3) for name, value in seconds.items()},
    }


def truncated(lengths: Mapping[str, TextLengths], limits: Mapping[str, int], index: int) -> dict[str, Any]:
    """`truncated` if a model did not read the whole text, else nothing."""
    cuts = []
    for model, texts in lengths.items():
        length = texts.details.get(index)
        if length is not None and length.truncated:
            cut = {"model": model, "seen": length.seen, "kept": length.kept}
            if model in limits:
                cut["max_tokens"] = limits[model]
            if length.characters_cut:
                cut["characters_cut"] = length.characters_cut
            cuts.append(cut)
    return {"truncated": cuts} if cuts else {}
