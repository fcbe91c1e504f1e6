"""The two networks of CLIP, SigLIP (images of one size) and SigLIP 2 (NaFlex, images of any ratio).

config: the text_config, or the vision_config with the processor's scale, means and deviations (checkpoints/kinds/
towers.py). Names as in transformers/models/clip, siglip and siglip2. All are encoders whose norms come first. SigLIP's
texts are filled up to the length of training and attend to all of it; an image has no class token, and its vector is
pooled by an attention of its own.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from vectord.checkpoints.config_keys import harmless
from vectord.compute.networks import encoder
from vectord.compute.networks.architecture import Architecture, LayerNames
from vectord.compute.networks.heads import Head, read_by_query
from vectord.compute.networks.planes import ScaledGrid
from vectord.compute.networks.transformer import Transformer, TransformerSpec, TransformerWeights
from vectord.compute.networks.weights import HarmlessTensors, Linear, WeightReader
from vectord.compute.ops.base import AttentionSpec, T, Tokens
from vectord.errors import ModelUnavailable


class Clip(Architecture[T]):
    """Either network, by the section's model_type."""

    HARMLESS = {
        **harmless("of the projection, a Dense module here", "projection_dim projection_size"),
        **harmless("the processor makes images of one size", "image_size"),
    }
    HARMLESS_TENSORS: ClassVar[tuple[HarmlessTensors, ...]] = (
        HarmlessTensors("scale and bias of the training loss", r"logit_(scale|bias)"),
        HarmlessTensors("buffers of older versions", r"(text|vision)_model\.embeddings\.position_ids"),
    )
    NAMES = LayerNames(
        prefix="encoder.layers",
        attention=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        attention_out="self_attn.out_proj",
        attention_norm="layer_norm1",
        mlp=("mlp.fc1",),
        down="mlp.fc2",
        output_norm="layer_norm2",
    )
    CAUSAL = True  # texts

    @cached_property
    def is_text(self) -> bool:
        return self.model_type.endswith("_text_model")

    @cached_property
    def body(self) -> WeightReader[T]:
        return self.weights.under("text_model." if self.is_text else "vision_model.")

    def read_spec(self) -> TransformerSpec:
        return replace(encoder.read_spec(self.config, norm_first=True), causal=self.is_text and self.CAUSAL)

    def load(self) -> Transformer[T]:
        return self._load_texts() if self.is_text else self._load_images()

    def _load_texts(self) -> Transformer[T]:
        spec, body = self.spec, self.body
        return Transformer(
            spec,
            TransformerWeights(
                words=body.tensor("embeddings.token_embedding.weight", spec.vocab_size, spec.hidden_size),
                positions=self.positions(),
                layers=tuple(self.read_layer(self.NAMES, i) for i in range(spec.layers)),
                final_norm=body.norm("final_layer_norm", spec.hidden_size),
            ),
            self.ops,
        )

    def _load_images(self) -> Transformer[T]:
        width = self.spec.hidden_size
        words = np.stack([self.body.array("embeddings.class_embedding", width), np.zeros(width, np.float32)])
        return self.read_images(
            self.body.constant("embeddings.class_embedding", words),
            positions=self.positions(),
            mask=self.body.constant("mask", np.array([[0], [1]])),  # the first row of an image has no patch
            first_norm="pre_layrnorm",
            bias=False,
        )

    def read_images(
        self,
        words: T | ScaledGrid[T],
        *,
        positions: T | None = None,
        mask: T | None = None,
        first_norm: str | None = None,
        bias: bool = True,
    ) -> Transformer[T]:
        """words (V, H): added to the rows by their ids; mask (V, 1): see Patches. positions: None: `words` are, and the
        ids of rows are their positions. bias: of the patches' embedding."""
        spec, body = self.spec, self.body
        is_scaled = isinstance(words, ScaledGrid)  # its patches are a layer, not a convolution
        side, channels = self.size("patch_size"), self.size("num_channels")
        self.require("num_channels", 3)
        linear = body.convolution(
            "embeddings.patch_embedding", spec.hidden_size, channels, side, side, bias=bias, flat=is_scaled
        )
        return Transformer(
            spec,
            TransformerWeights(
                words=words,
                positions=positions,
                patches=encoder.read_patches(self.config, body, linear, mask=mask),
                norm=None if first_norm is None else body.norm(first_norm, spec.hidden_size),
                layers=tuple(self.read_layer(self.NAMES, i) for i in range(spec.layers)),
                final_norm=body.norm("post_layernorm", spec.hidden_size),
            ),
            self.ops,
        )

    def positions(self) -> T:
        return self.body.tensor(
            "embeddings.position_embedding.weight", self.size("max_position_embeddings"), self.spec.hidden_size
        )


class Siglip(Clip[T]):
    CAUSAL = False

    def _load_images(self) -> Transformer[T]:
        words = self.body.constant("words", np.zeros((1, self.spec.hidden_size)))
        return self.read_images(words, positions=self.positions())

    def pooler(self) -> Head[T]:
        """(T, H) to (M, H): a trained query attends to the rows of each image, and an MLP follows.

        Source: SiglipMultiheadAttentionPoolingHead.
        """
        self.require("vision_use_head", True)
        ops, spec, weights, width = self.ops, self.spec, self.body.under("head."), self.spec.hidden_size
        query, key, value = (
            Linear(matrix, weights.tensor("attention.in_proj_bias", 3 * width, rows=slice(i * width, (i + 1) * width)))
            for i, matrix in enumerate(weights.stacked("attention.in_proj_weight", 3 * width, width, count=3))
        )
        out, norm = weights.linear("attention.out_proj", width, width), weights.norm("layernorm", width)
        up = weights.linear("mlp.fc1", width, spec.intermediate_size)
        down = weights.linear("mlp.fc2", spec.intermediate_size, width)
        probe = weights.constant("probe", weights.array("probe", 1, 1, width)[0])  # (1, H)
        attention = AttentionSpec(heads=spec.heads, head_size=spec.head_size)

        def linear(x: T, layer: Linear[T]) -> T:
            return ops.linear(x, layer.weight, layer.bias)

        def pooled(x: T, tokens: Tokens[T]) -> T:
            read = read_by_query(ops, linear(probe, query), linear(x, key), linear(x, value), tokens, attention)
            h = linear(read, out)
            normed = ops.layer_norm(h, norm.weight, norm.bias, spec.norm_eps)
            return ops.add(h, linear(ops.activation(linear(normed, up), spec.activation), down))

        return pooled


class Siglip2(Siglip[T]):
    def _load_images(self) -> Transformer[T]:
        body, count = self.body, self.size("num_patches", 256)
        side = math.isqrt(count)
        if side**2 != count:
            raise ModelUnavailable(f"config.json: vision_config.num_patches {count} is not a square")
        table = body.array("embeddings.position_embedding.weight", count, self.spec.hidden_size)
        ones, same = np.ones((side, 1)), np.eye(side)
        grid = ScaledGrid(
            shares=body.constant("shares", _shares(side, self.size("max_position_embeddings"))),
            lines=body.constant("lines", np.kron(same, ones)),
            columns=body.constant("columns", np.kron(ones, same)),
            table=body.constant("positions", table.T),
        )
        return self.read_images(grid)


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
