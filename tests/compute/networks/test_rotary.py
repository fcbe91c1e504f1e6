"""Tables of rotary positions against transformers' frequencies, and the config's values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.compute.networks import tiny_decoders
from tests.compute.networks.case import backend_answer, numpy_answer
from tests.models import pack_texts, random_texts
from transformers import Qwen3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from vectord.compute.networks.rotary import CosSin, Rotary, cos_sin_of, read_rotary, rotary_table
from vectord.compute.networks.weights import WeightReader
from vectord.compute.ops.numpy import NumpyOps, pack
from vectord.compute.ops.torch import TorchOps
from vectord.compute.ops.torch.flat import flat_of
from vectord.errors import ModelUnavailable

HEAD_SIZE = 16
POSITIONS = 300

LONG: dict[str, Any] = {
    "rope_type": "longrope",
    "short_factor": [1.0 + i / 8 for i in range(HEAD_SIZE // 2)],
    "long_factor": [4.0 + i for i in range(HEAD_SIZE // 2)],
}
SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 8.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "linear and trained positions": {"rope_type": "linear", "factor": 8.0, "original_max_position_embeddings": 64},
    "dynamic and trained positions": {"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 64},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    "yarn that shrinks": {"rope_type": "yarn", "factor": 0.5, "original_max_position_embeddings": 64},
    "yarn of its own edges": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 8, "beta_slow": 2},
    "yarn of its own amplitude": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.5},
    "yarn that divides next to nothing": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 2**22,
    },
    "longrope": {**LONG, "original_max_position_embeddings": 2 * POSITIONS},
    "longrope of its own amplitude": {**LONG, "original_max_position_embeddings": POSITIONS, "attention_factor": 1.5},
    "yarn without a slope": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 1},
}


def table(rotary: Rotary, *, head_size: int = HEAD_SIZE, positions: int = POSITIONS) -> CosSin[np.ndarray]:
    return rotary_table(WeightReader({}, NumpyOps()), rotary, head_size, positions)


def read(scaling: object, **config: Any) -> Rotary:
    config = {"rope_scaling": scaling, **config}
    return read_rotary(config, ("rope_scaling",), theta=1000.0, positions=POSITIONS)


def test_factors_for_another_width_are_refused() -> None:
    """There is one for each pair of a head's numbers."""
    rotary = read({**LONG, "original_max_position_embeddings": 64})
    with pytest.raises(ModelUnavailable, match="must have 4 numbers each"):
        table(rotary, head_size=8)


@pytest.mark.parametrize("backend", ["numpy", "openvino", "torch", "torch, flat"])
def test_a_text_beyond_the_trained_positions_has_the_long_factors(tmp_path: Path, backend: str) -> None:
    """By its own length, whatever else is in its batch, as transformers computes it alone."""
    rope = {"rope_theta": 1000.0, **LONG, "original_max_position_embeddings": 16, "factor": 8.0}
    folder = tiny_decoders.write("llama", tmp_path, rope_parameters=rope)
    spec, texts = tiny_decoders.CASES["llama"].spec(folder), random_texts((5, 16, 17, 40))
    want = np.concatenate([tiny_decoders.reference(folder, [text]) for text in texts])
    if backend == "numpy":
        got = numpy_answer(spec, texts)
    elif backend == "torch, flat":
        ops = TorchOps(torch.device("cpu"), torch.float32)
        tokens = flat_of(pack_texts(*texts), torch.device("cpu"))
        cos_sin = [rotary_table(WeightReader({}, o), read(rope), HEAD_SIZE, POSITIONS) for o in (ops, NumpyOps())]
        got = cos_sin_of(ops, cos_sin[0], tokens).cos.numpy()
        want = cos_sin_of(NumpyOps(), cos_sin[1], pack(pack_texts(*texts))).cos
    else:
        got = backend_answer(backend, spec, texts)
    np.testing.assert_allclose(got, want, atol=1e-4)


def test_a_row_is_its_position_times_the_frequencies() -> None:
    """Row p holds the cosines and sines of p * theta ** (-2 i / head_size)."""
    found = table(Rotary(theta=100.0), head_size=4)
    angles = np.outer(np.arange(POSITIONS), [1.0, 0.1])
    np.testing.assert_allclose(found.cos, np.cos(angles), atol=1e-7)
    np.testing.assert_allclose(found.sin, np.sin(angles), atol=1e-7)


@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)
def test_scaled_frequencies_equal_transformers(scaling: dict[str, Any]) -> None:
    """Every supported kind of scaling, within the accuracy of float32 frequencies."""
    config = Qwen3Config(
        head_dim=HEAD_SIZE, max_position_embeddings=POSITIONS, rope_parameters={"rope_theta": 1000.0, **scaling}
    )
    frequencies, amplitude = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config)
    angles = np.outer(np.arange(POSITIONS), frequencies.double().numpy())
    found = table(read(scaling))
    np.testing.assert_allclose(found.cos, np.cos(angles) * amplitude, atol=1e-4)
    np.testing.assert_allclose(found.sin, np.sin(angles) * amplitude, atol=1e-4)


@pytest.mark.parametrize("turns", ["beta_fast", "beta_slow"])
def test_extreme_values_make_a_table(turns: str) -> None:
    """Any value that a config may have is computed with, however small."""
    found = table(read({"rope_type": "yarn", "factor": 2.0, turns: 5e-324}))
    assert np.isfinite(found.cos).all()


FAULTS: dict[str, tuple[object, str]] = {
    "a list": ([], "rope_scaling must be an object"),
    "another kind": ({"rope_type": "su"}, "rope_scaling.rope_type must be one of .*; found 'su'"),
    "no factors": (
        {"rope_type": "longrope", "original_max_position_embeddings": 64},
        "rope_scaling.short_factor must be a list of numbers",
    ),
    "a factor beyond float32": (
        {**LONG, "original_max_position_embeddings": 64, "long_factor": [1e-30] * 8},
        "rope_scaling.long_factor must be a list of numbers",
    ),
    "no factor": ({"rope_type": "linear"}, "rope_scaling.factor is missing, which rope_type linear needs"),
    "a factor of nothing": ({"rope_type": "linear", "factor": 0}, "rope_scaling.factor must be a number from 0.1"),
    "part of a head": ({"partial_rotary_factor": 0.5}, "rope_scaling.partial_rotary_factor is not supported"),
    "a theta that does not turn": ({"rope_theta": 1.0}, "rope_scaling.rope_theta must be above 1; found 1"),
    "a null that is no default": (
        {"rope_type": "yarn", "factor": 2.0, "truncate": None},
        "rope_scaling.truncate null is not supported",
    ),
}


@pytest.mark.parametrize(("scaling", "message"), FAULTS.values(), ids=FAULTS)
def test_unsupported_positions_are_refused(scaling: object, message: str) -> None:
    """Another rotation stops the load, and the error names its key."""
    with pytest.raises(ModelUnavailable, match=message):
        read(scaling)


def test_a_table_that_does_not_fit_is_refused_before_it_is_made() -> None:
    """A config of a few bytes cannot allocate gigabytes."""
    with pytest.raises(ModelUnavailable, match="262145 positions times a head size of 128 is above the limit"):
        table(Rotary(theta=1e4), head_size=128, positions=2**18 + 1)
    with pytest.raises(ModelUnavailable, match="heads are 7 wide"):
        table(Rotary(theta=1e4), head_size=7)
