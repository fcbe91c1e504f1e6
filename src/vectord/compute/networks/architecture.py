"""What reads a model of one architecture: its config.json and tensors, as a Transformer and the heads over it.

encoder.py and decoder.py have what most architectures share, the other files a class for each. network.py lists them by
model_type and calls them when a model loads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar, Generic

import msgspec

from vectord.checkpoints.config_keys import Harmless
from vectord.compute.networks import facts
from vectord.compute.networks.heads import Classifier, Head, MaskedLM
from vectord.compute.networks.rotary import CosSin
from vectord.compute.networks.transformer import (
    Attention,
    Mixture,
    Mlp,
    ShortConvolution,
    Transformer,
    TransformerLayer,
    TransformerSpec,
)
from vectord.compute.networks.weights import HarmlessTensors, Linear, Norm, WeightReader
from vectord.compute.ops.base import Ops, T, Window
from vectord.errors import ModelUnavailable


class LayerNames(msgspec.Struct, frozen=True, kw_only=True):
    """The names of a layer's tensors after `prefix` and the layer's number. One name for several linears: stacked."""

    prefix: str
    attention: str | tuple[str, str, str]  # query, key, value
    attention_out: str
    attention_norm: str | None
    attention_out_norm: str | None = None
    mlp: str | tuple[str] | tuple[str, str]  # up, and gate if there is one
    gate_first: bool = False  # the stack of `mlp` begins with the gate
    down: str
    output_norm: str
    mlp_out_norm: str | None = None
    query_norm: str | None = None
    key_norm: str | None = None
    input_norm: str | None = None
    attention_bias: bool = True
    out_bias: bool | None = None  # of attention_out; None: as attention_bias
    mlp_bias: bool = True  # of up and gate
    down_bias: bool = True
    norm_bias: bool = True
    norm_offset: float = 0.0  # added to the stored weights of norms


class Architecture(Generic[T]):
    """Reads one model.

    weights: all tensors of the checkpoint; `body`: those of the body, which may be under a head. Every method raises
    ModelUnavailable for a config or tensor that does not fit, or for a head that the architecture has not.
    """

    HARMLESS: ClassVar[Mapping[str, Harmless]]  # keys of config.json that it need not read
    HARMLESS_TENSORS: ClassVar[tuple[HarmlessTensors, ...]]  # tensors that it need not read
    PREFIXES: ClassVar[Sequence[str]] = ("",)  # of the body's tensors: bare, and under each kind of head
    WORDS: ClassVar[str]  # a tensor of every body

    def __init__(self, config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> None:
        self.config = config
        self.weights = weights
        self.ops = ops
        self.model_type = str(config.get("model_type"))
        self.size = partial(facts.size, config)
        self.number = partial(facts.number, config)
        self.flag = partial(facts.flag, config)
        self.choice = partial(facts.choice, config)
        self.section = partial(facts.section, config)
        self.heads = partial(facts.heads, config)
        self.require = partial(facts.require, config)

    def load(self) -> Transformer[T]:
        raise NotImplementedError

    def classifier(self, labels: int) -> Classifier[T]:
        raise self._without("classifier")

    def masked_lm(self) -> MaskedLM[T]:
        """Return the head over the vocabulary, for SPLADE."""
        raise self._without("masked_lm")

    def pooler(self) -> Head[T]:
        """Return a pooling with weights of its own."""
        raise self._without("pooler")

    def head_rows(self, ids: Sequence[int]) -> T:
        """(len(ids), H): the rows of the language model's head for these words."""
        raise self._without("head_rows")

    def _without(self, head: str) -> ModelUnavailable:
        return ModelUnavailable(f"model_type {self.model_type!r} has no {head} in this version")

    @cached_property
    def spec(self) -> TransformerSpec:
        return self.read_spec()

    def read_spec(self) -> TransformerSpec:
        raise NotImplementedError

    @cached_property
    def body(self) -> WeightReader[T]:
        return self.weights.after_prefix(self.PREFIXES, self.WORDS)

    def read_layer(
        self,
        names: LayerNames,
        i: int,
        *,
        spec: TransformerSpec | None = None,
        rotary: CosSin[T] | None = None,
        query_rotary: CosSin[T] | None = None,
        window: Window | None = None,
        window_after: int | None = None,
        mixer: ShortConvolution[T] | None = None,
        mlp: Mlp[T] | Mixture[T] | None = None,
        body: WeightReader[T] | None = None,
    ) -> TransformerLayer[T]:
        """Return the i-th layer. spec: of this layer, if it differs from the others. mixer, mlp: replace the attention
        and the MLP of `names`. body: replaces self.body."""
        spec, own = spec or self.spec, (body or self.body).under(f"{names.prefix}.{i}.")
        width, inner, head = spec.hidden_size, spec.intermediate_size, spec.head_size if spec.rms else spec.query_width

        def norm(name: str | None, size: int = width) -> Norm[T] | None:
            return own.norm(name, size, bias=names.norm_bias, offset=names.norm_offset) if name else None

        attention: Attention[T] | ShortConvolution[T] | None = mixer
        if attention is None:
            query, key, value = self.read_inputs(names, own, spec)
            bias = names.attention_bias if names.out_bias is None else names.out_bias
            attention = Attention(
                query=query,
                key=key,
                value=value,
                query_norm=norm(names.query_norm, head),
                key_norm=norm(names.key_norm, head),
                out=own.linear(names.attention_out, spec.query_width, width, bias=bias),
                rotary=rotary,
                query_rotary=query_rotary,
                window=window,
                window_after=None if window is None else window_after,
            )
        if mlp is None:
            up, *gate = own.linears(names.mlp, width, (inner, inner), bias=names.mlp_bias)
            if names.gate_first:
                up, gate = gate[0], [up]
            down = own.linear(names.down, inner, width, bias=names.down_bias)
            mlp = Mlp(up=up, gate=gate[0] if gate else None, down=down)
        return TransformerLayer(
            attention=attention,
            attention_norm=norm(names.attention_norm),
            attention_out_norm=norm(names.attention_out_norm),
            input_norm=norm(names.input_norm),
            mlp=mlp,
            mlp_out_norm=norm(names.mlp_out_norm),
            output_norm=own.norm(names.output_norm, width, bias=names.norm_bias, offset=names.norm_offset),
        )

    def read_inputs(self, names: LayerNames, own: WeightReader[T], spec: TransformerSpec) -> Sequence[Linear[T]]:
        """Return query, key and value of a layer."""
        widths = spec.query_width, spec.key_width, spec.key_width
        return own.linears(names.attention, spec.hidden_size, widths, bias=names.attention_bias)
