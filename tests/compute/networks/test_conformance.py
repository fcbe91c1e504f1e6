"""The promises of every architecture: its own class's numbers, on every backend, whatever the neighbours.

Architectures are found by listing the folder. A new one needs a Case in tiny_encoders.py or tiny_decoders.py.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from tests.checkpoints.reading import spec_of
from tests.compute.networks import tiny_decoders, tiny_encoders
from tests.compute.networks.case import Case, Texts, backend_answer, load, numpy_answer, texts_of
from tests.models import batch_of, write_bert

from vectord.checkpoints.checkpoint import open_checkpoint
from vectord.checkpoints.files.read import Settings
from vectord.checkpoints.kinds.towers import TOWERS
from vectord.checkpoints.spec import NEVER_FLOAT16, ModelSpec
from vectord.compute.backends.base import Backend
from vectord.compute.networks.network import ARCHITECTURES, Network
from vectord.compute.ops.torch import TorchOps, pack
from vectord.compute.processor import multiplies_bfloat16
from vectord.errors import ModelUnavailable

CASES: dict[str, Case] = {**tiny_encoders.CASES, **tiny_decoders.CASES}
BACKENDS = ("openvino", "torch")
LEAST = {"gemma": 0.9998, "modernbert": 0.9998, "mt5": 0.9997}  # cosines on OpenVINO in bfloat16
TEXTS = texts_of(9, 1, 60, 2, 33)  # some longer than any tiny model's windows


@dataclass(frozen=True, slots=True)
class Tiny:
    spec: ModelSpec
    reference: np.ndarray  # (T, H), by the architecture's own class
    ours: np.ndarray  # (T, H), by the reference op set


@pytest.fixture(scope="module", params=sorted(CASES))
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    case = CASES[request.param]
    folder = case.write(tmp_path_factory.mktemp(request.param))
    spec = case.spec(folder)
    return Tiny(spec, case.reference(folder, TEXTS), numpy_answer(spec, TEXTS))


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest, tiny: Tiny) -> Iterator[Backend]:
    loaded = load(request.param, tiny.spec)
    yield loaded
    loaded.close()


def forward(backend: Backend, texts: Texts) -> np.ndarray:
    return backend.forward(batch_of(*texts, outputs=("tokens",)), 0)["tokens"]


def test_every_architecture_has_a_case() -> None:
    """Every supported name is compared with the class that it implements; a further case adds words to its name.
    test_towers.py, test_pages.py, test_gemma4_vision.py, test_qwen_vl.py and test_t5gemma2.py compare others."""
    others = {*TOWERS, "gemma4_vision", "pages", "qwen_vl", "t5gemma2"}
    towers = {name for name, (place, _) in ARCHITECTURES.items() if place.partition(".")[0] in others}
    assert set(ARCHITECTURES) == towers | {name.partition(" ")[0] for name in CASES}


def test_states_equal_its_own_class(tiny: Tiny) -> None:
    """transformers in float64, which still computes rotary positions in float32."""
    assert np.abs(tiny.reference).max() > 0.1
    np.testing.assert_allclose(tiny.ours, tiny.reference, atol=1e-5)


def test_its_folder_is_read(tiny: Tiny, tmp_path: Path) -> None:
    """With all facts that only the folder has: the network has as many positions as texts may have tokens."""
    shutil.copytree(tiny.spec.folder, tmp_path / "model")
    shutil.copy(write_bert(tmp_path / "bert") / "tokenizer.json", tmp_path / "model")
    options = {"task": "embed"} if tiny.spec.architecture == "minicpm" else {}  # a reranker has no dense output
    spec = spec_of(tmp_path / "model", pooling="mean", **options)
    assert spec.architecture.replace("-", "_") == tiny.spec.architecture.replace("-", "_")
    assert numpy_answer(spec, TEXTS, "dense").shape == (len(TEXTS), spec.dimensions)


def test_backends_agree_with_the_reference(tiny: Tiny, backend: Backend) -> None:
    """In float32 on every backend."""
    np.testing.assert_allclose(forward(backend, TEXTS), tiny.ours, atol=1e-4)


def test_a_text_is_the_same_alone_and_among_others(tiny: Tiny, backend: Backend) -> None:
    """Alone, in a batch, before longer texts and after them, a text has the same states."""
    rows = np.split(tiny.ours, np.cumsum([len(text) for text in TEXTS])[:-1])
    for i in (0, 1, 4):
        np.testing.assert_allclose(forward(backend, TEXTS[i : i + 1]), rows[i], atol=1e-4)
    backwards = forward(backend, TEXTS[::-1])
    np.testing.assert_allclose(backwards, np.concatenate(rows[::-1]), atol=1e-4)


def test_an_unknown_class_of_own_code_is_refused_and_can_be_allowed(tiny: Tiny) -> None:
    """Code of the model's repository is never run, and its class could compute something else."""
    own = {**tiny.spec.config, "auto_map": {"AutoModel": "modeling.Mine"}, "architectures": ["Qwen3ForwardModel"]}
    with pytest.raises(ModelUnavailable, match="the class Qwen3ForwardModel is in the model's own code"):
        numpy_answer(replace(tiny.spec, config=own), TEXTS[:1])
    allowed = Settings(tiny.spec.folder / "config.json", own, ["architectures"])
    known = {**own, "architectures": tiny.spec.config.get("architectures", [])}  # its own class's name
    for config in (allowed, known):
        numpy_answer(replace(tiny.spec, config=config), TEXTS[:1])


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("size", [64, 128, 256])
@pytest.mark.parametrize("model_type", ["embedding_gemma2_text", "gemma2", "gemma3_text", "mistral"])
def test_heads_of_published_sizes_under_a_window(model_type: str, size: int, name: str, tmp_path: Path) -> None:
    """The heads of the cases are narrow, and a library has other kernels for those of the published models."""
    sizes = {"global_head_dim": size} if model_type == "embedding_gemma2_text" else {}
    spec = CASES[model_type].spec(tiny_decoders.write(model_type, tmp_path, head_dim=size, **sizes))
    np.testing.assert_allclose(backend_answer(name, spec, TEXTS), numpy_answer(spec, TEXTS), atol=1e-4)


