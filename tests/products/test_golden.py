"""Every product answers the requests of tests/products/cases as the files say; golden.py describes them."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.products.golden import Case, completed, products, read_cases, requests_of, routes_of, written

from vectord.products.common.dialect import load_dialects

CASES = [
    pytest.param(product, case, id=f"{product}: {case['name']}")
    for product in products()
    for case in read_cases(product)
]


@pytest.mark.parametrize(("product", "case"), CASES)
async def test_a_request_has_its_outcome(product: str, case: Case) -> None:
    """`python -m tests.products.golden` writes the present one."""
    assert written(await completed(product, case)) == written(case)


@pytest.mark.parametrize("product", products())
def test_every_route_has_a_case(product: str) -> None:
    """And every case a name of its own."""
    cases = read_cases(product)
    assert [name for name, count in Counter(case["name"] for case in cases).items() if count > 1] == []
    requests = [request for case in cases for request in requests_of(case)]
    asked = [route for request in requests for _, route in routes_of(product, request)]
    (dialect,) = load_dialects([product])
    assert [route.path for route in dialect.routes if route not in asked] == []
