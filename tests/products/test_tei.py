"""TEI: the limit of instances. cases/tei.json has the rest."""

from __future__ import annotations

import pytest
from tests.products.results import parsed

from vectord.errors import TooManyInputs
from vectord.products import tei
from vectord.products.tei.routes import MAX_INSTANCES


def test_too_many_instances_are_rejected_before_parsing() -> None:
    """Parsing one costs as much as a small request."""
    with pytest.raises(TooManyInputs) as caught:
        parsed(tei.DIALECT, "/vertex", {"instances": [7] * (MAX_INSTANCES + 1)})
    assert (caught.value.limit, caught.value.given) == (MAX_INSTANCES, MAX_INSTANCES + 1)
