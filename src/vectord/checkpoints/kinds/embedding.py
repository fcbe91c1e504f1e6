"""Models that give one vector a text: pooling, Dense layers, Normalize. reader.py calls `add_embedding`, at start.

BGE-M3's further heads come with it (bge_m3.py).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vectord.checkpoints.files.json_file import read_json_object
from vectord.checkpoints.kinds.bge_m3 import add_heads, has_heads
from vectord.checkpoints.model_folder import ModelFolder
from vectord.checkpoints.modules import Module, chain_width, read_dense, wrong_order
from vectord.checkpoints.spec import DenseModule, ModelSpec, Pooling
from vectord.errors import ModelUnavailable

log = logging.getLogger("vectord.checkpoints")

# sentence-transformers' names: booleans `pooling_mode_*` before version 6, one `pooling_mode` since.
_POOLINGS: Mapping[str, Pooling] = {"cls": "cls", "mean": "mean", "lasttoken": "last", "max": "max"}
_POOLING_FLAGS: Mapping[str, str] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_ORDER = "Transformer, Pooling, Dense ..., Normalize"
_MATRYOSHKA_LIMIT = 2**16


@dataclass(frozen=True, slots=True)
class _PoolingModule:
    mode: Pooling
    include_prompt: bool = True


def add_embedding(folder: ModelFolder, spec: ModelSpec, pooling: Pooling | None) -> ModelSpec:
    """pooling: the operator's, instead of the model's own. Raises ModelUnavailable: modules in an order that nobody
    here runs, a pooling nobody here computes, widths that do not chain."""
    pooled = _PoolingModule(pooling) if pooling else _own_pooling(folder)
    modules = _after_pooling(folder, pooled.mode)
    dimensions = chain_width(spec.hidden_size, modules)
    spec = replace(
        spec,
        outputs=frozenset({"dense", "tokens"}),
        pooling=pooled.mode,
        include_prompt=pooled.include_prompt,
        dense_modules=modules,
        dimensions=dimensions,
        matryoshka=_matryoshka(folder, dimensions),
    )
    return add_heads(folder, spec)


def _own_pooling(folder: ModelFolder) -> _PoolingModule:
    for module in folder.modules:
        if module.kind == "Pooling":
            return _read_pooling(module.folder / "config.json")
    path = folder.root / "1_Pooling" / "config.json"
    return _read_pooling(path) if path.is_file() else _usual_pooling(folder)


def _read_pooling(path: Path) -> _PoolingModule:
    fields = read_json_object(path)
    modes = _pooling_modes(fields)
    mode = _POOLINGS.get(modes[0]) if len(modes) == 1 else None
    if mode is None:
        found = " and ".join(modes) or "none"
        raise ModelUnavailable(f"{path}: pooling {found} is not supported; supported is one of {', '.join(_POOLINGS)}")
    return _PoolingModule(mode, include_prompt=fields.get("include_prompt") is not False)


def _pooling_modes(fields: Mapping[str, Any]) -> list[str]:
    modes = fields.get("pooling_mode")
    if modes is None:
        return [mode for flag, mode in _POOLING_FLAGS.items() if fields.get(flag)]
    listed = modes if isinstance(modes, list) else [modes]
    return [str(mode)[:40] for mode in listed[:8]]


def _usual_pooling(folder: ModelFolder) -> _PoolingModule:
    """The catalogue's; else what sentence-transformers takes: last token if it generates text, else mean."""
    if folder.entry is not None and folder.entry.pooling is not None:
        return _PoolingModule(folder.entry.pooling)
    if has_heads(folder):  # BGE-M3: FlagEmbedding takes the first token whatever else the folder says
        return _PoolingModule("cls")
    mode: Pooling = "mean"
    if folder.is_saved_as("ForCausalLM") and folder.config.get("is_causal") is not False:
        mode = "last"
    log.warning("%s does not say how to pool: using %s; set the pooling option if that is wrong", folder.root, mode)
    return _PoolingModule(mode)


def _after_pooling(folder: ModelFolder, pooling: Pooling) -> tuple[DenseModule, ...]:
    """The Dense modules in order. Normalize may end them: whether a vector is normalised is the request's to say."""
    kinds = [module.kind for module in folder.modules]
    if not kinds:
        return ()
    at = kinds.index("Pooling")
    end = len(kinds) - (kinds[-1] == "Normalize")
    before, after = folder.modules[1:at], folder.modules[at + 1 : end]
    if any(module.kind != "Dense" for module in (*before, *after)):
        raise wrong_order(folder.root, folder.modules, supported=_ORDER)
    over_tokens = _moved_behind_pooling(before, pooling)
    return (*over_tokens, *(read_dense(module, over="sentence_embedding") for module in after))


def _moved_behind_pooling(modules: Sequence[Module], pooling: Pooling) -> tuple[DenseModule, ...]:
    """Dense modules over tokens give the same after pooling, if that takes one row, or the mean of linear ones."""
    dense = tuple(read_dense(module, over="token_embeddings") for module in modules)
    linear = all(module.activation == "identity" for module in dense)
    if dense and pooling not in ("cls", "last") and not (pooling == "mean" and linear):
        raise ModelUnavailable(f"{dense[0].folder}: a Dense module before {pooling} pooling is not supported")
    return dense


def _matryoshka(folder: ModelFolder, dimensions: int) -> tuple[int, ...] | None:
    """The dimensions the model was trained to be cut to, ascending: config.json's, else the catalogue's."""
    listed = folder.config.get("matryoshka_dimensions")
    if listed is None:
        known = folder.entry.matryoshka if folder.entry is not None else None
        return None if known is None else tuple(known)
    if not isinstance(listed, list) or len(listed) > _MATRYOSHKA_LIMIT or not _are_widths(listed, dimensions):
        raise ModelUnavailable(f"{folder.config_path}: matryoshka_dimensions must be whole numbers up to {dimensions}")
    return tuple(sorted(set(listed)))


def _are_widths(values: Sequence[object], limit: int) -> bool:
    return all(type(value) is int and 0 < value <= limit for value in values)
