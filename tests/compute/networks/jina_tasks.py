"""A tiny jina-embeddings-v3 with LoRA tasks in Jina's own file layout, and its expected states.

Source of the formula: jinaai/xlm-roberta-flash-implementation, modeling_lora.py. Every linear layer and embedding W has
a parametrization for each task: W + B A * alpha / rank, for embeddings W + A B * alpha / rank. The reference merges it
into the weights of transformers' class, so the body is transformers' own.
Only functions that need torch import it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tests.compute.networks.case import VOCABULARY, Texts
from tests.compute.networks.tiny_encoders import change_config, reference_states, write_tiny

if TYPE_CHECKING:
    from torch import Tensor

TASKS = ("retrieval.query", "retrieval.passage", "separation", "classification", "text-matching")
INSTRUCTIONS = {
    **dict.fromkeys(TASKS, ""),
    "retrieval.query": "Represent the query for retrieving evidence documents: ",
    "retrieval.passage": "Represent the document for retrieval: ",
}
RANK, ALPHA = 3, 2

# transformers' names after the layer's number, and Jina's.
_LAYER = {
    "self_attn.o_proj": "mixer.out_proj",
    "post_attention_layernorm": "norm1",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
    "post_mlp_layernorm": "norm2",
}
_PROJECTIONS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_ABSOLUTE = {  # with a table of positions
    "attention.output.dense": "mixer.out_proj",
    "attention.output.LayerNorm": "norm1",
    "intermediate.dense": "mlp.fc1",
    "output.dense": "mlp.fc2",
    "output.LayerNorm": "norm2",
}
_ABSOLUTE_PROJECTIONS = ("attention.self.query", "attention.self.key", "attention.self.value")
_ORIGINAL = ".parametrizations.weight.original"


def write_jina_tasks(folder: Path, *, vocab_size: int = VOCABULARY, **facts: Any) -> Path:
    """Write config.json and model.safetensors, with random adapters of all layers, the unused pooler's too."""
    import torch
    from safetensors.torch import load_file, save_file

    write_tiny(folder, "JinaEmbeddingsV3", type_vocab_size=1, vocab_size=vocab_size)
    generator = torch.Generator().manual_seed(1)
    tensors: dict[str, Tensor] = {}
    for name, tensor in fused(load_file(folder / "model.safetensors")).items():
        layer = name.removesuffix(".weight")
        if tensor.ndim < 2:
            tensors[f"roberta.{name}"] = tensor
            continue
        outputs, inputs = tensor.shape
        shapes = ((RANK, inputs), (outputs, RANK))
        if layer.endswith("_embeddings"):
            shapes = ((outputs, RANK), (RANK, inputs))
        tensors[f"roberta.{layer}{_ORIGINAL}"] = tensor
        for side, shape in zip("AB", shapes, strict=True):
            made = torch.randn((len(TASKS), *shape), generator=generator) * 0.3
            tensors[f"roberta.{layer}.parametrizations.weight.0.lora_{side}"] = made
    save_file(tensors, folder / "model.safetensors")
    theta = json.loads((folder / "config.json").read_text())["rope_parameters"]["rope_theta"]
    return change_config(
        folder,
        model_type="xlm-roberta",
        architectures=["XLMRobertaModel"],
        auto_map={"AutoModel": "jinaai/xlm-roberta-flash-implementation--modeling_lora.XLMRobertaLoRA"},
        position_embedding_type="rotary",
        rotary_emb_base=theta,
        rope_parameters=None,
        use_flash_attn=True,
        load_trained_adapters=True,
        lora_adaptations=list(TASKS),
        lora_alpha=ALPHA,
        lora_rank=RANK,
        lora_dropout_p=0.0,
        lora_main_params_trainable=False,
        task_instructions=INSTRUCTIONS,
        **facts,
    )


def task_states(folder: Path, texts: Texts, task: str | None, scratch: Path) -> np.ndarray:
    """(T, H): the last hidden states of texts under a task; None: with the weights alone. scratch: a new folder."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    merged = {}
    for name, tensor in tensors.items():
        if ".lora_" in name:
            continue
        layer = name.removesuffix(_ORIGINAL)
        weight = tensor
        if name.endswith(_ORIGINAL) and task is not None:
            at = TASKS.index(task)
            a, b = (tensors[f"{layer}.parametrizations.weight.0.lora_{side}"][at] for side in "AB")
            change = a @ b if layer.endswith("_embeddings") else b @ a
            weight = weight + change * (ALPHA / RANK)
        merged[name.replace(_ORIGINAL, ".weight").removeprefix("roberta.")] = weight
    write_tiny(
        scratch, "JinaEmbeddingsV3", type_vocab_size=1, vocab_size=len(merged["embeddings.word_embeddings.weight"])
    )
    save_file(_split(merged), scratch / "model.safetensors", {"format": "pt"})
    return reference_states(scratch, texts, "JinaEmbeddingsV3")


def fused(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """transformers' names to Jina's; query, key and value become one tensor."""
    import torch

    names, made = {**_LAYER, **_ABSOLUTE}, {}
    for name, tensor in tensors.items():
        match = re.fullmatch(r"(?:encoder\.layer|layers)\.(\d+)\.(.+)\.(weight|bias)", name)
        if match is None:
            made[name.replace("embeddings.LayerNorm", "emb_ln")] = tensor
            continue
        number, module, part = match.groups()
        if module in names:
            made[f"encoder.layers.{number}.{names[module]}.{part}"] = tensor
        for projections in (_PROJECTIONS, _ABSOLUTE_PROJECTIONS):
            if module == projections[0]:
                stack = [tensors[name.replace(module, each)] for each in projections]
                made[f"encoder.layers.{number}.mixer.Wqkv.{part}"] = torch.cat(stack)
    return made


def _split(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The way back from `fused`, with rotary positions."""
    names = {own: theirs for theirs, own in _LAYER.items()}
    made = {}
    for name, tensor in tensors.items():
        match = re.fullmatch(r"encoder\.layers\.(\d+)\.(.+)\.(weight|bias)", name)
        if match is None:
            made[name.replace("emb_ln", "embeddings.LayerNorm")] = tensor
            continue
        number, module, part = match.groups()
        if module in names:
            made[f"layers.{number}.{names[module]}.{part}"] = tensor
            continue
        for projection, rows in zip(_PROJECTIONS, tensor.chunk(3), strict=True):
            made[f"layers.{number}.{projection}.{part}"] = rows.clone()
    return made
