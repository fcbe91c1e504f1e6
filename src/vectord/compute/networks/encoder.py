"""Readers of an encoder's config and tensors. An architecture file gives its config keys and tensor names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from vectord.checkpoints.config_keys import Harmless, harmless
from vectord.compute.networks import facts
from vectord.compute.networks.heads import MaskedLM, Projection, output_words
from vectord.compute.networks.rotary import CosSin
from vectord.compute.networks.transformer import (
    Attention,
    Mixture,
    Mlp,
    Patches,
    Transformer,
    TransformerLayer,
    TransformerSpec,
    TransformerWeights,
)
from vectord.compute.networks.weights import LABELS, HarmlessTensors, Linear, Norm, WeightReader
from vectord.compute.ops.base import Activation, Ops, T, Window

WORDS = "embeddings.word_embeddings.weight"
TYPES = "embeddings.token_type_embeddings.weight"
WEIGHT = ".weight"


def read_spec(
    config: Mapping[str, Any],
    *,
    keys: Mapping[str, str] | None = None,
    types: int = 0,
    activation: Activation | None = None,
    norm_eps: float | None = None,
    norm_first: bool = False,
) -> TransformerSpec:
    """Read BERT's keys, or `keys` in their place. activation, norm_eps: replace the config's. types: their number."""
    facts.require(config, "is_decoder", False)

    def key(name: str) -> str:
        return name if keys is None else keys.get(name, name)

    heads = facts.heads(config, key("num_attention_heads"), key("hidden_size"))
    hidden_size = facts.size(config, key("hidden_size"))
    return TransformerSpec(
        vocab_size=facts.size(config, "vocab_size"),
        max_tokens=facts.size(config, key("max_position_embeddings")),
        hidden_size=hidden_size,
        intermediate_size=facts.size(config, key("intermediate_size")),
        layers=facts.size(config, key("num_hidden_layers"), at_most=1024),
        heads=heads,
        head_size=hidden_size // heads,
        activation=activation or facts.activation(config, key("hidden_act")),
        norm_eps=norm_eps or facts.epsilon(config, key("layer_norm_eps")),
        types=types,
        norm_first=norm_first,
    )


# Keys of config.json that may be unread, of all encoders.
HARMLESS: Mapping[str, Harmless] = {
    **harmless("the usual network, whose positions are in a table or elsewhere", "position_embedding_type", "absolute"),
    **harmless("every token attends to all", "is_causal", False),
    **harmless(
        "only ELECTRA's class for several choices reads it",
        "summary_activation summary_first_dropout summary_last_dropout summary_proj_to_labels summary_type "
        "summary_use_proj",
    ),
}

# Of all encoders but T5.
HARMLESS_TENSORS = (
    HarmlessTensors("buffers of older versions", r"(\w+\.)?embeddings\.(position_ids|token_type_ids)"),
    LABELS,
)


def words_head(names: str, copies: str) -> tuple[HarmlessTensors, HarmlessTensors]:
    """Return the tensors of heads over the vocabulary and other heads of pretraining. copies: second names of the
    head's matrix and bias, or tensors that SPLADE does not need either. Both are regular expressions."""
    return (
        HarmlessTensors("heads of pretraining", names, unless="splade"),
        HarmlessTensors("second names of the word vectors and the bias, and other heads", copies),
    )


BERT_WORDS_HEAD = words_head(
    r"cls\..+", r"cls\.seq_relationship\.(weight|bias)|cls\.predictions\.(decoder\.(weight|bias)|bias)"
)

LM_HEAD = words_head(r"lm_head\..+", r"lm_head\.(decoder\.(weight|bias)|bias)")
DENSE_CLASSIFIER = HarmlessTensors(
    "heads of classifiers with a layer between", r"classifier\.(dense|out_proj)\.(weight|bias)", unless="scores"
)


class LayerNames(msgspec.Struct, frozen=True, kw_only=True):
    """The names of a layer's tensors after `prefix` and the layer's number. One name for several linears: stacked."""

    prefix: str
    attention: str | tuple[str, str, str]  # query, key, value
    attention_out: str
    attention_norm: str | None
    mlp: str | tuple[str] | tuple[str, str]  # up, and gate if there is one
    gate_first: bool = False  # the stack of `mlp` begins with the gate
    down: str
    output_norm: str
    query_norm: str | None = None
    key_norm: str | None = None
    input_norm: str | None = None
    attention_bias: bool = True
    mlp_bias: bool = True  # of up and gate
    down_bias: bool = True
    norm_bias: bool = True


# Names in transformers' classes of encoders with rotary positions and a gated MLP.
TRANSFORMERS_NAMES = LayerNames(
    prefix="layers",
    attention=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    attention_out="self_attn.o_proj",
    attention_norm="post_attention_layernorm",
    mlp=("mlp.up_proj", "mlp.gate_proj"),
    down="mlp.down_proj",
    output_norm="post_mlp_layernorm",
    mlp_bias=False,
)


