"""Tiny random decoders and DeBERTas, in transformers' files, and transformers' results for them.

Only functions that write or run a model import torch and transformers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tests.compute.networks.case import Case, Texts, padded_states
from tests.compute.networks.tiny_encoders import change_config
from tests.models import WIDTH, randomize

VOCAB_SIZE = 96
WINDOW = 7  # shorter than the texts of the tests
Head = Literal[
    "AutoModel",
    "AutoModelForCausalLM",
    "AutoModelForSequenceClassification",
    "AutoModelForMaskedLM",
    "AutoModelForTokenClassification",
]

_SIZES: Mapping[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "pad_token_id": VOCAB_SIZE - 1,
}
_DECODER: Mapping[str, Any] = {**_SIZES, "num_key_value_heads": 2, "bos_token_id": None, "eos_token_id": None}
_LAYER_TYPES = ["sliding_attention", "sliding_attention", "full_attention"]

# The differences of each kind of model, with visible effect.
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "qwen2": {**_DECODER, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    "qwen3": {**_DECODER, "head_dim": 16},
    "llama": {**_DECODER, "head_dim": 16, "mlp_bias": True},
    "embedding_gemma2_text": {
        **_DECODER,
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
        "head_dim": 16,
        "global_head_dim": 24,
        "hidden_size_per_layer_input": 12,
        "embedding_dim": 20,
        "sliding_window": WINDOW,
    },
    "eurobert": _DECODER,
    "ultrabert": {**_DECODER, "head_dim": 16, "layer_types": _LAYER_TYPES, "sliding_window": WINDOW},
    "mistral": {**_DECODER, "head_dim": 16, "sliding_window": WINDOW},
    "ministral3": {
        **_DECODER,
        "head_dim": 16,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "mscale": 1.0,
            "mscale_all_dim": 0.5,
            "llama_4_scaling_beta": 0.5,
        },
    },
    "gemma": {**_DECODER, "head_dim": 16, "hidden_act": "gelu"},
    "lfm2": {
        **_DECODER,
        "num_hidden_layers": 4,
        "layer_types": ["conv", "full_attention", "conv", "conv"],
        "conv_L_cache": 3,
        "block_multiple_of": 8,
    },
    "gemma2": {
        **_DECODER,
        "head_dim": 16,
        "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": None,
        "sliding_window": WINDOW,
    },
    "gemma3_text": {
        **_DECODER,
        "head_dim": 16,
        "query_pre_attn_scalar": 24,
        "layer_types": _LAYER_TYPES,
        "sliding_window": 2 * WINDOW,
        "use_bidirectional_attention": True,
    },
    "deberta-v2": {
        **_SIZES,
        "relative_attention": True,
        "position_biased_input": False,
        "pos_att_type": ["p2c", "c2p"],
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "position_buckets": 8,
        "max_relative_positions": 24,
    },
}


def write(model_type: str, folder: Path, *, head: Head = "AutoModel", seed: int = 0, **config: Any) -> Path:
    """config: entries of CONFIGS[model_type] to change."""
    import transformers

    facts = transformers.AutoConfig.for_model(model_type, **{**CONFIGS.get(model_type, _DECODER), **config})
    model = getattr(transformers, head).from_config(facts)
    randomize(model, seed=seed).save_pretrained(folder)
    return folder


def load_reference(folder: Path, head: Head = "AutoModel", **options: Any) -> Any:
    """transformers' own model of the folder, in float64 except for its fixed float32 parts: the means of norms and the
    angles of positions. Its eager attention would give NaN for padding after a window."""
    import torch
    import transformers

    return getattr(transformers, head).from_pretrained(folder, dtype=torch.float64, **options).eval()


def reference(folder: Path, texts: Texts, change: Callable[[Any], Any] | None = None) -> np.ndarray:
    """Last hidden states, (T, H), of `change(model)`.

    Each text alone where transformers has only its eager attention, and where padding would leak into a convolution.
    """
    model = load_reference(folder) if change is None else change(load_reference(folder))
    alone = change is not None or model.config._attn_implementation == "eager"
    batches = [[text] for text in texts] if alone else [texts]
    return np.concatenate([padded_states(model, batch, filler=VOCAB_SIZE - 1) for batch in batches])


# Model types of model repositories: their class, and transformers' name of the same network with a causal mask.
BIDIRECTIONAL: Mapping[str, tuple[str, str]] = {
    "bidirectional_pplx_qwen3": ("PPLXQwen3Model", "qwen3"),
    "biqwen3": ("BiQwen3Model", "qwen3"),
    "lfm2_bidirectional": ("Lfm2BidirectionalModel", "lfm2"),
    "llama_bidirec": ("LlamaBidirectionalModel", "llama"),
    "qwen3_bidirec": ("Qwen3BidirectionalModel", "qwen3"),
    "ministral3_bidirec": ("Ministral3BidirectionalModel", "ministral3"),
}


def write_bidirectional(folder: Path, *, name: str, **config: Any) -> Path:
    """config: as in write."""
    own_class, model_type = BIDIRECTIONAL[name]
    return change_config(write(model_type, folder, **config), model_type=name, architectures=[own_class])


def centre_convolutions(model: Any) -> Any:
    """Change the short convolutions of transformers' Lfm2 as Liquid's Lfm2BidirectionalModel does."""
    import torch
    from torch.nn.functional import conv1d

    def forward(conv: Any, hidden_states: torch.Tensor, **_: Any) -> torch.Tensor:
        before, after, value = conv.in_proj(hidden_states).transpose(1, 2).chunk(3, dim=1)
        width, _, size = conv.conv.weight.shape
        mixed = conv1d(before * value, conv.conv.weight, conv.conv.bias, padding=size // 2, groups=width)
        return conv.out_proj((after * mixed[..., : hidden_states.shape[1]]).transpose(1, 2))

    for layer in model.layers:
        if hasattr(layer, "conv"):
            layer.conv.forward = partial(forward, layer.conv)
    return model


def bidirectional_reference(folder: Path, texts: Texts, *, name: str) -> np.ndarray:
    """Last hidden states, (T, H)."""
    saved = (folder / "config.json").read_text()
    change_config(folder, model_type=BIDIRECTIONAL[name][1], is_causal=False)
    try:
        return reference(folder, texts, centre_convolutions if name == "lfm2_bidirectional" else None)
    finally:
        (folder / "config.json").write_text(saved)


def write_bidirlm(folder: Path) -> Path:
    own = {"model_type": "bigemma3_text", "architectures": ["BiGemma3TextModel"]}
    return change_config(write("gemma3_text", folder), **own, use_bidirectional_attention=None)


def bidirlm_reference(folder: Path, texts: Texts) -> np.ndarray:
    """Last hidden states, (T, H), of transformers' Gemma 3, which is causal by default, with a narrower window then."""
    saved = (folder / "config.json").read_text()
    own = json.loads(saved)
    causal = own.get("use_bidirectional_attention") is False
    own["sliding_window"] += causal
    change_config(folder, **{**own, "model_type": "gemma3_text", "use_bidirectional_attention": not causal})
    try:
        return reference(folder, texts)
    finally:
        (folder / "config.json").write_text(saved)


