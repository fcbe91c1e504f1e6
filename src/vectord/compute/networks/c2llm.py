"""`model_type: c2llm`: a Qwen2 whose tokens are pooled by an attention with a trained query.

The pooling is the block PMA of Set Transformer (Lee et al. 2019) with two differences, a scale by the whole width and a
residual from the query itself. Source: the makers' code, github.com/codefuse-ai/CodeFuse-Embeddings, CGE/utils.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vectord.checkpoints.config_keys import Harmless, harmless
from vectord.compute.networks import facts, qwen2
from vectord.compute.networks.heads import Head, read_by_query
from vectord.compute.networks.transformer import Transformer
from vectord.compute.networks.weights import HarmlessTensors, WeightReader
from vectord.compute.ops.base import AttentionSpec, Ops, T, Tokens

HARMLESS: Mapping[str, Harmless] = {
    **qwen2.HARMLESS,
    **harmless("vectors are normalized by request", "pma_norm"),
    **harmless("which files and lengths the model's own code reads", "inf_seq_length tokenizer_name_or_path"),
    **harmless("packed texts have no padding", "padding_side"),
    **harmless("read by the pooling, unless the operator chooses another one", "pma_num_heads"),
}
HARMLESS_TENSORS = (
    *qwen2.HARMLESS_TENSORS,
    HarmlessTensors("the head over the vocabulary", r"plm_model\.lm_head\.weight"),
    HarmlessTensors("the pooling, unless the operator chooses another one", r"mha_pma\..+"),
)
_NORM_EPS = 1e-5  # torch.nn.LayerNorm's default


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Transformer[T]:
    facts.require(config, "embedding_method", "pma")
    facts.require(config, "pma_ln", True)
    facts.require(config, "pma_norm_mode", "post_normal")
    facts.require(config, "compressed_dim", facts.size(config, "hidden_size"))
    return qwen2.load(config, weights.under("plm_model."), ops)


def pooler(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Head[T]:
    """(T, H) to (M, H)."""
    width, heads = facts.size(config, "hidden_size"), facts.heads(config, "pma_num_heads", "hidden_size")
    block = weights.under("mha_pma.mab.")
    query, key, value, out = (block.linear(f"fc_{name}", width, width) for name in "qkvo")
    norms = [block.norm(name, width) for name in ("ln0", "ln1")]
    seed = weights.constant("seed", weights.array("mha_pma.S", 1, 1, width)[0])  # (1, H)
    attention = AttentionSpec(heads=heads, head_size=width // heads, scale=width**-0.5)

    def pooled(x: T, tokens: Tokens[T]) -> T:
        q, k, v = (ops.linear(y, layer.weight, layer.bias) for y, layer in ((seed, query), (x, key), (x, value)))
        read = read_by_query(ops, q, k, v, tokens, attention)
        h = ops.layer_norm(ops.add(read, seed), norms[0].weight, norms[0].bias, _NORM_EPS)
        inner = ops.activation(ops.linear(h, out.weight, out.bias), "relu")
        return ops.layer_norm(ops.add(h, inner), norms[1].weight, norms[1].bias, _NORM_EPS)

    return pooled
