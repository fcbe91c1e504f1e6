"""Readers of a decoder's config and tensors in the form of Llama, the first of the family (Qwen, Mistral, Gemma).

RMS norms come before each half of a layer, positions are rotary, and the MLP is gated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from vectord.checkpoints.config_keys import Harmless, harmless
from vectord.compute.networks import facts
from vectord.compute.networks.heads import Classifier, MaskedLM, Projection
from vectord.compute.networks.rotary import CosSin, Rotary, read_plain_rotary, rotary_table
from vectord.compute.networks.transformer import (
    Attention,
    Mlp,
    Transformer,
    TransformerLayer,
    TransformerSpec,
    TransformerWeights,
)
from vectord.compute.networks.weights import FREQUENCIES, LABELS, HarmlessTensors, Linear, Norm, WeightReader
from vectord.compute.ops.base import Activation, Ops, T
from vectord.errors import ModelUnavailable

Array: TypeAlias = npt.NDArray[np.float64]

WORDS = "embed_tokens.weight"
PREFIXES = ("", "model.")  # of a bare model, and of one under a head
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


def read_spec(
    config: Mapping[str, Any],
    *,
    activation_key: str = "hidden_act",
    activations: Mapping[str, Activation] = facts.ACTIVATIONS,
) -> TransformerSpec:
    heads = facts.size(config, "num_attention_heads")
    if config.get("head_dim") is not None:
        head_size = facts.size(config, "head_dim")
    else:
        head_size = facts.size(config, "hidden_size") // facts.heads(config, "num_attention_heads", "hidden_size")
    causal = facts.flag(config, "is_causal", True)
    if config.get("auto_map"):  # transformers' own classes ignore the key, those of model repositories read it
        causal = causal and not facts.flag(config, "use_bidirectional_attention", False)
    return TransformerSpec(
        vocab_size=facts.size(config, "vocab_size"),
        max_tokens=facts.size(config, "max_position_embeddings"),
        hidden_size=facts.size(config, "hidden_size"),
        intermediate_size=facts.size(config, "intermediate_size"),
        layers=facts.size(config, "num_hidden_layers", at_most=1024),
        heads=heads,
        kv_heads=facts.key_heads(config, heads, heads),
        head_size=head_size,
        activation=facts.activation(config, activation_key, activations),
        norm_eps=facts.epsilon(config, "rms_norm_eps"),
        rms=True,
        norm_first=True,
        causal=causal and config["model_type"] not in BIDIRECTIONAL,
    )


def read_decoder_rotary(config: Mapping[str, Any], spec: TransformerSpec) -> Rotary:
    return read_plain_rotary(config, theta=10_000.0, positions=spec.max_tokens)


def read_window(config: Mapping[str, Any], *, causal: bool) -> int:
    """AttentionSpec.window of a layer that slides.

    Causal attention includes a token itself in its sliding_window, bidirectional attention does not
    (transformers/masking_utils.py).
    """
    size = facts.size(config, "sliding_window")
    return size - 1 if causal else size


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """Options in which the layers of Llama, Qwen, Mistral and Gemma differ."""

    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    head_norms: bool = False  # an RMS norm of each head's query and key
    windows: tuple[int | None, ...]  # AttentionSpec.window of each layer
    window_after: int | None = None  # the same for later tokens, if that differs
    attention_norms: tuple[str, str] = ("input_layernorm", "post_attention_layernorm")  # names, before and after it
    rotary: Rotary
    sliding_rotary: Rotary | None = None  # of layers with a window; None: the same
    query_factors: Array | None = None  # (max_tokens,) by position
    outer_norms: bool = False  # norms also after each half of a layer
    norm_offset: float = 0.0  # added to the stored weights of norms
    axes: tuple[Array, ...] = ()  # CosSin.axes
    added_features: int = 0  # TransformerWeights.added_features


def load_decoder(spec: TransformerSpec, family: Family, weights: WeightReader[T], ops: Ops[T]) -> Transformer[T]:
    weights = weights.after_prefix(PREFIXES, WORDS)
    full = sliding = rotary_table(weights, family.rotary, spec.head_size, spec.max_tokens)
    axes = tuple(weights.constant(f"rotary.axis{i}", axis) for i, axis in enumerate(family.axes))
    full = sliding = replace(full, axes=axes)
    if family.sliding_rotary is not None:
        sliding = rotary_table(weights, family.sliding_rotary, spec.head_size, spec.max_tokens)
    queries = None
    if family.query_factors is not None:
        queries = rotary_table(weights, family.rotary, spec.head_size, spec.max_tokens, family.query_factors)
    return Transformer(
        spec,
        TransformerWeights(
            words=weights.tensor(WORDS, spec.vocab_size, spec.hidden_size),
            words_change=weights.table_change("embed_tokens", spec.vocab_size, spec.hidden_size),
            added_features=family.added_features,
            layers=tuple(
                read_layer(
                    spec, family, weights.under(f"layers.{i}."), full if window is None else sliding, queries, window
                )
                for i, window in enumerate(family.windows)
            ),
            final_norm=read_norm(family, weights, "norm", spec.hidden_size),
        ),
        ops,
    )


def read_layer(
    spec: TransformerSpec,
    family: Family,
    weights: WeightReader[T],
    rotary: CosSin[T],
    queries: CosSin[T] | None,
    window: int | None,
) -> TransformerLayer[T]:
    """Return the layer of these tensors. queries: the table of queries, if they differ."""
    width, inner, bias = spec.hidden_size, spec.intermediate_size, family.qkv_bias

    def norm(name: str, size: int = width) -> Norm[T]:
        return read_norm(family, weights, name, size)

    before, after = family.attention_norms
    return TransformerLayer(
        attention_norm=norm(before),
        attention=Attention(
            query=weights.linear("self_attn.q_proj", width, spec.query_width, bias=bias),
            key=weights.linear("self_attn.k_proj", width, spec.key_width, bias=bias),
            value=weights.linear("self_attn.v_proj", width, spec.key_width, bias=bias),
            query_norm=norm("self_attn.q_norm", spec.head_size) if family.head_norms else None,
            key_norm=norm("self_attn.k_norm", spec.head_size) if family.head_norms else None,
            out=weights.linear("self_attn.o_proj", spec.query_width, width, bias=family.out_bias),
            rotary=rotary,
            query_rotary=queries,
            window=window,
            window_after=None if window is None else family.window_after,
        ),
        attention_out_norm=norm(after) if family.outer_norms else None,
        output_norm=norm("pre_feedforward_layernorm" if family.outer_norms else after),
        mlp=Mlp(
            gate=weights.linear("mlp.gate_proj", width, inner, bias=family.mlp_bias),
            up=weights.linear("mlp.up_proj", width, inner, bias=family.mlp_bias),
            down=weights.linear("mlp.down_proj", inner, width, bias=family.mlp_bias),
        ),
        mlp_out_norm=norm("post_feedforward_layernorm") if family.outer_norms else None,
    )


def read_norm(family: Family, weights: WeightReader[T], name: str, width: int) -> Norm[T]:
    if not family.norm_offset:
        return weights.norm(name, width, bias=False)
    name = f"{name}.weight"
    return Norm(weights.constant(name, family.norm_offset + weights.array(name, width)), None)


def classifier(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T], labels: int) -> Classifier[T]:
    score = weights.tensor("score.weight", labels, facts.size(config, "hidden_size"))
    return Classifier("last", (Projection(Linear(score, None)),))


def masked_lm(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> MaskedLM[T]:
    """Return the language model's head, for SPLADE: a word's logit after each token."""
    shape, name = (facts.size(config, "vocab_size"), facts.size(config, "hidden_size")), "lm_head.weight"
    bias = weights.constant("lm_head.bias", np.zeros(shape[0], np.float32))
    if not facts.flag(config, "tie_word_embeddings", False):
        return MaskedLM(Projection(), weights.tensor(name, *shape), bias)
    body = weights.after_prefix(PREFIXES, WORDS)
    weights.check_tied(name, body, WORDS, config, *shape)
    return MaskedLM(Projection(), body.tensor(WORDS, *shape), bias)


def head_rows(
    config: Mapping[str, Any],
    weights: WeightReader[T],
    ops: Ops[T],
    ids: Sequence[int],
    *,
    tied: bool = False,
    prefixes: Sequence[str] = PREFIXES,
) -> T:
    """(len(ids), H): the rows of the language model's head for these words.

    Each row is read separately and moved to its place by a product with ones and zeros, so that the rest of a table of
    about 300 MB is not read. tied: the default of tie_word_embeddings. prefixes: of the body.
    """
    shape = facts.size(config, "vocab_size"), facts.size(config, "hidden_size")
    if max(ids) >= shape[0]:
        raise ModelUnavailable(f"config.json: vocab_size {shape[0]} has no word {max(ids)}")
    name = "lm_head.weight"
    if facts.flag(config, "tie_word_embeddings", tied):
        words = weights.after_prefix(prefixes, WORDS)
        for id_ in ids:
            weights.check_tied(name, words, WORDS, config, *shape, rows=slice(id_, id_ + 1))
        weights, name = words, WORDS
    places = np.eye(len(ids), dtype=np.float32)
    rows = (
        ops.multiply(
            weights.constant("place", places[:, i : i + 1]), weights.tensor(name, *shape, rows=slice(w, w + 1))
        )
        for i, w in enumerate(ids)
    )
    return reduce(ops.add, rows)