_C2LLM: Mapping[str, Any] = {
    "architectures": ["C2LLMForEmbedding"],
    "auto_map": {"AutoModel": "modeling_c2llm.C2LLMForEmbedding"},
    "compressed_dim": WIDTH,
    "embedding_method": "pma",
    "pma_ln": True,
    "pma_norm": False,
    "pma_norm_mode": "post_normal",
    "pma_num_heads": 8,
}


def write_c2llm(folder: Path) -> Path:
    """A Qwen2 with the tensors of an attention that pools."""
    import torch
    from safetensors.torch import load_file, save_file

    write("qwen2", folder, head="AutoModelForCausalLM")
    tensors = {f"plm_model.{name}": value for name, value in load_file(folder / "model.safetensors").items()}
    names = {f"mab.fc_{name}.weight": (WIDTH, WIDTH) for name in "qkvo"} | {
        f"mab.fc_{n}.bias": (WIDTH,) for n in "qkvo"
    }
    names |= {f"mab.ln{i}.{name}": (WIDTH,) for i in (0, 1) for name in ("weight", "bias")} | {"S": (1, 1, WIDTH)}
    generator = torch.Generator().manual_seed(1)
    for name, shape in names.items():
        tensors[f"mha_pma.{name}"] = torch.randn(shape, generator=generator) * 0.3
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return change_config(folder, **_C2LLM, model_type="c2llm")