def read_layer(
    spec: TransformerSpec,
    weights: WeightReader[T],
    names: LayerNames,
    i: int,
    *,
    rotary: CosSin[T] | None = None,
    window: Window | None = None,
    mlp: Mlp[T] | Mixture[T] | None = None,
) -> TransformerLayer[T]:
    """Return the i-th layer. mlp: None: that of `names`."""
    width, between = spec.hidden_size, spec.intermediate_size
    layer = weights.under(f"{names.prefix}.{i}.")
    query, key, value = layer.linears(names.attention, width, width, 3, bias=names.attention_bias)

    def norm(name: str | None) -> Norm[T] | None:
        return None if name is None else layer.norm(name, width, bias=names.norm_bias)

    if mlp is None:
        up, *gate = layer.linears(names.mlp, width, between, 2, bias=names.mlp_bias)
        if names.gate_first:
            up, gate = gate[0], [up]
        down = layer.linear(names.down, between, width, bias=names.down_bias)
        mlp = Mlp(up=up, gate=gate[0] if gate else None, down=down)
    return TransformerLayer(
        attention=Attention(
            query=query,
            key=key,
            value=value,
            query_norm=norm(names.query_norm),
            key_norm=norm(names.key_norm),
            out=layer.linear(names.attention_out, width, width, bias=names.attention_bias),
            rotary=rotary,
            window=window,
        ),
        attention_norm=norm(names.attention_norm),
        input_norm=norm(names.input_norm),
        mlp=mlp,
        output_norm=layer.norm(names.output_norm, width, bias=names.norm_bias),
    )


def read_encoder(
    spec: TransformerSpec,
    weights: WeightReader[T],
    ops: Ops[T],
    names: LayerNames,
    *,
    first_position: int | None = None,
    norm: str = "embeddings.LayerNorm",
    rotary: CosSin[T] | None = None,
    attention_bias: T | None = None,
    types: T | None = None,
    embedding_size: int | None = None,
    widen: str | None = None,
    layers: Sequence[TransformerLayer[T]] | None = None,
) -> Transformer[T]:
    """Return an encoder with BERT's names of the embeddings.

    first_position: the first token's row in the table of positions; None: there is no table. types (types, H): replace
    the checkpoint's. embedding_size: width of the tables; the layer `widen` maps their sum to the width of the states.
    None: the tables have that width. layers: None: those of `names`.
    """
    width, positions = embedding_size or spec.hidden_size, None
    if first_position is not None:
        rows = slice(first_position, first_position + spec.max_tokens)
        positions = weights.tensor("embeddings.position_embeddings.weight", rows.stop, width, rows=rows)
    return Transformer(
        spec,
        TransformerWeights(
            words=weights.tensor(WORDS, spec.vocab_size, width),
            positions=positions,
            types=weights.tensor(TYPES, spec.types, width) if spec.types and types is None else types,
            words_change=weights.table_change(WORDS.removesuffix(WEIGHT), spec.vocab_size, width),
            types_change=weights.row_change(TYPES.removesuffix(WEIGHT), width) if spec.types == 1 else None,
            norm=weights.norm(norm, width),
            widen=None if widen is None else weights.linear(widen, width, spec.hidden_size),
            layers=tuple(layers or (read_layer(spec, weights, names, i, rotary=rotary) for i in range(spec.layers))),
            attention_bias=attention_bias,
        ),
        ops,
    )


def read_patches(
    config: Mapping[str, Any],
    weights: WeightReader[T],
    linear: Linear[T],
    *,
    mask: T | None = None,
    factor: float = 1.0,
    added: float = 0.0,
) -> Patches[T]:
    """Return the embedding of an image's patches. config: with what checkpoints/kinds/ adds of the processor: its
    rescale_factor, image_mean and image_std. factor, added: that the network applies to the processor's numbers."""
    means, deviations = (
        np.repeat(config[key], facts.size(config, "patch_size") ** 2)[None] for key in ("image_mean", "image_std")
    )  # (1, W)
    return Patches(
        scale=weights.constant("scale", factor * config["rescale_factor"] / deviations),
        shift=weights.constant("shift", added - factor * means / deviations),
        linear=linear,
        mask=mask,
    )


class HeadNames(msgspec.Struct, frozen=True, kw_only=True):
    dense: str
    norm: str
    decoder: str
    bias: str | None = None  # another name of the decoder's bias, in some checkpoints


def read_masked_lm(
    config: Mapping[str, Any],
    spec: TransformerSpec,
    weights: WeightReader[T],
    body: WeightReader[T],
    names: HeadNames,
    activation: Activation | None = None,
    embedding_size: int | None = None,
) -> MaskedLM[T]:
    """Return the head over the vocabulary. embedding_size: as for `read_encoder`."""
    width = embedding_size or spec.hidden_size
    dense, norm = weights.linear(names.dense, spec.hidden_size, width), weights.norm(names.norm, width)
    bias = f"{names.decoder}.bias"
    return MaskedLM(
        transform=Projection(dense, activation or spec.activation, norm, spec.norm_eps),
        words=output_words(config, weights, f"{names.decoder}.weight", body, WORDS, (spec.vocab_size, width)),
        bias=weights.tensor(weights.first_of(bias, names.bias or bias), spec.vocab_size),
    )
