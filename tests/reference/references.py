"""Known answers: runs a script of this folder in the reference environment and reads back its arrays.

FlagEmbedding and pylate want other versions of transformers and sentence-transformers than the development
environment has, so they live in .venv-reference (tests/reference/requirements.txt) and are reached by subprocess.
A missing environment fails the test and says what builds it; nothing is skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
ENVIRONMENT = HERE.parents[1] / ".venv-reference"
TIMEOUT_S = 120  # importing FlagEmbedding takes 7 s on two cores, a tiny model less than one


class ReferenceFailed(AssertionError):
    """The reference environment is missing, or a script in it ended with an error."""


def run_reference(script: str, folder: Path, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """What `script` (flag_embedding, qwen3_reranker, pylate_colbert) answers for a model folder and its inputs.

    The keys are in the docstrings of the script; ragged ones are read with ragged.unpack. The same question is asked
    once a session and all who ask share the arrays. Raises ReferenceFailed with the script's own words.
    """
    return _answers(script, folder, json.dumps(inputs))


@cache
def _answers(script: str, folder: Path, inputs: str) -> dict[str, np.ndarray]:
    with tempfile.TemporaryDirectory() as scratch:
        answers = Path(scratch) / "answers.npz"
        run_script(script, folder, inputs, answers)
        with np.load(answers) as arrays:
            return dict(arrays)


def run_script(script: str, folder: Path, inputs: str, output: Path) -> None:
    """One script of this folder, offline, on one thread; `inputs` (JSON) reaches it as a file."""
    if not (ENVIRONMENT / ".installed").exists():
        raise ReferenceFailed(f"{ENVIRONMENT.name} is not there or not whole: run `make reference`")
    with tempfile.TemporaryDirectory() as scratch:
        question = Path(scratch) / "inputs.json"
        question.write_text(inputs)
        ended = subprocess.run(
            [ENVIRONMENT / "bin/python", HERE / f"{script}.py", folder, question, output],
            env=os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    if ended.returncode != 0:
        raise ReferenceFailed(f"{script}.py ended with {ended.returncode}:\n{ended.stderr}")
