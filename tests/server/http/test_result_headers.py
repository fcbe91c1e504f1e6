"""Headers that describe results."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from tests.products.results import classify_result, embed_result, model_list, rerank_result, usage

from vectord.schema import DecodeResult, DocumentsResult, EmbedResult, Result, SimilarityResult, TextLength
from vectord.server.http.result_headers import result_headers

LENGTHS = {"x-vectord-tokens-seen", "x-vectord-tokens-kept", "x-vectord-truncated"}
SIMILARITY = SimilarityResult(model="m", fingerprint="f00d", scores=np.zeros(1, np.float32), usage=usage([(3, 3)]))
DOCUMENTS = DocumentsResult(model="m", fingerprint="f00d", documents=[], usage=usage([(3, 3)]))


def lengths_of(*lengths: tuple[int, int]) -> Sequence[TextLength]:
    return [TextLength(seen, kept) for seen, kept in lengths]


@pytest.mark.parametrize(
    ("result", "further"),
    [
        pytest.param(embed_result(used=usage([(3, 3)])), {"x-vectord-fingerprint": "f00d"}, id="embed"),
        pytest.param(DOCUMENTS, {"x-vectord-fingerprint": "f00d"}, id="documents"),
        pytest.param(
            rerank_result(0.5), {"x-vectord-fingerprint": "f00d", "x-vectord-score-kind": "logit"}, id="rerank"
        ),
        pytest.param(
            classify_result([0.1, 0.2, 0.7]),
            {"x-vectord-fingerprint": "f00d", "x-vectord-score-kind": "probability"},
            id="classify",
        ),
        pytest.param(SIMILARITY, {"x-vectord-fingerprint": "f00d"}, id="similarity"),
    ],
)
def test_lengths_space_and_kind_of_score(result: Result, further: dict[str, str]) -> None:
    """Lengths for all results of texts, the space for vectors, the kind for scores."""
    headers = result_headers(result)
    assert {name: value for name, value in headers.items() if name not in LENGTHS} == further
    assert set(headers) >= LENGTHS


@pytest.mark.parametrize("result", [model_list(), DecodeResult(model="m", texts=[])], ids=["models", "decode"])
def test_results_without_texts_have_no_headers(result: Result) -> None:
    assert result_headers(result) == {}


def test_every_model_of_a_composite_counts() -> None:
    """`usage` has the lengths of the first model only."""
    lengths = {"a": lengths_of((4, 4), (9, 4)), "b": lengths_of((6, 2), (7, 7))}
    result = EmbedResult(model="both", fingerprint="f", usage=usage([(4, 4), (9, 4)]), lengths=lengths)
    headers = result_headers(result)
    assert (headers["x-vectord-tokens-seen"], headers["x-vectord-tokens-kept"]) == ("26", "17")
    assert headers["x-vectord-truncated-inputs"] == "0,1"


def test_a_truncated_query_is_reported() -> None:
    """TEI's bare array has no room for it."""
    assert result_headers(rerank_result(0.5, query=TextLength(9, 4)))["x-vectord-query-truncated"] == "true"
