"""Gemma (bge-reranker-v2-gemma), Gemma 2 (bge-multilingual-gemma2), Gemma 3 (EmbeddingGemma), and BidirLM's, which is
bidirectional by default. Names as in transformers/models/gemma, gemma2 and gemma3.

Differences from Llama: norm weights stored as difference from 1, and word vectors scaled by the root of their width.
From the second generation on, norms also after each half of a layer, and layers that attend to a window. The second
caps the scores of attention; in the third, layers with a window have rotary positions of their own, which turn faster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from msgspec.structs import replace

from vectord.checkpoints.config_keys import harmless
from vectord.compute.networks import decoder, facts
from vectord.compute.networks.architecture import LayerNames
from vectord.compute.networks.decoder import HEAD_NORMS, OUTER_NORMS, LanguageModel, read_window
from vectord.compute.networks.rotary import LAYER_KINDS, Rotary, read_layer_rotary, read_sliding
from vectord.compute.networks.transformer import Transformer, TransformerSpec
from vectord.compute.ops.base import Activation, T
from vectord.errors import ModelUnavailable


class Gemma(LanguageModel[T]):
    HARMLESS = {
        **decoder.HARMLESS,
        **harmless("of gemma2 and later, transformers reads hidden_activation only", "hidden_act"),
        **harmless("a copy of sliding_window_pattern, which transformers never reads", "_sliding_window_pattern"),
        **harmless("read by layers with a window only; this model has none", "sliding_window"),
        **harmless("only heads over the vocabulary read it", "final_logit_softcapping"),
    }
    # The first generation's class reads "gelu" as the approximation too: released configurations have the wrong name.
    ACTIVATIONS: ClassVar[Mapping[str, Activation]] = {**facts.ACTIVATIONS, "gelu": "gelu_tanh"}
    TIES_WORDS = True
    FINAL_CAP: ClassVar[float | None] = None  # the default of final_logit_softcapping
    # The default of use_bidirectional_attention. None: transformers' mask ignores it.
    BIDIRECTIONAL_BY_DEFAULT: ClassVar[bool | None] = None

    def names(self) -> LayerNames:
        return replace(super().names(), norm_offset=1.0)

    def read_spec(self) -> TransformerSpec:
        spec, key = super().read_spec(), "use_bidirectional_attention"
        causal = spec.causal
        if self.BIDIRECTIONAL_BY_DEFAULT is None:
            self.require(key, False)
        else:
            causal = not self.flag(key, self.BIDIRECTIONAL_BY_DEFAULT)
        return replace(spec, causal=causal, word_scale=spec.hidden_size**0.5)

    def head_rows(self, ids: Sequence[int]) -> T:
        key = "final_logit_softcapping"
        facts.require({key: self.config.get(key, self.FINAL_CAP)}, key, None)  # a null turns the default off
        return super().head_rows(ids)


class Gemma2(Gemma[T]):
    ACTIVATION_KEY = "hidden_activation"
    ACTIVATIONS = facts.ACTIVATIONS
    FINAL_CAP = 30.0

    def names(self) -> LayerNames:
        return replace(super().names(), **OUTER_NORMS)

    def read_spec(self) -> TransformerSpec:
        key, usual = "attn_logit_softcapping", 50.0
        return replace(
            super().read_spec(),
            head_size=self.size("head_dim", 256),
            attention_scale=self.size("query_pre_attn_scalar", 256) ** -0.5,
            score_cap=None if self.config.get(key, usual) is None else self.number(key, usual),
        )

    def windows(self) -> Sequence[int | None]:
        sliding = read_sliding(self.config, [i % 2 == 0 for i in range(self.spec.layers)])
        usual = None if "sliding_window" in self.config else 4096  # transformers refuses a null here
        window = read_window(self.config, usual, causal=self.spec.causal) if any(sliding) else None
        return tuple(window if slides else None for slides in sliding)


class Gemma3(Gemma[T]):
    ACTIVATION_KEY = "hidden_activation"
    ACTIVATIONS = facts.ACTIVATIONS
    BIDIRECTIONAL_BY_DEFAULT = False
    COUNTS_ITSELF: ClassVar[int] = 1  # tokens of a causal window: the token itself

    def names(self) -> LayerNames:
        return replace(super().names(), **HEAD_NORMS, **OUTER_NORMS)

    def read_spec(self) -> TransformerSpec:
        self.require("attn_logit_softcapping", None)
        self.require("is_causal", True)
        return replace(super().read_spec(), attention_scale=self.size("query_pre_attn_scalar", 256) ** -0.5)

    def sliding(self) -> Sequence[bool]:
        """Which layers attend to a window: all but each 6th."""
        usual = self.size("sliding_window_pattern", 6)
        return read_sliding(self.config, [(i + 1) % usual != 0 for i in range(self.spec.layers)])

    def windows(self) -> Sequence[int | None]:
        """sliding_window counts the tokens on both sides in a bidirectional model."""
        sliding = self.sliding()
        if not any(sliding):
            return (None,) * self.spec.layers
        size = self.size("sliding_window")
        window = size - self.COUNTS_ITSELF if self.spec.causal else size // 2
        return tuple(window if slides else None for slides in sliding)

    def load(self) -> Transformer[T]:
        full, sliding = self.rotaries()
        return self.read(self.names(), self.windows(), full, sliding_rotary=sliding)

    def rotaries(self) -> tuple[Rotary, Rotary]:
        """Those of full and sliding layers. rope_scaling, from before transformers 5, changes the former."""
        (full, sliding), positions = LAYER_KINDS, self.spec.max_tokens
        scaling = self.section("rope_scaling")
        if scaling.get("type", "default") != "default" and "rope_type" not in scaling:
            raise ModelUnavailable(
                "config.json: rope_scaling.type is read by transformers 4 and ignored by 5; name it rope_type"
            )
        parameters = self.section("rope_parameters")
        merged = {"rope_parameters": {**parameters, full: {**facts.section(parameters, full), **scaling}}}
        theta, local_theta = self.number("rope_theta", 1e6), self.number("rope_local_base_freq", 1e4)
        return (
            read_layer_rotary(merged, full, theta=theta, positions=positions),
            read_layer_rotary(merged, sliding, theta=local_theta, positions=positions),
        )


class BiGemma3(Gemma3[T]):
    BIDIRECTIONAL_BY_DEFAULT = True
    COUNTS_ITSELF = 0
