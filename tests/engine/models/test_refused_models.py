"""Notable models whose own code decides the numbers are refused by name, whatever their config.json says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.compute.networks.tiny_decoders import CASES
from tests.models import write_bert

from vectord import Embedder
from vectord.errors import ModelUnavailable

# BAAI's reranker whose tokens can be merged, and a config.json that hides it.
REFUSED = {
    "bge-reranker-v2.5-gemma2-lightweight": (
        "cost_wise_gemma",
        "CostWiseGemmaForCausalLM",
        "model_type 'cost_wise_gemma' is supported neither",
    ),
    "as a Gemma 2": ("gemma2", "CostWiseGemmaForCausalLM", "the class CostWiseGemmaForCausalLM is in the model's own"),
}


@pytest.mark.parametrize(("model_type", "own_class", "message"), REFUSED.values(), ids=REFUSED)
def test_a_model_of_its_own_code_is_refused_by_name(
    model_type: str, own_class: str, message: str, tmp_path: Path
) -> None:
    """In one line, before any text is read."""
    folder = CASES["gemma2"].write(tmp_path / "model")
    shutil.copy(write_bert(tmp_path / "bert") / "tokenizer.json", folder)
    config = json.loads((folder / "config.json").read_text())
    own = {
        "model_type": model_type,
        "architectures": [own_class],
        "auto_map": {"AutoModelForCausalLM": f"modeling.{own_class}"},
        "layer_wise": True,
        "start_layer": 1,
    }
    (folder / "config.json").write_text(json.dumps({**config, **own}))
    with pytest.raises(ModelUnavailable) as refused, Embedder(str(folder), dtype="float32", offline=True):
        pass
    assert message in str(refused.value)
    assert str(refused.value).isprintable()
