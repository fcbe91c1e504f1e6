"""Results -> answers of Semantic Explorer. Pure; requests.py says which of these answers what."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vectord.products.common.dialect import Rendered
from vectord.products.common.models import listed_models, ready_models
from vectord.products.common.ranking import as_object, best_first, ranked
from vectord.products.common.usage import token_usage
from vectord.products.common.vectors import dump_json
from vectord.products.semantic_explorer.wire import NamedDocument
from vectord.schema import EmbedResult, ModelInfo, ModelList, RerankResult, Result

NOTHING_READ = {"prompt_tokens": 0, "total_tokens": 0}

# --- vectors --------------------------------------------------------------------------------------------------


def render_embed(result: Result) -> Rendered:
    assert isinstance(result, EmbedResult)
    return _answer(embeddings=result.dense["float"], model=result.model, usage=token_usage(result.usage))


def render_counted(result: Result) -> Rendered:
    assert isinstance(result, EmbedResult)
    vectors = result.dense["float"]  # (N, D)
    count, dimensions = vectors.shape
    return _answer(embeddings=vectors, model=result.model, count=count, dimensions=dimensions)


def render_no_embeddings(result: Result) -> Rendered:
    """To a list without texts."""
    return _answer(embeddings=[], model=_first(result, _embeds), usage=NOTHING_READ)


def render_no_counted(result: Result) -> Rendered:
    return _answer(embeddings=[], model=_first(result, _embeds), count=0, dimensions=0)


# --- scores ---------------------------------------------------------------------------------------------------


def render_rerank(passages: Sequence[str], top_n: int | None, with_documents: bool, result: Result) -> Rendered:
    assert isinstance(result, RerankResult)
    results = ranked(result, passages, top_n=top_n, document=as_object if with_documents else None)
    return _ranking(results, result.model, token_usage(result.usage))


def render_no_ranking(result: Result) -> Rendered:
    """To a list without documents."""
    return _ranking([], _first(result, _reranks), NOTHING_READ)


def _ranking(results: Sequence[Mapping[str, Any]], model: str, usage: Mapping[str, Any]) -> Rendered:
    return _answer(
        id=f"rerank-{uuid.uuid4().hex}",
        object="rerank",
        results=results,
        model=model,
        usage=usage,
        meta={"api_version": {"version": "1"}, "billed_units": {"search_units": 1}},
    )


def render_rerank_named(
    documents: Sequence[NamedDocument], top_k: int | None, with_scores: bool, result: Result
) -> Rendered:
    assert isinstance(result, RerankResult)
    best = best_first(result.scores)[: top_k or None]
    shown = [_named(documents[index], index) | _score(result, index, with_scores) for index in best]
    return _answer(results=shown, model=result.model)


def _named(document: NamedDocument, index: int) -> dict[str, Any]:
    shown = {"index": index, "text": document.text}
    return shown if document.id is None else shown | {"id": document.id}


def _score(result: RerankResult, index: int, with_scores: bool) -> dict[str, Any]:
    return {"score": result.scores[index]} if with_scores else {}


def render_no_results(result: Result) -> Rendered:
    return _answer(results=[], model=_first(result, _reranks))


# --- models ---------------------------------------------------------------------------------------------------


def render_models(result: Result) -> Rendered:
    assert isinstance(result, ModelList)
    return Rendered(body=dump_json(listed_models(result)))


def render_embedders(result: Result) -> Rendered:
    assert isinstance(result, ModelList)
    shown = [_described(info, "embedding") | {"dimensions": info.dimensions} for info in filter(_embeds, result.models)]
    return Rendered(body=dump_json(shown))


def render_rerankers(result: Result) -> Rendered:
    assert isinstance(result, ModelList)
    return Rendered(body=dump_json([_described(info, "reranker") for info in filter(_reranks, result.models)]))


def render_status(result: Result) -> Rendered:
    """The source's, without its queue depth and its GPU's memory, which are not known here; it is 200 either way."""
    assert isinstance(result, ModelList)
    models = ready_models(result)
    embeds = any(map(_embeds, models))
    return _answer(
        status="ok" if embeds else "not_ready", embedding_ready=embeds, reranker_ready=any(map(_reranks, models))
    )


def _described(info: ModelInfo, model_type: str) -> dict[str, Any]:
    description = f"A {info.architecture} model that reads {info.max_input_tokens} tokens"
    return {"id": info.name, "name": info.name, "description": description, "model_type": model_type}


def _first(result: Result, can: Callable[[ModelInfo], bool]) -> str:
    """Who would have answered: of models none of which can, the first."""
    assert isinstance(result, ModelList)
    return next(filter(can, result.models), result.models[0]).name


def _embeds(info: ModelInfo) -> bool:
    return "dense" in info.outputs


def _reranks(info: ModelInfo) -> bool:
    return info.reranks


def _answer(**shown: object) -> Rendered:
    return Rendered(body=dump_json(shown))
