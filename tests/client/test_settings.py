"""A client that cannot work is not made."""

from __future__ import annotations

import pytest

import vectord


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"base_url": "localhost:8000"}, "base_url must begin with http"),
        ({"base_url": "ftp://host"}, "base_url must begin with http"),
        ({"base_url": "http://"}, "base_url must begin with http"),
        ({"base_url": "http://host:port"}, "base_url is no URL"),
        ({"timeout_s": 0}, "timeout_s must be above 0"),
        ({"timeout_s": float("nan")}, "timeout_s must be above 0"),
        ({"timeout_s": float("inf")}, "timeout_s must be above 0"),
        ({"timeout_s": -1.0}, "timeout_s must be above 0"),
        ({"timeout_s": "5"}, "timeout_s must be above 0"),
        ({"max_answer_bytes": 0}, "max_answer_bytes must be 1 or more"),
        ({"max_answer_bytes": float("inf")}, "max_answer_bytes must be 1 or more"),
        ({"max_retries": float("nan")}, "max_retries must be 0 or more"),
        ({"concurrency": 2.5}, "concurrency must be 1 to 100"),
        ({"max_retries": -1}, "max_retries must be 0 or more"),
        ({"concurrency": 0}, "concurrency must be 1 to 100"),
        ({"concurrency": 101}, "concurrency must be 1 to 100"),
        ({"texts_per_request": 0}, "texts_per_request must be 1 or more"),
        ({"characters_per_request": 0}, "characters_per_request must be 1 or more"),
        ({"lane": "fast"}, "lane must be one of interactive, bulk"),
    ],
    ids=lambda value: str(value)[:30],
)
@pytest.mark.parametrize("kind", [vectord.Client, vectord.AsyncClient])
def test_a_bad_setting_is_named(kind, settings, message):
    """With what was expected."""
    with pytest.raises(ValueError, match=message):
        kind(**settings)


def test_the_key_is_not_shown():
    """Clients end in logs."""
    with vectord.Client("http://host", api_key="secret") as client:
        assert repr(client) == "Client('http://host')"
        assert "secret" not in repr(vars(client))
