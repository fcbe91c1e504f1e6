"""embedding_server: a text-embeddings-inference with one route and OpenAI's `data` and `usage` for an answer.

Runs on the event loop, called by the server's handler. Its document lists the route as /embed, too, where TEI's clients
expect a bare array: whoever comes first in `--dialects` answers there. So it is with /info, which says what happens to
over-long texts on these routes: they are refused, where TEI cuts them. It is a fork of TEI: errors are in TEI's words.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Literal

import msgspec

from vectord.errors import EmptyInput, TooManyInputs, VectordError
from vectord.products.common.body import Count, decode
from vectord.products.common.dialect import Call, Dialect, Incoming, Rate, Rendered, get, post
from vectord.products.common.errors import TEI_ERROR_TYPES, UNPROCESSABLE, Statuses, headers_of, row_of
from vectord.products.common.inputs import TextsOrIds, read_inputs, read_side
from vectord.products.common.models import Info, render_info
from vectord.products.common.usage import TokenUsage, compute_headers, token_usage
from vectord.products.common.vectors import dump_json, embedding_items
from vectord.products.embedding_server.durations import rust_duration
from vectord.products.tei.errors import text_of
from vectord.schema import EmbedRequest, EmbedResult, Input, ListModels, Result, TextOptions, Timings


class EmbedBody(msgspec.Struct):
    """null is the same as absent; unknown keys are ignored. Lists of ids are read as they are, specials included."""

    inputs: TextsOrIds
    truncate: bool | None = None
    truncation_direction: Annotated[
        str | None, msgspec.Meta(description='"Right" or "Left": the end that is cut off')
    ] = None
    prompt_name: str | None = None
    normalize: bool | None = None
    dimensions: Count | None = None
    force_dimensions: Annotated[
        bool | None, msgspec.Meta(description="cut vectors that were not trained to be cut, too")
    ] = None


class Item(msgspec.Struct):
    object: Literal["embedding"]
    index: int
    embedding: list[float]


class Durations(msgspec.Struct):
    """As Rust prints them: "1.5ms". Means over the inputs."""

    tokenization: str
    queue: str
    inference: str


class EmbedAnswer(msgspec.Struct):
    object: Literal["list"]
    data: list[Item]
    model: str
    usage: TokenUsage
    timings: Durations


TRUNCATES = False  # what it does with over-long text when nobody says

_body = msgspec.json.Decoder(EmbedBody)


def parse_embed(incoming: Incoming) -> Call:
    """Like the product's, a batch waits for its turn where a single input is refused at once."""
    body = decode(_body, incoming.body)
    request = EmbedRequest(
        inputs=_inputs(body.inputs),
        text=TextOptions(
            truncate=body.truncate,
            truncate_by_default=TRUNCATES,
            truncate_side=read_side(body.truncation_direction),
            prompt_name=body.prompt_name,
            own_ids=True,
        ),
        normalize=body.normalize is not False,
        dimensions=body.dimensions,
        force_dimensions=body.force_dimensions is True,
        waits=_is_batch(body.inputs),
    )
    return Call(request, render_embed)


def parse_info(incoming: Incoming) -> Call:
    return Call(ListModels(), partial(render_info, TRUNCATES))


def _inputs(value: TextsOrIds) -> Sequence[Input]:
    inputs = read_inputs(value, "inputs")
    if "" in inputs:
        raise EmptyInput("`inputs` cannot be empty", field="inputs", index=inputs.index(""))
    return inputs


def _is_batch(value: TextsOrIds) -> bool:
    """Neither a text nor one list of token ids."""
    return isinstance(value, list) and not isinstance(value[0], int)


def render_embed(result: Result) -> Rendered:
    """The document's answer, with what OpenAI's has beyond it, and TEI's headers, as the source sends them."""
    assert isinstance(result, EmbedResult)
    shown = {
        "object": "list",
        "data": embedding_items(result.dense["float"], "float"),
        "model": result.model,
        "usage": token_usage(result.usage),
        "timings": _durations(result.usage.timings),
    }
    return Rendered(body=dump_json(shown), headers=compute_headers(result.usage))


def _durations(timings: Timings) -> dict[str, str]:
    return {
        "tokenization": rust_duration(timings.tokenize_s),
        "queue": rust_duration(timings.queue_s),
        "inference": rust_duration(timings.inference_s),
    }


# As TEI's, but for 413 above the batch size, which is the source's word, and 500 where a model fails, the document's.
ERRORS: Statuses = {**UNPROCESSABLE, TooManyInputs: 413}


def render_error(error: VectordError) -> Rendered:
    shown = {"error": text_of(error), "error_type": row_of(TEI_ERROR_TYPES, error)}
    return Rendered(body=dump_json(shown), status=row_of(ERRORS, error), headers=headers_of(error))


DIALECT = Dialect(
    name="embedding_server",
    title="Embedding server",
    routes=(
        *post(
            "/api/v1/embed",
            "/embed",
            parse=parse_embed,
            summary="Embed texts or token ids, and tell how long each step took",
            body=EmbedBody,
            answer=EmbedAnswer,
            example={"inputs": ["First document", "Second document"], "truncate": True},
            keys=["inputs"],
        ),
        *get("/info", parse=parse_info, summary="Show the first served model and the limits in force", answer=Info),
    ),
    render_error=render_error,
    rate=Rate(80, period_s=1, burst=50, per_key=True),
)
