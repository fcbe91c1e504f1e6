"""vLLM's pooling API: vectors, classes, scores and tokens. Its /v2/embed is Cohere's, and served as such.

requests.py reads the bodies, answers.py writes the answers, numbers.py their vectors, errors.py says what went wrong.
Runs on the event loop, called by the server's handler.
"""

from __future__ import annotations

from vectord.products.common.dialect import Dialect, get, post
from vectord.products.vllm import wire
from vectord.products.vllm.errors import render_error
from vectord.products.vllm.requests import (
    parse_classify,
    parse_detokenize,
    parse_embeddings,
    parse_models,
    parse_pooling,
    parse_rerank,
    parse_score,
    parse_tokenize,
    parse_version,
)

# Keys of vLLM's own that tell a body on a path that others share.
_SIGNS = frozenset(
    {
        *("truncate_prompt_tokens", "truncation_side", "add_special_tokens", "request_id", "use_activation"),
        *("embed_dtype", "endianness", "messages", "mm_processor_kwargs", "cache_salt", "chat_template"),
    }
)

DIALECT = Dialect(
    name="vllm",
    title="vLLM",
    routes=(
        *post(
            "/v1/embeddings",
            "/embeddings",
            parse=parse_embeddings,
            summary="Embed texts or token ids",
            body=wire.EmbeddingBody,
            answer=wire.Embeddings,
            example={"input": ["A bank of a river.", "A bank for savings."], "truncate_prompt_tokens": -1},
            keys=["input", "messages"],
            signs=_SIGNS,
        ),
        *post(
            "/pooling",
            parse=parse_pooling,
            summary="Embed or classify texts, or embed their tokens",
            body=wire.PoolingBody,
            answer=wire.Pooling,
            example={"input": "A bank of a river.", "task": "token_embed", "encoding_format": "base64"},
            keys=["input", "messages"],
            signs=_SIGNS,
        ),
        *post(
            "/score",
            "/v1/score",
            parse=parse_score,
            summary="Score pairs of texts, in order",
            body=wire.ScoreBody,
            answer=wire.Scores,
            example={"queries": "Where do pandas live?", "documents": ["In China.", "In a can."]},
            keys=["queries", "data_1", "text_1"],
            signs=_SIGNS,
        ),
        *post(
            "/rerank",
            "/v1/rerank",
            "/v2/rerank",
            parse=parse_rerank,
            summary="Rank documents by how well they answer a query",
            body=wire.RerankBody,
            answer=wire.Reranked,
            example={"query": "Where do pandas live?", "documents": ["In China.", "In a can."], "use_activation": True},
            keys=["documents"],
            signs=_SIGNS,
        ),
        *post(
            "/classify",
            parse=parse_classify,
            summary="Tell the class of each text",
            body=wire.ClassifyBody,
            answer=wire.Classification,
            example={"input": ["I love it.", "I do not."], "use_activation": True},
            keys=["input", "messages"],
            signs=_SIGNS,
        ),
        *post(
            "/tokenize",
            parse=parse_tokenize,
            summary="Tokenize a text",
            body=wire.TokenizeBody,
            answer=wire.Tokenized,
            example={"prompt": "A bank of a river.", "return_token_strs": True},
            keys=["prompt", "messages"],
        ),
        *post(
            "/detokenize",
            parse=parse_detokenize,
            summary="Decode token ids",
            body=wire.DetokenizeBody,
            answer=wire.Detokenized,
            example={"tokens": [101, 1037, 2924, 102]},
            keys=["tokens"],
        ),
        *get("/version", parse=parse_version, summary="Show the version of this server", answer=wire.Version),
        *get("/v1/models", parse=parse_models, summary="List served models", answer=wire.Models),
    ),
    render_error=render_error,
)
