"""`model_type: gemma4_vision`, the network of images of EmbeddingGemma 2, with its projection to rows of texts.

Names as in transformers/models/gemma4/modeling_gemma4.py. The layers are Gemma's, without causal attention. A patch has
its column as type_ids and its line as ids: the table of positions has a part for each, and half of the pairs of a head
turn by the one, half by the other. The blocks of patches that make one row of a text are the spans (text/images.py).
"""

from __future__ import annotations

import math

import numpy as np
from msgspec.structs import replace

from vectord.checkpoints.config_keys import harmless
from vectord.compute.networks.decoder import DecoderArchitecture
from vectord.compute.networks.encoder import read_patches
from vectord.compute.networks.heads import Head
from vectord.compute.networks.rotary import CosSin, read_plane_rotary
from vectord.compute.networks.transformer import (
    Attention,
    Mlp,
    Transformer,
    TransformerLayer,
    TransformerSpec,
    TransformerWeights,
)
from vectord.compute.networks.weights import ClipRange, Linear, Norm, WeightReader
from vectord.compute.ops.base import T, Tokens
from vectord.schema import Int32

LARGEST = float(np.finfo(np.float32).max)
_TABLE = "patch_embedder.position_embedding_table"


class Gemma4Vision(DecoderArchitecture[T]):
    HARMLESS = {
        **harmless("its linear layers have none", "attention_bias"),
        **harmless("the table of positions decides", "max_position_embeddings"),
        **harmless("the reader of the folder uses it", "pooling_kernel_size"),
    }
    HARMLESS_TENSORS = ()
    WORDS = f"vision_tower.{_TABLE}"
    ACTIVATION_KEY = "hidden_activation"

    def read_spec(self) -> TransformerSpec:
        types = self.size("position_embedding_size", 10 * 1024, at_least=2)
        return replace(super().read_spec(), types=types, attention_scale=1.0)

    def load(self) -> Transformer[T]:
        spec, side, weights = self.spec, self.size("patch_size", 16), self.body.under("vision_tower.")
        columns, lines = weights.array(_TABLE, 2, spec.types, spec.hidden_size)
        patches = weights.convolution(
            "patch_embedder.input_proj", spec.hidden_size, 3, side, side, bias=False, flat=True
        )
        most = min(spec.types, spec.max_tokens)
        rotary = read_plane_rotary(self.config, weights, spec.head_size, most, theta=100.0)
        layers = weights.under("encoder.layers.")
        return Transformer(
            spec,
            TransformerWeights(
                words=weights.constant("lines", lines),
                types=weights.constant("columns", columns),
                patches=read_patches(self.config, weights, patches, factor=2.0, added=-1.0),
                layers=tuple(self._layer(layers.under(f"{i}."), rotary) for i in range(spec.layers)),
            ),
            self.ops,
        )

    def pooler(self) -> Head[T]:
        """(T, H) to (M, D): the mean of each block, as a row of a text.

        Source: Gemma4VisionPooler, Gemma4VisionModel and Gemma4MultimodalEmbedder.
        """
        spec, weights, width, ops = self.spec, self.body, self.spec.hidden_size, self.ops
        bias, factor = np.zeros(width, np.float32), np.ones(width, np.float32)
        if self.flag("standardize", False):
            bias, factor = (weights.array(f"vision_tower.std_{name}", width) for name in ("bias", "scale"))
        factors = weights.constant("scale", math.sqrt(width) * factor[None])
        added = weights.constant("shift", (-bias * factor)[None])
        ones = weights.constant("ones", np.ones(width))
        projection = weights.linear("embed_vision.embedding_projection", width, self.size("text_size"), bias=False)

        def pooled(x: T, tokens: Tokens[T]) -> T:
            rows = ops.add(ops.multiply(ops.mean(x, tokens), factors), added)
            return ops.linear(ops.rms_norm(rows, ones, spec.norm_eps), projection.weight, None)

        return pooled

    def _layer(self, weights: WeightReader[T], rotary: CosSin[T]) -> TransformerLayer[T]:
        spec, width, inner, size = self.spec, self.spec.hidden_size, self.spec.intermediate_size, self.spec.head_size
        clips = self.flag("use_clipped_linears", False)

        def linear(name: str, inputs: int, outputs: int, rows: Int32 | None = None) -> Linear[T]:
            layer = weights.linear(f"{name}.linear", inputs, outputs, bias=False, rows=rows)
            if not clips:
                return layer
            limits = [  # the checkpoint has them as tensors without dimensions
                _limits(*(float(weights.array(f"{name}.{side}_{end}")) for end in ("min", "max")))
                for side in ("input", "output")
            ]
            return replace(layer, inputs=limits[0], outputs=limits[1])

        def norm(name: str) -> Norm[T]:
            return weights.norm(name, width, bias=False)

        # The reference turns the pairs of each half of a head apart; here the first numbers of both halves come first.
        order = np.arange(size, dtype=np.int32).reshape(2, 2, size // 4).swapaxes(0, 1).ravel()
        rows = (np.arange(max(spec.heads, spec.kv_heads or 0), dtype=np.int32)[:, None] * size + order).ravel()
        return TransformerLayer(
            attention_norm=norm("input_layernorm"),
            attention=Attention(
                query=linear("self_attn.q_proj", width, spec.query_width, rows[: spec.query_width]),
                key=linear("self_attn.k_proj", width, spec.key_width, rows[: spec.key_width]),
                value=linear("self_attn.v_proj", width, spec.key_width),
                query_norm=Norm(weights.tensor("self_attn.q_norm.weight", size, rows=order), None),
                key_norm=Norm(weights.tensor("self_attn.k_norm.weight", size, rows=order), None),
                value_norm=Norm(weights.constant("self_attn.v_norm.weight", np.ones(size)), None),
                out=linear("self_attn.o_proj", spec.query_width, width),
                rotary=rotary,
            ),
            attention_out_norm=norm("post_attention_layernorm"),
            output_norm=norm("pre_feedforward_layernorm"),
            mlp=Mlp(
                gate=linear("mlp.gate_proj", width, inner),
                up=linear("mlp.up_proj", width, inner),
                down=linear("mlp.down_proj", inner, width),
            ),
            mlp_out_norm=norm("post_feedforward_layernorm"),
        )


def _limits(least: float, most: float) -> ClipRange | None:
    """None where both are infinite, as in a model that was not trained with limits."""
    if math.isinf(least) and math.isinf(most):
        return None
    return ClipRange(max(least, -LARGEST), min(most, LARGEST))
