"""Scores of a layerwise reranker equal FlagEmbedding's LayerWiseLLMReranker, on a tiny random model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.answers.serving import serving
from tests.reference.reference_models import write_layerwise_reranker
from tests.reference.references import run_reference

from vectord.config import Config, DeviceConfig, ModelConfig
from vectord.engine.models import open_models
from vectord.schema import RerankRequest, TextOptions

QUERY = "what does the fox do"
PASSAGES = ["the quick brown fox jumps", "dog", "", "many small birds sing in green old trees " * 2, "yes\n\nno"]
LAYERS = [2, 3]


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_layerwise_reranker(tmp_path_factory.mktemp("models") / "layerwise")


@pytest.mark.parametrize("backend", ["openvino", "torch"])
@pytest.mark.parametrize(("cutoff", "place"), [(None, 1), (3, 1), (2, 0)], ids=["default", "last", "earlier"])
async def test_scores_of_a_layer_equal_flag_embedding(
    reranker: Path, backend: str, cutoff: int | None, place: int
) -> None:
    """Covers the words around a pair, the scales, the head of the chosen layer, and the shared prefix."""
    pairs = [[QUERY, passage] for passage in PASSAGES]
    task = {"rerank_by_layer": {"pairs": pairs, "cutoff_layers": LAYERS}}
    want = run_reference("flag_embedding", reranker, task)["layer_logits"][place]
    async with serving(reranker, backend=backend, cutoff_layer=cutoff) as server:
        request = RerankRequest(query=QUERY, passages=PASSAGES, raw=True, text=TextOptions(truncate=True))
        result = await server.ask(request)
    np.testing.assert_allclose(result.scores, want, atol=1e-4)


def test_scores_of_layers_share_no_cache(reranker: Path) -> None:
    """Each layer has a fingerprint of its own."""
    device = DeviceConfig(backend="fake")
    configs = [ModelConfig(models=(str(reranker),), offline=True, cutoff_layer=layer) for layer in (None, 2, 3)]
    sources = [open_models(Config(model=config, device=device))[0] for config in configs]
    assert len({source.spec.fingerprint for source in sources}) == 3
