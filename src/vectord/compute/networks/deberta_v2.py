"""`model_type: deberta-v2`: DeBERTa v2 and v3, and the rerankers and classifiers made of them.

Names as in transformers/models/deberta_v2/modeling_deberta_v2.py. Attention depends on the distance of two tokens
through vectors of relative places, which are projected like tokens. Those projections are independent of the text, so
they are made once, with the constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from vectord.checkpoints.checkpoint import Weight
from vectord.checkpoints.config_keys import harmless
from vectord.compute.networks import encoder, facts
from vectord.compute.networks.architecture import LayerNames
from vectord.compute.networks.bert import Bert
from vectord.compute.networks.encoder import EncoderArchitecture
from vectord.compute.networks.heads import Classifier, MaskedLM, Projection
from vectord.compute.networks.transformer import (
    Attention,
    Convolution,
    Transformer,
    TransformerLayer,
    TransformerSpec,
    TransformerWeights,
)
from vectord.compute.networks.weights import POOLER, HarmlessTensors, Linear, WeightReader
from vectord.compute.ops.base import T
from vectord.errors import ModelUnavailable
from vectord.schema import Int32

MAX_POSITIONS = 2**20  # no table of the checkpoint bounds the distances


class DebertaV2(EncoderArchitecture[T]):
    HARMLESS = {
        **encoder.HARMLESS,
        **harmless("only classifiers read it", "pooler_hidden_act pooler_hidden_size"),
        **harmless("only heads over the vocabulary read it", "legacy"),
        **harmless("only with conv_kernel_size", "conv_act conv_groups"),
    }
    HARMLESS_TENSORS = (
        *encoder.HARMLESS_TENSORS,
        POOLER,
        *encoder.BERT_WORDS_HEAD,
        HarmlessTensors("heads of pretraining", r"mask_predictions\..+"),
        HarmlessTensors("the older name of that over the vocabulary", r"lm_predictions\..+", unless="splade"),
        HarmlessTensors("a copy of the words that pretraining left", r"(\w+\.)?embeddings\.word_embeddings\._weight"),
    )
    PREFIXES = ("", "deberta.")
    NAMES = replace(
        Bert.NAMES,
        attention=("attention.self.query_proj", "attention.self.key_proj", "attention.self.value_proj"),
    )

    def read_spec(self) -> TransformerSpec:
        facts.require({"relative_attention": self.flag("relative_attention", False)}, "relative_attention", True)
        spec = encoder.read_spec(self.config, types=self._positive("type_vocab_size") or 0)
        self.require("attention_head_size", spec.head_size)
        self.size("max_position_embeddings", at_most=MAX_POSITIONS)
        scale = (spec.head_size * (1 + len(self.terms))) ** -0.5
        return replace(spec, attention_scale=scale)

    @cached_property
    def table_width(self) -> int:
        return self._positive("embedding_size") or self.spec.hidden_size

    @cached_property
    def terms(self) -> frozenset[str]:
        """c2p: queries attend to places; p2c: places attend to keys."""
        value = self.config.get("pos_att_type") or []
        kinds = value.lower().split("|") if isinstance(value, str) else value
        if not isinstance(kinds, list) or any(
            not isinstance(kind, str) or kind.strip() not in {"c2p", "p2c"} for kind in kinds
        ):
            raise ModelUnavailable(f"config.json: pos_att_type must be of c2p and p2c; found {repr(value)[:80]}")
        return frozenset(kind.strip() for kind in kinds)

    @cached_property
    def buckets(self) -> int | None:
        """How many places there are; None: one a distance, up to `far`."""
        buckets, far = self._positive("position_buckets"), self.far
        if buckets is not None and not 1 <= buckets // 2 < far - 1:
            raise ModelUnavailable(f"config.json: position_buckets {buckets} does not fit {far} relative positions")
        return buckets

    @cached_property
    def far(self) -> int:
        """The distance at which the last bucket begins."""
        return self._positive("max_relative_positions") or self.spec.max_tokens

    def _positive(self, key: str) -> int | None:
        """The size at `key`; None if missing, -1 or 0, as published configs write it."""
        value = self.config.get(key)
        return None if value is None or (type(value) is int and value < 1) else self.size(key)

    def load(self) -> Transformer[T]:
        spec, body, narrow, width = self.spec, self.body, self.table_width, self.spec.hidden_size
        span = self.buckets or self.far
        positions = types = None
        if self.flag("position_biased_input", True):
            positions = body.tensor("embeddings.position_embeddings.weight", spec.max_tokens, narrow)
        if spec.types:
            types = body.tensor(encoder.TYPES, spec.types, narrow)
        places = body.tensor("encoder.rel_embeddings.weight", 2 * span, width)  # vectors of relative places
        if self.choice("norm_rel_ebd", ("none", "layer_norm"), "none") == "layer_norm":
            norm = body.norm("encoder.LayerNorm", width)
            places = self.ops.layer_norm(places, norm.weight, norm.bias, spec.norm_eps)
        return Transformer(
            spec,
            TransformerWeights(
                words=body.tensor(self.WORDS, spec.vocab_size, narrow),
                positions=positions,
                types=types,
                widen=body.linear("embeddings.embed_proj", narrow, width, bias=False) if narrow != width else None,
                wide_norm=body.norm("embeddings.LayerNorm", width),
                buckets=self.ops.constant(Weight("buckets", "I32", self._relative_places(span))),
                layers=tuple(self._layer(i, places) for i in range(spec.layers)),
                convolution=self._convolution(),
            ),
            self.ops,
        )

    def classifier(self, labels: int) -> Classifier[T]:
        width = self.spec.hidden_size
        self.require("pooler_hidden_size", width)
        kind = facts.activation(self.config, "pooler_hidden_act", default="gelu")
        pooler = Projection(self.weights.linear("pooler.dense", width, width), kind)
        return Classifier("cls", (pooler, Projection(self.weights.linear("classifier", width, labels))))

    def masked_lm(self) -> MaskedLM[T]:
        """That of DebertaV2ForMaskedLM, in transformers' or the original form."""
        self.require("tie_word_embeddings", True)
        spec, old = self.spec, self.flag("legacy", True)
        name = "cls.predictions" if old else "lm_predictions.lm_head"
        layer, width = f"{name}.transform" if old else name, self.table_width if old else spec.hidden_size
        dense = self.weights.linear(f"{layer}.dense", spec.hidden_size, width)
        norm = self.weights.norm(f"{layer}.LayerNorm", width)
        self.weights.check_tied(f"{name}.decoder.weight", self.body, self.WORDS, self.config, spec.vocab_size, width)
        return MaskedLM(
            transform=Projection(dense, spec.activation, norm, spec.norm_eps),
            words=self.body.tensor(self.WORDS, spec.vocab_size, width),
            bias=self.weights.tensor(f"{name}.bias", spec.vocab_size),
        )

    def _convolution(self) -> Convolution[T] | None:
        """That of deberta-v2-xlarge and -xxlarge."""
        size, width = self._positive("conv_kernel_size"), self.spec.hidden_size
        if size is None:
            return None
        self.require("conv_groups", 1)
        if size % 2 == 0:
            raise ModelUnavailable(f"config.json: conv_kernel_size {size} is even; transformers refuses it too")
        weights = self.body.under("encoder.conv.")
        taps, bias = weights.array("conv.weight", width, width, size), weights.tensor("conv.bias", width)
        matrices = [
            self.ops.matrix(Weight(f"conv.weight.{i}", "F32", np.ascontiguousarray(taps[:, :, i]))) for i in range(size)
        ]
        return Convolution(
            taps=tuple((i - size // 2, Linear(each, None if i else bias)) for i, each in enumerate(matrices)),
            activation=facts.activation(self.config, "conv_act", default="tanh"),
            norm=weights.norm("LayerNorm", width),
        )

    @cached_property
    def shares_projections(self) -> bool:
        """Whether the places are projected by the layer's own query and key."""
        return self.flag("share_att_key", False)

    def read_inputs(self, names: LayerNames, own: WeightReader[T], spec: TransformerSpec) -> Sequence[Linear[T]]:
        # Layers that project the places do so once, at load, so no adapter may change them.
        fixed, width = own.over(self.ops) if self.shares_projections else own, spec.hidden_size
        assert not isinstance(names.attention, str), "three layers"
        query, key, value = names.attention
        return [reader.linear(name, width, width) for reader, name in ((fixed, query), (fixed, key), (own, value))]

    def _layer(self, i: int, places: T) -> TransformerLayer[T]:
        layer, width = self.read_layer(self.NAMES, i), self.spec.hidden_size
        assert isinstance(layer.attention, Attention)
        fixed = self.body.over(self.ops).under(f"{self.NAMES.prefix}.{i}.attention.self.")

        def project(own: str, shared: Linear[T]) -> T:
            linear = shared if self.shares_projections else fixed.linear(own, width, width)
            return self.ops.linear(places, linear.weight, linear.bias)

        query, key = layer.attention.query, layer.attention.key
        attention = replace(
            layer.attention,
            place_k=project("pos_key_proj", key) if "c2p" in self.terms else None,
            place_q=project("pos_query_proj", query) if "p2c" in self.terms else None,
        )
        return replace(layer, attention=attention)

    def _relative_places(self, span: int) -> Int32:
        """(2 * max_tokens - 1,): the place of each distance of query less key, from -(max_tokens - 1) on.

        Near distances have one place each; with buckets, far ones share places that widen logarithmically.
        """
        distances = np.arange(1 - self.spec.max_tokens, self.spec.max_tokens)
        places = distances if self.buckets is None else log_buckets(distances, self.buckets, self.far)
        return np.clip(places + span, 0, 2 * span - 1).astype(np.int32)


def log_buckets(distances: npt.NDArray[np.int64], buckets: int, far: int) -> npt.NDArray[np.int64]:
    """Source: make_log_bucket_position."""
    near = buckets // 2
    sizes = np.maximum(abs(distances), near)
    logarithms = np.log(sizes / near) / np.log((far - 1) / near)  # 0 at near, 1 just before far
    widened = np.sign(distances) * (near + np.ceil(logarithms * (near - 1)))
    return np.where(abs(distances) <= near, distances, widened).astype(np.int64)
