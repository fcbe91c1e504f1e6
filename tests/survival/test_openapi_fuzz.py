"""Our own OpenAPI description, turned against the server: whatever it allows is answered, and never with a 5xx."""

from __future__ import annotations

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from tests.real_server import running

from vectord.dialects.folder import dialect_names

# Without shrinking: each try is a request. schemathesis's pytest plugin does not run under pytest 9.
QUICKLY = settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def test_whatever_the_description_allows_is_answered(tmp_path):
    """Every route, with bodies and parameters made from its schema: no 5xx, and JSON where JSON is said."""
    options = ("--backend", "fake", "--max-client-batch-size", "64", "--dialects", ",".join(dialect_names()))
    with running(tmp_path / "log", *options) as (url, _):
        operations = [found.ok() for found in schemathesis.openapi.from_url(f"{url}/openapi.json").get_all_operations()]
        for operation in operations:

            @QUICKLY
            @given(operation.as_strategy())
            def answered(case):
                answer = case.call()
                assert answer.status_code < 500, f"{case.method} {case.path}: {answer.text}"
                if answer.headers.get("content-type", [""])[0].startswith("application/json"):
                    answer.json()

            answered()
    assert len(operations) > 60
