"""bench/quality.py: its figures are those of trec_eval, and of the reference library."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from bench.child import REPOSITORY
from bench.quality import ndcg, read_data_set, recall, scores
from tests.models import write_bert, write_sentence_bert
from tests.reference.reference_models import write_bge_m3, write_colbert

from bench import quality
from vectord.schema import Sparse

GAINS = {
    "a": {"p1": 2, "p2": 1, "p3": 1},
    "b": {"p9": 1},
    "c": {"p4": 3, "p5": 1},
    "d": {f"p{i}": 1 for i in range(12)},
}
RANKED = {
    "a": ["p7", "p2", "p1", "p8", "p3"],
    "b": ["p1", "p2"],
    "c": ["p5", "p1", "p2", "p4"],
    "d": [f"p{i}" for i in (3, 20, 1, 21, 22, 5, 23, 24, 25, 0, 2)],
}
# ndcg_cut_10, recall_3 and recall_10 of pytrec_eval-terrier 0.5.11; ranx 0.3.21 agrees.
EXPECTED = {
    "a": (0.6444675286963276, 2 / 3, 1.0),
    "b": (0.0, 0.0, 0.0),
    "c": (0.631251450669265, 0.5, 1.0),
    "d": (0.4721567066247473, 2 / 12, 4 / 12),
}


@pytest.mark.parametrize("query", GAINS)
def test_the_metrics_are_those_of_trec_eval(query: str) -> None:
    """With several gains, without a hit, and with more relevant passages than are counted."""
    ranked, gains = RANKED[query], GAINS[query]
    found = ndcg(ranked, gains), recall(ranked, gains, 3), recall(ranked, gains, 10)
    assert found == pytest.approx(EXPECTED[query], abs=1e-12)


def test_each_kind_of_vectors_has_its_own_scores() -> None:
    """Products of sparse vectors, the best token of a passage for each of the query, and the number of equal bits."""
    sparse = [
        Sparse(np.array(i, np.int32), np.array(v, np.float32)) for i, v in (([0, 7], [1, 2]), ([3], [5]), ([], []))
    ]
    np.testing.assert_array_equal(scores("sparse", sparse[:2], sparse), [[5, 0, 0], [0, 25, 0]])
    draw = np.random.default_rng(0)
    tokens = [draw.normal(size=(rows, 8)).astype(np.float32) for rows in (3, 1, 5)]
    expected = [[sum((passage @ token).max() for token in query) for passage in tokens] for query in tokens]
    np.testing.assert_allclose(scores("colbert", tokens, tokens), expected, rtol=1e-5)
    bits = np.packbits(np.array([[0] * 8, [1] * 4 + [0] * 4, [1] * 8]), axis=1)
    assert np.argsort(-scores("dense, ubinary", bits[:1], bits)[0]).tolist() == [0, 1, 2]


def write_data_set(folder: Path) -> Path:
    """One passage for each of 40 queries; one query has the id of its passage, and one has no relevant passage."""
    (folder / "qrels").mkdir(parents=True)
    passages = [{"_id": f"p{i}", "title": "A title", "text": f"{i} {'word ' * (i % 7)}and {i * 37}"} for i in range(60)]
    queries = [{"_id": f"q{i}", "text": f"and {i * 37} word"} for i in range(40)] + [{"_id": "p5", "text": "5"}]
    for name, rows in (("corpus", passages), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    judged = [*(f"q{i}\tp{i}\t1" for i in range(39)), "q39\tp3\t0", "p5\tp6\t1"]
    (folder / "qrels/test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *judged]) + "\n")
    return folder


def write_splade(folder: Path) -> Path:
    """With random weights, as sentence-transformers saves it."""
    from sentence_transformers import SparseEncoder

    source = write_bert(folder / "source", head="ForMaskedLM")
    SparseEncoder(str(source), device="cpu").save_pretrained(str(folder / "saved"), create_model_card=False)
    return folder / "saved"


@pytest.mark.parametrize(
    "write", [write_sentence_bert, write_splade, write_colbert], ids=["dense", "SPLADE", "ColBERT"]
)
def test_a_model_in_float32_has_the_figures_of_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], Path]
) -> None:
    """Up to the order of passages whose scores are nearly equal, as random weights make them."""
    monkeypatch.setattr(quality, "FORMATS", (("float32", "openvino"),))
    data = read_data_set(write_data_set(tmp_path / "data"))
    assert (len(data.queries), len(data.passages)) == (40, 60)
    (found,) = quality.measure([write(tmp_path / "model")], "openvino", data).values()
    reference, own, *_ = found
    assert [own.ndcg, *own.recall] == pytest.approx([reference.ndcg, *reference.recall], abs=0.01)
    assert 0 < own.ndcg < 1


def test_each_kind_of_vectors_has_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the row of the reference."""
    monkeypatch.setattr(quality, "FORMATS", (("float32", "openvino"),))
    monkeypatch.setattr(quality, "_encode", lambda folder, data, name: (np.eye(40, 60), np.eye(60)))
    data = read_data_set(write_data_set(tmp_path / "data"))
    (found,) = quality.measure([write_bge_m3(tmp_path / "model")], "openvino", data).values()
    assert [one.vectors for one in found] == ["dense", "dense", "dense, int8", "dense, ubinary", "sparse", "colbert"]


def test_the_questions_have_their_answers() -> None:
    """Every question has one or two relevant passages of the documentation."""
    data = read_data_set(REPOSITORY / "bench/questions")
    asked = (REPOSITORY / "bench/questions/queries.jsonl").read_text().splitlines()
    assert len(data.queries) == len(asked) == len({json.loads(line)["text"] for line in asked}) == 56
    assert {len(gains) for gains in data.relevant.values()} == {1, 2}


def test_a_judged_passage_that_is_missing_is_an_error(tmp_path: Path) -> None:
    folder = write_data_set(tmp_path / "data")
    with (folder / "qrels/test.tsv").open("a") as file:
        file.write("q1\tabsent\t1\n")
    with pytest.raises(ValueError, match="lacks, such as absent"):
        read_data_set(folder)
