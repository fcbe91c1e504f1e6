"""One `vectord serve` of the default model for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.real_server import running


@pytest.fixture(scope="session")
def vectord_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("server") / "log"
    with running(log, "--rate-limit-requests-per-minute", "0") as (url, _):
        yield url


@pytest.fixture(autouse=True)
def no_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VECTORD_API_KEY", "DOCTOR_TOKEN"):
        monkeypatch.delenv(name, raising=False)
