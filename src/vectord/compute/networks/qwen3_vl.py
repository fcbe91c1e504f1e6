"""The two networks of `model_type: qwen3_vl`: Qwen3-VL-Embedding and Qwen3-VL-Reranker.

config: the text_config, or the vision_config with the processor's scale, means and deviations (checkpoints/kinds/
qwen_vl.py). Names as in transformers/models/qwen3_vl. The network of texts is Qwen3's, with rotary positions of three
axes. That of images makes several rows of each block of patches, one of its last layer and one of each tapped layer:
the first becomes a row of the text, and each other one is added to it after one of the text's first layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from vectord.checkpoints.config_keys import Harmless
from vectord.compute.networks import decoder, encoder, facts
from vectord.compute.networks.decoder import Family
from vectord.compute.networks.heads import Head
from vectord.compute.networks.planes import Plane
from vectord.compute.networks.rotary import read_plain_rotary, read_plane_rotary
from vectord.compute.networks.transformer import Transformer, TransformerWeights
from vectord.compute.networks.weights import Linear, WeightReader
from vectord.compute.ops.base import Ops, T, Tokens
from vectord.errors import ModelUnavailable

TEXTS = ("language_model.", "model.language_model.")
IMAGES = ("visual.", "model.visual.")
POSITIONS = "pos_embed.weight"
MAX_SIDE = 4096  # patches of one side of an image: bounds the tables of positions
FRAMES = 2  # a patch is of two frames of a video; those of an image are equal
NORM_EPS = 1e-6
NAMES = encoder.LayerNames(
    prefix="blocks",
    attention="attn.qkv",
    attention_out="attn.proj",
    attention_norm="norm1",
    mlp=("mlp.linear_fc1",),
    down="mlp.linear_fc2",
    output_norm="norm2",
)
_KEYS = {"num_attention_heads": "num_heads", "num_hidden_layers": "depth"}

HARMLESS: Mapping[str, Harmless] = decoder.HARMLESS
HARMLESS_TENSORS = decoder.HARMLESS_TENSORS


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Transformer[T]:
    if config["model_type"] == "qwen3_vl_text":
        return _load_texts(config, weights.after_prefix(TEXTS, decoder.WORDS), ops)
    return _load_images(config, weights.after_prefix(IMAGES, POSITIONS), ops)


def head_rows(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T], ids: Sequence[int]) -> T:
    return decoder.head_rows(config, weights, ops, ids, prefixes=TEXTS)


def pooler(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Head[T]:
    """(T, (1 + taps) * H) to (M, (1 + taps) * O): one row of each block of patches, through a norm and an MLP.

    Source: Qwen3VLVisionPatchMerger. The last layer's norm is of each patch, the others' of the whole block.
    """
    weights = weights.after_prefix(IMAGES, POSITIONS)
    width, outputs = facts.size(config, "hidden_size"), facts.size(config, "out_hidden_size")
    count = facts.size(config, "spatial_merge_size") ** 2
    wide = count * width
    names = ["merger.", *(f"deepstack_merger_list.{i}." for i in range(len(_taps(config))))]
    mergers = [
        (
            own.norm("norm", wide if i else width),
            own.linear("linear_fc1", wide, wide),
            own.linear("linear_fc2", wide, outputs),
        )
        for i, own in enumerate(map(weights.under, names))
    ]

    def merged(x: T, tokens: Tokens[T]) -> T:
        rows = []
        for i, (norm, up, down) in enumerate(mergers):
            h = ops.columns(x, i * width, (i + 1) * width)
            h = ops.merge(h, count, tokens) if i else h
            h = ops.layer_norm(h, norm.weight, norm.bias, NORM_EPS)
            h = h if i else ops.merge(h, count, tokens)
            h = ops.activation(ops.linear(h, up.weight, up.bias), "gelu")
            rows.append(ops.linear(h, down.weight, down.bias))
        return ops.concat(rows)

    return merged


def _load_texts(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Transformer[T]:
    spec, bias = decoder.read_spec(config), facts.flag(config, "attention_bias", False)
    name = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    section = facts.section(config, name)
    facts.require(section, "mrope_interleaved", True)
    plain = {key: value for key, value in section.items() if not key.startswith("mrope_")}
    rotary = read_plain_rotary(
        {"rope_theta": config.get("rope_theta"), name: plain}, theta=500_000.0, positions=spec.max_tokens
    )
    family = Family(
        qkv_bias=bias,
        out_bias=bias,
        head_norms=True,
        windows=(None,) * spec.layers,
        rotary=rotary,
        axes=_text_axes(section.get("mrope_section", [24, 20, 20]), spec.head_size // 2),
        added_features=facts.size(config, "deepstack_layers", at_least=0, at_most=spec.layers),
    )
    return decoder.load_decoder(spec, family, weights, ops)


def _text_axes(sections: Any, pairs: int) -> tuple[decoder.Array, ...]:
    """Which pairs of a head turn by time, row and column: they take turns, up to three times each section's number."""
    if not isinstance(sections, list) or len(sections) != 3 or any(type(n) is not int or n < 0 for n in sections):
        raise ModelUnavailable("config.json: mrope_section must be three whole numbers")
    at = np.arange(pairs)
    row, column = ((at % 3 == axis) & (at < 3 * sections[axis]) for axis in (1, 2))
    return tuple(axis[None].astype(np.float64) for axis in (~(row | column), row, column))


def _load_images(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Transformer[T]:
    spec, taps = encoder.read_spec(config, keys=_KEYS, norm_eps=NORM_EPS, norm_first=True), _taps(config)
    width, side = spec.hidden_size, facts.size(config, "patch_size")
    facts.require(config, "in_channels", 3)
    facts.require(config, "temporal_patch_size", FRAMES)
    patches = weights.array("patch_embed.proj.weight", width, 3, FRAMES, side, side).sum(axis=2)
    linear = Linear(
        weights.constant("patches", patches.reshape(width, -1)), weights.tensor("patch_embed.proj.bias", width)
    )
    positions, numbers = facts.size(config, "num_position_embeddings"), np.arange(MAX_SIDE, dtype=np.float64)[:, None]
    rotary = read_plane_rotary(config, weights, spec.head_size, MAX_SIDE, theta=10_000.0)
    return Transformer(
        replace(spec, output_size=(1 + len(taps)) * width),
        TransformerWeights(
            words=Plane(
                table=weights.tensor(POSITIONS, positions, width),
                numbers=weights.constant("numbers", numbers.astype(np.float32)),
                inverses=weights.constant("inverses", 1 / np.maximum(numbers, 1)),
            ),
            patches=encoder.read_patches(config, weights, linear),
            layers=tuple(encoder.read_layer(spec, weights, NAMES, i, rotary=rotary) for i in range(spec.layers)),
            taps=taps,
        ),
        ops,
    )


def _taps(config: Mapping[str, Any]) -> tuple[int, ...]:
    layers, count = config.get("deepstack_visual_indexes"), facts.size(config, "depth")
    if not isinstance(layers, list | tuple) or any(type(i) is not int or not 0 <= i < count for i in layers):
        raise ModelUnavailable(f"config.json: deepstack_visual_indexes must be numbers from 0 to {count - 1}")
    if list(layers) != sorted(set(layers)):
        raise ModelUnavailable("config.json: deepstack_visual_indexes must ascend")
    return tuple(layers)