@pytest.mark.parametrize("name", BACKENDS)
def test_bfloat16_keeps_the_direction(tiny: Tiny, name: str) -> None:
    """The mean of a text's states in bfloat16 has the direction of float64, up to a cosine of 0.9999 on the processor.

    Some of these weights are so large that attention decides between almost equal scores; LEAST lists those. torch
    rounds after every layer. `python -m bench families` measures the sizes of published models.
    """
    if name == "openvino" and not multiplies_bfloat16():
        pytest.skip("this processor does not compute in bfloat16")
    least = 0.9995 if name == "torch" else LEAST.get(tiny.spec.architecture, 0.9999)
    assert least_cosine(backend_answer(name, tiny.spec, TEXTS, dtype="bfloat16"), tiny.ours) > least


@pytest.mark.parametrize("tiny", sorted(CASES.keys() - NEVER_FLOAT16), indirect=True)
def test_float16_keeps_the_direction(tiny: Tiny) -> None:
    """On torch's op set, for GPUs; no processor computes in it here. Architectures that overflow are never served
    in it."""
    cpu = torch.device("cpu")
    network = Network(tiny.spec, open_checkpoint(tiny.spec.weights), TorchOps(cpu, torch.float16))
    with torch.inference_mode():
        states = network(pack(batch_of(*TEXTS).texts, cpu), ("tokens",))["tokens"]
    assert states.dtype == torch.float16
    assert least_cosine(states.numpy(), tiny.ours) > 0.9999


def least_cosine(states: np.ndarray, reference: np.ndarray) -> float:
    """Cosines of the texts' means to those of the reference."""
    starts = np.cumsum([0, *(len(text) for text in TEXTS[:-1])])
    got, want = (np.add.reduceat(rows.astype(float), starts) for rows in (states, reference))
    cosines = (got * want).sum(axis=1) / np.linalg.norm(got, axis=1) / np.linalg.norm(want, axis=1)
    return float(cosines.min())
