"""SPLADE: sentence-transformers' SparseEncoder folders, and bare masked-language models known to be one.

kind.py asks `is_splade`, reader.py calls `add_splade`, at start.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from vectord.checkpoints.files.json_file import read_json_object
from vectord.checkpoints.model_folder import ModelFolder
from vectord.checkpoints.modules import wrong_order
from vectord.checkpoints.spec import ModelSpec
from vectord.errors import ModelUnavailable


def is_splade(folder: ModelFolder) -> bool:
    """Whether a masked-language model without modules.json is a SPLADE: by the catalogue, else by its name."""
    if folder.entry is not None:
        return folder.entry.outputs == ("sparse",)
    return "splade" in folder.name


def add_splade(folder: ModelFolder, spec: ModelSpec) -> ModelSpec:
    """Raises ModelUnavailable for a pooling other than the largest log(1 + relu)."""
    if folder.modules:
        if [module.kind for module in folder.modules] != ["Transformer", "SpladePooling"]:
            raise wrong_order(folder.root, folder.modules, supported="Transformer, SpladePooling")
        _check_pooling(folder.modules[1].folder / "config.json")
    return replace(spec, outputs=frozenset({"splade"}))


def _check_pooling(path: Path) -> None:
    fields = read_json_object(path)
    for key, supported in (("pooling_strategy", "max"), ("activation_function", "relu")):
        given = fields.get(key, supported)  # sentence-transformers' defaults
        if given != supported:
            raise ModelUnavailable(f"{path}: {key} {str(given)[:40]!r} is not supported; supported is {supported}")
