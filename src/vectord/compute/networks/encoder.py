"""What most encoders share: BERT's keys of config.json, its embeddings, and its heads, under names of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec
import numpy as np

from vectord.checkpoints.config_keys import Harmless, harmless
from vectord.compute.networks import facts
from vectord.compute.networks.architecture import Architecture, LayerNames
from vectord.compute.networks.heads import Classifier, MaskedLM, Projection
from vectord.compute.networks.rotary import CosSin
from vectord.compute.networks.transformer import (
    Patches,
    Transformer,
    TransformerLayer,
    TransformerSpec,
    TransformerWeights,
)
from vectord.compute.networks.weights import LABELS, HarmlessTensors, Linear, WeightReader
from vectord.compute.ops.base import Activation, T

TYPES = "embeddings.token_type_embeddings.weight"
WEIGHT = ".weight"


def read_spec(
    config: Mapping[str, Any],
    *,
    keys: Mapping[str, str] = {},
    types: int = 0,
    activation: Activation | None = None,
    norm_eps: float | None = None,
    norm_first: bool = False,
) -> TransformerSpec:
    """Read BERT's keys, or `keys` in their place. activation, norm_eps: replace the config's. types: their number."""
    facts.require(config, "is_decoder", False)

    def key(name: str) -> str:
        return keys.get(name, name)

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


class HeadNames(msgspec.Struct, frozen=True, kw_only=True):
    """The names of a head over the vocabulary."""

    dense: str
    norm: str
    other_norm: str | None = None  # in some checkpoints
    decoder: str
    bias: str | None = None  # another name of the decoder's bias, in some checkpoints
    activation: Activation | None = None  # None: the body's


class EncoderArchitecture(Architecture[T]):
    WORDS = "embeddings.word_embeddings.weight"
    KEYS: ClassVar[Mapping[str, str]] = {}  # its names of BERT's keys
    LEAST_TYPES: ClassVar[int | None] = 1  # of type_vocab_size; None: tokens have no types
    NAMES: ClassVar[LayerNames]
    HEAD: ClassVar[HeadNames]

    def read_spec(self) -> TransformerSpec:
        types = 0 if self.LEAST_TYPES is None else self.size("type_vocab_size", at_least=self.LEAST_TYPES)
        return read_spec(self.config, keys=self.KEYS, types=types)

    @property
    def table_width(self) -> int:
        """The width of the tables of words, positions and types, and of the head over the words."""
        return self.spec.hidden_size

    def read(
        self,
        names: LayerNames,
        *,
        first_position: int | None = None,
        norm: str = "embeddings.LayerNorm",
        rotary: CosSin[T] | None = None,
        attention_bias: T | None = None,
        types: T | None = None,
        widen: str | None = None,
        layers: Sequence[TransformerLayer[T]] | None = None,
    ) -> Transformer[T]:
        """Return the body.

        first_position: the first token's row in the table of positions; None: there is no table. types (types, H):
        replace the checkpoint's. widen: the layer from `table_width` to the width of the states. layers: None: those of
        `names`.
        """
        spec, body, width, positions = self.spec, self.body, self.table_width, None
        if first_position is not None:
            rows = slice(first_position, first_position + spec.max_tokens)
            positions = body.tensor("embeddings.position_embeddings.weight", rows.stop, width, rows=rows)
        return Transformer(
            spec,
            TransformerWeights(
                words=body.tensor(self.WORDS, spec.vocab_size, width),
                positions=positions,
                types=body.tensor(TYPES, spec.types, width) if spec.types and types is None else types,
                words_change=body.table_change(self.WORDS.removesuffix(WEIGHT), spec.vocab_size, width),
                types_change=body.row_change(TYPES.removesuffix(WEIGHT), width) if spec.types == 1 else None,
                norm=body.norm(norm, width),
                widen=None if widen is None else body.linear(widen, width, spec.hidden_size),
                layers=tuple(layers or (self.read_layer(names, i, rotary=rotary) for i in range(spec.layers))),
                attention_bias=attention_bias,
            ),
            self.ops,
        )

    def classifier(self, labels: int) -> Classifier[T]:
        """BERT's: the first token through the body's `pooler`, then `classifier`."""
        width = self.spec.hidden_size
        pooler = Projection(self.body.linear("pooler.dense", width, width), "tanh")
        return Classifier("cls", (pooler, Projection(self.weights.linear("classifier", width, labels))))

    def masked_lm(self) -> MaskedLM[T]:
        names, spec, width = self.HEAD, self.spec, self.table_width
        bias, has_norm = f"{names.decoder}.bias", f"{names.norm}.weight" in self.weights
        dense = self.weights.linear(names.dense, spec.hidden_size, width)
        norm = self.weights.norm(names.norm if has_norm else names.other_norm or names.norm, width)
        return MaskedLM(
            transform=Projection(dense, names.activation or spec.activation, norm, spec.norm_eps),
            words=self.output_words(f"{names.decoder}.weight"),
            bias=self.weights.tensor(self.weights.first_of(bias, names.bias or bias), spec.vocab_size),
        )

    def output_words(self, name: str) -> T:
        """(V, table_width): the head's matrix `name`; the word vectors if the config ties them or there is no other."""
        tied, shape = self.flag("tie_word_embeddings", True), (self.spec.vocab_size, self.table_width)
        if tied:
            self.weights.check_tied(name, self.body, self.WORDS, self.config, *shape)
        if tied or name not in self.weights:
            return self.body.tensor(self.WORDS, *shape)
        return self.weights.tensor(name, *shape)


def classify_first(weights: WeightReader[T], width: int, labels: int, activation: Activation = "tanh") -> Classifier[T]:
    """RoBERTa's: the first token through `classifier.dense` and `classifier.out_proj`."""
    dense = Projection(weights.linear("classifier.dense", width, width), activation)
    return Classifier("cls", (dense, Projection(weights.linear("classifier.out_proj", width, labels))))


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
