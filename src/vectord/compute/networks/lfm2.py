"""`model_type: lfm2`: LFM2-ColBERT, and LFM2.5-Embedding and LFM2.5-ColBERT, which are bidirectional.

Names as in transformers/models/lfm2/modeling_lfm2.py. Most layers have a short convolution instead of attention. Source
of the bidirectional form: Liquid's own class Lfm2BidirectionalModel (Lfm2BidirectionalConfig of later transformers).

The convolution sees the expansion tokens of ColBERT queries, to which no token attends, as in Liquid's code and in
transformers 4, with which the models were trained; transformers 5 replaces them by zeros.
"""

from __future__ import annotations

from vectord.checkpoints.config_keys import harmless
from vectord.compute.networks import decoder, facts
from vectord.compute.networks.architecture import Architecture, LayerNames
from vectord.compute.networks.rotary import read_plain_rotary, rotary_table
from vectord.compute.networks.transformer import ShortConvolution, Transformer, TransformerSpec, TransformerWeights
from vectord.compute.ops.base import T
from vectord.errors import ModelUnavailable

_KINDS = ("full_attention", "conv")


class Lfm2(Architecture[T]):
    HARMLESS = {
        **decoder.HARMLESS,
        **harmless(
            "transformers never reads it", "block_dim block_norm_eps conv_dim conv_dim_out num_heads use_pos_enc"
        ),
        **harmless("the usual network", "block_use_swiglu", True),
        **harmless(
            "training only",
            "block_mlp_init_scale block_out_init_scale block_use_xavier_init conv_use_xavier_init theta",
        ),
        **harmless("speed and memory only", "disable_flash_attention"),
        **harmless("of padding, which a packed batch has none of", "conv_zero_padding"),
        **harmless("only heads over the vocabulary read it", "tie_embedding"),
        **harmless("layer_types or block_ff_dim is read instead", "full_attn_idxs intermediate_size"),
        **harmless("of convolutions, which the model has none of", "conv_L_cache conv_bias"),
        **harmless("only with block_auto_adjust_ff_dim", "block_ffn_dim_multiplier block_multiple_of"),
    }
    HARMLESS_TENSORS = decoder.HARMLESS_TENSORS
    PREFIXES = ("", "model.", "lfm2.")
    WORDS = "embed_tokens.weight"
    NAMES = LayerNames(
        prefix="layers",
        attention=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        attention_out="self_attn.out_proj",
        attention_norm="operator_norm",
        query_norm="self_attn.q_layernorm",
        key_norm="self_attn.k_layernorm",
        mlp=("feed_forward.w3", "feed_forward.w1"),
        down="feed_forward.w2",
        output_norm="ffn_norm",
        attention_bias=False,
        mlp_bias=False,
        down_bias=False,
        norm_bias=False,
    )

    def load(self) -> Transformer[T]:
        spec, body = self.spec, self.body
        rotary = read_plain_rotary(self.config, theta=1e6, positions=spec.max_tokens)
        table = rotary_table(body, rotary, spec.head_size, spec.max_tokens)
        kinds, attending = self.config.get("layer_types"), self.config.get("full_attn_idxs")
        if kinds is None:
            indices = range(spec.layers) if attending is None else attending
            kinds = [_KINDS[i not in indices] for i in range(spec.layers)]
        elif not isinstance(kinds, list) or len(kinds) != spec.layers or any(kind not in _KINDS for kind in kinds):
            raise ModelUnavailable(f"config.json: layer_types must be {spec.layers} times one of {', '.join(_KINDS)}")
        return Transformer(
            spec,
            TransformerWeights(
                words=body.tensor(self.WORDS, spec.vocab_size, spec.hidden_size),
                layers=tuple(
                    self.read_layer(self.NAMES, i, rotary=table, mixer=self._convolution(i) if kind == "conv" else None)
                    for i, kind in enumerate(kinds)
                ),
                final_norm=body.norm("embedding_norm", spec.hidden_size, bias=False),
            ),
            self.ops,
        )

    def read_spec(self) -> TransformerSpec:
        self.require("is_causal", True)
        heads, width = self.heads("num_attention_heads", "hidden_size"), self.size("hidden_size")
        # As Lfm2MLP computes it; block_ff_dim is an older name of intermediate_size.
        inner = self.size("block_ff_dim" if "block_ff_dim" in self.config else "intermediate_size")
        if self.flag("block_auto_adjust_ff_dim", True):
            multiple = self.size("block_multiple_of", 256)
            inner = 2 * inner // 3
            if "block_ffn_dim_multiplier" not in self.config or self.config["block_ffn_dim_multiplier"] is not None:
                inner = int(self.number("block_ffn_dim_multiplier", 1.0) * inner)
                inner = multiple * -(-inner // multiple)
        classes = self.config.get("architectures") or [""]
        bidirectional = self.model_type == "lfm2_bidirectional" or str(classes[0]).startswith("Lfm2Bidirectional")
        return TransformerSpec(
            vocab_size=self.size("vocab_size"),
            max_tokens=self.size("max_position_embeddings", 128_000),
            hidden_size=width,
            intermediate_size=inner,
            layers=self.size("num_hidden_layers", at_most=1024),
            heads=heads,
            kv_heads=facts.key_heads(self.config, heads, 8),
            head_size=self.size("head_dim", width // heads),
            activation="silu",
            norm_eps=facts.epsilon(self.config, "norm_eps"),
            rms=True,
            norm_first=True,
            causal=not bidirectional,
        )

    def _convolution(self, i: int) -> ShortConvolution[T]:
        own, width, bias = self.body.under(f"layers.{i}.conv."), self.spec.hidden_size, self.flag("conv_bias", False)
        size = self.size("conv_L_cache", 3, at_most=64)
        first = 1 - size if self.spec.causal else -(size // 2)
        before, after, value = own.linears("in_proj", width, (width,) * 3, bias=bias)
        taps = own.array("conv.weight", width, 1, size)
        return ShortConvolution(
            before=before,
            after=after,
            value=value,
            taps=tuple((first + j, own.constant(f"conv.tap{j}", taps[:, :, j].T)) for j in range(size)),
            bias=own.constant("conv.bias", own.array("conv.bias", width)[None]) if bias else None,
            out=own.linear("out_proj", width, width, bias=bias),
        )
