"""vLLM: the formats of numbers. cases/vllm.json has the rest."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.products.results import embed_result, parsed

from vectord.errors import InvalidField
from vectord.products.vllm import DIALECT, MAX_DESCRIBED
from vectord.products.vllm.numbers import Numbers


@pytest.mark.parametrize(
    ("name", "dtype", "bits"),
    [
        ("bfloat16", torch.bfloat16, torch.int16),
        ("fp8_e4m3", torch.float8_e4m3fn, torch.uint8),
        ("fp8_e5m2", torch.float8_e5m2, torch.uint8),
    ],
)
def test_small_types_are_rounded_as_torch_rounds(name, dtype, bits):
    """Every size, both signs, zeros, subnormal numbers, and numbers halfway between two."""
    steps = torch.arange(-(2**7), 2**7, dtype=torch.int16).to(torch.uint8).view(torch.float8_e5m2).float()
    known = steps[torch.isfinite(steps) & (steps.abs() <= 400)].numpy()
    middles = (np.sort(known)[1:] + np.sort(known)[:-1]) / 2
    random = np.random.default_rng(0).normal(0, 0.1, 2000)
    numbers = np.concatenate([known, middles, random, [1 / 3, 2**-10 * 3, 2**-17]]).astype(np.float32)
    want = torch.from_numpy(numbers).to(dtype).view(bits).numpy().tobytes()
    assert Numbers("base64", name, "little").packed(numbers) == want


@pytest.mark.parametrize(
    ("dtype", "largest"),
    [("float16", 65504.0), ("bfloat16", 3.3895314e38), ("fp8_e4m3", 448.0), ("fp8_e5m2", 57344.0)],
)
def test_numbers_too_large_for_the_type_are_rejected(dtype, largest):
    """The answer would contain infinities."""
    numbers = Numbers("base64", dtype, "native")
    assert numbers.packed(np.array([largest, -largest], np.float32))
    with pytest.raises(InvalidField) as raised, np.errstate(over="ignore"):
        numbers.packed(np.array([0, min(largest * 1.1, 3.4028235e38)], np.float32))
    assert raised.value.field_name == "embed_dtype"


@pytest.mark.parametrize("path", ["/embeddings", "/pooling"])
def test_more_inputs_than_a_header_describes_are_refused_before_they_are_computed(path):
    """`bytes` has a place for each input in a header. A list of ids is one input, and `bytes_only` has no header."""
    body = {"input": ["a"] * (MAX_DESCRIBED + 1), "encoding_format": "bytes"}
    with pytest.raises(InvalidField) as raised:
        parsed(DIALECT, path, body)
    assert (raised.value.field_name, raised.value.limit) == ("encoding_format", MAX_DESCRIBED)
    parsed(DIALECT, path, body | {"encoding_format": "bytes_only"})
    parsed(DIALECT, path, body | {"input": [1] * (MAX_DESCRIBED + 1)})
    call = parsed(DIALECT, path, body | {"input": ["a"] * MAX_DESCRIBED, "request_id": "我" * 64})
    assert len(call.render(embed_result(np.zeros((MAX_DESCRIBED, 4096), np.float32))).headers["metadata"]) < 60_000
