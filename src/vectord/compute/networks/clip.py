"""The two networks of `model_type: clip`, for texts and for images. Names as in transformers/models/clip.

config: the text_config, or the vision_config with the processor's scale, means and deviations (checkpoints/kinds/
towers.py). Both are encoders whose norms come first. SigLIP (siglip.py) has the same layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec.structs import replace

from vectord.checkpoints.config_keys import Harmless, harmless
from vectord.compute.networks import encoder, facts
from vectord.compute.networks.planes import ScaledGrid
from vectord.compute.networks.transformer import Transformer, TransformerWeights
from vectord.compute.networks.weights import HarmlessTensors, WeightReader
from vectord.compute.ops.base import Ops, T

TEXTS, IMAGES = "text_model.", "vision_model."
NAMES = encoder.LayerNames(
    prefix="encoder.layers",
    attention=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    attention_out="self_attn.out_proj",
    attention_norm="layer_norm1",
    mlp=("mlp.fc1",),
    down="mlp.fc2",
    output_norm="layer_norm2",
)

HARMLESS: Mapping[str, Harmless] = {
    **harmless("of the projection, a Dense module here", "projection_dim projection_size"),
    **harmless("the processor makes images of one size", "image_size"),
}
HARMLESS_TENSORS = (
    HarmlessTensors("scale and bias of the training loss", r"logit_(scale|bias)"),
    HarmlessTensors("buffers of older versions", r"(text|vision)_model\.embeddings\.position_ids"),
)


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Transformer[T]:
    if config["model_type"] == "clip_text_model":
        return load_texts(config, weights, ops, causal=True)
    width = facts.size(config, "hidden_size")
    own = weights.under(IMAGES)
    words = np.stack([own.array("embeddings.class_embedding", width), np.zeros(width, np.float32)])
    return load_images(
        config,
        weights,
        ops,
        words=own.constant("embeddings.class_embedding", words),
        mask=own.constant("mask", np.array([[0], [1]])),  # the first row of an image has no patch
        first_norm="pre_layrnorm",
        bias=False,
    )


def load_texts(
    config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T], *, causal: bool = False
) -> Transformer[T]:
    weights, spec = weights.under(TEXTS), replace(encoder.read_spec(config, norm_first=True), causal=causal)
    return Transformer(
        spec,
        TransformerWeights(
            words=weights.tensor("embeddings.token_embedding.weight", spec.vocab_size, spec.hidden_size),
            positions=read_positions(config, weights),
            layers=tuple(encoder.read_layer(spec, weights, NAMES, i) for i in range(spec.layers)),
            final_norm=weights.norm("final_layer_norm", spec.hidden_size),
        ),
        ops,
    )


def load_images(
    config: Mapping[str, Any],
    weights: WeightReader[T],
    ops: Ops[T],
    *,
    words: T,
    mask: T | None = None,
    first_norm: str | None = None,
    bias: bool,
) -> Transformer[T]:
    """words (V, H): added to the rows by their ids; mask (V, 1): see Patches. bias: of the patches' embedding."""
    weights = weights.under(IMAGES)
    positions = read_positions(config, weights)
    return read_images(
        config, weights, ops, words=words, positions=positions, mask=mask, first_norm=first_norm, bias=bias
    )


def read_images(
    config: Mapping[str, Any],
    weights: WeightReader[T],
    ops: Ops[T],
    *,
    words: T | ScaledGrid[T],
    positions: T | None = None,
    mask: T | None = None,
    first_norm: str | None = None,
    bias: bool,
) -> Transformer[T]:
    """The network of a reader under its name. positions: None: `words` are, and the ids of rows are their positions."""
    is_scaled = isinstance(words, ScaledGrid)  # its patches are a layer, not a convolution
    spec = encoder.read_spec(config, norm_first=True)
    side, channels = facts.size(config, "patch_size"), facts.size(config, "num_channels")
    facts.require(config, "num_channels", 3)
    linear = weights.convolution(
        "embeddings.patch_embedding", spec.hidden_size, channels, side, side, bias=bias, flat=is_scaled
    )
    return Transformer(
        spec,
        TransformerWeights(
            words=words,
            positions=positions,
            patches=encoder.read_patches(config, weights, linear, mask=mask),
            norm=None if first_norm is None else weights.norm(first_norm, spec.hidden_size),
            layers=tuple(encoder.read_layer(spec, weights, NAMES, i) for i in range(spec.layers)),
            final_norm=weights.norm("post_layernorm", spec.hidden_size),
        ),
        ops,
    )


def read_positions(config: Mapping[str, Any], weights: WeightReader[T]) -> T:
    shape = (facts.size(config, key) for key in ("max_position_embeddings", "hidden_size"))
    return weights.tensor("embeddings.position_embedding.weight", *shape)
