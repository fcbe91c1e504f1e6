"""BGE-M3's further heads, in files beside the weights: `add_heads`. embedding.py calls it, at start.

sparse_linear    how much each token matters; (1, H) and (1,)
colbert_linear   one vector a token; (C, H) and (C,)
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from vectord.checkpoints.checkpoint import open_checkpoint
from vectord.checkpoints.model_folder import ModelFolder
from vectord.checkpoints.spec import Colbert, ModelSpec
from vectord.errors import ModelUnavailable


def has_heads(folder: ModelFolder) -> bool:
    """Whether any of them is there."""
    return any(_find(folder.transformer, name) for name in ("sparse_linear", "colbert_linear"))


def add_heads(folder: ModelFolder, spec: ModelSpec) -> ModelSpec:
    """`spec` with those heads whose files are there. Raises ModelUnavailable, naming the file, if one does not fit."""
    if lexical := _find(folder.transformer, "sparse_linear"):
        if _outputs(lexical, spec.hidden_size) != 1:
            raise ModelUnavailable(f"{lexical}: expected one number a token")
        spec = replace(spec, outputs=spec.outputs | {"lexical"}, lexical=lexical)
    if linear := _find(folder.transformer, "colbert_linear"):
        colbert = Colbert(dimensions=_outputs(linear, spec.hidden_size), linear=linear, drops_first=True)
        spec = replace(spec, outputs=spec.outputs | {"colbert"}, colbert=colbert)
    return spec


def _find(folder: Path, name: str) -> Path | None:
    path = folder / f"{name}.pt"
    return path if path.is_file() else None


def _outputs(path: Path, inputs: int) -> int:
    """How many numbers a layer makes of `inputs`, by the shape of its weight."""
    checkpoint = open_checkpoint((path,))
    weight = checkpoint.get("weight")
    shape = weight.array.shape if weight else ()
    checkpoint.close()
    if len(shape) != 2 or shape[0] < 1 or shape[1] != inputs:
        raise ModelUnavailable(f"{path}: weight has the shape {list(shape)}; expected [outputs, {inputs}]")
    return int(shape[0])
