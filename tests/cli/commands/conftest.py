"""One `vectord serve` of the default model for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.checkpoints.folders import write_sentence_model
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


def write_cached(repository: Path, commit: str = "a" * 40) -> Path:
    """A model in a folder of a Hugging Face cache, such as models--some--model. Returns its snapshot."""
    folder = write_sentence_model(repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    return folder
