"""The two networks of Qwen2-VL, Qwen2.5-VL and Qwen3-VL: embedders, rerankers, and models of pages (ColQwen).

config: the text_config, or the vision_config with the processor's scale, means and deviations, in Qwen3-VL's keys
(checkpoints/kinds/qwen_vl.py). Names as in transformers/models/qwen2_vl, qwen2_5_vl and qwen3_vl. The network of texts
is Qwen2's or Qwen3's, with rotary positions of three axes. That of images makes a row of each block of patches, which
takes its place in the text. Qwen3-VL's makes several, one of its last layer and one of each tapped layer: each further
one is added to the first after one of the text's first layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from vectord.checkpoints.config_keys import Harmless, harmless
from vectord.compute.networks import decoder, encoder, facts, qwen2
from vectord.compute.networks.decoder import Family
from vectord.compute.networks.heads import Head
from vectord.compute.networks.planes import Plane
from vectord.compute.networks.rotary import read_plain_rotary, read_plane_rotary
from vectord.compute.networks.transformer import Transformer, TransformerWeights
from vectord.compute.networks.weights import Linear, WeightReader
from vectord.compute.ops.base import Ops, T, Tokens, Window
from vectord.errors import ModelUnavailable

_OUTER = ("", "model.", "vlm.", "vlm.model.")  # of bare models, under a head, and of models of pages
TEXTS = (*(f"{outer}language_model." for outer in _OUTER), "model.", "vlm.model.")
IMAGES = tuple(f"{outer}visual." for outer in _OUTER)
POSITIONS, PATCHES = "pos_embed.weight", "patch_embed.proj.weight"
MAX_SIDE = 4096  # patches of one side of an image: bounds the tables of positions
FRAMES = 2  # a patch is of two frames of a video; those of an image are equal
NORM_EPS = 1e-6
_KEYS = {"num_attention_heads": "num_heads", "num_hidden_layers": "depth"}


class Vision(msgspec.Struct, frozen=True, kw_only=True):
    """In what the networks of images differ."""

    mlp: tuple[str] | tuple[str, str]
    down: str
    rms: bool = False
    merger: tuple[str, str, str] = ("ln_q", "mlp.0", "mlp.2")  # its norm and its layers

    @property
    def names(self) -> encoder.LayerNames:
        return encoder.LayerNames(
            prefix="blocks",
            attention="attn.qkv",
            attention_out="attn.proj",
            attention_norm="norm1",
            mlp=self.mlp,
            down=self.down,
            output_norm="norm2",
            norm_bias=not self.rms,
        )


VISION: Mapping[str, Vision] = {
    "qwen2_vl_vision": Vision(mlp=("mlp.fc1",), down="mlp.fc2"),
    "qwen2_5_vl_vision": Vision(mlp=("mlp.up_proj", "mlp.gate_proj"), down="mlp.down_proj", rms=True),
    "qwen3_vl_vision": Vision(
        mlp=("mlp.linear_fc1",), down="mlp.linear_fc2", merger=("norm", "linear_fc1", "linear_fc2")
    ),
}

HARMLESS: Mapping[str, Harmless] = {
    **qwen2.HARMLESS,
    **harmless("of videos", "tokens_per_second"),
    **harmless("the reader of the folder uses it", "window_size"),
}
HARMLESS_TENSORS = decoder.HARMLESS_TENSORS


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Transformer[T]:
    if config["model_type"] in VISION:
        return _load_images(config, weights.after_prefix(IMAGES, PATCHES), ops)
    weights = weights.after_prefix(TEXTS, decoder.WORDS)
    spec, is_third = decoder.read_spec(config), config["model_type"] == "qwen3_vl_text"
    bias = facts.flag(config, "attention_bias", False) if is_third else False
    name = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    section = facts.section(config, name)
    facts.require(section, "mrope_interleaved", is_third)
    plain = {key: "default" if value == "mrope" else value for key, value in section.items() if key[:6] != "mrope_"}
    rotary = read_plain_rotary(
        {"rope_theta": config.get("rope_theta"), name: plain},
        theta=500_000.0 if is_third else 1_000_000.0,
        positions=spec.max_tokens,
    )
    family = Family(
        qkv_bias=bias or not is_third,
        out_bias=bias,
        head_norms=is_third,
        windows=(None,) * spec.layers if is_third else qwen2.read_windows(config, spec),
        rotary=rotary,
        axes=_text_axes(section.get("mrope_section"), spec.head_size // 2, interleaved=is_third),
        added_features=facts.size(config, "deepstack_layers", 0, at_least=0, at_most=spec.layers),
    )
    return decoder.load_decoder(spec, family, weights, ops)


def head_rows(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T], ids: Sequence[int]) -> T:
    return decoder.head_rows(config, weights, ops, ids, prefixes=TEXTS)


def pooler(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Head[T]:
    """(T, (1 + taps) * H) to (M, (1 + taps) * O): one row of each block of patches, through a norm and an MLP.

    Source: Qwen3VLVisionPatchMerger. The last layer's norm is of each patch, the others' of the whole block.
    """
    weights, vision = weights.after_prefix(IMAGES, PATCHES), VISION[config["model_type"]]
    width, outputs = facts.size(config, "hidden_size"), facts.size(config, "out_hidden_size")
    count = facts.size(config, "spatial_merge_size") ** 2
    wide, (norm_name, up_name, down_name) = count * width, vision.merger
    names = ["merger.", *(f"deepstack_merger_list.{i}." for i in range(len(_taps(config))))]
    mergers = [
        (
            own.norm(norm_name, wide if i else width, bias=not vision.rms),
            own.linear(up_name, wide, wide),
            own.linear(down_name, wide, outputs),
        )
        for i, own in enumerate(map(weights.under, names))
    ]

    def merged(x: T, tokens: Tokens[T]) -> T:
        rows = []
        for i, (norm, up, down) in enumerate(mergers):
            h = ops.columns(x, i * width, (i + 1) * width) if len(mergers) > 1 else x
            h = ops.merge(h, count, tokens) if i else h
            if vision.rms:
                h = ops.rms_norm(h, norm.weight, NORM_EPS)
            else:
                h = ops.layer_norm(h, norm.weight, norm.bias, NORM_EPS)
            h = h if i else ops.merge(h, count, tokens)
            h = ops.activation(ops.linear(h, up.weight, up.bias), "gelu")
            rows.append(ops.linear(h, down.weight, down.bias))
        return ops.concat(rows) if len(rows) > 1 else rows[0]

    return merged


def _text_axes(sections: Any, pairs: int, *, interleaved: bool) -> tuple[decoder.Array, ...]:
    """Which pairs of a head turn by time, row and column: one section after the other; or interleaved, they take
    turns, up to three times each section's number."""
    sections = sections or ([24, 20, 20] if interleaved else [16, 24, 24])
    if not isinstance(sections, list) or len(sections) != 3 or any(type(n) is not int or n < 0 for n in sections):
        raise ModelUnavailable("config.json: mrope_section must be three whole numbers")
    if not interleaved and sum(sections) != pairs:
        raise ModelUnavailable(f"config.json: mrope_section must have {pairs} pairs in all, half the width of a head")
    at = np.arange(pairs)
    if interleaved:
        row, column = ((at % 3 == axis) & (at < 3 * sections[axis]) for axis in (1, 2))
    else:
        section = np.repeat([0, 1, 2], sections)
        row, column = section == 1, section == 2
    return tuple(axis[None].astype(np.float64) for axis in (~(row | column), row, column))


