"""The heads that need nothing of an architecture but its last hidden states: `heads_of(spec, ops)`.

Backends whose body is not one of networks/ (transformers' classes, an ONNX graph) put these behind it.
"""

from __future__ import annotations

from collections.abc import Callable

from vectord.artifacts.spec import ModelSpec, Output
from vectord.networks.heads.dense import DenseHead
from vectord.networks.heads.tokens import ColbertHead, LexicalHead
from vectord.ops.base import Ops, T, Tokens


def heads_of(spec: ModelSpec, ops: Ops[T]) -> dict[Output, Callable[[T, Tokens[T]], T]]:
    """Those of the model's outputs that are made so, each from (T, H). Raises ModelUnavailable if files do not fit."""
    heads: dict[Output, Callable[[T, Tokens[T]], T]] = {}
    if "tokens" in spec.outputs:
        heads["tokens"] = lambda x, tokens: x
    if "dense" in spec.outputs:
        heads["dense"] = DenseHead(spec, ops)
    if spec.colbert is not None:
        heads["colbert"] = ColbertHead(spec, spec.colbert, ops)
    if spec.lexical is not None:
        heads["lexical"] = LexicalHead(spec, spec.lexical, ops)
    return heads
