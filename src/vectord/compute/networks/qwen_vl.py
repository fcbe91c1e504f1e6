"""The two networks of Qwen2-VL, Qwen2.5-VL and Qwen3-VL: embedders, rerankers, and models of pages (ColQwen).

config: the text_config, or the vision_config with the processor's scale, means and deviations, in Qwen3-VL's keys
(checkpoints/kinds/qwen_vl.py). Names as in transformers/models/qwen2_vl, qwen2_5_vl and qwen3_vl. The network of texts
is Qwen2's or Qwen3's, with rotary positions of three axes. That of images makes a row of each block of patches, which
takes its place in the text. Qwen3-VL's makes several, one of its last layer and one of each tapped layer: each further
one is added to the first after one of the text's first layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from vectord.checkpoints.config_keys import harmless
from vectord.compute.networks import encoder, facts
from vectord.compute.networks.architecture import Architecture, LayerNames
from vectord.compute.networks.decoder import Array
from vectord.compute.networks.heads import Head
from vectord.compute.networks.planes import Plane
from vectord.compute.networks.qwen2 import Qwen2, Qwen3
from vectord.compute.networks.rotary import read_plain_rotary, read_plane_rotary
from vectord.compute.networks.transformer import Transformer, TransformerSpec, TransformerWeights
from vectord.compute.networks.weights import Linear, WeightReader
from vectord.compute.ops.base import T, Tokens, Window
from vectord.errors import ModelUnavailable

_OUTER = ("", "model.", "vlm.", "vlm.model.")  # of bare models, under a head, and of models of pages
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


VISION: Mapping[str, Vision] = {
    "qwen2_vl_vision": Vision(mlp=("mlp.fc1",), down="mlp.fc2"),
    "qwen2_5_vl_vision": Vision(mlp=("mlp.up_proj", "mlp.gate_proj"), down="mlp.down_proj", rms=True),
    "qwen3_vl_vision": Vision(
        mlp=("mlp.linear_fc1",), down="mlp.linear_fc2", merger=("norm", "linear_fc1", "linear_fc2")
    ),
}


class QwenVL(Qwen3[T]):
    """Either network, by the section's model_type."""

    HARMLESS = {
        **Qwen2.HARMLESS,
        **harmless("of videos", "tokens_per_second"),
        **harmless("the reader of the folder uses it", "window_size"),
    }
    TEXTS = (*(f"{outer}language_model." for outer in _OUTER), "model.", "vlm.model.")
    IMAGES = tuple(f"{outer}visual." for outer in _OUTER)

    # Qwen2's heads, which no reference has compared over this body.
    classifier = Architecture.classifier
    masked_lm = Architecture.masked_lm

    @cached_property
    def vision(self) -> Vision | None:
        return VISION.get(self.model_type)

    @cached_property
    def is_third(self) -> bool:
        return self.model_type == "qwen3_vl_text"

    @cached_property
    def body(self) -> WeightReader[T]:
        if self.vision is None:
            return self.weights.after_prefix(self.TEXTS, self.WORDS)
        return self.weights.after_prefix(self.IMAGES, PATCHES)

    def read_spec(self) -> TransformerSpec:
        if self.vision is None:
            return super().read_spec()
        spec = encoder.read_spec(self.config, keys=_KEYS, norm_eps=NORM_EPS, norm_first=True)
        return replace(spec, rms=self.vision.rms, output_size=(1 + len(self.taps)) * spec.hidden_size)

    def names(self) -> LayerNames:
        return super().names() if self.is_third else Qwen2.names(self)

    def load(self) -> Transformer[T]:
        return self._load_texts() if self.vision is None else self._load_images(self.vision)

    def _load_texts(self) -> Transformer[T]:
        spec, is_third = self.spec, self.is_third
        name = "rope_scaling" if self.config.get("rope_scaling") else "rope_parameters"
        section = self.section(name)
        facts.require(section, "mrope_interleaved", is_third)
        plain = {key: "default" if value == "mrope" else value for key, value in section.items() if key[:6] != "mrope_"}
        rotary = read_plain_rotary(
            {"rope_theta": self.config.get("rope_theta"), name: plain},
            theta=500_000.0 if is_third else 1_000_000.0,
            positions=spec.max_tokens,
        )
        return self.read(
            self.names(),
            (None,) * spec.layers if is_third else self.windows(),
            rotary,
            axes=_text_axes(section.get("mrope_section"), spec.head_size // 2, interleaved=is_third),
            added_features=self.size("deepstack_layers", 0, at_least=0, at_most=spec.layers),
        )

    def _load_images(self, vision: Vision) -> Transformer[T]:
        spec, body, config = self.spec, self.body, self.config
        width, side = spec.hidden_size, self.size("patch_size")
        self.require("in_channels", 3)
        self.require("temporal_patch_size", FRAMES)
        patches = body.array(PATCHES, width, 3, FRAMES, side, side).sum(axis=2)
        name = "patch_embed.proj.bias"
        bias = body.tensor(name, width) if name in body else None
        linear = Linear(body.constant("patches", patches.reshape(width, -1)), bias)
        rotary = read_plane_rotary(config, body, spec.head_size, MAX_SIDE, theta=10_000.0)
        whole = None if config.get("fullatt_block_indexes") is None else self._layers("fullatt_block_indexes")
        windows: list[Window | None] = [None if whole is None or i in whole else "block" for i in range(spec.layers)]
        words = None
        if "num_position_embeddings" in config:
            numbers = np.arange(MAX_SIDE, dtype=np.float64)[:, None]
            words = Plane(
                table=body.tensor(POSITIONS, self.size("num_position_embeddings"), width),
                numbers=body.constant("numbers", numbers.astype(np.float32)),
                inverses=body.constant("inverses", 1 / np.maximum(numbers, 1)),
            )
        names = LayerNames(
            prefix="blocks",
            attention="attn.qkv",
            attention_out="attn.proj",
            attention_norm="norm1",
            mlp=vision.mlp,
            down=vision.down,
            output_norm="norm2",
            norm_bias=not vision.rms,
        )
        return Transformer(
            spec,
            TransformerWeights(
                words=words,
                patches=encoder.read_patches(config, body, linear),
                layers=tuple(
                    self.read_layer(names, i, rotary=rotary, window=window) for i, window in enumerate(windows)
                ),
                taps=self.taps,
            ),
            self.ops,
        )

    def pooler(self) -> Head[T]:
        """(T, (1 + taps) * H) to (M, (1 + taps) * O): one row of each block of patches, through a norm and an MLP.

        Source: Qwen3VLVisionPatchMerger. The last layer's norm is of each patch, the others' of the whole block.
        """
        ops, vision = self.ops, VISION[self.model_type]
        width, outputs = self.size("hidden_size"), self.size("out_hidden_size")
        count = self.size("spatial_merge_size") ** 2
        wide, (norm_name, up_name, down_name) = count * width, vision.merger
        names = ["merger.", *(f"deepstack_merger_list.{i}." for i in range(len(self.taps)))]
        mergers = [
            (
                own.norm(norm_name, wide if i else width, bias=not vision.rms),
                own.linear(up_name, wide, wide),
                own.linear(down_name, wide, outputs),
            )
            for i, own in enumerate(map(self.body.under, names))
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

    @cached_property
    def taps(self) -> tuple[int, ...]:
        taps = self._layers("deepstack_visual_indexes")
        if list(taps) != sorted(set(taps)):
            raise ModelUnavailable("config.json: deepstack_visual_indexes must ascend")
        return taps

    def _layers(self, key: str) -> tuple[int, ...]:
        layers, count = self.config.get(key) or (), self.size("depth")
        if not isinstance(layers, list | tuple) or any(type(i) is not int or not 0 <= i < count for i in layers):
            raise ModelUnavailable(f"config.json: {key} must be numbers from 0 to {count - 1}")
        return tuple(layers)


def _text_axes(sections: Any, pairs: int, *, interleaved: bool) -> tuple[Array, ...]:
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
