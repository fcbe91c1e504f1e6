"""The two networks of `model_type: t5gemma2`, an encoder of passages and a decoder of queries: KaLM-Reranker-V1.

config: the section of one network (checkpoints/kinds/encoder_decoder.py). Names as in transformers/models/t5gemma2. The
layers are Gemma 3's; those with a window see one token more after a token than before it. In the decoder, a query
attends with one softmax to its own earlier tokens and, in every layer, to the encoder's last states: the first rows of
its text, of which a window hides none. So a query that is no longer than the window needs none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from vectord.checkpoints.config_keys import Harmless, harmless
from vectord.compute.networks import decoder, facts, gemma
from vectord.compute.networks.rotary import rotary_table
from vectord.compute.networks.transformer import Transformer, TransformerWeights
from vectord.compute.networks.weights import HarmlessTensors, WeightReader
from vectord.compute.ops.base import Ops, T

DECODER = "t5gemma2_decoder"
# Of the encoder, bare or under a head; transformers 5 has read both forms and writes the shorter one.
_ENCODERS = tuple(prefix + name for prefix in decoder.PREFIXES for name in ("encoder.", "encoder.text_model."))
_NORMS = ("pre_self_attn_layernorm", "post_self_attn_layernorm")

HARMLESS: Mapping[str, Harmless] = {**gemma.HARMLESS, **harmless("training only", "dropout_rate")}
HARMLESS_TENSORS = (
    *decoder.HARMLESS_TENSORS,
    HarmlessTensors("the vector of a token after images, which no text has", r".+\.eoi_embedding"),
)


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Transformer[T]:
    reads_queries = config["model_type"] == DECODER
    spec, third = gemma.read(config)
    spec = replace(spec, causal=reads_queries)
    body = encoder = weights.after_prefix(_ENCODERS, decoder.WORDS)
    if reads_queries:
        body = weights.after_prefix([prefix + "decoder." for prefix in decoder.PREFIXES], "norm.weight")
    size = facts.size(config, "sliding_window", 4096)
    window = None if reads_queries else (size + 1) // 2 - 1
    family = replace(third, window_after=size // 2, attention_norms=_NORMS)
    assert family.sliding_rotary is not None
    axes = (weights.constant("rotary.axis", np.ones((1, spec.head_size // 2))),) if reads_queries else ()
    tables = [
        replace(rotary_table(weights, each, spec.head_size, spec.max_tokens), axes=axes)
        for each in (family.rotary, family.sliding_rotary)
    ]
    slides = [each is not None for each in third.windows]
    return Transformer(
        spec,
        TransformerWeights(
            words=encoder.tensor(decoder.WORDS, spec.vocab_size, spec.hidden_size),
            keeps_features=reads_queries,
            layers=tuple(
                decoder.read_layer(
                    spec, family, body.under(f"layers.{i}."), tables[each], None, window if each else None
                )
                for i, each in enumerate(slides)
            ),
            final_norm=decoder.read_norm(family, body, "norm", spec.hidden_size),
        ),
        ops,
    )


def head_rows(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T], ids: Sequence[int]) -> T:
    facts.require(config, "final_logit_softcapping", None)
    return decoder.head_rows(config, weights, ops, ids, tied=True, prefixes=_ENCODERS)
