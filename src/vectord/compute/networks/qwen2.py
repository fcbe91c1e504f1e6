"""`model_type: qwen2` and `qwen3`: GTE-Qwen2, Qwen2.5, Qwen3-Embedding, Qwen3-Reranker; three names of a bidirectional
Qwen3, those of pplx-embed, Giga-Embeddings and BidirLM; and C2LLM.

Names as in transformers/models/qwen2/modeling_qwen2.py and qwen3/modeling_qwen3.py. Qwen3 normalizes each head's query
and key, and has biases only if the config says so.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from vectord.checkpoints.config_keys import harmless
from vectord.compute.networks import decoder
from vectord.compute.networks.architecture import Architecture, LayerNames
from vectord.compute.networks.decoder import HEAD_NORMS, LanguageModel, read_window
from vectord.compute.networks.heads import Classifier, Head, MaskedLM, Projection, read_by_query
from vectord.compute.networks.rotary import read_sliding
from vectord.compute.networks.transformer import Transformer
from vectord.compute.networks.weights import HarmlessTensors, Linear
from vectord.compute.ops.base import AttentionSpec, T, Tokens
from vectord.errors import ModelUnavailable


class Qwen2(LanguageModel[T]):
    HARMLESS = {
        **decoder.HARMLESS,
        **harmless("of layers that slide, which the model has none of", "max_window_layers sliding_window"),
        **harmless("Qwen2 has biases always", "attention_bias"),
    }

    def names(self) -> LayerNames:
        return replace(decoder.NAMES, attention_bias=True, out_bias=False)

    def windows(self) -> Sequence[int | None]:
        slides, usual = self.flag("use_sliding_window", False), [False] * self.spec.layers
        if slides:
            first = self.size("max_window_layers", 28, at_least=0)
            usual = [i >= first for i in range(self.spec.layers)]
        sliding = read_sliding(self.config, usual)
        if any(sliding) and not slides:  # transformers then has no window
            raise ModelUnavailable("config.json: use_sliding_window must be True; found False")
        return tuple(read_window(self.config, causal=self.spec.causal) if windowed else None for windowed in sliding)

    def classifier(self, labels: int) -> Classifier[T]:
        """The usual head; Querit's has the logits of "no" and "yes", and half their difference is returned: its tanh
        is the difference of their probabilities, which is Querit's score."""
        weights = self.weights
        if "head.weight" not in weights:
            return super().classifier(labels)
        half = np.array([[-0.5, 0.5]], np.float32)
        rows = half @ weights.array("head.weight", 2, self.size("hidden_size"))
        bias = half @ weights.array("head.bias", 2)
        row = Linear(weights.constant("head.weight", rows), weights.constant("head.bias", bias))
        return Classifier("last", (Projection(row),))

    def masked_lm(self) -> MaskedLM[T]:
        """A word's logit after each token."""
        shape, name = (self.size("vocab_size"), self.size("hidden_size")), "lm_head.weight"
        bias = self.weights.constant("lm_head.bias", np.zeros(shape[0], np.float32))
        if not self.flag("tie_word_embeddings", False):
            return MaskedLM(Projection(), self.weights.tensor(name, *shape), bias)
        self.weights.check_tied(name, self.body, self.WORDS, self.config, *shape)
        return MaskedLM(Projection(), self.body.tensor(self.WORDS, *shape), bias)


class Qwen3(Qwen2[T]):
    def names(self) -> LayerNames:
        bias = self.flag("attention_bias", False)
        return replace(decoder.NAMES, attention_bias=bias, out_bias=bias, **HEAD_NORMS)


class C2LLM(Architecture[T]):
    """A Qwen2 whose tokens are pooled by an attention with a trained query.

    The pooling is the block PMA of Set Transformer (Lee et al. 2019) with two differences, a scale by the whole width
    and a residual from the query itself. Source: the makers' code, github.com/codefuse-ai/CodeFuse-Embeddings,
    CGE/utils.
    """

    HARMLESS = {
        **Qwen2.HARMLESS,
        **harmless("vectors are normalized by request", "pma_norm"),
        **harmless("which files and lengths the model's own code reads", "inf_seq_length tokenizer_name_or_path"),
        **harmless("packed texts have no padding", "padding_side"),
        **harmless("read by the pooling, unless the operator chooses another one", "pma_num_heads"),
    }
    HARMLESS_TENSORS = (
        *Qwen2.HARMLESS_TENSORS,
        HarmlessTensors("the head over the vocabulary", r"plm_model\.lm_head\.weight"),
        HarmlessTensors("the pooling, unless the operator chooses another one", r"mha_pma\..+"),
    )
    NORM_EPS = 1e-5  # torch.nn.LayerNorm's default

    def load(self) -> Transformer[T]:
        self.require("embedding_method", "pma")
        self.require("pma_ln", True)
        self.require("pma_norm_mode", "post_normal")
        self.require("compressed_dim", self.size("hidden_size"))
        return Qwen2(self.config, self.weights.under("plm_model."), self.ops).load()

    def pooler(self) -> Head[T]:
        """(T, H) to (M, H)."""
        ops, width, heads = self.ops, self.size("hidden_size"), self.heads("pma_num_heads", "hidden_size")
        block = self.weights.under("mha_pma.mab.")
        query, key, value, out = (block.linear(f"fc_{name}", width, width) for name in "qkvo")
        norms = [block.norm(name, width) for name in ("ln0", "ln1")]
        seed = self.weights.constant("seed", self.weights.array("mha_pma.S", 1, 1, width)[0])  # (1, H)
        attention = AttentionSpec(heads=heads, head_size=width // heads, scale=width**-0.5)

        def pooled(x: T, tokens: Tokens[T]) -> T:
            q, k, v = (ops.linear(y, layer.weight, layer.bias) for y, layer in ((seed, query), (x, key), (x, value)))
            read = read_by_query(ops, q, k, v, tokens, attention)
            h = ops.layer_norm(ops.add(read, seed), norms[0].weight, norms[0].bias, self.NORM_EPS)
            inner = ops.activation(ops.linear(h, out.weight, out.bias), "relu")
            return ops.layer_norm(ops.add(h, inner), norms[1].weight, norms[1].bias, self.NORM_EPS)

        return pooled
