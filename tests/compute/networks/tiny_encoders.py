"""A tiny random model of every encoder in networks/, and the result of its own class in float64.

References are transformers' classes; for JinaBERT, our own plain torch module (plain_jina_bert.py).
Only functions that need torch import it.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tests.compute.networks.case import VOCABULARY, Case, Texts, padded_states
from tests.compute.networks.nomic_experts import experts_states, write_experts
from tests.compute.networks.plain_jina_bert import jina_states, write_jina_bert
from tests.models import randomize

FACTS: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
    "pad_token_id": 1,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
DISTIL_FACTS: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "dim": 32,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 48,
    "max_position_embeddings": 128,
}
MODERN_FACTS: dict[str, Any] = {
    **FACTS,
    "num_hidden_layers": 4,
    "local_attention": 16,  # 8 on either side
    "cls_token_id": 2,
    "sep_token_id": 3,
}
DEBERTA_FACTS: dict[str, Any] = {
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
    "position_biased_input": False,
    "position_buckets": 8,
    "max_relative_positions": 24,
}
NTK: dict[str, Any] = {"type": "ntk", "factor": 3.0}
NTK_THETA = 500.0


def write_tiny(folder: Path, family: str, suffix: str = "Model", **facts: Any) -> Path:
    """A random model of transformers' class {family}{suffix}, as transformers saves it."""
    import transformers

    defaults = {"DistilBert": DISTIL_FACTS, "ModernBert": MODERN_FACTS, "MT5": MT5_FACTS, "T5": T5_FACTS}.get(
        family, FACTS
    )
    config = getattr(transformers, f"{family}Config")(**{**defaults, **facts})
    randomize(getattr(transformers, family + suffix)(config), size=0.2, norm=1.0).save_pretrained(folder)
    return folder


def reference_model(folder: Path, family: str, suffix: str = "Model") -> Any:
    """The folder's model in float64, by transformers' class {family}{suffix}. Not with its eager attention, whose
    output for padding that attends only to padding is NaN, and spreads."""
    import transformers

    return getattr(transformers, family + suffix).from_pretrained(folder).double().eval()


def reference_states(folder: Path, texts: Texts, family: str, suffix: str = "Model") -> np.ndarray:
    return padded_states(reference_model(folder, family, suffix), texts, filler=FACTS["pad_token_id"])


def change_config(folder: Path, **facts: Any) -> Path:
    """Change these entries of the folder's config.json; None removes one."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **facts}
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return folder


def write_new(folder: Path) -> Path:
    """GTE as published before transformers had it: no token types, an older config."""
    write_tiny(folder, "Gte", type_vocab_size=0)
    return change_config(folder, model_type="new", rope_parameters=None, rope_theta=NTK_THETA, rope_scaling=NTK)


def new_states(folder: Path, texts: Texts) -> np.ndarray:
    """transformers' class does not know "ntk", so it gets the cosines and sines here, in float64."""
    import torch

    published = (folder / "config.json").read_text()
    config = json.loads(published)
    scaling = config["rope_scaling"]

    class Rotary(torch.nn.Module):
        def forward(self, x: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            theta, factor = config["rope_theta"], scaling["factor"]
            size = config["hidden_size"] // config["num_attention_heads"]
            frequencies = (theta * factor) ** (-torch.arange(0, size, 2).double() / size) / factor ** (2 / size)
            angles = (positions[..., None] * frequencies).repeat(1, 1, 2)  # (1, L, size)
            return angles.cos(), angles.sin()

    is_ntk = scaling is not None and scaling.get("type") == "ntk"
    change_config(folder, model_type="gte", **({"rope_scaling": None, "rope_theta": None} if is_ntk else {}))
    try:
        model = reference_model(folder, "Gte")
    finally:
        (folder / "config.json").write_text(published)
    if is_ntk:
        model.rotary_emb = Rotary()
    return padded_states(model, texts, filler=FACTS["pad_token_id"])


def _case(family: str, suffix: str = "Model", **facts: Any) -> Case:
    write = partial(write_tiny, family=family, suffix=suffix, **facts)
    return Case(write, partial(reference_states, family=family, suffix=suffix))


T5_FACTS: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "d_kv": 12,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 24,
}
MT5_FACTS: dict[str, Any] = {**T5_FACTS, "feed_forward_proj": "gated-gelu"}


CASES: dict[str, Case] = {
    "albert": _case("Albert", embedding_size=12, num_hidden_layers=5, num_hidden_groups=2, inner_group_num=2),
    "bert": _case("Bert"),
    "camembert": _case("Camembert", type_vocab_size=1),
    "distilbert": _case("DistilBert"),
    "electra": _case("Electra", embedding_size=12),
    "ernie": _case("Ernie", use_task_id=True),
    "gte": _case("Gte"),
    "jina_bert_v2": Case(write_jina_bert, jina_states, {"architecture": "jina_bert_v2"}),
    "jina_embeddings_v3": _case("JinaEmbeddingsV3", type_vocab_size=1),
    "modernbert": _case("ModernBert"),
    "mpnet": _case("MPNet", max_position_embeddings=130),
    "mt5": _case("MT5", "EncoderModel"),
    "new": Case(write_new, new_states),
    "nomic_bert": _case("NomicBert"),
    "nomic_bert of experts": Case(write_experts, experts_states),
    "roberta": _case("Roberta", type_vocab_size=2),
    "t5": _case("T5", "EncoderModel"),
    "xlm_roberta": _case("XLMRoberta", type_vocab_size=1),
}
