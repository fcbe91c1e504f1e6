"""Published weights answer as sentence-transformers does: vectors, sparse weights, and the order of search results.

`make test-real` downloads the weights and runs these tests; the other verbs leave them out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from bench.corpus import make_corpus
from bench.precision import overlap, similarities, top
from safetensors.numpy import load_file
from sentence_transformers import SentenceTransformer, SparseEncoder
from tests.answers.serving import serving
from tests.real import weights
from tokenizers import Tokenizer

from vectord.schema import EmbedRequest, TextOptions

Matrix = npt.NDArray[np.float32]

pytestmark = pytest.mark.real

TIE = 1e-5  # passages whose reference scores are closer have no order
DENSE = [weights.minilm, weights.mpnet]


@cache
def texts() -> list[str]:
    return list(make_corpus(weights.minilm() / "tokenizer.json", 600).texts)


@cache
def dense_reference(folder: Path) -> Matrix:
    model = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": "float32"})
    return np.asarray(model.encode(texts(), batch_size=16, normalize_embeddings=True))


@cache
def sparse_reference(folder: Path) -> Matrix:
    model = SparseEncoder(str(folder), device="cpu", model_kwargs={"dtype": "float32"})
    return np.asarray(model.encode(texts(), batch_size=16, convert_to_sparse_tensor=False).numpy())


async def embed(folder: Path, dtype: str, **request: Any) -> Any:
    """The engine's result for all texts. Longer texts than the model takes are truncated, as in the reference."""
    async with serving(folder, dtype=dtype) as server:
        return await server.ask(EmbedRequest(inputs=texts(), text=TextOptions(truncate=True), **request))


@pytest.mark.parametrize("model", DENSE)
async def test_float32_vectors_and_their_order_equal_sentence_transformers(model: Callable[[], Path]) -> None:
    want = dense_reference(model())
    result = await embed(model(), "float32")
    vectors = result.dense["float"]
    assert cosines(vectors, want).min() > 0.999999
    assert_same_order(vectors, want)


@pytest.mark.parametrize("model", DENSE)
async def test_default_dtype_preserves_what_is_found(model: Callable[[], Path]) -> None:
    """bfloat16 on a processor that computes in it, else float32."""
    want = dense_reference(model())
    result = await embed(model(), "auto")
    vectors = result.dense["float"]
    near = cosines(vectors, want)
    assert near.mean() > 0.9999
    assert near.min() > 0.998  # mpnet amplifies one text's rounding: sentence-transformers in float16 has 0.9988 there
    assert overlap(vectors, want) > 0.98


async def test_static_vectors_equal_model2vec() -> None:
    """The version that saved this folder wrote no `max_length`, and counts unknown tokens, as sentence-transformers."""
    folder = weights.static()
    short = [text[:400] for text in texts()]
    tensors = load_file(folder / "model.safetensors")
    ids = [encoding.ids for encoding in Tokenizer.from_file(str(folder / "tokenizer.json")).encode_batch(short)]
    rows = tensors["embeddings"].astype(np.float32)[tensors["mapping"]]
    want = np.array([(rows[one] * tensors["weights"][one][:, None]).mean(axis=0) for one in ids])
    async with serving(folder) as server:
        result = await server.ask(EmbedRequest(inputs=short))
    np.testing.assert_allclose(result.dense["float"], want / np.linalg.norm(want, axis=1, keepdims=True), atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "auto"])
async def test_sparse_weights_and_their_order_equal_sentence_transformers(dtype: str) -> None:
    want = sparse_reference(weights.splade())
    result = await embed(weights.splade(), dtype, outputs=frozenset({"sparse"}))
    got = np.zeros_like(want)
    for row, sparse in zip(got, result.sparse, strict=True):
        row[sparse.indices] = sparse.values
    if dtype == "float32":
        np.testing.assert_allclose(got, want, atol=1e-4)
        assert_same_order(got, want)
    else:
        assert cosines(got, want).min() > 0.999
        assert overlap(got, want) > 0.97


def cosines(vectors: Matrix, reference: Matrix) -> Matrix:
    """Of each row with the reference's row."""
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(reference, axis=1)
    return np.sum(vectors * reference, axis=1) / lengths


def assert_same_order(vectors: Matrix, reference: Matrix) -> None:
    """The order of the best ten, except among passages that the reference scores within TIE of each other."""
    wanted = similarities(reference)
    got = np.take_along_axis(wanted, top(vectors, 10), axis=1)
    best = np.take_along_axis(wanted, top(reference, 10), axis=1)
    scale = np.abs(best).max()
    np.testing.assert_allclose(got, best, atol=TIE * scale)
