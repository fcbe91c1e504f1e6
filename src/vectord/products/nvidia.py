"""NVIDIA NIM's reranking route. Its embeddings route is OpenAI's, with `input_type` and `truncate`."""

from typing import Annotated

import msgspec

from vectord.errors import VectordError
from vectord.products.common.dialect import EXAMPLE_MODEL, Call, Dialect, Incoming, Rendered, Routes
from vectord.products.common.errors import UNPROCESSABLE, error_response
from vectord.products.common.fields import about
from vectord.products.common.inputs import TextItem, Truncate, read_truncate
from vectord.products.common.models import check_one_model
from vectord.products.common.ranking import RerankFields, ranked, read_texts, rerank_request
from vectord.products.common.vectors import TokenUsage, json_answer, token_usage
from vectord.schema import RerankResult, TextOptions

ROUTES = Routes({"truncate_side": "truncate"})
ERRORS = UNPROCESSABLE


class RankingBody(RerankFields):
    query: TextItem
    passages: list[TextItem]
    model: Annotated[str | None, about("null: the model in the path")] = None
    truncate: Truncate = None


class RankedPassage(msgspec.Struct):
    index: int
    logit: float


class Rankings(msgspec.Struct):
    """Every passage, from the highest logit to the lowest."""

    rankings: list[RankedPassage]
    usage: TokenUsage


@ROUTES.post(
    "/v1/ranking",
    "/v1/retrieval/{model:path}/reranking",
    computes="rerank",
    answer=Rankings,
    summary="Rank passages by how well they answer a query",
    example={
        "model": EXAMPLE_MODEL,
        "query": {"text": "What is the capital of France?"},
        "passages": [{"text": "Paris is the capital of France."}, {"text": "Cats sleep most of the day."}],
        "truncate": "END",
    },
    names={"query": "query.text"},
)
def parse_ranking(body: RankingBody, incoming: Incoming) -> Call:
    truncate, side = read_truncate(body.truncate)
    model = incoming.path.get("model")
    check_one_model(model, body.model, incoming.models)
    text = TextOptions(truncate=truncate, truncate_side=side or "right")
    query, passages = body.query.read("query"), read_texts(body.passages)

    def render(result: RerankResult) -> Rendered:
        return json_answer(rankings=ranked(result, None, "logit"), usage=token_usage(result.usage))

    return Call(rerank_request(body, query, passages, body.model or model, text, raw=True), render)


def render_error(error: VectordError) -> Rendered:
    """The body that NIM documents for its errors."""
    body = {"object": "error", "message": error.message, "detail": {}, "type": "invalid_request_error"}
    return error_response(error, body, ERRORS)


DIALECT = Dialect(name="nvidia", title="NVIDIA NIM", routes=tuple(ROUTES), render_error=render_error)
