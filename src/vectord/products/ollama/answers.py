"""Results -> answers of Ollama. Pure; requests.py says which of these answers what."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from vectord import __version__
from vectord.products.common.dialect import Rendered
from vectord.products.common.vectors import dump_json
from vectord.schema import EmbedResult, ModelInfo, ModelList, Result

LATEST = ":latest"  # the tag of a name that says none; Ollama lists no name without a tag

# --- vectors --------------------------------------------------------------------------------------------------


def render_embeddings(result: Result) -> Rendered:
    assert isinstance(result, EmbedResult)
    return _answer(
        model=result.model,
        embeddings=result.dense["float"],
        total_duration=round(result.usage.timings.total_s * 10**9),
        load_duration=0,
        prompt_eval_count=result.usage.tokens,
    )


def render_no_embeddings(result: Result) -> Rendered:
    """To no input. Who names no model is told of the first."""
    assert isinstance(result, ModelList)
    return _answer(model=result.models[0].name, embeddings=[])


def render_embedding(result: Result) -> Rendered:
    assert isinstance(result, EmbedResult)
    return _answer(embedding=result.dense["float"][0])


def render_no_embedding(result: Result) -> Rendered:
    return _answer(embedding=[])


# --- models ---------------------------------------------------------------------------------------------------


def render_tags(result: Result) -> Rendered:
    assert isinstance(result, ModelList)
    return _answer(models=[_named(info) | _modified(info) | _capabilities(info) for info in result.models])


def render_running(result: Result) -> Rendered:
    """Those in memory."""
    assert isinstance(result, ModelList)
    loaded = [info for info in result.models if info.state == "ready"]
    return _answer(models=[_named(info) | {"size_vram": 0, "context_length": info.max_input_tokens} for info in loaded])


def render_shown(result: Result) -> Rendered:
    assert isinstance(result, ModelList)
    (info,) = result.models
    facts = {
        "general.architecture": info.architecture,
        f"{info.architecture}.context_length": info.max_input_tokens,
        f"{info.architecture}.embedding_length": info.dimensions,
    }
    return _answer(details=_details(info), model_info=facts, **_capabilities(info), **_modified(info))


def _named(info: ModelInfo) -> dict[str, Any]:
    name = info.name if ":" in info.name else info.name + LATEST
    return {"name": name, "model": name, "size": 0, "digest": info.fingerprint, "details": _details(info)}


def _details(info: ModelInfo) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": "",
        "family": info.architecture,
        "families": [info.architecture],
        "parameter_size": "",
        "quantization_level": info.dtype,
        "context_length": info.max_input_tokens,
        "embedding_length": info.dimensions,
    }


def _capabilities(info: ModelInfo) -> dict[str, list[str]]:
    """In Ollama's words, of which embedding is the only one about retrieval."""
    return {"capabilities": ["embedding"] if "dense" in info.outputs else []}


def _modified(info: ModelInfo) -> dict[str, str]:
    return {"modified_at": datetime.fromtimestamp(info.created_unix_s, UTC).isoformat()}


# --- the server -----------------------------------------------------------------------------------------------


def render_version(result: Result) -> Rendered:
    return _answer(version=__version__)


def render_front(result: Result) -> Rendered:
    """What Ollama's clients look at to see whether it is there."""
    return Rendered(body=b"Ollama is running", content_type="text/plain; charset=utf-8")


def _answer(**shown: object) -> Rendered:
    return Rendered(body=dump_json(shown))
