"""What most decoders share: config.json, tensors and heads in the form of Llama, the first of the family.

RMS norms come before each half of a layer, positions are rotary, and the MLP is gated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from vectord.checkpoints.config_keys import Harmless, harmless
from vectord.compute.networks import facts
from vectord.compute.networks.architecture import Architecture, LayerNames
from vectord.compute.networks.heads import Classifier, Projection
from vectord.compute.networks.rotary import Rotary, read_plain_rotary, rotary_table
from vectord.compute.networks.transformer import Transformer, TransformerSpec, TransformerWeights
from vectord.compute.networks.weights import FREQUENCIES, LABELS, HarmlessTensors, Linear
from vectord.compute.ops.base import Activation, T
from vectord.errors import ModelUnavailable

Array: TypeAlias = npt.NDArray[np.float64]

# Every token attends to all, whatever the config says: transformers' EuroBERT, and classes of model repositories.
BIDIRECTIONAL = frozenset(
    {"bidirectional_pplx_qwen3", "biqwen3", "embedding_gemma2_text", "eurobert", "gemma4_vision", "llama_bidirec"}
    | {"ministral3_bidirec", "qwen3_bidirec", "ultrabert"}
)

# Keys of config.json that may be unread, of all decoders.
HARMLESS: Mapping[str, Harmless] = {
    **harmless("speed and memory only", "pretraining_tp"),
    **harmless("the usual order of rotated pairs", "rope_interleaved", False),
    **harmless("only classifiers read it", "classifier_pooling clf_pooling"),
    **harmless("NVIDIA's classifiers read it; of embeddings, the usual pooling", "pooling", "avg"),
}

HARMLESS_TENSORS = (
    HarmlessTensors("the head over the vocabulary; yes-or-no rerankers read its rows", r"(\w+\.)?lm_head\.weight"),
    LABELS,
    FREQUENCIES,
)

NAMES = LayerNames(
    prefix="layers",
    attention=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    attention_out="self_attn.o_proj",
    attention_norm="input_layernorm",
    mlp=("mlp.up_proj", "mlp.gate_proj"),
    down="mlp.down_proj",
    output_norm="post_attention_layernorm",
    attention_bias=False,
    mlp_bias=False,
    down_bias=False,
    norm_bias=False,
)
HEAD_NORMS = {"query_norm": "self_attn.q_norm", "key_norm": "self_attn.k_norm"}
# Norms also after each half of a layer, as Gemma's from the second generation on.
OUTER_NORMS = {
    "attention_out_norm": "post_attention_layernorm",
    "output_norm": "pre_feedforward_layernorm",
    "mlp_out_norm": "post_feedforward_layernorm",
}


def read_window(config: Mapping[str, Any], default: int | None = None, *, causal: bool) -> int:
    """AttentionSpec.window of a layer that slides.

    Causal attention includes a token itself in its sliding_window, bidirectional attention does not
    (transformers/masking_utils.py).
    """
    size = facts.size(config, "sliding_window", default)
    return size - 1 if causal else size


class DecoderArchitecture(Architecture[T]):
    HARMLESS = HARMLESS
    HARMLESS_TENSORS: ClassVar[tuple[HarmlessTensors, ...]] = HARMLESS_TENSORS
    PREFIXES: ClassVar[Sequence[str]] = ("", "model.")
    WORDS = "embed_tokens.weight"
    ACTIVATION_KEY: ClassVar[str] = "hidden_act"
    ACTIVATIONS: ClassVar[Mapping[str, Activation]] = facts.ACTIVATIONS

    def read_spec(self) -> TransformerSpec:
        heads = self.size("num_attention_heads")
        if self.config.get("head_dim") is not None:
            head_size = self.size("head_dim")
        else:
            head_size = self.size("hidden_size") // self.heads("num_attention_heads", "hidden_size")
        causal = self.flag("is_causal", True)
        if self.config.get("auto_map"):  # transformers' own classes ignore the key, those of model repositories read it
            causal = causal and not self.flag("use_bidirectional_attention", False)
        return TransformerSpec(
            vocab_size=self.size("vocab_size"),
            max_tokens=self.size("max_position_embeddings"),
            hidden_size=self.size("hidden_size"),
            intermediate_size=self.size("intermediate_size"),
            layers=self.size("num_hidden_layers", at_most=1024),
            heads=heads,
            kv_heads=facts.key_heads(self.config, heads, heads),
            head_size=head_size,
            activation=facts.activation(self.config, self.ACTIVATION_KEY, self.ACTIVATIONS),
            norm_eps=facts.epsilon(self.config, "rms_norm_eps"),
            rms=True,
            norm_first=True,
            causal=causal and self.model_type not in BIDIRECTIONAL,
        )

    def names(self) -> LayerNames:
        """With the biases of the config: attention_bias."""
        bias = self.flag("attention_bias", False)
        return replace(NAMES, attention_bias=bias, out_bias=bias)

    def rotary(self) -> Rotary:
        return read_plain_rotary(self.config, theta=10_000.0, positions=self.spec.max_tokens)

    def windows(self) -> Sequence[int | None]:
        """AttentionSpec.window of each layer."""
        return (None,) * self.spec.layers

    def load(self) -> Transformer[T]:
        return self.read(self.names(), self.windows(), self.rotary())

    def read(
        self,
        names: LayerNames,
        windows: Sequence[int | None],
        rotary: Rotary,
        *,
        sliding_rotary: Rotary | None = None,
        query_factors: Array | None = None,
        axes: Sequence[Array] = (),
        added_features: int = 0,
    ) -> Transformer[T]:
        """Return the body, with a layer for each window.

        sliding_rotary: of layers with a window; None: the same. query_factors (max_tokens,): of the rotated queries, by
        position. axes: CosSin.axes. added_features: see TransformerWeights.
        """
        spec, body = self.spec, self.body
        full = sliding = replace(
            rotary_table(body, rotary, spec.head_size, spec.max_tokens),
            axes=tuple(body.constant(f"rotary.axis{i}", axis) for i, axis in enumerate(axes)),
        )
        queries = None
        if sliding_rotary is not None:
            sliding = rotary_table(body, sliding_rotary, spec.head_size, spec.max_tokens)
        if query_factors is not None:
            queries = rotary_table(body, rotary, spec.head_size, spec.max_tokens, query_factors)
        return Transformer(
            spec,
            TransformerWeights(
                words=body.tensor(self.WORDS, spec.vocab_size, spec.hidden_size),
                words_change=body.table_change("embed_tokens", spec.vocab_size, spec.hidden_size),
                added_features=added_features,
                layers=tuple(
                    self.read_layer(
                        names, i, rotary=full if window is None else sliding, query_rotary=queries, window=window
                    )
                    for i, window in enumerate(windows)
                ),
                final_norm=body.norm("norm", spec.hidden_size, bias=False, offset=names.norm_offset),
            ),
            self.ops,
        )


class LanguageModel(DecoderArchitecture[T]):
    """With the heads of transformers' classes."""

    TIES_WORDS: ClassVar[bool] = False  # the default of tie_word_embeddings

    def classifier(self, labels: int) -> Classifier[T]:
        score = self.weights.tensor("score.weight", labels, self.size("hidden_size"))
        return Classifier("last", (Projection(Linear(score, None)),))

    def head_rows(self, ids: Sequence[int]) -> T:
        """Each row is read separately and moved to its place by a product with ones and zeros, so that the rest of a
        table of about 300 MB is not read."""
        shape = self.size("vocab_size"), self.size("hidden_size")
        if max(ids) >= shape[0]:
            raise ModelUnavailable(f"config.json: vocab_size {shape[0]} has no word {max(ids)}")
        weights, name = self.weights, "lm_head.weight"
        if self.flag("tie_word_embeddings", self.TIES_WORDS):
            for id_ in ids:
                weights.check_tied(name, self.body, self.WORDS, self.config, *shape, rows=slice(id_, id_ + 1))
            weights, name = self.body, self.WORDS
        places = np.eye(len(ids), dtype=np.float32)
        rows = (weights.tensor(name, *shape, rows=slice(id_, id_ + 1)) for id_ in ids)
        placed = (self.ops.multiply(weights.constant("place", places[:, i : i + 1]), row) for i, row in enumerate(rows))
        return reduce(self.ops.add, placed)
