"""`model_type: nomic_bert`: nomic-embed-text v1, v1.5 and v2 (a mixture of experts), Snowflake's m-long.

Reads the models' own config keys and tensor names, and those of transformers/models/nomic_bert, which has no experts.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from vectord.checkpoints.config_keys import harmless
from vectord.compute.networks import encoder, facts
from vectord.compute.networks.architecture import LayerNames
from vectord.compute.networks.bert import Bert
from vectord.compute.networks.encoder import EncoderArchitecture
from vectord.compute.networks.rotary import Rotary, read_plain_rotary, rotary_table
from vectord.compute.networks.transformer import Mixture, Mlp, Transformer, TransformerSpec
from vectord.compute.networks.weights import FREQUENCIES, POOLER, Linear
from vectord.compute.ops.base import Activation, T
from vectord.errors import ModelUnavailable

# The models' own keys by transformers' keys.
OWN_KEYS: Mapping[str, str] = {
    "hidden_size": "n_embd",
    "intermediate_size": "n_inner",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "layer_norm_eps": "layer_norm_epsilon",
}
ACTIVATIONS: Mapping[str, Activation] = {"swiglu": "silu", "geglu": "gelu", "gelu": "gelu"}  # activation_function
ONLY: Mapping[str, object] = {  # other values would be another network
    "prenorm": False,
    "parallel_block": False,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
}
ONLY_OF_EXPERTS: Mapping[str, object] = {
    "moe_normalize_expert_weights": False,
    "num_shared_experts": 0,
    "expert_choice_router": False,
    "activation_function": "gelu",
}


class NomicBert(EncoderArchitecture[T]):
    HARMLESS = {
        **encoder.HARMLESS,
        **harmless(
            "the usual network", "causal norm_mlp rotary_head_dim scale_attn_by_inverse_layer_idx use_rms_norm", False
        ),
        **harmless("the usual network", "scale_attn_weights", True),
        **harmless("without experts", "expert_choice_router moe_normalize_expert_weights moe_top_k num_shared_experts"),
        **harmless("speed and memory only", "moe_impl"),
        **harmless("training only", "moe_resid_pdrop router_aux_loss_coef"),
        **harmless("the width of the layers' MLPs is n_inner", "ffn_div", 1),
        **harmless("no layer after the encoder", "add_pooling_layer", False),
        **harmless("speed and memory only", "fused_bias_fc fused_dropout_add_ln reorder_and_upcast_attn use_xentropy"),
        **harmless("only pretraining reads it", "dense_seq_output"),
        **harmless("the checkpoint has the padded table", "pad_vocab_size_multiple"),
        **harmless("only with parallel_block", "parallel_block_tied_norm"),
        **harmless("only with rotary_scaling_factor", "max_trained_positions"),
        **harmless("n_positions is read instead", "max_position_embeddings"),
    }
    HARMLESS_TENSORS = (*encoder.HARMLESS_TENSORS, POOLER, *encoder.BERT_WORDS_HEAD, FREQUENCIES)
    PREFIXES = ("", "nomic_bert.", "bert.")
    NAMES = LayerNames(
        prefix="encoder.layers",
        attention="attn.Wqkv",
        attention_out="attn.out_proj",
        attention_norm="norm1",
        mlp=("mlp.fc11", "mlp.fc12"),
        down="mlp.fc2",
        output_norm="norm2",
    )
    HEAD = replace(Bert.HEAD, norm="cls.predictions.transform.layer_norm")

    def read_spec(self) -> TransformerSpec:
        for key, only in ONLY.items():
            self.require(key, only)
        own_keys = {key: own for key, own in OWN_KEYS.items() if own in self.config}
        for key in own_keys.keys() - {"max_position_embeddings"}:  # of v1.5: 2048, and n_positions 8192
            self.require(key, self.config.get(own_keys[key]))
        activation = None
        if "activation_function" in self.config:
            activation = facts.activation(self.config, "activation_function", ACTIVATIONS)
            self.require("hidden_act", activation)
        types = self.size("type_vocab_size")
        spec = encoder.read_spec(self.config, keys=own_keys, types=types, activation=activation)
        self.require("head_dim", spec.head_size)
        return spec

    def load(self) -> Transformer[T]:
        names, mixtures = self._names(), self._mixtures()
        rotary = rotary_table(self.body, self._rotary(), self.spec.head_size, self.spec.max_tokens)
        return self.read(
            names,
            norm="emb_ln" if "emb_ln.weight" in self.body else "embeddings.LayerNorm",
            layers=[self.read_layer(names, i, rotary=rotary, mlp=mixtures.get(i)) for i in range(self.spec.layers)],
        )

    def _names(self) -> LayerNames:
        if "layers.0.self_attn.q_proj.weight" in self.body:
            return replace(encoder.TRANSFORMERS_NAMES, attention_bias=False, down_bias=False)
        return replace(
            self.NAMES,
            mlp=("mlp.fc1",) if self.config.get("activation_function") == "gelu" else self.NAMES.mlp,
            attention_bias=self.flag("qkv_proj_bias", False),
            mlp_bias=self.flag("mlp_fc1_bias", False),
            down_bias=self.flag("mlp_fc2_bias", False),
        )

    def _mixtures(self) -> dict[int, Mixture[T]]:
        """The experts by layer: each n-th has them, from the second on. Source: nomic-bert-2048's NomicMoELayer."""
        every, spec = self.size("moe_every_n_layers", 0, at_least=0), self.spec
        if not every:
            self.require("num_experts", 0)
            return {}
        for key, only in ONLY_OF_EXPERTS.items():
            self.require(key, only)
        count = self.size("num_experts", at_least=2, at_most=1024)
        top, width = self.size("moe_top_k", at_most=count), spec.hidden_size
        rows = count * spec.intermediate_size
        mixtures = {}
        for i in (i for i in range(spec.layers) if i % every == 1):
            layer, bias = self.body.under(f"{self.NAMES.prefix}.{i}.mlp."), None
            ups = layer.stacked("experts.mlp.w1", rows, width, count=count)
            downs = layer.stacked("experts.mlp.w2", rows, width, count=count, transposed=True)
            if "experts.bias" in layer:  # GGUF files are without
                bias = layer.constant("experts.bias", layer.array("experts.bias", width)[None])
            mixtures[i] = Mixture(
                router=layer.linear("router.layer", width, count, bias=False),
                experts=tuple(
                    Mlp(up=Linear(up, None), down=Linear(down, None)) for up, down in zip(ups, downs, strict=True)
                ),
                top=top,
                bias=bias,
            )
        return mixtures

    def _rotary(self) -> Rotary:
        """The models' own rotary_emb_base, or transformers' keys; if a config has both, they must agree."""
        own = Rotary(self.number("rotary_emb_base", 1000.0))
        rotary = read_plain_rotary(self.config, theta=own.theta, positions=self.spec.max_tokens)
        if self.config.get("rotary_emb_base") is not None and rotary != own:
            raise ModelUnavailable(
                "config.json: rotary_emb_base contradicts rope_theta, rope_scaling or rope_parameters; remove the "
                "wrong one"
            )
        return rotary
