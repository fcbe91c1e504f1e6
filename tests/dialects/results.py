"""What an engine would answer, made by hand, and bodies as a server would hand them in."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from vectord.dialects.base import Incoming
from vectord.schema import EmbedResult, Limits, ModelInfo, ModelList, TextLength, Timings, Usage

# Numbers whose shortest float32 and shortest float64 forms differ, and the edges of float32.
VECTORS = np.array([[0.1, -0.2, 1 / 3], [1e-45, 3.4028235e38, -0.0]], dtype=np.float32)


def incoming(body: object) -> Incoming:
    return Incoming(body=json.dumps(body).encode())


def usage(lengths: Sequence[tuple[int, int]] = ((3, 3), (9, 4))) -> Usage:
    """lengths: tokens seen and kept of each text."""
    timings = Timings(tokenize_s=0.0019, queue_s=0.0029999, inference_s=0.0351, total_s=1.2345)
    return Usage(lengths=[TextLength(seen, kept) for seen, kept in lengths], characters=40, timings=timings)


def embed_result(vectors: np.ndarray = VECTORS, used: Usage | None = None) -> EmbedResult:
    return EmbedResult(model="served", vectors=vectors, usage=used or usage())


def model_info(name: str = "served") -> ModelInfo:
    return ModelInfo(
        name=name,
        model_id="org/model",
        revision="abc123",
        fingerprint="f00d",
        architecture="bert",
        pooling="mean",
        dimensions=384,
        max_input_tokens=256,
        dtype="bfloat16",
        device="cpu",
        backend="openvino",
        state="ready",
        created_unix_s=1_700_000_000,
    )


def model_list(*names: str, truncates: bool | None = None) -> ModelList:
    limits = Limits(
        max_inputs_per_request=2048,
        max_batch_tokens=16_384,
        max_batch_requests=None,
        max_concurrent_requests=4096,
        tokenization_workers=2,
        truncates=truncates,
    )
    return ModelList(models=[model_info(name) for name in names or ("served",)], limits=limits)
