"""Tiny random decoders and DeBERTas, in transformers' files, and transformers' results for them.

Only functions that write or run a model import torch and transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tests.compute.networks.case import Case, Texts, padded_states, randomize
from tests.models import WIDTH

VOCAB_SIZE = 96
WINDOW = 7  # shorter than the texts of the tests
Head = Literal["AutoModel", "AutoModelForCausalLM", "AutoModelForSequenceClassification", "AutoModelForMaskedLM"]

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
    "mistral": {**_DECODER, "head_dim": 16, "sliding_window": WINDOW},
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

    facts = transformers.AutoConfig.for_model(model_type, **{**CONFIGS[model_type], **config})
    model = getattr(transformers, head).from_config(facts)
    randomize(model, seed=seed).save_pretrained(folder)
    return folder


def load_reference(folder: Path, head: Head = "AutoModel") -> Any:
    """transformers' own model of the folder, in float64 except for its fixed float32 parts: the means of norms and the
    angles of positions. Its eager attention would give NaN for padding after a window."""
    import torch
    import transformers

    return getattr(transformers, head).from_pretrained(folder, dtype=torch.float64).eval()


def reference(folder: Path, texts: Texts) -> np.ndarray:
    """Last hidden states, (T, H)."""
    return padded_states(load_reference(folder), texts, filler=VOCAB_SIZE - 1)


CASES: dict[str, Case] = {
    model_type.replace("-", "_"): Case(write=partial(write, model_type), reference=reference) for model_type in CONFIGS
}
