"""The two networks of `model_type: siglip`, with images of one size, and `siglip2` (NaFlex), with images of any ratio.

Names as in transformers/models/siglip and siglip2. The layers are CLIP's (clip.py). Texts are filled up to the length
of training and attend to all of it; an image has no class token, and its vector is pooled by an attention of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from vectord.compute.networks import clip, encoder, facts
from vectord.compute.networks.heads import Head, read_by_query
from vectord.compute.networks.planes import ScaledGrid
from vectord.compute.networks.transformer import Transformer
from vectord.compute.networks.weights import Linear, WeightReader
from vectord.compute.ops.base import AttentionSpec, Ops, T, Tokens
from vectord.errors import ModelUnavailable

HARMLESS = clip.HARMLESS
HARMLESS_TENSORS = clip.HARMLESS_TENSORS
HEAD = f"{clip.IMAGES}head."


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Transformer[T]:
    if config["model_type"] in ("siglip_text_model", "siglip2_text_model"):
        return clip.load_texts(config, weights, ops)
    if config["model_type"] == "siglip2_vision_model":
        weights = weights.under(clip.IMAGES)
        width, count = facts.size(config, "hidden_size"), facts.size(config, "num_patches", 256)
        side = math.isqrt(count)
        if side**2 != count:
            raise ModelUnavailable(f"config.json: vision_config.num_patches {count} is not a square")
        table = weights.array("embeddings.position_embedding.weight", count, width)
        ones, same = np.ones((side, 1)), np.eye(side)
        grid = ScaledGrid(
            shares=weights.constant("shares", _shares(side, facts.size(config, "max_position_embeddings"))),
            lines=weights.constant("lines", np.kron(same, ones)),
            columns=weights.constant("columns", np.kron(ones, same)),
            table=weights.constant("positions", table.T),
        )
        return clip.read_images(config, weights, ops, words=grid, bias=True)
    words = np.zeros((1, facts.size(config, "hidden_size")))
    return clip.load_images(config, weights, ops, words=weights.constant("words", words), bias=True)


def _shares(side: int, most: int) -> npt.NDArray[np.float64]:
    """(most * (most + 1) / 2, side): how much each of `side` places counts at each place of a row of 1, 2 ... `most`.

    Source: torch's bilinear interpolation with antialias.
    """
    rows = []
    for size in range(1, most + 1):
        scale = side / size
        distances = np.arange(side) - ((np.arange(size)[:, None] + 0.5) * scale - 0.5)  # (size, side)
        shares = np.maximum(1 - abs(distances) / max(scale, 1), 0)
        rows.append(shares / shares.sum(axis=1, keepdims=True))
    return np.concatenate(rows)


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

        read = read_by_query(ops, linear(probe, query), linear(x, key), linear(x, value), tokens, attention)
        h = linear(read, out)
        normed = ops.layer_norm(h, norm.weight, norm.bias, spec.norm_eps)
        return ops.add(h, linear(ops.activation(linear(normed, up), spec.activation), down))

    return pooled
