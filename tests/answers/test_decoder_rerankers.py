"""Scores of BAAI's rerankers with a decoder equal FlagEmbedding's, on tiny random models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.answers.serving import serving
from tests.reference.reference_models import write_gemma_reranker, write_layerwise_reranker
from tests.reference.references import run_reference

from vectord.config import Config, DeviceConfig, ModelConfig
from vectord.engine.models import open_models
from vectord.schema import RerankRequest, TextOptions

QUERY = "what does the fox do"
PASSAGES = ["the quick brown fox jumps", "dog", "", "many small birds sing in green old trees " * 2, "yes\n\nno"]
PAIRS = [[QUERY, passage] for passage in PASSAGES]
LAYERS = [2, 3]


@pytest.fixture(scope="module")
def layerwise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_layerwise_reranker(tmp_path_factory.mktemp("models") / "layerwise")


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gemma_reranker(tmp_path_factory.mktemp("models") / "bge-reranker-v2-gemma")


async def logits(reranker: Path, backend: str, cutoff_layer: int | None = None) -> list[float]:
    async with serving(reranker, backend=backend, cutoff_layer=cutoff_layer) as server:
        request = RerankRequest(query=QUERY, passages=PASSAGES, raw=True, text=TextOptions(truncate=True))
        scores: list[float] = (await server.ask(request)).scores
    return scores


@pytest.mark.parametrize("backend", ["openvino", "torch"])
async def test_scores_of_gemma_equal_flag_embedding(gemma: Path, backend: str) -> None:
    """Covers the words around a pair, their separate tokens, the logit of "Yes", and the shared prefix."""
    want = run_reference("flag_embedding", gemma, {"rerank_by_answer": {"pairs": PAIRS}})["answer_logits"]
    np.testing.assert_allclose(await logits(gemma, backend), want, atol=1e-4)


@pytest.mark.parametrize("backend", ["openvino", "torch"])
@pytest.mark.parametrize(("cutoff", "place"), [(None, 1), (3, 1), (2, 0)], ids=["default", "last", "earlier"])
async def test_scores_of_a_layer_equal_flag_embedding(
    layerwise: Path, backend: str, cutoff: int | None, place: int
) -> None:
    """Covers the words around a pair, the scales, the head of the chosen layer, and the shared prefix."""
    task = {"rerank_by_layer": {"pairs": PAIRS, "cutoff_layers": LAYERS}}
    want = run_reference("flag_embedding", layerwise, task)["layer_logits"][place]
    np.testing.assert_allclose(await logits(layerwise, backend, cutoff), want, atol=1e-4)


def test_scores_of_layers_share_no_cache(layerwise: Path) -> None:
    """Each layer has a fingerprint of its own."""
    device = DeviceConfig(backend="fake")
    configs = [ModelConfig(models=(str(layerwise),), offline=True, cutoff_layer=layer) for layer in (None, 2, 3)]
    sources = [open_models(Config(model=config, device=device))[0] for config in configs]
    assert len({source.spec.fingerprint for source in sources}) == 3
