"""The keys that Smart Embedder adds to /health, and the log lines that its users' scripts wait for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vectord.schema import ModelInfo, ModelList


def ready_lines(models: Sequence[ModelInfo]) -> Sequence[str]:
    reranker = any(model.reranks and model.state == "ready" for model in models)
    return (*(["Reranker ready."] if reranker else []), "Server ready to accept requests")


def embedding_models(models: Sequence[ModelInfo]) -> tuple[ModelInfo | None, ModelInfo | None]:
    """The first model that embeds, and the first that makes all three kinds of vectors, else the same."""
    embedder = next((model for model in models if model.outputs), None)
    return embedder, next((model for model in models if model.outputs >= {"dense", "sparse", "colbert"}), embedder)


def device_names(models: Sequence[ModelInfo]) -> list[str]:
    """The devices of loaded models, each once."""
    return sorted({name for model in models for name in model.device.split(",")} - {"unknown"})


def health(served: ModelList, ready: bool) -> dict[str, Any]:
    """Models and device; 0 and "unknown" before a model is loaded.

    batch_size: texts of full length in one forward, the product's own unit of batch size.
    max_requests_in_batch: texts of any length in one forward, each of which may belong to another request.
    """
    embedder, sparse = embedding_models(served.models)
    reranker = next((model for model in served.models if model.reranks), None)
    devices = device_names(served.models)
    gpus = [device for device in devices if device != "cpu"]
    longest = embedder.max_input_tokens if embedder else 0
    tokens = served.limits.max_batch_tokens
    texts = min(tokens, served.limits.max_batch_texts or tokens)
    return {
        "gpu": {
            "available": bool(gpus),
            "device_info": ", ".join(gpus) or ("CPU" if devices else "unknown"),
            "memory_gb": 0,
            "device_count": len(gpus),
            "multi_gpu_enabled": len(gpus) > 1,
            "configured_devices": devices,
        },
        "model": sparse.name if sparse else None,
        "dense_embedding_model": embedder.name if embedder else None,
        "reranker_model": reranker.name if reranker else None,
        "max_input_length": longest,
        "batch_size": min(texts, max(1, tokens // longest)) if longest else texts,
        "max_requests_in_batch": texts,
    }
