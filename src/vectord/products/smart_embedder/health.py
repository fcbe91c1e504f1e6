"""The keys that Smart Embedder adds to /health, and the log lines that its users' scripts wait for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vectord.schema import ModelInfo, ModelList


def ready_lines(models: Sequence[ModelInfo]) -> Sequence[str]:
    reranker = any(model.reranks and model.state == "ready" for model in models)
    return (*(["Reranker ready."] if reranker else []), "Server ready to accept requests")


def health(served: ModelList, ready: bool) -> dict[str, Any]:
    """Models and device; 0 and "unknown" before a model is loaded.

    batch_size: texts of full length in one forward, the product's own unit of batch size.
    max_requests_in_batch: texts of any length in one forward, each of which may belong to another request.
    """
    embedder = next((model for model in served.models if model.outputs), None)
    reranker = next((model for model in served.models if model.reranks), None)
    sparse = next((model for model in served.models if model.outputs >= {"dense", "sparse", "colbert"}), embedder)
    devices = sorted({name for model in served.models for name in model.device.split(",")} - {"unknown"})
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
