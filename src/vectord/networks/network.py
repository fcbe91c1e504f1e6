"""A model as a function of packed tokens: body and head, over any op set.

A backend makes one per loaded model and calls it per batch (eager op sets) or per plan (a graph). Which body is
decided by config.json's model_type, which names a module of this folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Generic, Literal, Protocol, cast

from vectord import networks
from vectord.artifacts.checkpoint import Weight
from vectord.artifacts.spec import ModelSpec
from vectord.errors import ModelUnavailable
from vectord.networks.heads import DenseHead
from vectord.networks.weights import WeightReader
from vectord.ops.base import Ops, T, Tokens

# Modules of this folder that are parts, not architectures.
_PARTS = frozenset({"encoder", "facts", "heads", "network", "weights"})


class Body(Protocol[T]):
    """What an architecture module's `load(config, weights, ops)` returns: tokens to last hidden states (T, H)."""

    vocab_size: int
    hidden_size: int
    max_tokens: int  # tokens of one text, as far as positions reach

    def __call__(self, tokens: Tokens[T]) -> T: ...


class Network(Generic[T]):
    """One model. Has no state but its constants, which are made once, here."""

    def __init__(self, spec: ModelSpec, weights: Mapping[str, Weight], ops: Ops[T]) -> None:
        """Raises ModelUnavailable: an unknown architecture, a config nobody here reads, a tensor that does not fit."""
        self._body = _load_body(spec, weights, ops)
        self._head = DenseHead(spec, ops)

    def __call__(self, tokens: Tokens[T], output: Literal["dense", "tokens"]) -> T:
        """dense: (N, D), pooled and projected, not normalised; tokens: (T, H), the last hidden states."""
        x = self._body(tokens)
        return x if output == "tokens" else self._head(x, tokens)


def architectures() -> tuple[str, ...]:
    """The names of this folder's architecture modules, sorted."""
    return tuple(sorted({module.name for module in iter_modules(networks.__path__)} - _PARTS))


def _load_body(spec: ModelSpec, weights: Mapping[str, Weight], ops: Ops[T]) -> Body[T]:
    name = spec.model_type.replace("-", "_")  # xlm-roberta is xlm_roberta.py
    if name not in architectures():
        raise ModelUnavailable(
            f"model_type {spec.model_type[:80]!r} is not supported; supported are {', '.join(architectures())}"
        )
    module = import_module(f"{networks.__name__}.{name}")
    body = cast(Body[T], module.load(spec.config, WeightReader(weights, ops), ops))
    if body.hidden_size != spec.hidden_size:
        raise ModelUnavailable(f"the network is {body.hidden_size} wide, the model's modules expect {spec.hidden_size}")
    if body.max_tokens < spec.max_tokens:
        raise ModelUnavailable(f"the network reads {body.max_tokens} tokens, fewer than the {spec.max_tokens} promised")
    return body
