"""Best first."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from vectord.products.common.ranking import best_first

SCORES = st.lists(
    st.sampled_from([-np.inf, -2.0, -0.0, 0.0, 0.5, 3.0e38])
    | st.floats(width=32, allow_nan=False, allow_subnormal=False)
)


@given(SCORES)
def test_sorted_and_equal_ones_in_their_order(scores):
    """Every place once, from the highest to the lowest; what is equal keeps its order, zeros of either sign too.

    Without subnormal numbers, which are zeros once some library of this process has told the processor so.
    """
    assert best_first(np.array(scores, np.float32)) == sorted(range(len(scores)), key=lambda place: -scores[place])
