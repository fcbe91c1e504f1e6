"""The operator's own class as a backend: what it is given, what it may give, and how it is found."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.models import batch_of, pack_texts, random_texts, read_tiny_spec

from vectord.checkpoints.spec import ModelSpec
from vectord.compute.backends.base import BackendOptions, TokenBatch
from vectord.compute.backends.handler import HandlerBackend, load, make_handler
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
            ids[:] = -1  # its own copies
        return np.array(rows, np.float64)

    def close(self) -> None:
        Counting.closed = True


class Single:
    """One vector, however many texts; and the ids are whole numbers."""

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


function = print


@pytest.fixture
def spec(tmp_path: Path) -> ModelSpec:
    (tmp_path / "config.json").write_text(
        '{"model_type": "someones_own", "hidden_size": 3, "max_position_embeddings": 64}'
    )
    return read_tiny_spec(tmp_path, outputs=frozenset({"dense"}), handler=f"{__name__}.Counting")


def test_class_turns_ids_into_vectors(spec: ModelSpec) -> None:
    """Texts arrive one by one, as ids, and a row comes back for each; the batch is left as it was."""
    backend = load(spec, OPTIONS)
    texts = random_texts((4, 1, 9))
    batch = batch_of(*texts)
    answer = backend.forward(batch, 0)["dense"]
    assert answer.dtype == np.float32
    np.testing.assert_array_equal(answer, [[len(text), sum(text), text[0]] for text in texts])
    np.testing.assert_array_equal(batch.texts.ids, np.concatenate(texts))
    np.testing.assert_array_equal(backend.forward_exact(batch)["dense"], answer)


def test_class_is_made_with_folder_and_device(spec: ModelSpec) -> None:
    """It finds the model's files, and knows what the operator asked for."""
    handler = make_handler(f"{__name__}.Counting", spec.folder, "cuda:1")
    assert vars(handler) == {"made_with": (spec.folder, "cuda:1")}


def test_facts_are_those_of_one_thread(spec: ModelSpec) -> None:
    """Nobody has said that the class may be called from two threads at once."""
    facts = load(spec, replace(OPTIONS, max_batch_tokens=77)).facts
    assert (facts.name, facts.streams, facts.cost, facts.max_batch_tokens) == ("handler", 1, "packed", 77)


def test_close_is_called_where_there_is_one(spec: ModelSpec) -> None:
    """A class may have something to give back, and need not."""
    load(spec, OPTIONS).close()
    assert Counting.closed
    backend = HandlerBackend(load(spec, OPTIONS).facts, Single(spec.folder, "cpu"), WIDTH)
    backend.close()


def test_part_of_a_text_fails(spec: ModelSpec) -> None:
    """What the class pools is whole texts: late chunking is not for it."""
    part = pack_texts(*random_texts((4, 9)), spans=np.array([[0, 2]], np.int32))
    with pytest.raises(ValueError, match="pools whole texts"):
        load(spec, OPTIONS).forward(TokenBatch(texts=part, outputs=frozenset({"dense"})), 0)


def test_missing_row_fails_the_batch(spec: ModelSpec) -> None:
    """A row too few would give a text the vector of another."""
    backend = load(replace(spec, handler=f"{__name__}.Single"), OPTIONS)
    with pytest.raises(ValueError, match=r"shape \(2, 3\), got float32 of shape \(1, 3\)"):
        backend.forward(batch_of([1], [2]), 0)


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        ("Wide", r"its first text failed \(ValueError: expected floats of shape \(1, 3\), got float32 of shape \(1, 4"),
        ("Whole", "got int64"),
        ("Failing", r"its first text failed \(OSError: weights are gone\)"),
        ("Unmade", r"could not be made \(OSError: no GPU\)"),
        ("NoArguments", "made with a folder and a device"),
        ("NoEmbed", "no method embed"),
        ("Missing", "has no class Missing"),
        ("function", "has no class function"),
    ],
)
def test_class_that_does_not_do_stops_the_load(handler: str, message: str, spec: ModelSpec) -> None:
    """What is wrong with it is said at the start, with its name, not at the first request."""
    with pytest.raises(ModelUnavailable, match=message) as caught:
        load(replace(spec, handler=f"{__name__}.{handler}"), OPTIONS)
    assert handler in caught.value.message


@pytest.mark.parametrize("name", ["nowhere.at.all.Model", "nowhere_at_all.Model"])
def test_module_that_is_not_there_stops_the_load(name: str, spec: ModelSpec) -> None:
    """The message says where modules come from."""
    with pytest.raises(ModelUnavailable, match=r"cannot be imported \(ModuleNotFoundError.*PYTHONPATH"):
        load(replace(spec, handler=name), OPTIONS)


@pytest.mark.parametrize("name", ["Model", "a..b", "a.b()", "../a.B", "a.b\n", ""])
def test_name_must_be_a_path_of_a_class(name: str, spec: ModelSpec) -> None:
    """Nothing else is looked for."""
    with pytest.raises(ModelUnavailable, match="expected the path of a class"):
        load(replace(spec, handler=name), OPTIONS)


def test_models_folder_is_no_place_for_code(spec: ModelSpec, tmp_path: Path) -> None:
    """A module among the model's files is not found, whatever it is called."""
    before = list(sys.path)
    (tmp_path / "own_model.py").write_text("raise SystemExit('ran')")
    with pytest.raises(ModelUnavailable, match="cannot be imported"):
        load(replace(spec, handler="own_model.Model"), OPTIONS)
    assert sys.path == before


def test_model_without_handler_is_not_for_it(spec: ModelSpec) -> None:
    """`--backend handler` alone says nothing."""
    with pytest.raises(ModelUnavailable, match="names a handler"):
        load(replace(spec, handler=None), OPTIONS)
    with pytest.raises(ModelUnavailable, match="names a handler"):
        load(replace(spec, outputs=frozenset({"scores"})), OPTIONS)


def test_class_of_the_guide_works(spec: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who copies it from docs/own-models.md has a model."""
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
