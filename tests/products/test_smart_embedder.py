"""Smart Embedder: the words of its booleans, and the facts of its hardware. cases/smart_embedder.json has the rest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from tests.products.results import model_info, model_list, parsed, usage

from vectord.errors import InvalidField
from vectord.products.common.dialect import Call
from vectord.products.smart_embedder import DIALECT
from vectord.products.smart_embedder.metrics import SmartEmbedderMetrics, health
from vectord.schema import EmbedResult, Gpu, Sparse

ALL = frozenset({"dense", "sparse", "colbert"})
MODELS = (
    model_info("qwen"),
    model_info("bge", outputs=ALL),
    model_info("both", outputs=ALL, sources={"dense": "qwen", "sparse": "bge", "colbert": "bge"}),
)


def call(path: str, body: Mapping[str, Any]) -> Call:
    return parsed(DIALECT, path, {"sentences": ["a"], "query": "q", "passages": ["a"], **body}, models=MODELS)


# --- embeddings -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "meaning"),
    [
        *((value, True) for value in (True, 1, 1.0, "1", "on", "t", "true", "True", "y", "YES")),
        *((value, False) for value in (False, 0, 0.0, "0", "off", "f", "false", "FALSE", "n", "No")),
    ],
    ids=repr,
)
def test_booleans_may_be_words_and_numbers(value: object, meaning: bool) -> None:
    """In every boolean field, as in pydantic."""
    request = call("/embeddings", {**{f"return_{kind}": value for kind in ALL}, "normalize_dense": value}).request
    assert (request.outputs == ALL, request.normalize) == (meaning, meaning)
    sparse = [Sparse(np.array([435], np.int32), np.array([0.5], np.float32))]
    result = EmbedResult(model="bge", fingerprint="f00d", usage=usage([(3, 3)]), sparse=sparse)
    (shown,) = json.loads(call("/embeddings", {"sparse_as_indices": value}).render(result).body)["data"]
    assert ("indices" in shown["embeddings"]["sparse"]) is meaning
    assert call("/rerank", {"normalize": value}).request.raw is not meaning


@pytest.mark.parametrize("value", [2, -1, 0.5, "", "null", " true", "oui", [], {}], ids=repr)
@pytest.mark.parametrize(
    ("path", "field"), [("/embeddings", "return_dense"), ("/embeddings", "sparse_as_indices"), ("/rerank", "normalize")]
)
def test_other_words_are_no_booleans(path: str, field: str, value: object) -> None:
    """The error has the place."""
    with pytest.raises(InvalidField) as refused:
        call(path, {field: value})
    assert refused.value.field_name == field


# --- health ---------------------------------------------------------------------------------------------------

GIB = 2**30


@pytest.mark.parametrize(
    ("gpu", "longest", "sizes"),
    [
        (None, 8192, (1, 8)),
        (None, 512, (1, 8)),
        *((Gpu("RTX", int(gb * GIB)), 8192, sizes) for gb, sizes in ((4, (3, 16)), (8, (6, 16)), (8.1, (12, 16)))),
        *(
            (Gpu("RTX", gb * GIB), 512, sizes)
            for gb, sizes in ((4, (16, 16)), (6, (32, 16)), (8, (64, 32)), (9, (128, 64)))
        ),
    ],
    ids=str,
)
def test_health_has_its_version_and_batch_sizes(gpu, longest, sizes):
    """By the table of its document."""
    shown = health(model_list(model_info(max_input_tokens=longest, gpu=gpu)), True)
    assert (shown["version"], shown["batch_size"], shown["max_requests_in_batch"]) == ("1.2.0", *sizes)


def test_health_and_stats_describe_the_gpu():
    """By its name and memory."""
    gpu = Gpu("NVIDIA GeForce RTX 4060 Laptop GPU", 8_585_216_000)
    facts = health(model_list(model_info(device="cuda:0", gpu=gpu)), True)["gpu"]
    assert (facts["device_info"], facts["memory_gb"]) == (gpu.name, 8.0)
    shown = SmartEmbedderMetrics({}).figures([model_info(device="cuda:0", gpu=gpu)])
    assert shown["hardware"] == "NVIDIA GeForce RTX 4060 Laptop GPU (8.00 GB)"


def test_health_names_devices_of_loaded_models_only() -> None:
    """Before a model is loaded the device is "unknown"."""
    gpu = health(model_list(model_info(device="unknown")), True)["gpu"]
    assert (gpu["available"], gpu["device_info"], gpu["configured_devices"]) == (False, "unknown", [])
    gpu = health(model_list(model_info(device="NVIDIA H200"), model_info(device="cpu")), True)["gpu"]
    assert (gpu["available"], gpu["device_info"], gpu["device_count"]) == (True, "NVIDIA H200", 1)


def test_health_counts_each_gpu_once() -> None:
    """Several models or replicas may share a GPU."""
    both = model_info(device="cuda:0,cuda:1")
    gpu = health(model_list(both, model_info(device="cuda:1")), True)["gpu"]
    assert (gpu["device_count"], gpu["multi_gpu_enabled"]) == (2, True)
    assert gpu["configured_devices"] == ["cuda:0", "cuda:1"]