def _load_images(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Transformer[T]:
    vision, taps = VISION[config["model_type"]], _taps(config)
    spec = replace(encoder.read_spec(config, keys=_KEYS, norm_eps=NORM_EPS, norm_first=True), rms=vision.rms)
    width, side = spec.hidden_size, facts.size(config, "patch_size")
    facts.require(config, "in_channels", 3)
    facts.require(config, "temporal_patch_size", FRAMES)
    patches = weights.array(PATCHES, width, 3, FRAMES, side, side).sum(axis=2)
    name = "patch_embed.proj.bias"
    bias = weights.tensor(name, width) if name in weights else None
    linear = Linear(weights.constant("patches", patches.reshape(width, -1)), bias)
    rotary = read_plane_rotary(config, weights, spec.head_size, MAX_SIDE, theta=10_000.0)
    whole = None if config.get("fullatt_block_indexes") is None else _layers(config, "fullatt_block_indexes")
    windows: list[Window | None] = [None if whole is None or i in whole else "block" for i in range(spec.layers)]
    words = None
    if "num_position_embeddings" in config:
        numbers = np.arange(MAX_SIDE, dtype=np.float64)[:, None]
        words = Plane(
            table=weights.tensor(POSITIONS, facts.size(config, "num_position_embeddings"), width),
            numbers=weights.constant("numbers", numbers.astype(np.float32)),
            inverses=weights.constant("inverses", 1 / np.maximum(numbers, 1)),
        )
    return Transformer(
        replace(spec, output_size=(1 + len(taps)) * width),
        TransformerWeights(
            words=words,
            patches=encoder.read_patches(config, weights, linear),
            layers=tuple(
                encoder.read_layer(spec, weights, vision.names, i, rotary=rotary, window=window)
                for i, window in enumerate(windows)
            ),
            taps=taps,
        ),
        ops,
    )


def _taps(config: Mapping[str, Any]) -> tuple[int, ...]:
    taps = _layers(config, "deepstack_visual_indexes")
    if list(taps) != sorted(set(taps)):
        raise ModelUnavailable("config.json: deepstack_visual_indexes must ascend")
    return taps


def _layers(config: Mapping[str, Any], key: str) -> tuple[int, ...]:
    layers, count = config.get(key) or (), facts.size(config, "depth")
    if not isinstance(layers, list | tuple) or any(type(i) is not int or not 0 <= i < count for i in layers):
        raise ModelUnavailable(f"config.json: {key} must be numbers from 0 to {count - 1}")
    return tuple(layers)
