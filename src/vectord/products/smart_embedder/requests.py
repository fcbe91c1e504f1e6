"""Bodies of Smart Embedder -> canonical requests, and how each is answered. Pure; __init__.py puts these on routes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from vectord.errors import EmptyInput, TooManyInputs
from vectord.products.common.body import decode
from vectord.products.common.dialect import Call, Incoming
from vectord.products.smart_embedder.answers import Names, render_embeddings, render_rerank, render_stats
from vectord.products.smart_embedder.flags import read_flag
from vectord.products.smart_embedder.wire import EmbeddingsBody, RerankBody
from vectord.schema import EmbedRequest, ModelInfo, RerankRequest, ShowStatistics, TextOptions, VectorKind

TRUNCATED = TextOptions(truncate=True)  # always, from the end, and said in `warnings`
KINDS: Sequence[VectorKind] = ("dense", "sparse", "colbert")

_embeddings_body = msgspec.json.Decoder(EmbeddingsBody)
_rerank_body = msgspec.json.Decoder(RerankBody)


def parse_embeddings(incoming: Incoming) -> Call:
    body = decode(_embeddings_body, incoming.body)
    _check_count(body.sentences, incoming.guards.max_sentences, "sentences")
    outputs = _outputs(body)
    as_lists = read_flag(body.sparse_as_indices, "sparse_as_indices") is True
    normalize = read_flag(body.normalize_dense, "normalize_dense") is True
    model = _model(incoming.models, outputs)
    request = EmbedRequest(
        inputs=body.sentences,
        model=model.name if model else None,
        text=TRUNCATED,
        outputs=outputs,
        normalize=normalize or _always_normalizes(model, incoming.models),
    )
    return Call(request, partial(render_embeddings, body.sentences, _names(model), as_lists), {"inputs": "sentences"})


def _outputs(body: EmbeddingsBody) -> frozenset[VectorKind]:
    flags = {"dense": body.return_dense, "sparse": body.return_sparse, "colbert": body.return_colbert}
    return frozenset(kind for kind in KINDS if read_flag(flags[kind], f"return_{kind}") is not False)


def _check_count(texts: Sequence[str], limit: int | None, field: str) -> None:
    if not texts:
        raise EmptyInput(f"The '{field}' list cannot be empty.", field=field)
    if limit is not None and len(texts) > limit:
        raise TooManyInputs(
            f"The '{field}' list may hold at most {limit} items; got {len(texts)}.",
            field=field,
            limit=limit,
            given=len(texts),
        )


def _model(models: Sequence[ModelInfo], outputs: frozenset[VectorKind]) -> ModelInfo | None:
    """Who is asked: this API names no model. A composite first, which is how dense vectors of another model than the
    sparse ones are served; None where nobody can, and the engine says so."""
    able = [model for model in models if outputs <= model.outputs and model.outputs]
    return next((model for model in able if model.sources), able[0] if able else None)


def _always_normalizes(model: ModelInfo | None, models: Sequence[ModelInfo]) -> bool:
    """Whether its dense vectors come from BGE-M3, which FlagEmbedding gives at length 1 whatever the flag says."""
    if model is None:
        return False
    source = model.sources.get("dense")
    dense = next((one for one in models if one.name == source), model) if source else model
    return dense.outputs >= frozenset(KINDS) and not dense.sources


def _names(model: ModelInfo | None) -> Names:
    if model is None:
        return Names("", "", "")
    dense, sparse, colbert = (model.sources.get(kind, model.name) for kind in KINDS)
    return Names(dense, sparse, colbert)


def parse_rerank(incoming: Incoming) -> Call:
    body = decode(_rerank_body, incoming.body)
    if not body.query.strip():
        raise EmptyInput("The 'query' field cannot be empty.", field="query")
    _check_count(body.passages, incoming.guards.max_passages, "passages")
    normalize = read_flag(body.normalize, "normalize")
    # A model that answers yes or no has probabilities only: `normalize` does nothing then, as it should not.
    raw = None if _judges_in_words(incoming.models) else normalize is not True
    request = RerankRequest(query=body.query, passages=body.passages, text=TRUNCATED, raw=raw)
    return Call(request, partial(render_rerank, body.passages))


def _judges_in_words(models: Sequence[ModelInfo]) -> bool:
    """Whether the reranker is a language model: it has scores of its own, and no label for them."""
    reranker = next((model for model in models if model.reranks), None)
    return reranker is not None and not reranker.labels


def parse_stats(incoming: Incoming) -> Call:
    return Call(ShowStatistics(), render_stats)
