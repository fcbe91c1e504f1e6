"""embedding_server: a fork of text-embeddings-inference with one route, whose answer has OpenAI's `data` and `usage`.

The product's document lists the route as /embed too, where TEI's clients expect a bare array; the order of `--dialects`
decides. The same holds for /info: over-long texts are refused on these routes, and truncated on TEI's. Errors have
TEI's sentences.
"""

from functools import partial

import msgspec

from vectord.errors import TooManyInputs, VectordError
from vectord.products.common.body import Count
from vectord.products.common.dialect import Call, Dialect, Incoming, Rate, Rendered, Routes
from vectord.products.common.errors import TEI_ERROR_TYPES, UNPROCESSABLE, Statuses, error_response, row_of
from vectord.products.common.inputs import Force, read_filled_inputs
from vectord.products.common.models import Info, render_info, requested_model
from vectord.products.common.vectors import EmbeddingList, embedding_items, list_answer
from vectord.products.tei.errors import sentence_of
from vectord.products.tei.metrics import TeiMetrics
from vectord.products.tei.routes import TextsBody, text_options
from vectord.products.tei.usage import compute_headers, mean_times
from vectord.schema import EmbedRequest, EmbedResult

ROUTES = Routes({"truncate_side": "truncation_direction"})

TRUNCATES = False  # over-long text is refused unless the request or the server is set otherwise


class EmbedBody(TextsBody, kw_only=True):
    """Lists of token ids include the special tokens. The product has no `model`: see `requested_model`."""

    normalize: bool | None = None
    dimensions: Count | None = None
    force_dimensions: Force = None


class Durations(msgspec.Struct):
    """In the form of Rust's Duration: "1.5ms". Means over the inputs."""

    tokenization: str
    queue: str
    inference: str


class EmbedAnswer(EmbeddingList):
    timings: Durations


@ROUTES.post(
    "/api/v1/embed",
    "/embed",
    computes=None,
    answer=EmbedAnswer,
    summary="Embed texts or token ids, with the duration of each step",
    example={"inputs": ["First document", "Second document"], "truncate": True},
)
def parse_embed(body: EmbedBody, incoming: Incoming) -> Call:
    """A batch waits for a place in the engine, and a single input is refused at once, as in the product."""
    request = EmbedRequest(
        inputs=read_filled_inputs(body.inputs),
        model=requested_model(body.model, incoming, ignored_by="embedding_server"),
        text=text_options(body, body.prompt_name, truncates=TRUNCATES),
        normalize=body.normalize is not False,
        dimensions=body.dimensions,
        force_dimensions=body.force_dimensions is True,
        waits=isinstance(body.inputs, list) and not isinstance(body.inputs[0], int),
    )
    return Call(request, render_embed)


def render_embed(result: EmbedResult) -> Rendered:
    names = ("tokenization", "queue", "inference")
    durations = dict(zip(names, map(rust_duration, mean_times([result.usage])), strict=True))
    items = embedding_items(result.dense["float"], "float")
    return list_answer(result, items, headers=compute_headers(result.usage), timings=durations)


def rust_duration(seconds: float) -> str:
    """`seconds`, 0 or more, in the largest unit below it: "2.000001s", "1.5ms", "120µs", "950ns", "0ns".

    Rounded to whole nanoseconds, then exact. Source: the Debug of Rust's std::time::Duration.
    """
    nanoseconds = round(seconds * 10**9)
    for unit, power in (("s", 9), ("ms", 6), ("\u00b5s", 3)):
        whole, rest = divmod(nanoseconds, 10**power)
        if whole:
            decimals = f"{rest:0{power}}".rstrip("0")
            return f"{whole}.{decimals}{unit}" if decimals else f"{whole}{unit}"
    return f"{nanoseconds}ns"


ROUTES.get("/info", summary="Show the first served model and the limits in force", answer=Info)(
    partial(render_info, TRUNCATES)
)

# The source has 413 for too many inputs, and the document has 500 for a failed model.
ERRORS: Statuses = {**UNPROCESSABLE, TooManyInputs: 413}


def render_error(error: VectordError) -> Rendered:
    shown = {"error": sentence_of(error), "error_type": row_of(TEI_ERROR_TYPES, error)}
    return error_response(error, shown, ERRORS)


DIALECT = Dialect(
    name="embedding_server",
    title="Embedding server",
    routes=tuple(ROUTES),
    render_error=render_error,
    rate=Rate(80, period_s=1, burst=50, per_key=True),
    metrics=lambda settings: TeiMetrics(),
)
