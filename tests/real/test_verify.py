"""`vectord verify` with published weights, and its stored vectors."""

from __future__ import annotations

import numpy as np
import pytest
from tests.real import weights
from tests.real.golden import FOLDERS, encode

from vectord.cli.main import run
from vectord.tools.verify import GOLDEN

pytestmark = pytest.mark.real


@pytest.mark.parametrize("dtype", ["float32", "auto", "int8"])
def test_published_weights_pass(dtype: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", str(weights.mpnet()), "--dtype", dtype, "--tasks", "none"]) == 0
    assert "2 passed, 1 skipped." in capsys.readouterr().out  # FastEmbed does not serve this model


@pytest.mark.parametrize("hub_id", FOLDERS)
def test_the_stored_vectors_are_those_of_sentence_transformers(hub_id: str) -> None:
    with np.load(GOLDEN, allow_pickle=False) as stored:
        np.testing.assert_allclose(stored[hub_id], encode(hub_id), atol=1e-5)
