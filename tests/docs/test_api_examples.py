"""Sends every command of docs/api.md to a complete server and compares the responses.

The page's models are the default one, whose vectors are real, and two tiny random ones that are written here.
"""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from tests.docs.examples import check_alike, config_of, examples, replies_of
from tests.models import randomize
from tests.reference.reference_models import write_bge_m3, write_bge_reranker
from tests.server.live import Reply

from vectord.products.vectord import DIALECT
from vectord.products.vectord.fields import ERRORS, type_of
from vectord.schema import ScoreKind
from vectord.server import results
from vectord.server.http.routing import Table

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text("utf-8")

EXAMPLES = list(examples(PAGE))


def write_classifier(folder: Path) -> Path:
    """A random XLM-RoBERTa with three labels. Its tokenizer is fixed, because training is not deterministic."""
    from transformers import XLMRobertaConfig, XLMRobertaForSequenceClassification

    labels = dict(enumerate(["sad", "glad", "mad"]))
    config = XLMRobertaConfig.from_pretrained(write_bge_reranker(folder), num_labels=len(labels), id2label=labels)
    randomize(XLMRobertaForSequenceClassification(config)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def replies(tmp_path_factory: pytest.TempPathFactory) -> list[Reply]:
    """The response to each example, in the order of the page."""
    folder = tmp_path_factory.mktemp("api")
    tiny = [write_bge_m3(folder / "tiny-bge-m3"), write_classifier(folder / "tiny-classifier")]
    config = config_of(*tiny, composites=("both=dense:all-MiniLM-L6-v2+sparse:tiny-bge-m3",))
    return replies_of(config, [(one.method, one.path, one.headers, one.body) for one in EXAMPLES])


@pytest.mark.parametrize("place", range(len(EXAMPLES)), ids=[f"{i}-{one.path}" for i, one in enumerate(EXAMPLES)])
def test_the_response_to_an_example_matches_the_page(place: int, replies: list[Reply]) -> None:
    """The keys are equal, and the values are equal up to rounding, times and fingerprints."""
    shown, reply = EXAMPLES[place].answer, replies[place]
    assert (reply.status >= 400) == ("error" in shown), reply.json
    check_alike(shown, reply.json, "answer")


# --- completeness ---------------------------------------------------------------------------------------------


def test_every_route_has_an_example() -> None:
    """A new route without an example fails."""
    table = Table([DIALECT], [], DIALECT.render_error)
    shown = {(one.method, table.find(one.method, one.path).endpoint.path) for one in EXAMPLES}
    assert {(route.method, route.path) for route in DIALECT.routes} <= shown


def test_error_types_score_kinds_and_headers_are_listed() -> None:
    """The page lists error types with statuses, score kinds, and header names."""
    errors = [f"| {status} | `{type_of(kind)}` |" for kind, status in ERRORS.items()]
    kinds = [f"`{kind}`" for kind in get_args(ScoreKind)]
    headers = [
        f"`{value}`" for value in vars(results).values() if isinstance(value, str) and value.startswith("x-vectord-")
    ]
    assert len(headers) == 8
    assert [word for word in (*errors, *kinds, *headers) if word not in PAGE] == []
