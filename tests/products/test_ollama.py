"""What the golden cases of Ollama cannot show: their models are all ready."""

from __future__ import annotations

import pytest
from tests.products.results import model_info, model_list, parsed

from vectord.errors import ModelFailed
from vectord.products.ollama import DIALECT


@pytest.mark.parametrize("reason", ["no such file", ""])
def test_pulling_a_failed_model_fails(reason: str) -> None:
    """With the reason for operators, whom alone the facts tell it."""
    failed = model_info("org/model", state="failed", failure=reason)
    call = parsed(DIALECT, "/api/pull", {"model": "org/model"})
    with pytest.raises(ModelFailed) as caught:
        call.answered(model_list(failed))
    assert caught.value.message == f"The model org/model could not be loaded{reason and ': '}{reason or '.'}"
