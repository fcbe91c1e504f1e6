"""The heads that need only the last hidden states, whatever the architecture: `heads_of(spec, ops)`.

network.py applies them to its own bodies; the backends of foreign networks apply them to transformers' classes and to
ONNX graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from vectord.checkpoints.spec import ModelSpec, Output
from vectord.compute.networks.heads.dense import DenseHead
from vectord.compute.networks.heads.tokens import ColbertHead, LexicalHead
from vectord.compute.ops.base import Ops, T, Tokens

Head: TypeAlias = Callable[[T, Tokens[T]], T]  # last hidden states (T, H) to an output


def heads_of(spec: ModelSpec, ops: Ops[T]) -> dict[Output, Head[T]]:
    """Return the heads of these outputs of the model. Raises ModelUnavailable if files do not fit."""
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
