"""`model_type: mistral` (E5-Mistral, Linq, SFR), `ministral3` and `ministral3_bidirec` (NVIDIA's).

Names as in transformers/models/mistral/modeling_mistral.py and ministral3/modeling_ministral3.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec.structs import replace

from vectord.checkpoints.config_keys import Harmless
from vectord.compute.networks import decoder, facts
from vectord.compute.networks.decoder import Family
from vectord.compute.networks.rotary import read_plain_rotary, read_sliding
from vectord.compute.networks.transformer import Transformer
from vectord.compute.networks.weights import WeightReader
from vectord.compute.ops.base import Ops, T
from vectord.errors import ModelUnavailable

classifier = decoder.classifier
head_rows = decoder.head_rows

_BETA = "llama_4_scaling_beta"

HARMLESS: Mapping[str, Harmless] = decoder.HARMLESS
HARMLESS_TENSORS = decoder.HARMLESS_TENSORS


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Transformer[T]:
    spec, is_mistral = decoder.read_spec(config), config["model_type"] == "mistral"
    size = config.get("sliding_window", 4096 if is_mistral else None)  # null: no layer slides; absent: the default
    window = None if size is None else decoder.read_window({"sliding_window": size}, causal=spec.causal)
    usual = [window is not None] * spec.layers
    if read_sliding(config, usual) != tuple(usual):  # transformers' class has no layers of several kinds
        raise ModelUnavailable(
            "config.json: layer_types must agree with sliding_window: all layers of mistral attend to a window, or none"
        )
    windows = (window,) * spec.layers
    if is_mistral:
        family = Family(windows=windows, rotary=decoder.read_decoder_rotary(config, spec))
    else:
        facts.require(config, "rope_scaling", None)
        section = facts.section(config, "rope_parameters")
        if not section:
            raise ModelUnavailable("config.json: rope_parameters is missing, which ministral3 needs")
        # The second key is a copy of the config's own.
        others = {key: value for key, value in section.items() if key not in (_BETA, "max_position_embeddings")}
        rotary = read_plain_rotary({"rope_parameters": others}, theta=1e6, positions=spec.max_tokens)
        family = Family(windows=windows, rotary=rotary)
        trained = facts.size(section, "original_max_position_embeddings")
        beta = facts.number(section, _BETA, 0.0)
        if trained < spec.max_tokens:
            # Source: get_llama_4_attn_scale in transformers/models/ministral3/modeling_ministral3.py.
            factors = 1 + beta * np.log1p(np.arange(spec.max_tokens) // trained)  # (max_tokens,) of each query
            family = replace(family, query_factors=factors)
    return decoder.load_decoder(spec, family, weights, ops)
