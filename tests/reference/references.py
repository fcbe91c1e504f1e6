"""Reference results: run a script of this folder in the reference environment and read back its arrays.

FlagEmbedding and pylate need other versions of transformers and sentence-transformers than the development environment,
so they live in .venv-reference (tests/reference/requirements.txt). One process of it serves all tests, because the
libraries take 7 s to load. A missing environment fails the test and names the command that builds it.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
ENVIRONMENT = HERE.parents[1] / ".venv-reference"
TIMEOUT_S = 600  # for a process that hangs; a busy machine takes minutes to import the libraries


class ReferenceFailed(AssertionError):
    """The reference environment is missing, or a script in it failed."""


def run_reference(script: str, folder: Path, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the arrays of `script` (flag_embedding, qwen3_reranker, pylate_colbert) for a model folder and its inputs.

    The script's docstrings list the keys; ragged arrays are read with ragged.unpack. Equal calls of a session run once
    and share the arrays. Raises ReferenceFailed with the script's traceback.
    """
    return _arrays(script, folder, json.dumps(inputs))


@cache
def _arrays(script: str, folder: Path, inputs: str) -> dict[str, np.ndarray]:
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "arrays.npz"
        run_script(script, folder, inputs, output)
        with np.load(output) as arrays:
            return dict(arrays)


def run_script(script: str, folder: Path, inputs: str, output: Path) -> None:
    """Run one script of this folder, offline, on one thread; it reads `inputs` (JSON) from a file."""
    if not (ENVIRONMENT / ".installed").exists():
        raise ReferenceFailed(f"{ENVIRONMENT.name} is missing or incomplete: run `make reference`")
    with tempfile.TemporaryDirectory() as scratch:
        question = Path(scratch) / "inputs.json"
        question.write_text(inputs)
        worker = _worker(ENVIRONMENT)
        assert worker.stdin is not None and worker.stdout is not None
        timer = threading.Timer(TIMEOUT_S, worker.kill)
        timer.start()
        try:
            worker.stdin.write(json.dumps({"script": script, "arguments": [*map(str, (folder, question, output))]}))
            worker.stdin.write("\n")
            worker.stdin.flush()
            reply = worker.stdout.readline()
        finally:
            timer.cancel()
    if not reply:
        _worker.cache_clear()
        raise ReferenceFailed(f"{script}.py crashed, or took more than {TIMEOUT_S} s; see the captured stderr")
    if error := json.loads(reply):
        raise ReferenceFailed(f"{script}.py failed:\n{error}")


@cache
def _worker(environment: Path) -> subprocess.Popen[str]:
    worker = subprocess.Popen(
        [environment / "bin/python", HERE / "worker.py"],
        env=os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(_stop, worker)
    return worker


def _stop(worker: subprocess.Popen[str]) -> None:
    worker.kill()
    worker.communicate()
