"""A tiny random nomic-embed-text-v2, and its states by transformers' NomicBert with the MLPs of Nomic's own code.

transformers has no experts. Formulas: NomicMoELayer of nomic-ai/nomic-bert-2048 (modeling_hf_nomic_bert.py).
Only functions that need torch import it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from tests.compute.networks.case import VOCABULARY, Texts, padded_states
from tests.models import randomize

# config.json of nomic-embed-text-v2-moe, except for the sizes, and for two of its four experts a token.
CONFIG: dict[str, Any] = {
    "model_type": "nomic_bert",
    "architectures": ["NomicBertModel"],
    "activation_function": "gelu",
    "add_pooling_layer": False,
    "expert_choice_router": False,
    "ffn_div": 1,
    "layer_norm_epsilon": 1e-5,
    "mlp_fc1_bias": True,
    "mlp_fc2_bias": True,
    "moe_every_n_layers": 2,
    "moe_impl": "megablocks",
    "moe_normalize_expert_weights": False,
    "moe_resid_pdrop": 0.0,
    "moe_top_k": 2,
    "n_embd": 32,
    "n_head": 4,
    "n_inner": 24,
    "n_layer": 4,
    "n_positions": 128,
    "num_experts": 4,
    "num_shared_experts": 0,
    "pad_token_id": 1,
    "parallel_block": False,
    "prenorm": False,
    "qkv_proj_bias": True,
    "rotary_emb_base": 100,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "router_aux_loss_coef": 0.1,
    "type_vocab_size": 1,
    "use_rms_norm": None,
    "vocab_size": VOCABULARY,
}
# Parts of transformers' names, or of the modules here, and the published ones.
NAMES = {
    "embeddings.LayerNorm": "emb_ln",
    "layers.": "encoder.layers.",
    "self_attn.o_proj": "attn.out_proj",
    "post_attention_layernorm": "norm1",
    "post_mlp_layernorm": "norm2",
    "mlp.router": "mlp.router.layer",
    "mlp.w": "mlp.experts.mlp.w",
    "mlp.bias": "mlp.experts.bias",
}
QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")


def write_experts(folder: Path, **facts: Any) -> Path:
    """A random model under the published names."""
    import torch
    from safetensors.torch import save_file

    config = {**CONFIG, **facts}
    # The routers' logits are as far apart as a trained model's, so that rounding changes no choice.
    model = randomize(_model(config), size=0.2, norm=1.0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "router" in name:
                parameter.mul_(10)
    tensors: dict[str, Any] = {}
    for name, tensor in model.state_dict().items():
        published, part = _published(name)
        tensors.setdefault(published, {})[part] = tensor
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: torch.cat([parts[i] for i in sorted(parts)]) for name, parts in tensors.items()},
        folder / "model.safetensors",
    )
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def experts_states(folder: Path, texts: Texts) -> np.ndarray:
    """Last hidden states, (T, H)."""
    from safetensors.torch import load_file

    model = _model(json.loads((folder / "config.json").read_text()))
    saved = load_file(folder / "model.safetensors")
    places = {name: _published(name) for name in model.state_dict()}
    model.load_state_dict(
        {
            name: saved[published].chunk(3)[part] if "Wqkv" in published else saved[published]
            for name, (published, part) in places.items()
        }
    )
    return padded_states(model, texts, filler=1)


def _published(name: str) -> tuple[str, int]:
    """The published name of a tensor, and which part of that it is."""
    for part, own in enumerate(QKV):
        name, found = name.replace(own, "attn.Wqkv"), own in name
        if found:
            return name.replace("layers.", "encoder.layers."), part
    for own, published in NAMES.items():
        name = name.replace(own, published)
    return name, 0


def _model(config: dict[str, Any]) -> Any:
    import torch
    import transformers
    from torch import nn
    from torch.nn.functional import gelu

    width, inner = config["n_embd"], config["n_inner"]
    for key in ("num_experts", "moe_top_k", "moe_every_n_layers"):
        assert config[key] > 0

    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1 = nn.Linear(width, inner, bias=config["mlp_fc1_bias"])
            self.fc2 = nn.Linear(inner, width, bias=config["mlp_fc2_bias"])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc2(gelu(self.fc1(x)))

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router = nn.Linear(width, config["num_experts"], bias=False)
            self.w1, self.w2 = (nn.Parameter(torch.zeros(config["num_experts"] * inner, width)) for _ in "12")
            self.bias = nn.Parameter(torch.zeros(width))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            shares = self.router(x).softmax(-1)
            least = shares.topk(config["moe_top_k"]).values[..., -1:]
            shares = torch.where(shares >= least, shares, 0)  # not divided by their sum
            parts = zip(self.w1.chunk(config["num_experts"]), self.w2.chunk(config["num_experts"]), strict=True)
            outputs = [gelu(x @ w1.T) @ w2 for w1, w2 in parts]
            return (torch.stack(outputs, -1) * shares[..., None, :]).sum(-1) + self.bias

    known = transformers.NomicBertConfig(
        vocab_size=config["vocab_size"],
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=config["n_layer"],
        num_attention_heads=config["n_head"],
        max_position_embeddings=config["n_positions"],
        type_vocab_size=config["type_vocab_size"],
        layer_norm_eps=config["layer_norm_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": float(config["rotary_emb_base"])},
        pad_token_id=config["pad_token_id"],
    )
    model = transformers.NomicBertModel(known, add_pooling_layer=False)
    for i, layer in enumerate(model.layers):
        layer.mlp = Experts() if i % config["moe_every_n_layers"] == 1 else Dense()
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(layer.self_attn, name, nn.Linear(width, width, bias=config["qkv_proj_bias"]))
    return model
