"""`vectord doctor` with published weights, and its stored vectors."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.real import weights
from tests.real.golden import FOLDERS, encode

from vectord.cli.main import run
from vectord.tools.doctor.references import GOLDEN

pytestmark = pytest.mark.real


@pytest.mark.parametrize("dtype", ["float32", "auto", "int8"])
def test_published_weights_pass(dtype: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", str(weights.mpnet()), "--dtype", dtype, "--port", "0", "--reference", "--json"]) == 0
    (model,) = json.loads(capsys.readouterr().out)["models"]
    assert [one["verdict"] for one in model["references"]] == ["passed", "passed"]


@pytest.mark.parametrize("hub_id", FOLDERS)
def test_the_stored_vectors_are_those_of_sentence_transformers(hub_id: str) -> None:
    with np.load(GOLDEN, allow_pickle=False) as stored:
        np.testing.assert_allclose(stored[hub_id], encode(hub_id), atol=1e-5)
