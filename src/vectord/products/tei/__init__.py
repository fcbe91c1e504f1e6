"""text-embeddings-inference: its own routes and its OpenAI routes, for every kind of model.

requests.py reads the bodies, answers.py writes the answers, errors.py says what went wrong; texts of errors are TEI's
where clients may know them. Runs on the event loop, called by the server's handler. GET /health, /ping, /metrics and
/docs are the server's own; TEI's gRPC service is in rpc/.
"""

from __future__ import annotations

from vectord.products.common.dialect import Dialect, get, post
from vectord.products.common.models import Info
from vectord.products.tei.errors import render_error, render_openai_error
from vectord.products.tei.requests import (
    parse_decode,
    parse_embed,
    parse_embed_all,
    parse_embed_sparse,
    parse_info,
    parse_openai,
    parse_predict,
    parse_rerank,
    parse_root,
    parse_similarity,
    parse_tokenize,
    parse_vertex,
)
from vectord.products.tei.wire import (
    DecodeBody,
    EmbedBody,
    OpenAIAnswer,
    OpenAIBody,
    PredictBody,
    Prediction,
    Rank,
    RerankBody,
    RootAnswer,
    SimilarityBody,
    SparseEntry,
    TextsBody,
    TokenAnswer,
    TokenizeBody,
    VertexAnswer,
    VertexBody,
)

_VECTORS = list[list[float]]
_SCORES = list[float]
_TOKENS = list[list[TokenAnswer]]
_RANKS = list[Rank]
_PREDICTIONS = list[Prediction | list[Prediction]]
_SPARSE = list[list[SparseEntry]]

_QUESTION = {"query": "Which planet is red?", "texts": ["Mars is called the red planet.", "Bread needs yeast."]}
_COMPARISON = {
    "source_sentence": "That is a happy person",
    "sentences": ["That is a very happy person", "Today is a sunny day"],
}


DIALECT = Dialect(
    name="tei",
    title="text-embeddings-inference",
    routes=(
        *post(
            "/embed",
            parse=parse_embed,
            summary="Embed texts or token ids",
            body=EmbedBody,
            answer=_VECTORS,
            example={"inputs": ["hello", "world"]},
            keys=["inputs"],
        ),
        *post(
            "/embed_all",
            parse=parse_embed_all,
            summary="Embed tokens",
            body=TextsBody,
            answer=list[_VECTORS],
            example={"inputs": "hello"},
            keys=["inputs"],
        ),
        *post(
            "/embed_sparse",
            parse=parse_embed_sparse,
            summary="Weigh words",
            body=TextsBody,
            answer=_SPARSE,
            example={"inputs": "hello"},
            keys=["inputs"],
        ),
        *post(
            "/similarity",
            parse=parse_similarity,
            summary="Compare sentences",
            body=SimilarityBody,
            answer=_SCORES,
            example={"inputs": _COMPARISON},
            keys=["inputs"],
        ),
        # One URL for everything: `inputs` are for whatever the first model does, `texts` for the route that follows.
        # The first of the two answers a body with neither.
        *post(
            "/",
            "/invocations",
            parse=parse_root,
            summary="Embed, classify or compare, by the first model and the kind of `inputs`",
            body=EmbedBody,
            answer=RootAnswer,
            example={"inputs": ["hello", "world"]},
            keys=["inputs"],
        ),
        *post(
            "/rerank",
            "/v1/rerank",
            "/",
            "/invocations",
            parse=parse_rerank,
            summary="Rank texts by how well they answer a query",
            body=RerankBody,
            answer=_RANKS,
            example=_QUESTION,
            keys=["texts"],
        ),
        *post(
            "/predict",
            parse=parse_predict,
            summary="Classify texts or pairs",
            body=PredictBody,
            answer=_PREDICTIONS,
            example={"inputs": [["I like you"], ["Mars is red", "Mars has a colour"]]},
            keys=["inputs"],
        ),
        *post(
            "/tokenize",
            parse=parse_tokenize,
            summary="Tokenize texts",
            body=TokenizeBody,
            answer=_TOKENS,
            example={"inputs": ["hello world"]},
            keys=["inputs"],
        ),
        *post(
            "/decode",
            parse=parse_decode,
            summary="Decode token ids",
            body=DecodeBody,
            answer=list[str],
            example={"ids": [101, 7592, 2088, 102]},
            keys=["ids"],
        ),
        *post(
            "/vertex",
            parse=parse_vertex,
            summary="Several bodies of the root route at once, as Vertex AI sends them",
            body=VertexBody,
            answer=VertexAnswer,
            example={"instances": [{"inputs": "hello"}, _QUESTION]},
            keys=["instances"],
        ),
        *post(
            "/v1/embeddings",
            "/embeddings",
            parse=parse_openai,
            summary="Embed texts or token ids, in OpenAI's shape",
            body=OpenAIBody,
            answer=OpenAIAnswer,
            example={"input": ["hello", "world"]},
            keys=["input"],
            render_error=render_openai_error,
        ),
        *get(
            "/info",
            parse=parse_info,
            summary="Show the first served model and the limits in force",
            answer=Info,
        ),
    ),
    render_error=render_error,
    health=lambda served, ready: {} if ready else {"error": "unhealthy", "error_type": "Unhealthy"},
    ready_lines=lambda models: ["Ready"],
)
