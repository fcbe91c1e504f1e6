"""What the torch op set prepares once for all layers of a forward pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.compute.networks.case import texts_of
from tests.compute.networks.plain_jina_bert import write_jina_bert
from tests.compute.networks.tiny_encoders import CASES, write_tiny
from tests.models import pack_texts

from vectord.checkpoints.checkpoint import open_checkpoint
from vectord.checkpoints.spec import ModelSpec
from vectord.compute.networks.network import Network
from vectord.compute.ops.torch import TorchOps, pack
from vectord.compute.ops.torch.grouped import GroupedLayout

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["mpnet", "jina_bert_v2"])
def test_a_relative_bias_is_laid_out_once(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All layers of MPNet, and of Jina's BERT, add the same tensors to their scores."""
    folder = write_tiny(tmp_path, "MPNet") if name == "mpnet" else write_jina_bert(tmp_path)
    spec: ModelSpec = CASES[name].spec(folder)
    network = Network(spec, open_checkpoint(spec.weights), TorchOps(CPU, torch.float32))
    used: list[list[torch.Tensor]] = []
    biased = GroupedLayout.biased

    def recorded(*given: Any) -> list[torch.Tensor]:
        used.append(biased(*given))
        return used[-1]

    monkeypatch.setattr(GroupedLayout, "biased", recorded)
    network(pack(pack_texts(*texts_of(9, 30)), CPU), {"tokens"})
    assert len(used) == spec.config["num_hidden_layers"] > 1
    assert all(one is used[0] for one in used)
