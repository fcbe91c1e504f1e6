"""qdrant.py without a server; tests/clients/test_bulk_qdrant.py has one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.bulk.makers import job_of

from vectord.bulk.qdrant import QdrantOutput
from vectord.errors import ConfigError


@pytest.mark.parametrize(
    ("key", "url", "message"),
    [
        ("s3cret\n", "qdrant://127.0.0.1:1/docs", "Connection refused"),  # as the file of a secret ends
        ("s3\ncret", "qdrant://127.0.0.1:1/docs", "QDRANT_API_KEY.*: expected printable ASCII"),
        ("s3crét", "qdrant://127.0.0.1:1/docs", "QDRANT_API_KEY.*: expected printable ASCII"),
        ("", "qdrant://:pa/s3cret@127.0.0.1:1/docs", "in a password as %2F"),
    ],
    ids=["line end", "two lines", "accent", "slash"],
)
def test_an_error_does_not_contain_the_key(monkeypatch: pytest.MonkeyPatch, key: str, url: str, message: str) -> None:
    monkeypatch.setenv("QDRANT_API_KEY", key)
    with pytest.raises(ConfigError, match=message) as refused:
        QdrantOutput(job_of("in.csv", Path("docs"), out_url=url))
    assert "s3c" not in str(refused.value)
