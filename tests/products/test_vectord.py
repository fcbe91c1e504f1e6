"""vectord's own API: its ranking of any scores, and long prompts. cases/vectord.json has the rest."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.products.results import parsed, rerank_result

from vectord.errors import InvalidField
from vectord.products.vectord import DIALECT
from vectord.products.vectord.fields import MAX_PROMPT_CHARACTERS


@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20),
    st.integers(1, 25) | st.none(),
)
def test_results_are_finite_sorted_and_each_passage_once(scores, top_n):
    """For all finite scores."""
    body = {"query": "q", "passages": ["p"] * len(scores), "top_n": top_n}
    shown = json.loads(parsed(DIALECT, "/vectord/rerank", body).render(rerank_result(*scores)).body)["results"]
    assert len(shown) == min(len(scores), top_n or len(scores))
    assert [(-each["score"], each["index"]) for each in shown] == sorted(
        (-each["score"], each["index"]) for each in shown
    )
    assert all(np.float32(each["score"]) == np.float32(scores[each["index"]]) for each in shown)


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [("/vectord/embed", {"inputs": "a"}, "prompt"), ("/vectord/rerank", {"query": "q", "passages": []}, "instruction")],
)
def test_a_prompt_is_bounded(path, body, field):
    """The message does not repeat it."""
    assert parsed(DIALECT, path, {**body, field: "z" * MAX_PROMPT_CHARACTERS}).request
    with pytest.raises(InvalidField) as refused:
        parsed(DIALECT, path, {**body, field: "z" * (MAX_PROMPT_CHARACTERS + 1)})
    assert refused.value.field_name == field
    assert "zz" not in refused.value.message


def test_the_paths_are_not_shared():
    """All are below /vectord/."""
    assert all(one.path.startswith("/vectord/") for one in DIALECT.routes)
