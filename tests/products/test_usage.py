"""The device in TEI's headers. cases/tei.json has the others."""

from __future__ import annotations

import pytest

from vectord.products.tei.usage import compute_headers
from vectord.schema import TextLengths, Usage


@pytest.mark.parametrize(
    ("device", "compute_type"),
    [
        ("cpu", "cpu+optimized"),
        ("cuda:0,cuda:1", "gpu+optimized"),
        ("mps", "gpu+optimized"),
        ("auto", None),
        ("", None),
    ],
)
def test_the_compute_type_names_what_computed(device, compute_type):
    """TEI says gpu+optimized on every device. Absent if a handler class selects its device, and if nothing ran."""
    counted = Usage(lengths=TextLengths(), characters=0, device=device)
    assert compute_headers(counted).get("x-compute-type") == compute_type
