"""`model_type: t5` and `mt5`: the encoder, of sentence-t5, gtr. Names as in transformers/models/t5/modeling_t5.py.

Each attention score gets a bias by the distance of query and key, which the first layer has for all. There is no table
of positions, so a text may be of any length.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from vectord.checkpoints.config_keys import harmless
from vectord.compute.networks import encoder, facts
from vectord.compute.networks.architecture import Architecture, LayerNames
from vectord.compute.networks.roberta import buckets
from vectord.compute.networks.transformer import Transformer, TransformerSpec, TransformerWeights
from vectord.compute.networks.weights import HarmlessTensors
from vectord.compute.ops.base import Activation, T
from vectord.errors import ModelUnavailable
from vectord.schema import Float32

MAX_TOKENS = 8192  # of one text: bounds the table of biases

# feed_forward_proj: the activation, its name in dense_act_fn, and whether the MLP is gated.
_FORWARD: Mapping[str, tuple[Activation, str, bool]] = {
    "relu": ("relu", "relu", False),
    "gated-gelu": ("gelu_tanh", "gelu_new", True),
    "gated-silu": ("silu", "silu", True),
}
_BIAS = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
_MLP = "layer.1.DenseReluDense"


class T5(Architecture[T]):
    HARMLESS = {
        **encoder.HARMLESS,
        **harmless("only the encoder is computed", "is_encoder_decoder num_decoder_layers scale_decoder_outputs"),
        **harmless("training only", "dropout_rate"),
    }
    HARMLESS_TENSORS = (
        HarmlessTensors("one table under two names", r"shared\.weight|encoder\.embed_tokens\.weight"),
        HarmlessTensors("the half that generates text", r"decoder\..+|lm_head\.weight"),
    )
    WORDS = "encoder.final_layer_norm.weight"

    @property
    def forward(self) -> tuple[Activation, str, bool]:
        return _FORWARD[self.choice("feed_forward_proj", tuple(_FORWARD), "relu")]

    def read_spec(self) -> TransformerSpec:
        return TransformerSpec(
            vocab_size=self.size("vocab_size"),
            max_tokens=MAX_TOKENS,
            hidden_size=self.size("d_model"),
            intermediate_size=self.size("d_ff"),
            layers=self.size("num_layers", at_most=1024),
            heads=self.size("num_heads"),
            head_size=self.size("d_kv"),
            activation=self.forward[0],
            norm_eps=facts.epsilon(self.config, "layer_norm_epsilon"),
            rms=True,
            norm_first=True,
            attention_scale=1.0,
        )

    def load(self) -> Transformer[T]:
        spec, body, (_, saved_as, gated) = self.spec, self.body, self.forward
        self.require("is_decoder", False)
        self.require("dense_act_fn", saved_as)
        self.require("is_gated_act", gated)
        names = LayerNames(
            prefix="encoder.block",
            attention=("layer.0.SelfAttention.q", "layer.0.SelfAttention.k", "layer.0.SelfAttention.v"),
            attention_out="layer.0.SelfAttention.o",
            attention_norm="layer.0.layer_norm",
            mlp=(f"{_MLP}.wi_1", f"{_MLP}.wi_0") if gated else (f"{_MLP}.wi",),
            down=f"{_MLP}.wo",
            output_norm="layer.1.layer_norm",
            attention_bias=False,
            mlp_bias=False,
            down_bias=False,
            norm_bias=False,
        )
        words = body.first_of("encoder.embed_tokens.weight", "shared.weight")
        return Transformer(
            spec,
            TransformerWeights(
                words=body.tensor(words, spec.vocab_size, spec.hidden_size),
                layers=tuple(self.read_layer(names, i) for i in range(spec.layers)),
                final_norm=body.norm("encoder.final_layer_norm", spec.hidden_size, bias=False),
                attention_bias=body.constant("attention_bias", self._biases().T),
            ),
            self.ops,
        )

    def _biases(self) -> Float32:
        """(2 * max_tokens - 1, heads) by distance."""
        count = self.size("relative_attention_num_buckets", 32, at_least=4)
        farthest = self.size("relative_attention_max_distance", 128)
        if count % 4 or farthest <= count // 4:
            raise ModelUnavailable(
                f"config.json: relative_attention_num_buckets {count} must be a multiple of 4, and less than 4 times "
                f"relative_attention_max_distance {farthest}"
            )
        distances = np.arange(1 - MAX_TOKENS, MAX_TOKENS)
        return self.body.array(_BIAS, count, self.spec.heads)[buckets(distances, count, farthest)]
