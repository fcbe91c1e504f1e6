"""Results of a ranking that five products' clients can read."""

from __future__ import annotations

import json

import msgspec
import pytest
from tests.products.results import rerank_result

from vectord.products.common.ranking import Documents, TextDocument, as_object, ranked, read_documents
from vectord.products.common.vectors import dump_json

TEXTS = ["rain", "joy", "snow"]
RESULT = rerank_result(0.25, 0.75, 0.25)


def shown(**options: object) -> list[dict[str, object]]:
    """As JSON has it."""
    asked = {"top_n": None, "document": None} | options
    results = json.loads(dump_json(ranked(RESULT, TEXTS, **asked)))  # type: ignore[arg-type]
    assert isinstance(results, list)
    return results


def test_best_first_with_the_place_each_had():
    """Equal ones in the order they came; the score stands under both names."""
    assert [(one["index"], one["relevance_score"], one["score"]) for one in shown()] == [
        (1, 0.75, 0.75),
        (0, 0.25, 0.25),
        (2, 0.25, 0.25),
    ]


@pytest.mark.parametrize(("top_n", "count"), [(1, 1), (2, 2), (3, 3), (9, 3), (0, 3), (None, 3)])
def test_at_most_so_many(top_n, count):
    """The best of them; null and 0 are all."""
    assert [one["index"] for one in shown(top_n=top_n)] == [1, 0, 2][:count]


def test_documents_stand_where_they_are_asked_for():
    """Each its own, under `document` in the form that is given, and beside it as `text`."""
    assert [(one["text"], one["document"]) for one in shown(document=as_object)] == [
        (text, {"text": text}) for text in ("joy", "rain", "snow")
    ]
    assert {"text", "document"}.isdisjoint(shown(text=False)[0])
    assert shown(document=lambda text: None, text=False)[0]["document"] is None


def test_documents_come_as_texts_or_as_objects():
    """Mixed, too; other keys of an object say nothing."""
    sent = b'["rain", {"text": "joy", "id": 7}]'
    documents = msgspec.json.decode(sent, type=Documents)
    assert documents == ["rain", TextDocument("joy")]
    assert read_documents(documents) == ["rain", "joy"]
