"""Mixedbread's reranking route. Its embeddings route is OpenAI's."""

from typing import Annotated, Any, Literal

import msgspec

from vectord.products.common.dialect import EXAMPLE_MODEL, Call, Dialect, Incoming, Rendered, Routes
from vectord.products.common.errors import UNPROCESSABLE, render_message
from vectord.products.common.fields import refused
from vectord.products.common.inputs import Switch, TopN
from vectord.products.common.ranking import EXAMPLE, RerankFields, ranked, rerank_request
from vectord.products.common.vectors import ListAnswer, json_answer, token_usage
from vectord.schema import RerankResult, TextOptions

ROUTES = Routes()
ERRORS = UNPROCESSABLE


class RerankingBody(RerankFields):
    query: str
    input: list[str]
    model: str | None = None
    top_k: TopN = None
    top_n: Annotated[Any, refused("its name here is `top_k`", 0)] = None
    return_input: Switch = None
    rank_fields: Annotated[Any, refused("each of `input` is one text; join the fields", [])] = None
    rewrite_query: Annotated[Any, refused("queries are ranked as they are", False)] = None


class RankedInput(msgspec.Struct):
    index: int
    score: float
    input: str | None
    object: Literal["rank_result"]


class Reranking(ListAnswer):
    data: list[RankedInput]
    top_k: int
    return_input: bool


@ROUTES.post(
    "/v1/reranking",
    computes="rerank",
    answer=Reranking,
    summary="Rank texts by how well they answer a query",
    example={
        "model": EXAMPLE_MODEL,
        "query": EXAMPLE["query"],
        "input": EXAMPLE["documents"],
        "return_input": True,
    },
    names={"passages": "input"},
)
def parse_reranking(body: RerankingBody, incoming: Incoming) -> Call:
    shows, count = body.return_input is True, len(body.input)

    def render(result: RerankResult) -> Rendered:
        shown = body.input if shows else [None] * count
        data = ranked(result, body.top_k, "score", input=shown, object=["rank_result"] * count)
        return json_answer(
            usage=token_usage(result.usage) | {"completion_tokens": 0},
            model=result.model,
            data=data,
            object="list",
            top_k=len(data),
            return_input=shows,
        )

    text = TextOptions(truncate_by_default=True)
    return Call(rerank_request(body, body.query, body.input, body.model, text), render)


DIALECT = Dialect(
    name="mixedbread", title="Mixedbread", routes=tuple(ROUTES), render_error=render_message("detail", ERRORS)
)
