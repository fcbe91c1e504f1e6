"""JinaBERT v2 in plain torch, padded and in float64, because transformers has no class for it.

Written from the description: BERT whose scores have -slope * |i - j| added (ALiBi), with a gated MLP; the code models
also have norms of queries and keys, and one more of the sum of attention's output and the layer's input.
Only functions that need torch import it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tests.compute.networks.case import VOCABULARY, Texts, pad

if TYPE_CHECKING:
    from torch import Tensor

WIDTH, HEADS, BETWEEN, LAYERS = 48, 6, 40, 2  # 6 heads: not a power of 2
SLOPES = {  # by the number of heads: those of the next lower power of 2, then every other of twice that power
    3: [2**-4, 2**-8, 2**-2],
    6: [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3],
}

CONFIG: dict[str, Any] = {
    "model_type": "bert",
    "architectures": ["JinaBertModel"],
    "position_embedding_type": "alibi",
    "feed_forward_type": "geglu",
    "hidden_act": "gelu",
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": BETWEEN,
    "max_position_embeddings": 128,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
}


def write_jina_bert(folder: Path, *, code: bool = False, prefix: str = "", **facts: Any) -> Path:
    """A random model under the published names. code: the layout of jina-embeddings-v2-base-code."""
    import torch
    from safetensors.torch import save_file

    config = {**CONFIG, **facts}
    generator = torch.Generator().manual_seed(0)
    shapes = _shapes(config["feed_forward_type"], code)
    tensors = {
        prefix + name: torch.randn(shape, generator=generator) * 0.2 + (len(shape) == 1 and name.endswith(".weight"))
        for name, shape in shapes.items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _shapes(feed_forward: str, code: bool) -> dict[str, tuple[int, ...]]:
    linears: dict[str, tuple[int, int]] = {}
    norms = ["embeddings.LayerNorm"]
    bare = {
        "embeddings.word_embeddings.weight": (VOCABULARY, WIDTH),
        "embeddings.token_type_embeddings.weight": (2, WIDTH),
    }
    gated = feed_forward != "original"
    for name in (f"encoder.layer.{i}" for i in range(LAYERS)):
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            linears[f"{name}.attention.{part}"] = (WIDTH, WIDTH)
        norms.append(f"{name}.attention.output.LayerNorm")
        if code:
            bare[f"{name}.mlp.{'up_gated_layer' if gated else 'up_layer'}.weight"] = (BETWEEN * (1 + gated), WIDTH)
            linears[f"{name}.mlp.down_layer"] = (WIDTH, BETWEEN)
            norms += [f"{name}.attention.self.layer_norm_{part}" for part in "qk"]
            norms += [f"{name}.layer_norm_1", f"{name}.layer_norm_2"]
        elif gated:
            bare[f"{name}.mlp.gated_layers.weight"] = (BETWEEN * 2, WIDTH)
            linears[f"{name}.mlp.wo"] = (WIDTH, BETWEEN)
            norms.append(f"{name}.mlp.layernorm")
        else:
            linears[f"{name}.intermediate.dense"] = (BETWEEN, WIDTH)
            linears[f"{name}.output.dense"] = (WIDTH, BETWEEN)
            norms.append(f"{name}.output.LayerNorm")
    biases = {f"{name}.bias": shape[:1] for name, shape in linears.items()}
    weights = {f"{name}.weight": shape for name, shape in linears.items()}
    return {
        **bare,
        **weights,
        **biases,
        **{f"{name}.{part}": (WIDTH,) for name in norms for part in ("weight", "bias")},
    }


def jina_states(folder: Path, texts: Texts, types: Texts | None = None, prefix: str = "") -> np.ndarray:
    """Last hidden states, (T, H). types: token types of each text, all 0 if none are given."""
    import torch
    from safetensors.torch import load_file

    ids, mask = pad(texts)
    type_ids = torch.zeros_like(ids) if types is None else pad(types)[0]
    saved = load_file(folder / "model.safetensors")
    tensors = {name.removeprefix(prefix): tensor.double() for name, tensor in saved.items()}
    config = json.loads((folder / "config.json").read_text())
    model = _JinaBert(tensors, config)
    with torch.no_grad():
        return np.asarray(model(ids, type_ids, mask)[mask.bool()].numpy())


class _JinaBert:
    def __init__(self, tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
        from torch.nn.functional import gelu, relu

        self.tensors = tensors
        self.heads = config["num_attention_heads"]
        self.eps = config["layer_norm_eps"]
        self.act = relu if config["feed_forward_type"] == "reglu" else gelu

    def linear(self, x: Tensor, name: str) -> Tensor:
        y = x @ self.tensors[f"{name}.weight"].T
        return y + self.tensors[f"{name}.bias"] if f"{name}.bias" in self.tensors else y

    def norm(self, x: Tensor, name: str) -> Tensor:
        from torch.nn.functional import layer_norm

        return layer_norm(x, (WIDTH,), self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"], self.eps)

    def __call__(self, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
        x = self.tensors["embeddings.word_embeddings.weight"][ids]
        x = self.norm(x + self.tensors["embeddings.token_type_embeddings.weight"][types], "embeddings.LayerNorm")
        for name in (f"encoder.layer.{i}" for i in range(LAYERS)):
            a = self.norm(x + self.attend(x, mask, f"{name}.attention"), f"{name}.attention.output.LayerNorm")
            x = self.code_half(x, a, name) if f"{name}.layer_norm_1.weight" in self.tensors else self.half(a, name)
        return x

    def attend(self, x: Tensor, mask: Tensor, name: str) -> Tensor:
        import torch

        q, k, v = (self.linear(x, f"{name}.self.{part}") for part in ("query", "key", "value"))
        if f"{name}.self.layer_norm_q.weight" in self.tensors:
            q, k = self.norm(q, f"{name}.self.layer_norm_q"), self.norm(k, f"{name}.self.layer_norm_k")
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (q, k, v))  # (N, heads, L, size)
        places = torch.arange(x.shape[1]).double()
        far = (places[:, None] - places).abs() * torch.tensor(SLOPES[self.heads]).double()[
            :, None, None
        ]  # (heads, L, L)
        scores = q @ k.transpose(2, 3) / (WIDTH // self.heads) ** 0.5 - far
        scores = scores.masked_fill(mask[:, None, None, :] == 0, float("-inf"))
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        return self.linear(mixed, f"{name}.output.dense")

    def half(self, a: Tensor, name: str) -> Tensor:
        if f"{name}.intermediate.dense.weight" in self.tensors:
            h = self.linear(self.act(self.linear(a, f"{name}.intermediate.dense")), f"{name}.output.dense")
            return self.norm(a + h, f"{name}.output.LayerNorm")
        gate, up = self.linear(a, f"{name}.mlp.gated_layers").chunk(2, dim=-1)
        return self.norm(a + self.linear(self.act(gate) * up, f"{name}.mlp.wo"), f"{name}.mlp.layernorm")

    def code_half(self, x: Tensor, a: Tensor, name: str) -> Tensor:
        x = self.norm(x + a, f"{name}.layer_norm_1")
        if f"{name}.mlp.up_layer.weight" in self.tensors:
            h = self.act(self.linear(x, f"{name}.mlp.up_layer"))
        else:
            up, gate = self.linear(x, f"{name}.mlp.up_gated_layer").chunk(2, dim=-1)
            h = up * self.act(gate)
        return self.norm(x + self.linear(h, f"{name}.mlp.down_layer"), f"{name}.layer_norm_2")
