"""`model_type: mistral`: E5-Mistral, Linq, SFR. Names as in transformers/models/mistral/modeling_mistral.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vectord.compute.networks import decoder
from vectord.compute.networks.decoder import Family
from vectord.compute.networks.rotary import read_sliding
from vectord.compute.networks.transformer import Transformer
from vectord.compute.networks.weights import WeightReader
from vectord.compute.ops.base import Ops, T
from vectord.errors import ModelUnavailable

classifier = decoder.classifier
head_rows = decoder.head_rows


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Transformer[T]:
    """Raises ModelUnavailable."""
    spec = decoder.read_spec(config)
    sliding = {"sliding_window": 4096, **config}  # null: no layer slides; absent: transformers' default
    window = None if sliding["sliding_window"] is None else decoder.read_window(sliding, causal=spec.causal)
    usual = [window is not None] * spec.layers
    if read_sliding(config, usual) != tuple(usual):  # transformers' class has no layers of several kinds
        raise ModelUnavailable(
            "config.json: layer_types must agree with sliding_window: all layers of mistral attend to a window, or none"
        )
    family = Family(windows=(window,) * spec.layers, rotary=decoder.read_decoder_rotary(config, spec))
    return decoder.load_decoder(spec, family, weights, ops)
