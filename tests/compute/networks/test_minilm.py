"""The default model, real weights and real texts, against sentence-transformers."""

from __future__ import annotations

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from tests.models import batch_of, read_minilm_spec

from vectord.checkpoints.checkpoint import open_checkpoint
from vectord.checkpoints.spec import ModelSpec
from vectord.compute.backends.base import BackendOptions, TokenBatch
from vectord.compute.backends.torch import load
from vectord.compute.networks.network import Network
from vectord.compute.ops.numpy import NumpyOps, pack

TEXTS = [
    "That is a happy person",
    "That is a happy dog",
    "That is a very happy person",
    "Today is a sunny day",
    "x",
    "Größe, 東京, naïve café: 3.14 % of €1,000; " * 12,
]


@pytest.fixture(scope="module")
def spec() -> ModelSpec:
    return read_minilm_spec()


@pytest.fixture(scope="module")
def reference(spec: ModelSpec) -> SentenceTransformer:
    return SentenceTransformer(str(spec.folder), device="cpu")


@pytest.fixture(scope="module")
def batch(reference: SentenceTransformer) -> TokenBatch:
    return batch_of(*reference.tokenizer(TEXTS, truncation=True, max_length=256)["input_ids"])


def cosines(vectors: np.ndarray, reference: SentenceTransformer) -> np.ndarray:
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return (unit * reference.encode(TEXTS, normalize_embeddings=True)).sum(axis=1)


def test_numpy_gives_the_real_vectors(spec: ModelSpec, batch: TokenBatch, reference: SentenceTransformer) -> None:
    """The reference op set is correct on real weights too."""
    network = Network(spec, open_checkpoint(spec.weights), NumpyOps())
    vectors = network(pack(batch.texts), {"dense"})["dense"]
    assert cosines(vectors, reference).min() > 0.999999


@pytest.mark.parametrize(("dtype", "least"), [("float32", 0.999999), ("bfloat16", 0.9995)])
def test_torch_gives_the_real_vectors(
    spec: ModelSpec, batch: TokenBatch, reference: SentenceTransformer, dtype: str, least: float
) -> None:
    """float32 to the last digits; bfloat16 within the rounding of each step to 8 bits."""
    backend = load(spec, BackendOptions(device="cpu", dtype=dtype))
    assert cosines(backend.forward(batch, 0)["dense"], reference).min() > least
