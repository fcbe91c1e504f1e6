"""Decoders of Llama's form: Llama, EuroBERT, UltraBERT, Mistral, Ministral and MiniCPM.

Names as in transformers' classes; of MiniCPM (bge-reranker-v2-minicpm-layerwise) as in FlagEmbedding's
modeling_minicpm_reranker.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Literal, cast

import numpy as np
from msgspec.structs import replace

from vectord.checkpoints.config_keys import harmless
from vectord.checkpoints.spec import Pooling
from vectord.compute.networks import decoder, facts
from vectord.compute.networks.architecture import LayerNames
from vectord.compute.networks.decoder import DecoderArchitecture, LanguageModel, read_window
from vectord.compute.networks.heads import Classifier, Projection
from vectord.compute.networks.rotary import LAYER_KINDS, read_layer_rotary, read_plain_rotary, read_sliding
from vectord.compute.networks.transformer import Transformer, TransformerSpec
from vectord.compute.networks.weights import HarmlessTensors, Linear
from vectord.compute.ops.base import T
from vectord.errors import ModelUnavailable


class Llama(LanguageModel[T]):
    HARMLESS_TENSORS = (
        *decoder.HARMLESS_TENSORS,
        HarmlessTensors("the layer before EuroBERT's classifier", r"dense\.(weight|bias)", unless="scores"),
    )

    def names(self) -> LayerNames:
        bias = self.flag("mlp_bias", False)
        return replace(super().names(), mlp_bias=bias, down_bias=bias)


class EuroBert(Llama[T]):
    """A Llama without a causal mask."""

    def classifier(self, labels: int) -> Classifier[T]:
        width = self.size("hidden_size")
        # The model's own code and transformers have different names for the key.
        key = "clf_pooling" if "clf_pooling" in self.config else "classifier_pooling"
        pooling = self.choice(key, ("bos", "mean", "late"), "late")
        dense = Projection(self.weights.linear("dense", width, width), "gelu")
        out = Projection(self.weights.linear("classifier", width, labels))
        if pooling == "late":  # the mean of the tokens' logits is the logit of their mean
            return Classifier("mean", (out,), tokens=(dense,))
        return Classifier("cls" if pooling == "bos" else "mean", (dense, out))


class LlamaBidirec(Llama[T]):
    """NVIDIA's name of a Llama without a causal mask (Nemotron)."""

    POOLINGS: Mapping[str, Pooling] = {"avg": "mean", "cls": "cls", "last": "last"}

    def classifier(self, labels: int) -> Classifier[T]:
        score = self.weights.array("score.weight", labels, self.size("hidden_size"))
        rows = self.weights.constant("score.weight", score / self.number("temperature", 1.0))
        pooling = self.POOLINGS[self.choice("pooling", tuple(self.POOLINGS), "avg")]
        return Classifier(pooling, (Projection(Linear(rows, None)),))


class UltraBert(DecoderArchitecture[T]):
    """A EuroBERT of which two of three layers attend to a window; each kind of layer has its own rotary base."""

    HARMLESS = {
        **decoder.HARMLESS,
        **harmless("only heads over the vocabulary read it", "prediction_head_size"),
        **harmless("attention_windows replaces it, or no layer slides", "sliding_window"),
        **harmless("rope_parameters replaces it", "rope_theta"),
    }
    HARMLESS_TENSORS = (
        *decoder.HARMLESS_TENSORS,
        HarmlessTensors("the head over the vocabulary", r"(head\.(linear1|linear2|decoder)|cls)\.weight"),
    )
    PREFIXES = ("", "ultrabert.", "model.")
    THETAS = (2_560_000.0, 10_000.0)  # by LAYER_KINDS

    def load(self) -> Transformer[T]:
        bias, windows = self.flag("mlp_bias", False), self.windows()
        full, sliding = (
            read_layer_rotary(self.config, kind, theta=theta, positions=self.spec.max_tokens)
            for kind, theta in zip(LAYER_KINDS, self._thetas(windows), strict=True)
        )
        names = replace(self.names(), mlp_bias=bias, down_bias=bias)
        return self.read(names, windows, full, sliding_rotary=sliding)

    def classifier(self, labels: int) -> Classifier[T]:
        pooling = cast(Literal["cls", "mean"], self.choice("classifier_pooling", ("cls", "mean"), "cls"))
        return Classifier(pooling, (Projection(self.weights.linear("classifier", self.size("hidden_size"), labels)),))

    def windows(self) -> Sequence[int | None]:
        """attention_windows, from before transformers had the class, lists them."""
        layers, listed = self.spec.layers, self.config.get("attention_windows")
        if listed is None:
            sliding = read_sliding(self.config, [(i + 1) % 3 != 0 for i in range(layers)])
            window = self.size("sliding_window", 128) if any(sliding) else None
            return tuple(window if slides else None for slides in sliding)
        sizes = {size for size in listed if size} if isinstance(listed, list) and len(listed) == layers else {None}
        is_one = len(sizes) <= 1 and all(type(size) is int and size > 0 for size in sizes)
        if not is_one or self.config.get("layer_types"):
            raise ModelUnavailable(
                f"config.json: attention_windows must be {layers} times one window or none, without layer_types"
            )
        return tuple(size or None for size in listed)

    def _thetas(self, windows: Sequence[int | None]) -> tuple[float, float]:
        """The rotary base of layers that attend to all, and of those with a window. rope_theta lists that of each."""
        listed = self.config.get("rope_theta")
        if listed is None or self.config.get("rope_parameters") is not None:
            return self.THETAS
        bases: tuple[set[float], set[float]] = (set(), set())
        for window, theta in zip(windows, listed if isinstance(listed, list) else (), strict=False):
            bases[window is not None].add(facts.number({"rope_theta": theta}, "rope_theta", 0.0, at_least=1.0))
        if not isinstance(listed, list) or len(listed) != len(windows) or max(map(len, bases)) > 1:
            raise ModelUnavailable(
                f"config.json: rope_theta must be {len(windows)} numbers, one for each kind of layer"
            )
        full, sliding = (next(iter(found), usual) for found, usual in zip(bases, self.THETAS, strict=True))
        return full, sliding


