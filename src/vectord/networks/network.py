"""A model as a function of packed tokens: body and heads, over any op set.

A backend makes one per loaded model and calls it per batch (eager op sets) or per plan (a graph). Which body is
decided by config.json's model_type, which names a module of this folder; which heads, by what the spec says the
model gives.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Generic, Protocol, TypeAlias

from vectord import networks
from vectord.artifacts.checkpoint import Weight
from vectord.artifacts.spec import ModelSpec, Output
from vectord.errors import ModelUnavailable
from vectord.networks.heads.dense import DenseHead
from vectord.networks.heads.scores import ClassifierHead, YesNoHead
from vectord.networks.heads.splade import SpladeHead
from vectord.networks.heads.tokens import ColbertHead, LexicalHead
from vectord.networks.weights import WeightReader
from vectord.ops.base import Ops, T, Tokens

# Modules of this folder that are parts, not architectures.
_PARTS = frozenset({"decoder", "encoder", "facts", "heads", "network", "rotary", "weights"})


class Body(Protocol[T]):
    """What an architecture module's `load(config, weights, ops)` returns: tokens to last hidden states (T, H)."""

    vocab_size: int
    hidden_size: int
    max_tokens: int  # tokens of one text, as far as positions reach
    causal: bool  # no token sees what comes after it

    def __call__(self, tokens: Tokens[T]) -> T: ...


Head: TypeAlias = Callable[[T, Tokens[T]], T]  # last hidden states (T, H) to an answer


class Network(Generic[T]):
    """One model. Has no state but its constants, which are made once, here."""

    def __init__(self, spec: ModelSpec, weights: Mapping[str, Weight], ops: Ops[T]) -> None:
        """Raises ModelUnavailable: an unknown architecture, a config nobody here reads, a tensor that does not fit."""
        module = _architecture(spec)
        reader = WeightReader(weights, ops)
        self._body: Body[T] = module.load(spec.config, reader, ops)
        _check(self._body, spec)
        self._heads = {output: _head(output, module, spec, reader, ops) for output in sorted(spec.outputs)}

    def __call__(self, tokens: Tokens[T], outputs: Collection[Output]) -> dict[Output, T]:
        """The answers asked for; their shapes stand with `Output` in artifacts/spec.py."""
        x = self._body(tokens)
        return {output: self._heads[output](x, tokens) for output in sorted(outputs)}


def architectures() -> tuple[str, ...]:
    """The names of this folder's architecture modules, sorted."""
    return tuple(sorted({module.name for module in iter_modules(networks.__path__)} - _PARTS))


def _architecture(spec: ModelSpec) -> ModuleType:
    name = spec.architecture.replace("-", "_")  # xlm-roberta is xlm_roberta.py
    if name not in architectures():
        raise ModelUnavailable(
            f"model_type {spec.model_type[:80]!r} is not supported; supported are {', '.join(architectures())}. "
            "transformers may know it: pip install 'vectord[transformers]'"
        )
    return import_module(f"{networks.__name__}.{name}")


def _check(body: Body[T], spec: ModelSpec) -> None:
    if body.hidden_size != spec.hidden_size:
        raise ModelUnavailable(f"the network is {body.hidden_size} wide, the model's modules expect {spec.hidden_size}")
    if body.max_tokens < spec.max_tokens:
        raise ModelUnavailable(f"the network reads {body.max_tokens} tokens, fewer than the {spec.max_tokens} promised")


def _head(output: Output, module: ModuleType, spec: ModelSpec, weights: WeightReader[T], ops: Ops[T]) -> Head[T]:
    match output:
        case "tokens":
            return lambda x, tokens: x
        case "dense":
            return DenseHead(spec, ops)
        case "colbert":
            assert spec.colbert is not None
            return ColbertHead(spec, spec.colbert, ops)
        case "lexical":
            assert spec.lexical is not None
            return LexicalHead(spec, spec.lexical, ops)
        case "splade":
            return SpladeHead(_part(module, "masked_lm", spec)(spec.config, weights, ops), ops)
        case "scores" if spec.yes_no is not None and spec.yes_no.token_ids is not None:
            return YesNoHead(_part(module, "head_rows", spec)(spec.config, weights, ops, spec.yes_no.token_ids), ops)
        case "scores":
            labels = len(spec.labels)
            return ClassifierHead(_part(module, "classifier", spec)(spec.config, weights, ops, labels), ops)


def _part(module: ModuleType, name: str, spec: ModelSpec) -> Callable[..., T]:
    """`classifier`, `masked_lm` or `head_rows` of an architecture module, which not every one has."""
    part = getattr(module, name, None)
    if part is None:
        raise ModelUnavailable(f"model_type {spec.model_type!r} has no {name} that this version knows")
    found: Callable[..., T] = part
    return found
