"""The two networks of `model_type: siglip`: SigLIP 2 with images of one size. Names as in transformers/models/siglip.

The layers are CLIP's (clip.py). Texts are filled up to the length of training and attend to all of it; an image has no
class token, and its vector is pooled by an attention of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from vectord.compute.networks import clip, encoder, facts
from vectord.compute.networks.heads import Head
from vectord.compute.networks.transformer import Transformer
from vectord.compute.networks.weights import Linear, WeightReader
from vectord.compute.ops.base import AttentionSpec, Ops, T, Tokens

HARMLESS = clip.HARMLESS
HARMLESS_TENSORS = clip.HARMLESS_TENSORS
HEAD = f"{clip.IMAGES}head."


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Transformer[T]:
    if config["model_type"] == "siglip_text_model":
        return clip.load_texts(config, weights, ops)
    words = np.zeros((1, facts.size(config, "hidden_size")))
    return clip.load_images(config, weights, ops, words=weights.constant("words", words), bias=True)


def pooler(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Head[T]:
    """(T, H) to (M, H): a trained query attends to the rows of each image, and an MLP follows.

    Source: SiglipMultiheadAttentionPoolingHead.
    """
    facts.require(config, "vision_use_head", True)
    spec, weights = encoder.read_spec(config), weights.under(HEAD)
    width = spec.hidden_size
    query, key, value = (
        Linear(matrix, weights.tensor("attention.in_proj_bias", 3 * width, rows=slice(i * width, (i + 1) * width)))
        for i, matrix in enumerate(weights.stacked("attention.in_proj_weight", 3 * width, width, count=3))
    )
    out, norm = weights.linear("attention.out_proj", width, width), weights.norm("layernorm", width)
    up, down = (
        weights.linear("mlp.fc1", width, spec.intermediate_size),
        weights.linear("mlp.fc2", spec.intermediate_size, width),
    )
    probe = weights.constant("probe", weights.array("probe", 1, 1, width)[0])  # (1, H)
    attention = AttentionSpec(heads=spec.heads, head_size=spec.head_size)

    def pooled(x: T, tokens: Tokens[T]) -> T:
        def linear(x: T, layer: Linear[T]) -> T:
            return ops.linear(x, layer.weight, layer.bias)

        # The query is that of every row, so all rows of an image have the same result, and the first one is taken.
        q = linear(ops.embed(probe, tokens.ids), query)
        h = linear(ops.first(ops.attention(q, linear(x, key), linear(x, value), tokens, attention), tokens), out)
        normed = ops.layer_norm(h, norm.weight, norm.bias, spec.norm_eps)
        return ops.add(h, linear(ops.activation(linear(normed, up), spec.activation), down))

    return pooled
