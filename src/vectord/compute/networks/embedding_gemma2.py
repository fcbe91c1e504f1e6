"""`model_type: embedding_gemma2`, the text tower, and `embedding_gemma2_text`, a model of that tower alone.

Names as in transformers/models/embedding_gemma2/modeling_embedding_gemma2.py. Differences from Gemma 3: bidirectional,
norms without an offset and also of values, wider heads in the layers that attend to all, a third part of each layer
that the token's word vector gates, and a projection of the last states. The towers of images and audio are not loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from vectord.checkpoints.config_keys import harmless, refuse_unread_config
from vectord.checkpoints.files.read import Settings
from vectord.compute.networks import decoder, facts
from vectord.compute.networks.architecture import LayerNames
from vectord.compute.networks.decoder import HEAD_NORMS, OUTER_NORMS, DecoderArchitecture
from vectord.compute.networks.rotary import LAYER_KINDS, CosSin, Rotary, read_layer_rotary, read_sliding, rotary_table
from vectord.compute.networks.transformer import (
    Attention,
    Transformer,
    TransformerLayer,
    TransformerSpec,
    TransformerWeights,
    WordGate,
)
from vectord.compute.networks.weights import HarmlessTensors, Norm
from vectord.compute.ops.base import T
from vectord.errors import ModelUnavailable

TEXT_TYPE = "embedding_gemma2_text"
MAX_TOKENS = 32_768  # of one text: bounds the tables of positions; the published model reads 8,192
_THETAS = {"full_attention": 1e6, "sliding_attention": 1e4}
_LAYER_KEYS = frozenset({"head_dim", "num_key_value_heads"})


class EmbeddingGemma2Text(DecoderArchitecture[T]):
    HARMLESS = {
        **decoder.HARMLESS,
        **harmless(
            "of images, video and audio, which are not served",
            "audio_config audio_token_id boa_token_id boi_token_id eoa_token_index eoi_token_id image_token_id "
            "video_token_id vision_config",
        ),
        **harmless("of layers that slide, which the model has none of", "sliding_window"),
        **harmless("per_layer_config is read instead", "global_head_dim num_global_key_value_heads"),
    }
    HARMLESS_TENSORS = (
        *decoder.HARMLESS_TENSORS,
        HarmlessTensors("towers of images and audio", r"(vision_tower|embed_vision|audio_tower|embed_audio)\..+"),
    )
    PREFIXES = ("", "language_model.", "model.language_model.")
    ACTIVATION_KEY = "hidden_activation"

    def names(self) -> LayerNames:
        return replace(super().names(), **HEAD_NORMS, **OUTER_NORMS)

    def read_spec(self) -> TransformerSpec:
        spec = super().read_spec()
        return replace(
            spec,
            max_tokens=min(spec.max_tokens, MAX_TOKENS),
            attention_scale=1.0,
            word_scale=spec.hidden_size**0.5,
            output_size=self.size("embedding_dim", 768),
        )

    def load(self) -> Transformer[T]:
        spec, body, width, names = self.spec, self.body, self.spec.hidden_size, self.names()
        usual = self.size("sliding_window_pattern", 6)  # each 6th layer attends to all, and the last one
        sliding = read_sliding(self.config, [(i + 1) % usual != 0 for i in range(spec.layers)])
        kinds = [*(LAYER_KINDS[slides] for slides in sliding[:-1]), LAYER_KINDS[0]]
        windows: dict[str, int | None] = {"full_attention": None, "sliding_attention": None}
        if "sliding_attention" in kinds:
            windows["sliding_attention"] = self.size("sliding_window", 512)
        tables: dict[tuple[str, int], CosSin[T]] = {}
        layers = []
        for i, (kind, own) in enumerate(zip(kinds, self._layer_specs(kinds), strict=True)):
            key = kind, own.head_size
            if key not in tables:
                tables[key] = rotary_table(body, self._rotary(kind), own.head_size, spec.max_tokens)
            layer = self.read_layer(names, i, spec=own, rotary=tables[key], window=windows[kind])
            layers.append(self._with_gate(layer, own, i))
        return Transformer(
            spec,
            TransformerWeights(
                words=body.tensor(self.WORDS, spec.vocab_size, width),
                layers=tuple(layers),
                final_norm=body.norm("norm", width, bias=False),
                projection=body.linear("embedding_projection", width, spec.output_size or width, bias=False),
            ),
            self.ops,
        )

    def _rotary(self, kind: str) -> Rotary:
        """transformers has no defaults for the entries of rope_parameters."""
        given = self.section("rope_parameters")
        section = facts.section(given, kind)
        trained = () if section.get("rope_type") in ("default", "linear") else ("original_max_position_embeddings",)
        if given and (missing := [key for key in ("rope_type", "rope_theta", *trained) if key not in section]):
            raise ModelUnavailable(f"config.json: rope_parameters.{kind}.{missing[0]} is missing")
        return read_layer_rotary(self.config, kind, theta=_THETAS[kind], positions=self.spec.max_tokens)

    def _layer_specs(self, kinds: Sequence[str]) -> list[TransformerSpec]:
        """Each layer's heads: per_layer_config, by the layer's number, else those of the builder's two keys."""
        spec, given = self.spec, self.section("per_layer_config")
        numbers = {str(key).lstrip("0") or "0": value for key, value in given.items()}
        wide = {
            "head_dim": self.size("global_head_dim", 512),
            "num_key_value_heads": self.size("num_global_key_value_heads", 1),
        }
        specs = []
        for i, kind in enumerate(kinds):
            own = numbers.pop(str(i), {}) if given else wide if kind == "full_attention" else {}
            if not isinstance(own, dict) or not own.keys() <= _LAYER_KEYS:
                raise ModelUnavailable(f"config.json: per_layer_config.{i} may have {', '.join(sorted(_LAYER_KEYS))}")
            kv_heads = facts.key_heads(own, spec.heads, spec.kv_heads)
            specs.append(replace(spec, head_size=facts.size(own, "head_dim", spec.head_size), kv_heads=kv_heads))
        if numbers:
            raise ModelUnavailable(f"config.json: per_layer_config.{min(numbers)[:40]} is not the number of a layer")
        for kind, own in zip(kinds, specs, strict=True):
            if own != specs[kinds.index(kind)]:
                raise ModelUnavailable(
                    f"config.json: per_layer_config and layer_types must give layers of {kind} one form"
                )
        return specs

    def _with_gate(self, layer: TransformerLayer[T], spec: TransformerSpec, i: int) -> TransformerLayer[T]:
        """The layer with the parts that decoders have not. spec: of this layer."""
        assert isinstance(layer.attention, Attention)
        own, width, size = self.body.under(f"layers.{i}."), spec.hidden_size, self.gate_size
        block, shared = own.under("ple_block."), self.body.under("ple.")
        ones, rows = own.constant("self_attn.v_norm.weight", np.ones(spec.head_size)), slice(i * size, (i + 1) * size)
        return replace(
            layer,
            attention=replace(
                layer.attention, value_norm=Norm(ones, None), head_size=spec.head_size, kv_heads=spec.kv_heads
            ),
            word_gate=WordGate(
                words=shared.linear("per_layer_model_projection", width, spec.layers * size, bias=False, rows=rows),
                words_norm=shared.norm("per_layer_projection_norm", size, bias=False),
                inner=block.linear("per_layer_input_gate", width, size, bias=False),
                out=block.linear("per_layer_projection", size, width, bias=False),
                out_norm=block.norm("post_per_layer_input_norm", width, bias=False),
            ),
            scale=float(own.array("layer_scalar", 1)[0]),
        )

    @property
    def gate_size(self) -> int:
        return self.size("hidden_size_per_layer_input", 512)


class EmbeddingGemma2(EmbeddingGemma2Text[T]):
    """The text tower is a section of the config."""

    def load(self) -> Transformer[T]:
        path = self.config.path if isinstance(self.config, Settings) else Path("config.json")
        allowed = self.config.allowed if isinstance(self.config, Settings) else ()
        text = Settings(path, self.section("text_config"), allowed)
        facts.require({"text_config.model_type": text.get("model_type")}, "text_config.model_type", TEXT_TYPE)
        model = EmbeddingGemma2Text(text, self.weights, self.ops).load()
        refuse_unread_config(text, TEXT_TYPE, self.HARMLESS)
        return model
