"""`model_type: deberta-v2`: DeBERTa v2 and v3, and the rerankers and classifiers made of them.

Names as in transformers/models/deberta_v2/modeling_deberta_v2.py. Attention depends on the distance of two tokens
through vectors of relative places, which are projected like tokens. Those projections are independent of the text, so
they are made once, with the constants.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from vectord.checkpoints.checkpoint import Weight
from vectord.checkpoints.config_keys import Harmless, harmless
from vectord.compute.networks import encoder, facts
from vectord.compute.networks.encoder import WORDS
from vectord.compute.networks.heads import Classifier, MaskedLM, Projection
from vectord.compute.networks.transformer import (
    Attention,
    Convolution,
    Mlp,
    Transformer,
    TransformerLayer,
    TransformerSpec,
    TransformerWeights,
)
from vectord.compute.networks.weights import POOLER, HarmlessTensors, Linear, WeightReader
from vectord.compute.ops.base import Ops, T
from vectord.errors import ModelUnavailable

PREFIXES = ("", "deberta.")
MAX_POSITIONS = 2**20  # no table of the checkpoint bounds the distances

HARMLESS: Mapping[str, Harmless] = {
    **encoder.HARMLESS,
    **harmless("only classifiers read it", "pooler_hidden_act pooler_hidden_size"),
    **harmless("only heads over the vocabulary read it", "legacy"),
    **harmless("only with conv_kernel_size", "conv_act conv_groups"),
}
HARMLESS_TENSORS: Collection[HarmlessTensors] = (
    *encoder.HARMLESS_TENSORS,
    POOLER,
    *encoder.BERT_WORDS_HEAD,
    HarmlessTensors("heads of pretraining", r"mask_predictions\..+"),
    HarmlessTensors("the older name of that over the vocabulary", r"lm_predictions\..+", unless="splade"),
    HarmlessTensors("a copy of the words that pretraining left", r"(\w+\.)?embeddings\.word_embeddings\._weight"),
)


class DebertaSpec(TransformerSpec, frozen=True, kw_only=True):
    word_size: int
    place_keys: bool  # "c2p": queries attend to places
    place_queries: bool  # "p2c": places attend to keys
    share_projections: bool  # places are projected by the layer's own query and key
    span: int  # relative places in each direction
    buckets: int | None  # None: one place a distance, up to the span
    far: int  # the distance at which the last bucket begins


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Transformer[T]:
    spec, weights = _spec(config), weights.after_prefix(PREFIXES, WORDS)
    width, wide = spec.word_size, spec.hidden_size
    biased, types = facts.flag(config, "position_biased_input", True), spec.types
    places = weights.tensor("encoder.rel_embeddings.weight", 2 * spec.span, wide)  # vectors of relative places
    if facts.choice(config, "norm_rel_ebd", ("none", "layer_norm"), "none") == "layer_norm":
        norm = weights.norm("encoder.LayerNorm", wide)
        places = ops.layer_norm(places, norm.weight, norm.bias, spec.norm_eps)
    read = TransformerWeights(
        words=weights.tensor(WORDS, spec.vocab_size, width),
        positions=weights.tensor("embeddings.position_embeddings.weight", spec.max_tokens, width) if biased else None,
        types=weights.tensor("embeddings.token_type_embeddings.weight", types, width) if types else None,
        widen=weights.linear("embeddings.embed_proj", width, wide, bias=False) if width != wide else None,
        wide_norm=weights.norm("embeddings.LayerNorm", wide),
        buckets=ops.constant(Weight("buckets", "I32", relative_places(spec))),
        layers=tuple(_layer(spec, weights, ops, f"encoder.layer.{i}", places) for i in range(spec.layers)),
        convolution=_convolution(config, wide, weights.under("encoder.conv."), ops),
    )
    return Transformer(spec, read, ops)


def classifier(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T], labels: int) -> Classifier[T]:
    width = facts.size(config, "hidden_size")
    facts.require(config, "pooler_hidden_size", width)
    kind = facts.activation(config, "pooler_hidden_act", default="gelu")
    pooler = Projection(weights.linear("pooler.dense", width, width), kind)
    return Classifier("cls", (pooler, Projection(weights.linear("classifier", width, labels))))


def _spec(config: Mapping[str, Any]) -> DebertaSpec:
    facts.require({"relative_attention": facts.flag(config, "relative_attention", False)}, "relative_attention", True)
    heads, hidden_size = facts.heads(config, "num_attention_heads", "hidden_size"), facts.size(config, "hidden_size")
    facts.require(config, "attention_head_size", hidden_size // heads)
    max_tokens = facts.size(config, "max_position_embeddings", at_most=MAX_POSITIONS)
    buckets, far = _positive(config, "position_buckets"), _positive(config, "max_relative_positions") or max_tokens
    if buckets is not None and not 1 <= buckets // 2 < far - 1:
        raise ModelUnavailable(f"config.json: position_buckets {buckets} does not fit {far} relative positions")
    value = config.get("pos_att_type") or []
    kinds = value.lower().split("|") if isinstance(value, str) else value
    if not isinstance(kinds, list) or any(
        not isinstance(kind, str) or kind.strip() not in {"c2p", "p2c"} for kind in kinds
    ):
        raise ModelUnavailable(f"config.json: pos_att_type must be of c2p and p2c; found {repr(value)[:80]}")
    kinds = {kind.strip() for kind in kinds}
    return DebertaSpec(
        vocab_size=facts.size(config, "vocab_size"),
        max_tokens=max_tokens,
        word_size=_positive(config, "embedding_size") or hidden_size,
        hidden_size=hidden_size,
        intermediate_size=facts.size(config, "intermediate_size"),
        layers=facts.size(config, "num_hidden_layers", at_most=1024),
        heads=heads,
        head_size=hidden_size // heads,
        activation=facts.activation(config, "hidden_act"),
        norm_eps=facts.epsilon(config, "layer_norm_eps"),
        types=_positive(config, "type_vocab_size") or 0,
        attention_scale=(hidden_size // heads * (1 + len(kinds))) ** -0.5,
        place_keys="c2p" in kinds,
        place_queries="p2c" in kinds,
        share_projections=facts.flag(config, "share_att_key", False),
        span=buckets or far,
        buckets=buckets,
        far=far,
    )


def _positive(config: Mapping[str, Any], key: str) -> int | None:
    """The size at `key`; None if missing, -1 or 0, as published configs write it."""
    value = config.get(key)
    return None if value is None or (type(value) is int and value < 1) else facts.size(config, key)


def _convolution(config: Mapping[str, Any], width: int, weights: WeightReader[T], ops: Ops[T]) -> Convolution[T] | None:
    """That of deberta-v2-xlarge and -xxlarge."""
    size = _positive(config, "conv_kernel_size")
    if size is None:
        return None
    facts.require(config, "conv_groups", 1)
    if size % 2 == 0:
        raise ModelUnavailable(f"config.json: conv_kernel_size {size} is even; transformers refuses it too")
    taps, bias = weights.array("conv.weight", width, width, size), weights.tensor("conv.bias", width)
    matrices = [ops.matrix(Weight(f"conv.weight.{i}", "F32", np.ascontiguousarray(taps[:, :, i]))) for i in range(size)]
    return Convolution(
        taps=tuple((i - size // 2, Linear(each, None if i else bias)) for i, each in enumerate(matrices)),
        activation=facts.activation(config, "conv_act", default="tanh"),
        norm=weights.norm("LayerNorm", width),
    )


def _layer(spec: DebertaSpec, weights: WeightReader[T], ops: Ops[T], name: str, places: T) -> TransformerLayer[T]:
    width, inner = spec.hidden_size, spec.intermediate_size
    attention = f"{name}.attention.self"
    # These project the places once, at load, so no adapter may change them.
    fixed = weights.over(ops)
    query = (fixed if spec.share_projections else weights).linear(f"{attention}.query_proj", width, width)
    key = (fixed if spec.share_projections else weights).linear(f"{attention}.key_proj", width, width)

    def project(own: str, shared: Linear[T]) -> T:
        linear = shared if spec.share_projections else fixed.linear(f"{attention}.{own}", width, width)
        return ops.linear(places, linear.weight, linear.bias)

    return TransformerLayer(
        attention=Attention(
            query=query,
            key=key,
            value=weights.linear(f"{attention}.value_proj", width, width),
            place_k=project("pos_key_proj", key) if spec.place_keys else None,
            place_q=project("pos_query_proj", query) if spec.place_queries else None,
            out=weights.linear(f"{name}.attention.output.dense", width, width),
        ),
        attention_norm=weights.norm(f"{name}.attention.output.LayerNorm", width),
        mlp=Mlp(
            up=weights.linear(f"{name}.intermediate.dense", width, inner),
            down=weights.linear(f"{name}.output.dense", inner, width),
        ),
        output_norm=weights.norm(f"{name}.output.LayerNorm", width),
    )


def masked_lm(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> MaskedLM[T]:
    """Return the head of DebertaV2ForMaskedLM, in transformers' or the original form."""
    facts.require(config, "tie_word_embeddings", True)
    spec, old = _spec(config), facts.flag(config, "legacy", True)
    name = "cls.predictions" if old else "lm_predictions.lm_head"
    layer = f"{name}.transform" if old else name
    width = spec.word_size if old else spec.hidden_size
    dense = weights.linear(f"{layer}.dense", spec.hidden_size, width)
    norm, body = weights.norm(f"{layer}.LayerNorm", width), weights.after_prefix(PREFIXES, WORDS)
    weights.check_tied(f"{name}.decoder.weight", body, WORDS, config, spec.vocab_size, width)
    return MaskedLM(
        transform=Projection(dense, spec.activation, norm, spec.norm_eps),
        words=body.tensor(WORDS, spec.vocab_size, width),
        bias=weights.tensor(f"{name}.bias", spec.vocab_size),
    )


def relative_places(spec: DebertaSpec) -> npt.NDArray[np.int32]:
    """(2 * max_tokens - 1,): the place of each distance of query less key, from -(max_tokens - 1) on.

    Near distances have one place each; with buckets, far ones share places that widen logarithmically.
    """
    distances = np.arange(1 - spec.max_tokens, spec.max_tokens)
    places = distances if spec.buckets is None else log_buckets(distances, spec.buckets, spec.far)
    return np.clip(places + spec.span, 0, 2 * spec.span - 1).astype(np.int32)


def log_buckets(distances: npt.NDArray[np.int64], buckets: int, far: int) -> npt.NDArray[np.int64]:
    """Source: make_log_bucket_position."""
    near = buckets // 2
    sizes = np.maximum(abs(distances), near)
    logarithms = np.log(sizes / near) / np.log((far - 1) / near)  # 0 at near, 1 just before far
    widened = np.sign(distances) * (near + np.ceil(logarithms * (near - 1)))
    return np.where(abs(distances) <= near, distances, widened).astype(np.int64)
