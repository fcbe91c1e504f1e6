"""BGE-M3's three vectors, its scores and its reranker equal FlagEmbedding's, on tiny random models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import CrossEncoder
from tests.answers.serving import serving
from tests.reference.ragged import unpack
from tests.reference.reference_models import write_bge_m3, write_bge_reranker
from tests.reference.references import run_reference
from torch.nn import Identity

from vectord.schema import EmbedRequest, RerankRequest, TextOptions

TEXTS = ["the quick brown fox", "fox", "a lazy dog jumps over the lazy dog", "old green trees near water " * 4]
QUERY = "quick fox"
BACKENDS = ["openvino", "torch"]
CUT = TextOptions(truncate=True)
THREE = frozenset({"dense", "sparse", "colbert"})


@pytest.fixture(scope="module")
def bge_m3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bge_m3(tmp_path_factory.mktemp("bge-m3"))


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bge_reranker(tmp_path_factory.mktemp("bge-reranker"))


@pytest.mark.parametrize("backend", BACKENDS)
async def test_three_vectors_of_one_pass_equal_flag_embedding(bge_m3: Path, backend: str) -> None:
    """One request returns dense vectors, lexical weights and ColBERT rows."""
    want = run_reference("flag_embedding", bge_m3, {"embed": {"texts": TEXTS, "max_length": 256}})
    async with serving(bge_m3, backend=backend) as server:
        result = await server.ask(EmbedRequest(inputs=TEXTS, outputs=THREE, text=CUT))
    np.testing.assert_allclose(result.dense["float"], want["dense_vecs"], atol=1e-4)
    weights = zip(unpack(want, "lexical_ids"), unpack(want, "lexical_weights"), result.sparse, strict=True)
    for ids, values, sparse in weights:
        assert sparse.indices.tolist() == ids.tolist()
        np.testing.assert_allclose(sparse.values, values, atol=1e-4)
    for rows, colbert in zip(unpack(want, "colbert_vecs"), result.colbert, strict=True):
        np.testing.assert_allclose(colbert, rows, atol=1e-4)


@pytest.mark.parametrize(
    "kinds", [{"dense"}, {"sparse"}, {"colbert"}, {"dense", "colbert"}], ids=lambda kinds: "+".join(sorted(kinds))
)
async def test_a_subset_of_outputs_has_the_same_vectors(bge_m3: Path, kinds: set[str]) -> None:
    """Other outputs do not change a vector, and outputs that were not requested are absent."""
    async with serving(bge_m3) as server:
        three = await server.ask(EmbedRequest(inputs=TEXTS, outputs=THREE, text=CUT))
        some = await server.ask(EmbedRequest(inputs=TEXTS, outputs=frozenset(kinds), text=CUT))  # type: ignore[arg-type]
    assert (bool(some.dense), some.sparse is not None, some.colbert is not None) == (
        "dense" in kinds,
        "sparse" in kinds,
        "colbert" in kinds,
    )
    if some.dense:
        np.testing.assert_allclose(some.dense["float"], three.dense["float"], atol=1e-6)
    for mine, theirs in zip(some.colbert or [], three.colbert, strict=False):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)


@pytest.mark.parametrize("method", ["dense", "sparse", "colbert", "weighted"])
async def test_scores_equal_flag_embedding(bge_m3: Path, method: str) -> None:
    """The five modes of compute_score; the weighted mode has custom weights."""
    weights = (0.4, 0.2, 0.4)
    pairs = [[QUERY, text] for text in TEXTS]
    want = run_reference("flag_embedding", bge_m3, {"score": {"pairs": pairs, "weights": weights}})
    async with serving(bge_m3) as server:
        request = RerankRequest(query=QUERY, passages=TEXTS, method=method, weights=weights, text=CUT)  # type: ignore[arg-type]
        result = await server.ask(request)
    named = "colbert+sparse+dense" if method == "weighted" else method
    np.testing.assert_allclose(result.scores, want[f"score_{named}"], atol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("words", [80, 120], ids=["with room for a passage", "without"])
async def test_long_queries_are_cut_as_flag_reranker_cuts(reranker: Path, backend: str, words: int) -> None:
    """To three quarters of the limit, before short and long passages."""
    query, passages = "quick fox trees " * words, ["the fox " * 20, "the fox and the dog " * 90]
    task = {"rerank": {"pairs": [[query, passage] for passage in passages], "max_length": 256}}
    want = run_reference("flag_embedding", reranker, task)["rerank_logits"]
    async with serving(reranker, backend=backend) as server:
        result = await server.ask(RerankRequest(query=query, passages=passages, text=CUT))
    np.testing.assert_allclose(result.scores, want, atol=1e-4)
    assert (result.query.kept, result.query.truncated) == (192, True)


@pytest.mark.parametrize("backend", BACKENDS)
async def test_long_pairs_of_other_rerankers_are_cut_as_sentence_transformers_cuts(
    tmp_path: Path, backend: str
) -> None:
    """The longer text first."""
    folder = write_bge_reranker(tmp_path / "cross-encoder")
    query, long = "quick fox trees " * 120, "the fox and the dog " * 90
    pairs = [(query, "the fox"), (query, ""), (query, long), ("quick fox", long)]
    library = CrossEncoder(str(folder), max_length=256, device="cpu")
    want = library.predict(pairs, activation_fn=Identity(), batch_size=1)
    async with serving(folder, backend=backend) as server:
        asked = [RerankRequest(query=query, passages=[passage], text=CUT) for query, passage in pairs]
        got = [(await server.ask(request)).scores[0] for request in asked]
    np.testing.assert_allclose(got, want, atol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("raw", "key"), [(None, "rerank_logits"), (False, "rerank_scores")], ids=["logit", "sigmoid"])
async def test_reranker_scores_equal_flag_reranker(reranker: Path, backend: str, raw: bool | None, key: str) -> None:
    """A cross-encoder's logit and its sigmoid, for short pairs and for a truncated passage."""
    passages = [*TEXTS, "the fox and the dog " * 90]
    pairs = [[QUERY, passage] for passage in passages]
    want = run_reference("flag_embedding", reranker, {"rerank": {"pairs": pairs, "max_length": 256}})
    async with serving(reranker, backend=backend) as server:
        result = await server.ask(RerankRequest(query=QUERY, passages=passages, raw=raw, text=CUT))
    np.testing.assert_allclose(result.scores, want[key], atol=1e-4)
    assert result.kind == ("logit" if raw is None else "probability")
    assert result.passages.truncated == [len(passages) - 1]
    assert not result.query.truncated