class Mistral(LanguageModel[T]):
    """E5-Mistral, Linq, SFR."""

    WINDOW: int | None = 4096  # the default of sliding_window

    def names(self) -> LayerNames:
        return decoder.NAMES

    def windows(self) -> Sequence[int | None]:
        window = None  # also for a null; a config without the key has the default
        if self.config.get("sliding_window", self.WINDOW) is not None:
            window = read_window(self.config, self.WINDOW, causal=self.spec.causal)
        usual = [window is not None] * self.spec.layers
        if read_sliding(self.config, usual) != tuple(usual):  # transformers' class has no layers of several kinds
            raise ModelUnavailable(
                "config.json: layer_types must agree with sliding_window: all layers of mistral attend to a window, or "
                "none"
            )
        return (window,) * self.spec.layers


class Ministral(Mistral[T]):
    """And NVIDIA's bidirectional one. Queries are scaled by their position."""

    WINDOW = None
    BETA = "llama_4_scaling_beta"

    def load(self) -> Transformer[T]:
        self.require("rope_scaling", None)
        section, positions = self.section("rope_parameters"), self.spec.max_tokens
        if not section:
            raise ModelUnavailable("config.json: rope_parameters is missing, which ministral3 needs")
        # The second key is a copy of the config's own.
        others = {key: value for key, value in section.items() if key not in (self.BETA, "max_position_embeddings")}
        rotary = read_plain_rotary({"rope_parameters": others}, theta=1e6, positions=positions)
        trained, factors = facts.size(section, "original_max_position_embeddings"), None
        beta = facts.number(section, self.BETA, 0.0)
        if trained < positions:
            # Source: get_llama_4_attn_scale in transformers/models/ministral3/modeling_ministral3.py.
            factors = 1 + beta * np.log1p(np.arange(positions) // trained)  # (max_tokens,) of each query
        return self.read(self.names(), self.windows(), rotary, query_factors=factors)


class MiniCpm(DecoderArchitecture[T]):
    """The word vectors and what each half of a layer adds are scaled, and each of the last layers has a head of one
    number. Only the layers up to the chosen one are read."""

    HARMLESS = {
        **decoder.HARMLESS,
        **harmless("only heads over the vocabulary read it", "dim_model_base"),
        **harmless("only the heads of layers read it", "head_multi head_type"),
    }
    HARMLESS_TENSORS = (
        *decoder.HARMLESS_TENSORS,
        HarmlessTensors("heads of layers", r"lm_head\.\d+\.linear_head\.weight", unless="scores"),
    )
    OF_LAYER = (
        *(f"self_attn.{part}_proj" for part in "qkvo"),
        *(f"mlp.{part}_proj" for part in ("gate", "up", "down")),
        *("input_layernorm", "post_attention_layernorm"),
    )

    def read_spec(self) -> TransformerSpec:
        for key, only in {"head_dim": None, "is_causal": True, "use_bidirectional_attention": False}.items():
            self.require(key, only)  # the model's own code reads none of them
        spec = super().read_spec()
        depth_scale = self.number("scale_depth", 1.0) / spec.layers**0.5
        return replace(spec, word_scale=self.number("scale_emb", 1.0), residual_scale=depth_scale)

    @cached_property
    def last_layer(self) -> int:
        layers = self.size("num_hidden_layers", at_most=1024)
        return self.size("cutoff_layer", layers, at_least=self.size("start_layer", 1), at_most=layers)

    def windows(self) -> Sequence[int | None]:
        return (None,) * self.last_layer

    def load(self) -> Transformer[T]:
        for i in range(self.last_layer, self.spec.layers):
            for name in self.OF_LAYER:
                self.body.ignore(f"layers.{i}.{name}.weight")
                self.body.ignore(f"layers.{i}.{name}.bias")
        return super().load()

    def classifier(self, labels: int) -> Classifier[T]:
        """That of the last layer that runs."""
        self.require("head_type", "simple")
        self.require("head_multi", True)
        first, last = self.size("start_layer"), self.last_layer
        for i in range(self.size("num_hidden_layers") + 1 - first):
            self.weights.ignore(f"lm_head.{i}.linear_head.weight")
        name = f"lm_head.{last - first}.linear_head"
        head = self.weights.linear(name, self.size("hidden_size"), labels, bias=False)
        return Classifier("last", (Projection(head),))
