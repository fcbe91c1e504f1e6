"""Qwen3-Reranker's probability of "yes" equals the model card's recipe with transformers, on a tiny random model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.answers.serving import serving
from tests.checkpoints.gguf.gguf_files import RERANK_TEMPLATE, write_gguf_reranker
from tests.reference.reference_models import write_qwen3_reranker
from tests.reference.references import run_reference

from vectord.schema import RerankRequest, TextOptions

QUERY = "what does the fox do"
PASSAGES = ["the quick brown fox jumps", "dog", "", "many small birds sing in green old trees " * 6, "yes\n\nno"]


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def reranker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "qwen3-reranker"
    return write_qwen3_reranker(folder, tied=request.param)


@pytest.mark.parametrize("backend", ["openvino", "torch"])
@pytest.mark.parametrize("instruction", [None, "Find a text about animals"], ids=["usual", "own"])
async def test_scores_equal_the_recipe(reranker: Path, backend: str, instruction: str | None) -> None:
    """Covers the template, truncation, the head's two rows, and the shared prefix, which runs once for all passages."""
    pairs = [[QUERY, passage] for passage in PASSAGES]
    inputs = {"pairs": pairs, "max_length": 512} | ({"instruction": instruction} if instruction else {})
    want = run_reference("qwen3_reranker", reranker, inputs)
    async with serving(reranker, backend=backend) as server:
        request = RerankRequest(
            query=QUERY, passages=PASSAGES, instruction=instruction, text=TextOptions(truncate=True)
        )
        result = await server.ask(request)
    assert result.kind == "probability"
    np.testing.assert_allclose(result.scores, want["scores"], atol=1e-4)


@pytest.mark.parametrize("question", [RERANK_TEMPLATE, None], ids=["with its words", "without"])
async def test_a_gguf_file_has_the_scores_of_the_recipe(reranker: Path, question: str | None, tmp_path: Path) -> None:
    """llama.cpp keeps the two rows of the head as cls.output, and without a tied head no other row."""
    path = write_gguf_reranker(reranker, tmp_path / "m.gguf", question=question)
    want = run_reference(
        "qwen3_reranker", reranker, {"pairs": [[QUERY, passage] for passage in PASSAGES], "max_length": 512}
    )
    async with serving(path) as server:
        request = RerankRequest(query=QUERY, passages=PASSAGES, text=TextOptions(truncate=True))
        result = await server.ask(request)
    assert result.kind == "probability"
    np.testing.assert_allclose(result.scores, want["scores"], atol=1e-4)


async def test_a_single_pair_has_the_same_score(reranker: Path) -> None:
    """A single pair has no shared prefix and has the same score."""
    async with serving(reranker) as server:
        together = await server.ask(RerankRequest(query=QUERY, passages=PASSAGES))
        alone = [await server.ask(RerankRequest(query=QUERY, passages=[passage])) for passage in PASSAGES]
    np.testing.assert_allclose(together.scores, [result.scores[0] for result in alone], atol=1e-5)
