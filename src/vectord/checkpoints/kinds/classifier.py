"""Classifiers and cross-encoders: labels, and what becomes of their logits. reader.py calls `add_classifier`, at start.

A cross-encoder is a classifier of pairs with one label. Qwen3-Reranker was converted to one too, and then keeps its
words around the pair.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vectord.checkpoints.kinds.score_activation import read_score_activation
from vectord.checkpoints.kinds.yes_no import fill, find_template
from vectord.checkpoints.model_folder import ModelFolder
from vectord.checkpoints.spec import ModelSpec
from vectord.errors import ModelUnavailable

LABELS_LIMIT = 2**16  # the most seen are 21,000
LABEL_LIMIT_CHARACTERS = 1000
_USUAL_LABELS = 2  # transformers', where config.json does not say


def add_classifier(folder: ModelFolder, spec: ModelSpec) -> ModelSpec:
    """Raises ModelUnavailable for labels that are none, too many, or at odds with their number."""
    labels = _labels(folder)
    template = find_template(folder) if len(labels) == 1 else None
    return replace(
        spec,
        outputs=frozenset({"scores"}),
        labels=labels,
        score_activation=read_score_activation(folder, labels=len(labels)),
        yes_no=fill(template, None) if template else None,
    )


def _labels(folder: ModelFolder) -> tuple[str, ...]:
    named, count = folder.config.get("id2label"), folder.config.get("num_labels")
    if count is not None and (type(count) is not int or not 0 < count <= LABELS_LIMIT):
        raise ModelUnavailable(f"{folder.config_path}: num_labels must be a whole number from 1 to {LABELS_LIMIT:,}")
    if named is None:
        return tuple(f"LABEL_{i}" for i in range(count or _USUAL_LABELS))
    labels = _named_labels(folder, named)
    if count is not None and count != len(labels):
        raise ModelUnavailable(f"{folder.config_path}: num_labels is {count}, and id2label names {len(labels)}")
    return labels


def _named_labels(folder: ModelFolder, named: Any) -> tuple[str, ...]:
    """The values of id2label, whose keys are "0", "1" ... in any order."""
    if not isinstance(named, dict) or not 0 < len(named) <= LABELS_LIMIT:
        raise ModelUnavailable(f"{folder.config_path}: id2label must be an object of 1 to {LABELS_LIMIT:,} labels")
    labels = [named.get(str(i)) for i in range(len(named))]
    if not all(isinstance(label, str) and len(label) <= LABEL_LIMIT_CHARACTERS for label in labels):
        raise ModelUnavailable(
            f'{folder.config_path}: id2label must give a text of at most {LABEL_LIMIT_CHARACTERS} characters for "0", '
            f'"1" ... up to "{len(named) - 1}"'
        )
    return tuple(map(str, labels))
