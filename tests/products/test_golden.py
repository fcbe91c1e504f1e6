"""Every product answers the requests of tests/products/cases as the files say; golden.py describes them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.products.golden import Case, completed, products, read_cases, written

from vectord.products.common.dialect import Parse, Route, load_dialects

CASES = [
    pytest.param(product, case, id=f"{product}: {case['name']}")
    for product in products()
    for case in read_cases(product)
]


@pytest.mark.parametrize(("product", "case"), CASES)
async def test_a_request_has_its_outcome(product: str, case: Case) -> None:
    """`python -m tests.products.golden` writes the present one."""
    now, _ = await completed(product, case)
    assert written(now) == written(case)


@pytest.mark.parametrize("product", products())
async def test_every_route_has_a_case(product: str) -> None:
    """And every case a name of its own."""
    cases = read_cases(product)
    assert [name for name, count in Counter(case["name"] for case in cases).items() if count > 1] == []
    answered: set[Any] = set()
    for case in cases:
        _, routes = await completed(product, case)
        answered.update(map(_key, routes))
    (dialect,) = load_dialects([product])
    assert {_key(route) for route in dialect.routes} - answered == set()


def _key(route: Route) -> tuple[str, str, Parse]:
    return route.method, route.path, route.parse
