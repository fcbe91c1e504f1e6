"""Checkpoints of Jina's own code for XLM-RoBERTa: the numbers of transformers' classes under other names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.compute.networks.case import numpy_answer, texts_of
from tests.compute.networks.jina_tasks import fused
from tests.compute.networks.tiny_encoders import CASES, change_config, write_tiny

from vectord.checkpoints.reader import read_spec
from vectord.checkpoints.spec import Located
from vectord.errors import ModelUnavailable

TEXTS = texts_of(9, 1, 40, 2)


def rename(folder: Path) -> Path:
    """Rewrite the checkpoint with Jina's names; query, key and value become one tensor."""
    path = folder / "model.safetensors"
    save_file(fused(load_file(path)), path)
    return folder


@pytest.mark.parametrize(("positions", "family"), [("absolute", "XLMRoberta"), ("rotary", "JinaEmbeddingsV3")])
def test_states_equal_transformers(positions: str, family: str, tmp_path: Path) -> None:
    """With a table of positions as jina-reranker-v2, and with rotary ones as jina-colbert-v2."""
    folder = write_tiny(tmp_path, family, type_vocab_size=1)
    want = CASES["xlm_roberta" if positions == "absolute" else "jina_embeddings_v3"].reference(folder, TEXTS)
    facts: dict[str, Any] = {"model_type": "xlm-roberta", "position_embedding_type": positions, "use_flash_attn": True}
    if positions == "rotary":
        facts["rotary_emb_base"] = json.loads((folder / "config.json").read_text())["rope_parameters"]["rope_theta"]
    spec = CASES["xlm_roberta"].spec(change_config(rename(folder), **facts))
    np.testing.assert_allclose(numpy_answer(spec, TEXTS), want, atol=1e-5)


def test_rotary_positions_without_jinas_tensors_are_refused(tmp_path: Path) -> None:
    """Other checkpoints may rotate in another way."""
    folder = change_config(write_tiny(tmp_path, "XLMRoberta"), position_embedding_type="rotary")
    with pytest.raises(ModelUnavailable, match="xlm-roberta-flash's tensors"):
        numpy_answer(CASES["xlm_roberta"].spec(folder), TEXTS)


def test_jina_colbert_v2_is_read_as_stanford_saves_it(tmp_path: Path) -> None:
    """Its own class, rotary positions, and the projection among the weights of the body."""
    folder = rename(write_tiny(tmp_path, "JinaEmbeddingsV3", type_vocab_size=1))
    want = CASES["jina_embeddings_v3"].reference(
        write_tiny(tmp_path / "same", "JinaEmbeddingsV3", type_vocab_size=1), TEXTS
    )
    tensors = load_file(folder / "model.safetensors")
    linear = torch.randn(8, 32, generator=torch.Generator().manual_seed(0))
    save_file(
        {**{f"roberta.{name}": tensor for name, tensor in tensors.items()}, "linear.weight": linear},
        folder / "model.safetensors",
    )
    change_config(
        folder,
        model_type="xlm-roberta",
        architectures=["HF_ColBERT"],
        auto_map={"AutoModel": "jinaai/xlm-roberta-flash-implementation--modeling_xlm_roberta.XLMRobertaModel"},
        position_embedding_type="rotary",
        rotary_emb_base=json.loads((folder / "config.json").read_text())["rope_parameters"]["rope_theta"],
        rope_parameters=None,
        load_trained_adapters=False,
        lora_rank=4,
        truncate_dim=None,
    )
    (folder / "tokenizer.json").write_text("{}")
    (folder / "artifact.metadata").write_text('{"query_token_id": "[QueryMarker]", "doc_token_id": "[DocumentMarker]"}')
    spec = read_spec(Located(folder=folder, model_id="jina-colbert-v2", revision=None, source="folder"))
    assert spec.colbert is not None and spec.colbert.query_prefix == "[QueryMarker]" and not spec.adapters
    projected = want @ linear.double().numpy().T
    expected = projected / np.linalg.norm(projected, axis=1, keepdims=True)
    np.testing.assert_allclose(numpy_answer(spec, TEXTS, "colbert"), expected, atol=1e-5)
