"""`model_type: gte`, and `new`, its former name: GTE v1.5, multilingual GTE, Arctic Embed v2.

Tensors under the models' own names, and under those of transformers/models/gte.
"""

from __future__ import annotations

from vectord.checkpoints.config_keys import harmless
from vectord.compute.networks import encoder, facts
from vectord.compute.networks.architecture import LayerNames
from vectord.compute.networks.encoder import EncoderArchitecture, HeadNames
from vectord.compute.networks.rotary import LEAST_FACTOR, Rotary, read_plain_rotary, rotary_table
from vectord.compute.networks.transformer import Transformer, TransformerSpec
from vectord.compute.networks.weights import FREQUENCIES, POOLER
from vectord.compute.ops.base import T


class Gte(EncoderArchitecture[T]):
    HARMLESS = {
        **encoder.HARMLESS,
        **harmless("speed only", "unpad_inputs use_memory_efficient_attention"),
        **harmless("only with logn_attention_scale", "logn_attention_clip1"),
    }
    HARMLESS_TENSORS = (*encoder.HARMLESS_TENSORS, POOLER, *encoder.LM_HEAD, FREQUENCIES)
    PREFIXES = ("", "gte.", "new.")
    LEAST_TYPES = 0
    NAMES = LayerNames(
        prefix="encoder.layer",
        attention="attention.qkv_proj",
        attention_out="attention.o_proj",
        attention_norm="attn_ln",
        mlp="mlp.up_gate_proj",
        down="mlp.down_proj",
        output_norm="mlp_ln",
        mlp_bias=False,
    )
    HEAD = HeadNames(
        dense="lm_head.dense",
        norm="lm_head.norm",
        other_norm="lm_head.layer_norm",
        decoder="lm_head.decoder",
        activation="gelu",
    )

    def read_spec(self) -> TransformerSpec:
        self.require("position_embedding_type", "rope")
        self.require("layer_norm_type", "layer_norm")
        self.require("logn_attention_scale", False)
        self.require("pack_qkv", True)
        return super().read_spec()

    def load(self) -> Transformer[T]:
        theta, scaling, size = self.number("rope_theta", 160_000.0), self.section("rope_scaling"), self.spec.head_size
        if scaling.get("type") == "ntk":
            facts.require(scaling, "mixed_b", None)
            factor = facts.number(scaling, "factor", 1.0, at_least=LEAST_FACTOR)
            # Fixed at every length: a larger base, and slightly lower frequencies.
            turns = Rotary(theta * factor, factor=factor ** (2 / size))
        else:
            turns = read_plain_rotary(self.config, theta=theta, positions=self.spec.max_tokens)
        rotary = rotary_table(self.body, turns, size, self.spec.max_tokens)
        has_usual_names = "layers.0.self_attn.q_proj.weight" in self.body
        return self.read(encoder.TRANSFORMERS_NAMES if has_usual_names else self.NAMES, rotary=rotary)
