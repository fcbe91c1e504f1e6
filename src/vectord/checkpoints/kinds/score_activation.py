"""What a model itself makes of its logits: `read_score_activation(folder, labels)`.

classifier.py and yes_no.py ask at start. sentence-transformers writes it as a class path: beside the modules since
version 6, in config.json under two names before. The path is compared, never imported.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from vectord.checkpoints.model_folder import ModelFolder
from vectord.checkpoints.spec import ScoreActivation

log = logging.getLogger("vectord.checkpoints")

_KNOWN: Mapping[str, ScoreActivation] = {
    "torch.nn.modules.linear.Identity": "identity",
    "torch.nn.Identity": "identity",
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
    "torch.nn.Sigmoid": "sigmoid",
    "torch.nn.modules.activation.Softmax": "softmax",
    "torch.nn.Softmax": "softmax",
}


def read_score_activation(folder: ModelFolder, *, labels: int) -> ScoreActivation:
    """What the folder says, else sigmoid for one label and for labels that do not exclude each other, else softmax."""
    usual: ScoreActivation = "softmax"
    if labels == 1 or folder.config.get("problem_type") == "multi_label_classification":
        usual = "sigmoid"
    path = _path(folder)
    if path is None:
        return usual
    known = _KNOWN.get(path) if isinstance(path, str) else None
    if known is None:
        log.warning("%s: its activation_fn is not known and never imported: using %s", folder.root, usual)
        return usual
    # Of several labels Identity says nothing: sentence-transformers writes it for whoever has not chosen.
    return usual if known == "identity" and labels > 1 else known


def _path(folder: ModelFolder) -> Any:
    inner = folder.config.get("sentence_transformers")
    places = (
        folder.sentence.get("activation_fn"),
        inner.get("activation_fn") if isinstance(inner, dict) else None,
        folder.config.get("sbert_ce_default_activation_function"),
    )
    return next((path for path in places if path is not None), None)
