"""The two networks of `model_type: t5gemma2`, an encoder of passages and a decoder of queries: KaLM-Reranker-V1.

config: the section of one network (checkpoints/kinds/encoder_decoder.py). Names as in transformers/models/t5gemma2. The
layers are Gemma 3's; those with a window see one token more after a token than before it. In the decoder, a query
attends with one softmax to its own earlier tokens and, in every layer, to the encoder's last states: the first rows of
its text, of which a window hides none. So a query that is no longer than the window needs none.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from vectord.checkpoints.config_keys import harmless
from vectord.compute.networks import decoder
from vectord.compute.networks.architecture import Architecture, LayerNames
from vectord.compute.networks.gemma import Gemma3
from vectord.compute.networks.rotary import rotary_table
from vectord.compute.networks.transformer import Transformer, TransformerSpec, TransformerWeights
from vectord.compute.networks.weights import HarmlessTensors
from vectord.compute.ops.base import T


class T5Gemma2Encoder(Gemma3[T]):
    HARMLESS = {**Gemma3.HARMLESS, **harmless("training only", "dropout_rate")}
    HARMLESS_TENSORS = (
        *decoder.HARMLESS_TENSORS,
        HarmlessTensors("the vector of a token after images, which no text has", r".+\.eoi_embedding"),
    )
    # Of the encoder, which has the words, bare or under a head: transformers 5 reads both forms.
    PREFIXES = tuple(prefix + name for prefix in ("", "model.") for name in ("encoder.", "encoder.text_model."))
    READS_QUERIES = False

    classifier = Architecture.classifier  # not Gemma's, which no reference has compared over this body

    def names(self) -> LayerNames:
        own = {"attention_norm": "pre_self_attn_layernorm", "attention_out_norm": "post_self_attn_layernorm"}
        return replace(super().names(), **own)

    def read_spec(self) -> TransformerSpec:
        return replace(super().read_spec(), causal=self.READS_QUERIES)

    def load(self) -> Transformer[T]:
        spec, names, body, sliding = self.spec, self.names(), self.body, self.sliding()
        if self.READS_QUERIES:
            body = self.weights.after_prefix(("decoder.", "model.decoder."), "norm.weight")
        size = self.size("sliding_window", 4096)
        window = None if self.READS_QUERIES else (size + 1) // 2 - 1
        every = (self.weights.constant("rotary.axis", np.ones((1, spec.head_size // 2))),) if self.READS_QUERIES else ()
        tables = [
            replace(rotary_table(body, each, spec.head_size, spec.max_tokens), axes=every) for each in self.rotaries()
        ]
        return Transformer(
            spec,
            TransformerWeights(
                words=self.body.tensor(self.WORDS, spec.vocab_size, spec.hidden_size),
                keeps_features=self.READS_QUERIES,
                layers=tuple(
                    self.read_layer(
                        names,
                        i,
                        rotary=tables[slides],
                        window=window if slides else None,
                        window_after=size // 2,
                        body=body,
                    )
                    for i, slides in enumerate(sliding)
                ),
                final_norm=body.norm("norm", spec.hidden_size, bias=False, offset=names.norm_offset),
            ),
            self.ops,
        )


class T5Gemma2Decoder(T5Gemma2Encoder[T]):
    READS_QUERIES = True
