"""Results of an engine, requests to a product, and the product's routes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np

from vectord.products.common.dialect import Call, Dialect, Incoming, Route
from vectord.schema import (
    ClassifyResult,
    EmbedResult,
    Limits,
    ModelInfo,
    ModelList,
    RerankResult,
    TextLength,
    TextLengths,
    Timings,
    Usage,
)

# Numbers whose shortest float32 and shortest float64 forms differ, and the edges of float32.
VECTORS = np.array([[0.1, -0.2, 1 / 3], [1e-45, 3.4028235e38, -0.0]], dtype=np.float32)


def incoming(body: object, **facts: Any) -> Incoming:
    """A request with `body` as JSON. facts: further fields of Incoming."""
    return Incoming(body=json.dumps(body).encode(), **facts)


def route_of(dialect: Dialect, path: str, key: str = "") -> Route:
    """The dialect's only route at `path`; key: one of its keys, if several routes have the path."""
    (found,) = (route for route in dialect.routes if route.path == path and (not key or key in keys_of(route)))
    return found


def keys_of(route: Route) -> frozenset[str]:
    """The keys that distinguish a route from others on its path: bodies have all of them, or one."""
    return route.one_of or route.required


def parsed(dialect: Dialect, path: str, body: object, **facts: Any) -> Call:
    """The call that a POST of `body` to `path` makes, without the engine."""
    return route_of(dialect, path).parse(incoming(body, **facts))


def usage(lengths: Sequence[tuple[int, int]] = ((3, 3), (9, 4))) -> Usage:
    """lengths: tokens seen and kept of each text."""
    timings = Timings(tokenizing_s=0.0019 * len(lengths), first_s=0.0029999, last_s=0.0380999, ended_s=1.2345)
    lengths_of = [TextLength(seen, kept) for seen, kept in lengths]
    return Usage(lengths=TextLengths.of(lengths_of), characters=40, timings=timings, device="cpu")


def embed_result(vectors: np.ndarray = VECTORS, used: Usage | None = None) -> EmbedResult:
    return EmbedResult(model="served", fingerprint="f00d", dense={"float": vectors}, usage=used or usage())


def rerank_result(*scores: float, **facts: Any) -> RerankResult:
    """facts: further fields of RerankResult. By default no text is truncated."""
    defaults: dict[str, Any] = {
        "model": "served",
        "fingerprint": "f00d",
        "scores": np.array(scores, np.float32),
        "kind": "logit",
        "usage": usage([(9, 9)] * len(scores)),
        "query": TextLength(2, 2),
        "passages": TextLengths([7] * len(scores)),
        "max_tokens": 512,
    }
    return RerankResult(**{**defaults, **facts})


def classify_result(
    *rows: Sequence[float], labels: Sequence[str] = ("sad", "glad", "mad"), logits: np.ndarray | None = None
) -> ClassifyResult:
    used = usage([(3, 3)] * len(rows))
    scores = np.array(rows, np.float32)
    return ClassifyResult(
        model="served", fingerprint="f00d", labels=labels, scores=scores, logits=logits, kind="probability", usage=used
    )


def model_info(name: str = "served", **facts: Any) -> ModelInfo:
    """A model that makes dense vectors. facts: fields of ModelInfo to change."""
    defaults: dict[str, Any] = {
        "name": name,
        "model_id": "org/model",
        "revision": "abc123",
        "fingerprint": "f00d",
        "architecture": "bert",
        "outputs": frozenset({"dense", "tokens"}),
        "reranks": False,
        "labels": (),
        "pooling": "mean",
        "dimensions": 384,
        "full_dimensions": 384,
        "matryoshka": None,
        "max_input_tokens": 256,
        "dtype": "bfloat16",
        "device": "cpu",
        "backend": "openvino",
        "state": "ready",
        "pinned": False,
        "created_unix_s": 1_700_000_000,
    }
    return ModelInfo(**{**defaults, **facts})


def model_list(*models: str | ModelInfo, truncates: bool | None = None, starting: bool = False) -> ModelList:
    """models: names, or complete infos."""
    limits = Limits(
        max_inputs_per_request=2048,
        max_batch_tokens=16_384,
        max_batch_texts=None,
        max_concurrent_requests=4096,
        tokenization_workers=2,
        truncates=truncates,
    )
    infos = [model_info(model) if isinstance(model, str) else model for model in models or ("served",)]
    return ModelList(models=infos, limits=limits, starting=starting)


def fits(content: bytes, answers: Sequence[object]) -> bool:
    """Whether the body of a response is one of the types that its route declares, or the route declares none."""
    for answer in answers:
        with suppress(msgspec.ValidationError):
            msgspec.json.decode(content, type=answer)
            return True
    return not answers
