"""A tiny random BERT with relative positions, and its states by transformers' BERT with the attention of version 4.

transformers 5 has no relative positions. Formulas: BertSelfAttention of transformers 4.56, whose own class gives the
same states. Only functions that need torch import it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tests.compute.networks.case import Texts, padded_states

if TYPE_CHECKING:
    import torch

NAME = "encoder.layer.{}.attention.self.distance_embedding.weight"


def add_distances(folder: Path, kind: str) -> Path:
    """Add a vector for each distance to the BERT in the folder. kind: relative_key or relative_key_query."""
    import torch
    from safetensors.torch import load_file, save_file

    file = folder / "config.json"
    config = {**json.loads(file.read_text()), "position_embedding_type": kind}
    file.write_text(json.dumps(config))
    shape = 2 * config["max_position_embeddings"] - 1, config["hidden_size"] // config["num_attention_heads"]
    generator = torch.Generator().manual_seed(5)
    tables = {NAME.format(i): torch.randn(shape, generator=generator) * 0.4 for i in range(config["num_hidden_layers"])}
    weights = folder / "model.safetensors"
    save_file({**load_file(weights), **tables}, weights, {"format": "pt"})
    return folder


def relative_states(folder: Path, texts: Texts) -> np.ndarray:
    """Last hidden states, (T, H)."""
    import torch
    import transformers
    from safetensors.torch import load_file
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    kind = json.loads((folder / "config.json").read_text())["position_embedding_type"]
    assert kind in ("relative_key", "relative_key_query")

    def attend(
        module: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, **_: Any
    ) -> tuple[torch.Tensor, None]:
        places = torch.arange(q.shape[2])
        table = module.distances
        apart = table[places[:, None] - places + (len(table) - 1) // 2]  # (L, L, size)
        scores = q @ k.mT + torch.einsum("bhld,lrd->bhlr", q, apart)
        if kind == "relative_key_query":
            scores = scores + torch.einsum("bhrd,lrd->bhlr", k, apart)
        scores = scores / q.shape[-1] ** 0.5
        scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
        return (scores.softmax(-1) @ v).transpose(1, 2), None

    ALL_ATTENTION_FUNCTIONS.register("sdpa_with_distances", attend)
    model = transformers.BertModel.from_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    with torch.no_grad():
        model.embeddings.position_embeddings.weight.zero_()
    for i, layer in enumerate(model.encoder.layer):
        layer.attention.self.distances = weights[NAME.format(i)].double()
    mask_of = transformers.masking_utils.ALL_MASK_ATTENTION_FUNCTIONS
    mask_of.register("sdpa_with_distances", mask_of["sdpa"])
    model.config._attn_implementation = "sdpa_with_distances"
    return padded_states(model, texts)
