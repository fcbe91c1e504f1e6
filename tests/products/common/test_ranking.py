"""Ranked documents that the clients of five products can read."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.products.results import rerank_result

from vectord.products.common.ranking import Documents, as_object, best_passages, ranked, read_documents
from vectord.products.common.vectors import dump_json

TEXTS = ["rain", "joy", "snow"]
RESULT = rerank_result(0.25, 0.75, 0.25)


def shown(**options: object) -> list[dict[str, object]]:
    """The results as JSON."""
    results = json.loads(dump_json(ranked(RESULT, TEXTS, **{"top_n": None, "document": None} | options)))  # type: ignore[arg-type]
    assert isinstance(results, list)
    return results


# No subnormal numbers: a library in this process may have set the processor to treat them as zeros.
SCORES = st.lists(
    st.sampled_from([-np.inf, -2.0, -0.0, 0.0, 0.5, 3.0e38])
    | st.floats(width=32, allow_nan=False, allow_subnormal=False)
)


@given(SCORES)
def test_scores_are_sorted_and_equal_ones_stay_in_order(scores):
    """Every index once, from the highest score to the lowest; zeros of either sign are equal."""
    assert [index for index, _ in best_passages(rerank_result(*scores))] == sorted(
        range(len(scores)), key=lambda index: -scores[index]
    )


def test_a_result_has_its_index_and_its_score_under_both_names():
    """Cohere's clients read relevance_score, and Semantic Explorer's read score."""
    assert [(item["index"], item["relevance_score"], item["score"]) for item in shown()] == [
        (1, 0.75, 0.75),
        (0, 0.25, 0.25),
        (2, 0.25, 0.25),
    ]


@pytest.mark.parametrize(("top_n", "count"), [(1, 1), (3, 3), (9, 3), (0, 3), (None, 3)])
def test_top_n_bounds_the_results(top_n, count):
    """null and 0 are no bound."""
    assert [item["index"] for item in shown(top_n=top_n)] == [1, 0, 2][:count]


def test_documents_are_shown_on_request():
    """Under `document` in the product's form, and under `text`."""
    assert [(item["text"], item["document"]) for item in shown(document=as_object, text=True)] == [
        (text, {"text": text}) for text in ("joy", "rain", "snow")
    ]
    assert {"text", "document"}.isdisjoint(shown()[0])
    assert shown(document=lambda text: None)[0]["document"] is None


def test_documents_are_read_from_texts_and_objects():
    """Other keys of an object are ignored."""
    documents = msgspec.json.decode(b'["rain", {"text": "joy", "id": 7}]', type=Documents)
    assert read_documents(documents) == ["rain", "joy"]
