"""Requests generated from the OpenAPI document receive responses that the document describes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.real_server import running
from tests.reference.reference_models import write_bge_m3, write_bge_reranker

from vectord.config import DEFAULT_MODEL

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
CASES = 4  # per route
CASES_UNDER_A_PREFIX = 1  # for routes that equal a shared path


@pytest.fixture(scope="module")
def operations(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[APIOperation]]:
    """Every route of a running server whose fake models support every output."""
    folder = tmp_path_factory.mktemp("fuzz")
    models = (DEFAULT_MODEL, str(write_bge_m3(folder / "bge-m3")), str(write_bge_reranker(folder / "reranker")))
    options = ("--backend", "fake", "--offline", "--max-client-batch-size", "64")
    with running(folder / "log", *models, *options) as (url, _):
        yield [found.ok() for found in schemathesis.openapi.from_url(f"{url}/openapi.json").get_all_operations()]


def quickly(cases: int) -> settings:
    """No shrinking, because each try is a request. schemathesis's pytest plugin does not support pytest 9."""
    return settings(
        max_examples=cases,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


def check(cases: st.SearchStrategy[schemathesis.Case], limit: int, ask: Callable[[schemathesis.Case], object]) -> None:
    quickly(limit)(given(cases)(ask))()


def test_generated_requests_have_documented_responses(operations: list[APIOperation]) -> None:
    """Generated bodies and parameters cause no 5xx, and responses have a documented status, type, headers and body."""
    with requests.Session() as session:

        def ask(case: schemathesis.Case) -> None:
            answer = case.call(session=session)
            case.validate_response(answer, checks=CHECKS)
            if answer.headers.get("content-type") == ["application/json"]:
                answer.json()  # errors have examples instead of a schema

        for operation in operations:
            limit = CASES_UNDER_A_PREFIX if operation.path.startswith("/dialects/") else CASES
            check(operation.as_strategy(), limit, ask)
    assert len(operations) > 200
