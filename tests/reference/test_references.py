"""The reference scripts run, their results are consistent, and nothing is skipped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.reference import references
from tests.reference.ragged import unpack
from tests.reference.reference_models import (
    write_bge_m3,
    write_bge_reranker,
    write_colbert,
    write_qwen3_reranker,
)
from tests.reference.references import ReferenceFailed, run_reference

TEXTS = ["The quick brown fox", "quick fox", "", "lazy dog " * 100]
PAIRS = [("quick fox", "The quick brown fox"), ("yes", "no"), ("lazy", "dog " * 300), ("fox " * 200, "birds " * 200)]


@pytest.fixture(scope="module")
def bge_m3(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """Vectors of TEXTS, cut to 64 tokens, and scores of the first two as a pair."""
    folder = write_bge_m3(tmp_path_factory.mktemp("bge_m3"))
    score = {"pairs": [TEXTS[:2]], "weights": [0.5, 0.2, 0.3]}
    return run_reference("flag_embedding", folder, {"embed": {"texts": TEXTS, "max_length": 64}, "score": score})


def test_every_text_has_three_kinds_of_vectors(bge_m3: dict[str, np.ndarray]) -> None:
    """Rows keep the order of the texts; the empty text has no words and one row, its EOS."""
    colbert, words = unpack(bge_m3, "colbert_vecs"), unpack(bge_m3, "lexical_ids")
    assert bge_m3["dense_vecs"].shape == (4, 32)
    assert [len(rows) for rows in colbert] == [13, 11, 1, 63]
    assert [len(ids) > 0 for ids in words] == [True, True, False, True]
    np.testing.assert_allclose(np.linalg.norm(bge_m3["colbert_vecs"], axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(bge_m3["dense_vecs"], axis=1), 1, atol=1e-5)


def test_scores_follow_from_the_vectors(bge_m3: dict[str, np.ndarray]) -> None:
    """FlagEmbedding's scores of a pair can be computed from its vectors."""
    colbert = unpack(bge_m3, "colbert_vecs")
    lexical = [
        dict(zip(ids, weights, strict=True))
        for ids, weights in zip(unpack(bge_m3, "lexical_ids"), unpack(bge_m3, "lexical_weights"), strict=True)
    ]
    dense = bge_m3["dense_vecs"][0] @ bge_m3["dense_vecs"][1]
    sparse = sum(weight * lexical[1].get(token, 0) for token, weight in lexical[0].items())
    assert sparse > 0
    late = (colbert[0] @ colbert[1].T).max(axis=1).mean()
    want = {
        "dense": dense,
        "sparse": sparse,
        "colbert": late,
        "sparse+dense": (0.2 * sparse + 0.5 * dense) / (0.2 + 0.5),
        "colbert+sparse+dense": 0.3 * late + 0.2 * sparse + 0.5 * dense,
    }
    for mode, value in want.items():
        np.testing.assert_allclose(bge_m3[f"score_{mode}"], [value], atol=1e-5, err_msg=mode)


def test_reranker_sees_the_pairs_it_scores(tmp_path: Path) -> None:
    """A pair is one row of ids within the limit, and its score is the sigmoid of its logit."""
    folder = write_bge_reranker(tmp_path)
    answers = run_reference("flag_embedding", folder, {"rerank": {"pairs": PAIRS, "max_length": 64}})
    ids = unpack(answers, "rerank_ids")
    assert [len(row) for row in ids][2:] == [64, 64]
    assert all(row[0] == 0 and row[-1] == 2 and list(row).count(2) == 3 for row in ids)
    np.testing.assert_allclose(answers["rerank_scores"], 1 / (1 + np.exp(-answers["rerank_logits"])), rtol=1e-6)


def test_qwen3_reranker_keeps_its_frame(tmp_path: Path) -> None:
    """A body that is too long is cut at its end; prefix and suffix stay whole."""
    answers = run_reference("qwen3_reranker", write_qwen3_reranker(tmp_path), {"pairs": PAIRS, "max_length": 256})
    ids = unpack(answers, "ids")
    shorter = min(map(len, ids))
    frame = np.argmax(ids[0][:shorter] != ids[1][:shorter])  # the first token of the query, after the instruction
    assert [len(row) for row in ids][2:] == [256, 256]
    assert all((row[:frame] == ids[0][:frame]).all() and (row[-9:] == ids[0][-9:]).all() for row in ids)
    no, yes = answers["logits"].T
    np.testing.assert_allclose(answers["scores"], 1 / (1 + np.exp(no - yes)), atol=1e-6)


def test_colbert_has_a_row_for_each_kept_token(tmp_path: Path) -> None:
    """A query is filled with unattended tokens, whose rows stay; a document loses its punctuation."""
    folder = write_colbert(tmp_path, query_length=16, document_length=24, skiplist_words=[",", "!"])
    inputs = {"queries": ["the fox", "", "lazy dog " * 30], "documents": ["The quick, brown fox!", "birds " * 60]}
    answers = run_reference("pylate_colbert", folder, inputs)
    queries, documents = unpack(answers, "queries"), unpack(answers, "documents")
    assert [len(rows) for rows in queries] == [16, 16, 16]
    assert [int(mask.sum()) for mask in unpack(answers, "queries_attended")] == [5, 3, 16]
    assert [len(ids) for ids in unpack(answers, "documents_ids")] == [9, 24]
    assert (
        [len(rows) for rows in documents] == [int(mask.sum()) for mask in unpack(answers, "documents_kept")] == [7, 24]
    )
    maxsim = [[(query @ document.T).max(axis=1).sum() for document in documents] for query in queries]
    np.testing.assert_allclose(answers["scores"], maxsim, rtol=1e-5)


@pytest.mark.parametrize("write", [write_bge_m3, write_bge_reranker, write_qwen3_reranker])
def test_a_model_is_the_same_each_time(write: Callable[[Path], Path], tmp_path: Path) -> None:
    """One seed gives one model, weights and vocabulary, so that a failure can be reproduced."""
    first, second = write(tmp_path / "first"), write(tmp_path / "second")
    for file in first.iterdir():
        assert file.read_bytes() == (second / file.name).read_bytes(), file.name


def test_a_missing_environment_names_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without .venv-reference a test fails and is not skipped."""
    monkeypatch.setattr(references, "ENVIRONMENT", tmp_path)
    with pytest.raises(ReferenceFailed, match="make reference"):
        run_reference("flag_embedding", tmp_path, {})


def test_an_error_of_a_script_is_shown(tmp_path: Path) -> None:
    """The failure contains the script's traceback, and the process serves the next call."""
    with pytest.raises(ReferenceFailed, match="unexpected keyword argument"):
        run_reference("qwen3_reranker", tmp_path, {"pairs": PAIRS, "nonsense": True})


def test_equal_calls_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second test with the same folder and inputs shares the arrays."""
    asked: list[str] = []

    def answer(_script: str, _folder: Path, inputs: str, output: Path) -> None:
        asked.append(inputs)
        np.savez(output, seen=np.ones(1))

    monkeypatch.setattr(references, "run_script", answer)
    for _ in range(2):
        assert run_reference("any", tmp_path, {"texts": ["a"]}).keys() == {"seen"}
    assert asked == [json.dumps({"texts": ["a"]})]
