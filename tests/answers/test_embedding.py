"""Dense vectors of a complete engine equal sentence-transformers': truncation, prompts, dimensions, batching."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from tests.answers.serving import serving
from tests.config.start import load
from tests.models import MAX_TOKENS, write_sentence_bert
from transformers import AutoModel, AutoTokenizer

from vectord.errors import InvalidField
from vectord.schema import EmbedRequest, Precision, Side, TextOptions

TEXTS = ["the quick brown fox", "jumps", "over a lazy dog while many small birds sing " * 80, "near water"]
BACKENDS = ["openvino", "torch"]


@pytest.fixture(scope="module", params=["mean", "cls", "last", "max"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sentence_bert(tmp_path_factory.mktemp("model"), pooling=request.param, dense=(24, 16))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("side", ["right", "left"])
async def test_vectors_equal_sentence_transformers(folder: Path, backend: str, side: Side) -> None:
    """Pooling, two Dense modules, and a text truncated on either side in a batch with short texts."""
    reference = SentenceTransformer(str(folder), device="cpu")
    reference.tokenizer.truncation_side = side
    want = reference.encode(TEXTS, batch_size=1)
    async with serving(folder, backend=backend) as server:
        options = TextOptions(truncate=True, truncate_side=side)
        result = await server.ask(EmbedRequest(inputs=TEXTS, text=options))
    np.testing.assert_allclose(result.dense["float"], want, atol=1e-4)
    assert [length.truncated for length in result.usage.lengths] == [False, False, True, False]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("pooling", ["cls", "mean"])
async def test_plain_mean_is_the_mean_of_the_last_hidden_states(tmp_path: Path, pooling: str, backend: str) -> None:
    """The vectors of Simple Inference Server: not the pooling of bge-m3, nor the Dense modules of EmbeddingGemma."""
    written = write_sentence_bert(tmp_path, pooling=pooling, dense=(24, 16))
    folder = written.rename(tmp_path / "bge-m3")
    tokenizer, network = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    rows = []
    for text in TEXTS:
        tokens = tokenizer(text, truncation=True, max_length=MAX_TOKENS, return_tensors="pt")
        with torch.no_grad():
            rows.append(network(**tokens).last_hidden_state.mean(dim=1)[0].numpy())
    want = np.stack(rows) / np.linalg.norm(rows, axis=1, keepdims=True)
    profile = load(["--profile", "simple-inference-server", "bge-m3"], {}, tmp_path).config.model
    async with serving(folder, backend=backend, plain_mean=profile.plain_mean) as server:
        result = await server.ask(EmbedRequest(inputs=TEXTS, text=TextOptions(truncate=True)))
    np.testing.assert_allclose(result.dense["float"], want, atol=1e-4)


@pytest.mark.parametrize("precision", ["int8", "uint8"])
async def test_integer_precisions_require_unit_vectors(folder: Path, precision: Precision) -> None:
    """Raw vectors would be clipped silently at the ends of the range."""
    async with serving(folder) as server:
        with pytest.raises(InvalidField, match="length 1"):
            await server.ask(EmbedRequest(inputs=["fox"], normalize=False, precisions=(precision,)))
