"""Make a ColBERT folder of a transformers folder, as pylate saves it.

    python pylate_save.py TRANSFORMERS_FOLDER SETTINGS.json COLBERT_FOLDER

Run by tests/reference/reference_models.py in the reference environment. SETTINGS.json has the arguments of
`save`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from pylate.models import ColBERT, Dense
from sentence_transformers.models import Transformer


def save(source: str, colbert_folder: str, dense: list[dict[str, Any]], settings: dict[str, Any]) -> None:
    """dense: arguments of each of pylate's Dense, whose weights are random; settings: those of its ColBERT."""
    torch.manual_seed(0)
    modules = [Transformer(source), *(Dense(**arguments) for arguments in dense)]
    model = ColBERT(modules=modules, device="cpu", **settings)
    model.save(colbert_folder, create_model_card=False)


def main(source: str, settings: str, colbert_folder: str) -> None:
    save(source, colbert_folder, **json.loads(Path(settings).read_text()))


if __name__ == "__main__":
    main(*sys.argv[1:])
