"""The heads that need nothing of an architecture but its last hidden states: `heads_of(spec, ops)`.

network.py puts them behind its own bodies, and backends behind those that are not of networks/: transformers' classes,
an ONNX graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from vectord.checkpoints.spec import ModelSpec, Output
from vectord.compute.networks.heads.dense import DenseHead
from vectord.compute.networks.heads.tokens import ColbertHead, LexicalHead
from vectord.compute.ops.base import Ops, T, Tokens

Head: TypeAlias = Callable[[T, Tokens[T]], T]  # last hidden states (T, H) to an answer


def heads_of(spec: ModelSpec, ops: Ops[T]) -> dict[Output, Head[T]]:
    """Those of the model's outputs that are made so. Raises ModelUnavailable if files do not fit."""
    heads: dict[Output, Head[T]] = {}
    if "tokens" in spec.outputs:
        heads["tokens"] = lambda x, tokens: x
    if "dense" in spec.outputs:
        heads["dense"] = DenseHead(spec, ops)
    if "colbert" in spec.outputs and spec.colbert is not None:
        heads["colbert"] = ColbertHead(spec, spec.colbert, ops)
    if "lexical" in spec.outputs and spec.lexical is not None:
        heads["lexical"] = LexicalHead(spec, spec.lexical, ops)
    return heads
