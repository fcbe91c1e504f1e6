"""`model_type: modernbert`: GTE-ModernBERT, nomic ModernBERT. Names as in transformers/models/modernbert.

Every third layer attends to the whole text, the others to a window; each kind has its own rotary base. Norms come
first, and the MLP is gated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, cast

import numpy as np
from msgspec.structs import replace

from vectord.checkpoints.config_keys import harmless
from vectord.compute.networks import encoder
from vectord.compute.networks.architecture import LayerNames
from vectord.compute.networks.encoder import EncoderArchitecture
from vectord.compute.networks.heads import Classifier, MaskedLM, Projection, dense_and_norm
from vectord.compute.networks.rotary import LAYER_KINDS, CosSin, read_layer_rotary, read_sliding, rotary_table
from vectord.compute.networks.transformer import Transformer, TransformerSpec, TransformerWeights
from vectord.compute.networks.weights import FREQUENCIES
from vectord.compute.ops.base import T

THETAS: Mapping[str, tuple[str, float]] = {  # the key before rope_parameters, and the default
    "full_attention": ("global_rope_theta", 160_000.0),
    "sliding_attention": ("local_rope_theta", 10_000.0),
}


class ModernBert(EncoderArchitecture[T]):
    HARMLESS = {
        **encoder.HARMLESS,
        **harmless("only classifiers read it", "classifier_activation classifier_bias classifier_pooling"),
        **harmless("only heads over the vocabulary read it", "decoder_bias sparse_pred_ignore_index sparse_prediction"),
        **harmless("training only", "initializer_cutoff_factor"),
        **harmless("speed only", "deterministic_flash_attn"),
        **harmless("sliding_window replaces it", "local_attention"),
        **harmless("of layers that the model has none of", "global_rope_theta local_rope_theta"),
    }
    HARMLESS_TENSORS = (
        *encoder.HARMLESS_TENSORS,
        *encoder.words_head(r"(head|decoder)\..+", r"decoder\.(weight|bias)"),
        FREQUENCIES,
    )
    PREFIXES = ("", "model.")
    WORDS = "embeddings.tok_embeddings.weight"
    KEYS = {"hidden_act": "hidden_activation", "layer_norm_eps": "norm_eps"}

    def read_spec(self) -> TransformerSpec:
        return encoder.read_spec(self.config, keys=self.KEYS, norm_first=True)

    def load(self) -> Transformer[T]:
        spec, body, names = self.spec, self.body, self._names()
        whole_every = self.size("global_attn_every_n_layers", 3)  # the key before layer_types
        sliding = read_sliding(self.config, [i % whole_every != 0 for i in range(spec.layers)])
        tables = {slides: self._rotary(LAYER_KINDS[slides]) for slides in sorted(set(sliding))}
        # local_attention counts both sides; transformers' window is half of it, inclusive, and sliding_window replaces
        # it.
        window = self.size("sliding_window", self.size("local_attention", 128) // 2)
        # The embeddings' norm has already normalized the first layer's input.
        first = replace(names, attention_norm=None)
        return Transformer(
            spec,
            TransformerWeights(
                words=body.tensor(self.WORDS, spec.vocab_size, spec.hidden_size),
                norm=body.norm("embeddings.norm", spec.hidden_size, bias=names.norm_bias),
                layers=tuple(
                    self.read_layer(names if i else first, i, rotary=tables[slides], window=window if slides else None)
                    for i, slides in enumerate(sliding)
                ),
                final_norm=body.norm("final_norm", spec.hidden_size, bias=names.norm_bias),
            ),
            self.ops,
        )

    def classifier(self, labels: int) -> Classifier[T]:
        pooling = cast(Literal["cls", "mean"], self.choice("classifier_pooling", ("cls", "mean"), "cls"))
        scores = self.weights.linear("classifier", self.spec.hidden_size, labels)
        return Classifier(pooling, (dense_and_norm(self.config, self.weights), Projection(scores)))

    def masked_lm(self) -> MaskedLM[T]:
        weights, words = self.weights, self.spec.vocab_size
        has_bias = self.flag("decoder_bias", True)
        return MaskedLM(
            transform=dense_and_norm(self.config, weights),
            words=self.output_words("decoder.weight"),
            bias=weights.tensor("decoder.bias", words) if has_bias else weights.constant("zeros", np.zeros(words)),
        )

    def _rotary(self, kind: str) -> CosSin[T]:
        self.require("rope_scaling", None)
        key, default = THETAS[kind]
        if key == "local_rope_theta" and key in self.config and self.config[key] is None:
            key, default = THETAS["full_attention"]
        theta = self.number(key, default)
        rotary = read_layer_rotary(self.config, kind, theta=theta, positions=self.spec.max_tokens)
        return rotary_table(self.body, rotary, self.spec.head_size, self.spec.max_tokens)

    def _names(self) -> LayerNames:
        mlp_bias = self.flag("mlp_bias", False)
        return LayerNames(
            prefix="layers",
            attention="attn.Wqkv",
            attention_out="attn.Wo",
            attention_norm="attn_norm",
            mlp="mlp.Wi",
            gate_first=True,
            down="mlp.Wo",
            output_norm="mlp_norm",
            attention_bias=self.flag("attention_bias", False),
            mlp_bias=mlp_bias,
            down_bias=mlp_bias,
            norm_bias=self.flag("norm_bias", False),
        )
