"""The facts of one model, read once from its folder: `read_spec(files) -> ModelSpec`. Opens JSON files only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Pooling = Literal["cls", "mean", "last"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseModule:
    """A linear layer after pooling (sentence-transformers `Dense`)."""

    folder: Path
    in_features: int
    out_features: int
    bias: bool
    activation: Literal["identity", "tanh"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    model_id: str  # as the operator named it
    revision: str | None  # commit, where the source knows one
    folder: Path
    config: Mapping[str, Any]  # config.json, as it is; only networks/ interprets it
    model_type: str  # config.json's model_type: names the module in networks/
    weights: tuple[Path, ...]  # safetensors files, in order
    tokenizer: Path  # tokenizer.json
    pooling: Pooling
    include_prompt: bool = True  # whether pooling counts the prompt's tokens
    dense_modules: tuple[DenseModule, ...] = ()
    normalizes: bool  # whether the model's own pipeline ends in Normalize
    hidden_size: int
    dimensions: int  # of the dense vector, after dense_modules
    max_tokens: int  # specials included
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    fingerprint: str  # 16 hex digits over weights' identity, pooling, dense modules, prompts
