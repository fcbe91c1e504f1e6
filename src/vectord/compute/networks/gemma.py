"""`model_type: gemma`, the first generation: bge-reranker-v2-gemma. Names as in
transformers/models/gemma/modeling_gemma.py.

Differences from Llama: norm weights stored as difference from 1, and word vectors scaled by the root of their width.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from vectord.compute.networks import decoder, facts
from vectord.compute.networks.decoder import Family
from vectord.compute.networks.transformer import Transformer
from vectord.compute.networks.weights import WeightReader
from vectord.compute.ops.base import Activation, Ops, T

classifier = decoder.classifier
head_rows = partial(decoder.head_rows, tied=True)

HARMLESS = decoder.HARMLESS
HARMLESS_TENSORS = decoder.HARMLESS_TENSORS
# transformers reads "gelu" as the approximation too: released configurations have the wrong name.
_ACTIVATIONS: Mapping[str, Activation] = {**facts.ACTIVATIONS, "gelu": "gelu_tanh"}


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Transformer[T]:
    facts.require(config, "use_bidirectional_attention", False)  # transformers' mask ignores it
    spec, bias = decoder.read_spec(config, activations=_ACTIVATIONS), facts.flag(config, "attention_bias", False)
    spec = replace(spec, word_scale=spec.hidden_size**0.5)
    family = Family(
        qkv_bias=bias,
        out_bias=bias,
        windows=(None,) * spec.layers,
        rotary=decoder.read_decoder_rotary(config, spec),
        norm_offset=1.0,
    )
    return decoder.load_decoder(spec, family, weights, ops)
