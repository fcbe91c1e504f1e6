"""Which kind of model a folder holds: `find_kind(folder, task)`. reader.py asks at start.

    embed     one vector a text, and what else BGE-M3 gives
    colbert   one vector a token
    splade    one weight a word of the vocabulary
    classify  one number a label, from a classifier's head; with one label, a cross-encoder
    judge     "no" or "yes" from a language model that is asked about a pair

modules.json decides where there is one, else the class of transformers that the model was saved by, then what the
model is called.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from vectord.checkpoints.kinds.splade import is_splade
from vectord.checkpoints.kinds.yes_no import is_judge
from vectord.checkpoints.model_folder import ModelFolder
from vectord.checkpoints.modules import wrong_order
from vectord.errors import ConfigError

Task: TypeAlias = Literal["auto", "embed", "rerank", "classify"]  # what the operator wants of a model
Kind: TypeAlias = Literal["embed", "colbert", "splade", "classify", "judge"]

_TASKS: Mapping[Task, tuple[Kind, ...]] = {
    "auto": ("embed", "colbert", "splade", "classify", "judge"),
    "embed": ("embed", "colbert", "splade"),
    "rerank": ("classify", "judge", "colbert"),
    "classify": ("classify",),
}


def find_kind(folder: ModelFolder, task: Task) -> Kind:
    """Raises ModelUnavailable for modules in an order nobody serves, ConfigError for a task the model cannot do."""
    if not folder.modules and folder.is_saved_as("ForCausalLM") and task in ("embed", "rerank"):
        return "embed" if task == "embed" else "judge"  # either can be done with it; the operator knows which is meant
    kind = _by_modules(folder) if folder.modules else _by_config(folder)
    if kind not in _TASKS[task]:
        raise ConfigError(f"task {task}: {folder.root} holds a model of another kind ({kind})")
    return kind


def _by_modules(folder: ModelFolder) -> Kind:
    kinds = [module.kind for module in folder.modules]
    if "SpladePooling" in kinds:
        return "splade"
    if "LogitScore" in kinds:
        return "judge"
    if "Pooling" in kinds:
        return "embed"
    if kinds == ["Transformer"]:  # a CrossEncoder of version 6
        if folder.is_saved_as("ForSequenceClassification"):
            return "classify"
        raise wrong_order(folder.root, folder.modules, supported="Transformer, Pooling, Dense ..., Normalize")
    return "colbert"


def _by_config(folder: ModelFolder) -> Kind:
    if folder.is_saved_as("HF_ColBERT"):
        return "colbert"
    if folder.is_saved_as("ForSequenceClassification"):
        return "classify"
    if folder.is_saved_as("ForCausalLM") and is_judge(folder):
        return "judge"
    if folder.is_saved_as("ForMaskedLM") and is_splade(folder):
        return "splade"
    return "embed"