def c2llm_reference(folder: Path, texts: Texts) -> np.ndarray:
    """Last hidden states, (T, H), before the pooling."""
    saved = (folder / "config.json").read_text()
    change_config(folder, model_type="qwen2", auto_map=None, architectures=["Qwen2Model"])
    try:
        model = load_reference(folder, key_mapping={r"^plm_model\.model\.": ""})
        return padded_states(model, texts, filler=VOCAB_SIZE - 1)
    finally:
        (folder / "config.json").write_text(saved)


_MINICPM: Mapping[str, Any] = {"scale_emb": 3, "scale_depth": 0.9, "start_layer": 2, "rope_theta": 100.0}


def write_minicpm(folder: Path, **config: Any) -> Path:
    """A layerwise reranker, with a head after each layer from `start_layer` on. config: as in write.

    FlagEmbedding's class is not installed here. transformers' Granite is the same body, with other names of its scales.
    """
    import torch
    from safetensors.torch import load_file, save_file

    scales = _granite_scales({**_DECODER, **_MINICPM})
    write("granite", folder, head="AutoModelForCausalLM", **scales, **config)
    tensors = load_file(folder / "model.safetensors")
    tensors.pop("lm_head.weight", None)
    generator = torch.Generator().manual_seed(1)
    for i in range(_DECODER["num_hidden_layers"] + 1 - _MINICPM["start_layer"]):
        tensors[f"lm_head.{i}.linear_head.weight"] = torch.randn(1, WIDTH, generator=generator) * 0.3
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    dropped = dict.fromkeys((*scales, "logits_scaling", "mlp_bias", "rope_parameters"))
    name = "LayerWiseMiniCPMForCausalLM"
    return change_config(folder, **dropped, **_MINICPM, model_type="minicpm", architectures=[name])


def _granite_scales(minicpm: Mapping[str, Any]) -> dict[str, float]:
    return {
        "embedding_multiplier": minicpm["scale_emb"],
        "residual_multiplier": minicpm["scale_depth"] / minicpm["num_hidden_layers"] ** 0.5,
        "attention_multiplier": (minicpm["hidden_size"] // minicpm["num_attention_heads"]) ** -0.5,
    }


def minicpm_reference(folder: Path, texts: Texts, *, layers: int | None = None) -> np.ndarray:
    """Last hidden states, (T, H); after so many layers."""
    saved = (folder / "config.json").read_text()
    own = json.loads(saved)
    change_config(folder, model_type="granite", **_granite_scales(own))
    change_config(folder, num_hidden_layers=layers or own["num_hidden_layers"])
    try:
        return reference(folder, texts)
    finally:
        (folder / "config.json").write_text(saved)


def write_embedding_gemma2(folder: Path, **config: Any) -> Path:
    """The model with all towers, here without those of images and audio. config: of the text tower."""
    import transformers

    text = {**CONFIGS["embedding_gemma2_text"], **config}
    facts = transformers.EmbeddingGemma2Config(text_config=text, vision_config=None, audio_config=None)
    randomize(transformers.EmbeddingGemma2Model(facts)).save_pretrained(folder)
    return folder


CASES: dict[str, Case] = {
    "embedding_gemma2": Case(
        write_embedding_gemma2, reference, {"hidden_size": CONFIGS["embedding_gemma2_text"]["embedding_dim"]}
    ),
    "bigemma3_text": Case(write_bidirlm, bidirlm_reference),
    "c2llm": Case(write_c2llm, c2llm_reference),
    "minicpm": Case(write_minicpm, minicpm_reference),
    **{model_type.replace("-", "_"): Case(partial(write, model_type), reference) for model_type in CONFIGS},
    **{
        name: Case(partial(write_bidirectional, name=name), partial(bidirectional_reference, name=name))
        for name in BIDIRECTIONAL
    },
}
