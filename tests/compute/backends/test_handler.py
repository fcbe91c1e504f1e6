"""The operator's own class as a backend: its inputs, its outputs, and its import."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from msgspec.structs import replace
from safetensors.numpy import save_file
from tests.models import batch_of, pack_texts, random_texts, read_tiny_spec

from vectord.checkpoints.spec import ModelSpec
from vectord.compute.backends.base import BackendOptions, TokenBatch
from vectord.compute.backends.handler import HandlerBackend, load
from vectord.errors import ModelUnavailable

OPTIONS = BackendOptions(device="cpu")
WIDTH = 3


class Counting:
    """Length, sum and first id of each text."""

    closed = False

    def __init__(self, folder: Path, device: str) -> None:
        self.made_with = (folder, device)

    def embed(self, texts: Sequence[np.ndarray]) -> np.ndarray:
        rows = [[len(ids), ids.sum(), ids[0]] for ids in texts]
        for ids in texts:
            ids[:] = -1  # copies of its own
        return np.array(rows, np.float64)

    def close(self) -> None:
        Counting.closed = True


class Single:
    """One vector for any number of texts, and a check that ids are integers."""

    def __init__(self, folder: Path, device: str) -> None: ...

    def embed(self, texts: Sequence[np.ndarray]) -> np.ndarray:
        return np.zeros((1, WIDTH), np.float32)


class Wide(Single):
    def embed(self, texts: Sequence[np.ndarray]) -> np.ndarray:
        return np.zeros((len(texts), WIDTH + 1), np.float32)


class Whole(Single):
    def embed(self, texts: Sequence[np.ndarray]) -> np.ndarray:
        return np.zeros((len(texts), WIDTH), np.int64)


class Failing(Single):
    def embed(self, texts: Sequence[np.ndarray]) -> np.ndarray:
        raise OSError("weights are gone")


class Unmade(Single):
    def __init__(self, folder: Path, device: str) -> None:
        raise OSError("no GPU")


class NoArguments:
    def __init__(self) -> None: ...


class NoEmbed:
    def __init__(self, folder: Path, device: str) -> None: ...


@pytest.fixture
def spec(tmp_path: Path) -> ModelSpec:
    (tmp_path / "config.json").write_text(
        '{"model_type": "someones_own", "hidden_size": 3, "max_position_embeddings": 64}'
    )
    return read_tiny_spec(tmp_path, outputs=frozenset({"dense"}), handler=f"{__name__}.Counting")


def test_the_class_turns_ids_into_vectors(spec: ModelSpec) -> None:
    """Texts arrive as ids, one row per text comes back, and the batch is not modified."""
    backend = load(spec, OPTIONS)
    texts = random_texts((4, 1, 9))
    batch = batch_of(*texts)
    answer = backend.forward(batch, 0)["dense"]
    assert answer.dtype == np.float32
    np.testing.assert_array_equal(answer, [[len(text), sum(text), text[0]] for text in texts])
    np.testing.assert_array_equal(batch.texts.ids, np.concatenate(texts))
    np.testing.assert_array_equal(backend.forward_exact(batch)["dense"], answer)


def test_close_is_optional(spec: ModelSpec) -> None:
    """It is called if the class has it."""
    load(spec, OPTIONS).close()
    assert Counting.closed
    backend = HandlerBackend(load(spec, OPTIONS).facts, Single(spec.folder, "cpu"), WIDTH)
    backend.close()


def test_a_part_of_a_text_fails(spec: ModelSpec) -> None:
    """The class pools whole texts, so late chunking is not supported."""
    part = pack_texts(*random_texts((4, 9)), spans=np.array([[0, 2]], np.int32))
    with pytest.raises(ValueError, match="pools whole texts"):
        load(spec, OPTIONS).forward(TokenBatch(texts=part, outputs=frozenset({"dense"})), 0)


def test_a_missing_row_fails_the_batch(spec: ModelSpec) -> None:
    """With a row too few, a text would get the vector of another."""
    backend = load(replace(spec, handler=f"{__name__}.Single"), OPTIONS)
    with pytest.raises(ValueError, match=r"shape \(2, 3\), got float32 of shape \(1, 3\)"):
        backend.forward(batch_of([1], [2]), 0)


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        ("Wide", r"its first text failed \(ValueError: expected floats of shape \(1, 3\), got float32 of shape \(1, 4"),
        ("Whole", "got int64"),
        ("Failing", r"its first text failed \(OSError: weights are gone\)"),
        ("Unmade", r"could not be made of a folder and a device \(OSError: no GPU\)"),
        ("NoArguments", "could not be made of a folder and a device"),
        ("NoEmbed", "its first text failed"),
        ("Missing", "could not be made"),
    ],
)
def test_an_unsuitable_class_stops_the_load(handler: str, message: str, spec: ModelSpec) -> None:
    """The problem is reported at start, with the class's name."""
    with pytest.raises(ModelUnavailable, match=message) as caught:
        load(replace(spec, handler=f"{__name__}.{handler}"), OPTIONS)
    assert handler in caught.value.message


@pytest.mark.parametrize("name", ["nowhere.at.all.Model", "nowhere_at_all.Model"])
def test_a_missing_module_stops_the_load(name: str, spec: ModelSpec) -> None:
    """The message explains where modules are imported from."""
    with pytest.raises(ModelUnavailable, match=r"cannot be imported \(ModuleNotFoundError.*PYTHONPATH"):
        load(replace(spec, handler=name), OPTIONS)


def test_a_model_without_handler_is_refused(spec: ModelSpec) -> None:
    """`--backend handler` needs a handler in the catalogue file."""
    with pytest.raises(ModelUnavailable, match="a handler in the catalogue file"):
        load(replace(spec, handler=None), OPTIONS)
    with pytest.raises(ModelUnavailable, match="a handler in the catalogue file"):
        load(replace(spec, outputs=frozenset({"scores"})), OPTIONS)


def test_the_class_of_the_guide_works(spec: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of docs/own-models.md runs."""
    guide = (Path(__file__).parents[3] / "docs" / "own-models.md").read_text()
    module = ModuleType("my_module")
    exec(guide.partition("```python\n")[2].partition("```")[0], vars(module))
    monkeypatch.setitem(sys.modules, "my_module", module)
    table = np.random.default_rng(0).normal(size=(10, WIDTH)).astype(np.float32)
    save_file({"table": table}, spec.folder / "model.safetensors")
    backend = load(replace(spec, handler="my_module.MyModel"), OPTIONS)
    answer = backend.forward(batch_of([1, 2], [3]), 0)["dense"]
    np.testing.assert_allclose(answer, [(table[1] + table[2]) / 2, table[3]], rtol=1e-6)
    backend.close()
