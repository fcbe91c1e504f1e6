"""Every architecture on a GPU, if there is one, in each dtype."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.compute.networks import tiny_decoders, tiny_encoders
from tests.compute.networks.case import numpy_answer, texts_of
from tests.models import batch_of

from vectord.checkpoints.spec import NEVER_FLOAT16
from vectord.compute.backends.base import BackendOptions
from vectord.compute.backends.torch import load

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

CASES = {**tiny_encoders.CASES, **tiny_decoders.CASES}
GROUPED = {"deberta_v2", "nomic_bert of experts"}  # no flat form
LEAST_COSINE = {"float32": 0.999999, "float16": 0.9999, "bfloat16": 0.9995}  # of a text's mean state
TOLERANCES = {"float32": 1e-4, "float16": 0.0125, "bfloat16": 0.075}  # between two batches, for numbers around 1
TEXTS = texts_of(9, 1, 60, 2, 33)
MANY = 40 * TEXTS  # more than the largest graph holds


@pytest.mark.parametrize("name", CASES)
def test_an_architecture_equals_its_reference(name: str, tmp_path: Path) -> None:
    """Among few texts, alone and among many; in 16 bits with graphs, from Ampere on."""
    spec = CASES[name].spec(CASES[name].write(tmp_path))
    want = means(numpy_answer(spec, TEXTS))
    for dtype, least in LEAST_COSINE.items():
        if dtype == "float16" and spec.architecture in NEVER_FLOAT16:
            continue
        backend = load(spec, BackendOptions(device="cuda", dtype=dtype, capacity_s=0, graph_memory_mib=64))

        def run(texts: list[list[int]]) -> np.ndarray:
            return backend.forward(batch_of(*texts, outputs=("tokens",)), 0)["tokens"]  # noqa: B023 - of this dtype

        flat = dtype != "float32" and name not in GROUPED and torch.cuda.get_device_capability() >= (8, 0)
        assert bool(len(backend.graphs)) == flat, dtype
        got = run(TEXTS)
        found = means(got)
        cosines = (found * want).sum(axis=1) / np.linalg.norm(found, axis=1) / np.linalg.norm(want, axis=1)
        assert cosines.min() >= least, dtype
        close = {"atol": TOLERANCES[dtype], "rtol": TOLERANCES[dtype], "err_msg": dtype}
        np.testing.assert_allclose(np.concatenate([run([text]) for text in TEXTS]), got, **close)
        np.testing.assert_allclose(run(MANY), np.tile(got, (40, 1)), **close)
        backend.close()


def means(states: np.ndarray) -> np.ndarray:
    """The mean state of each of TEXTS. (N, H)"""
    lengths = [len(text) for text in TEXTS]
    return np.add.reduceat(states.astype(float), np.cumsum([0, *lengths[:-1]])) / np.array(lengths)[:, None]
