"""Models of pages: the vectors of images and of queries are those of transformers' classes, on every backend."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from safetensors.numpy import load_file, save_file
from tests.checkpoints.reading import refusal, spec_of
from tests.compute.networks.two_networks import TwoNetworks, read
from tests.pages import (
    QUERIES,
    QwenReference,
    Reference,
    page_images,
    save_as_colpali_engine,
    write_colqwen,
    write_pages,
)

QWENS = {
    "colqwen2": ("qwen2_vl", "transformers"),
    "colqwen2-original": ("qwen2_vl", "colpali_engine"),
    "colqwen2.5": ("qwen2_5_vl", "transformers"),
    "colqwen2.5-original": ("qwen2_5_vl", "colpali_engine"),
    "colqwen3": ("qwen3_vl", "tomoro"),
    "colqwen3-original": ("qwen3_vl", "colpali_engine"),
}


@pytest.fixture(scope="module", params=["colmodernvbert", "colpali", *QWENS])
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def folder(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(family)
    if family not in QWENS:
        return write_pages(path, family)
    networks, library = QWENS[family]
    return write_colqwen(path, networks, saved_by=library)


@pytest.fixture(scope="module")
def reference(family: str, folder: Path) -> Reference:
    return QwenReference(folder, QWENS[family][1]) if family in QWENS else Reference(folder)


def rows_of(networks: TwoNetworks, inputs: Sequence[Any]) -> list[np.ndarray]:
    """The rows of each input, all in one batch; strings are queries."""
    texts = read(networks.spec, inputs, kind="query")
    return np.split(networks.answer(texts, "colbert"), texts.cu_seqlens[1:-1])


@pytest.mark.parametrize("name", ["numpy", "openvino", "torch"])
def test_vectors_equal_its_own_class(name: str, folder: Path, reference: Reference) -> None:
    """From the file of an image to the vectors: of one view, of tiles, wide, high, small; with queries, and alone."""
    shown, atol = page_images(), 1e-5 if name == "numpy" else 1e-4
    expected = [*reference.images(shown), *reference.queries(QUERIES)]
    with TwoNetworks(spec_of(folder), name) as networks:
        for own, want in zip(rows_of(networks, [*shown, *QUERIES]), expected, strict=True):
            np.testing.assert_allclose(own, want, atol=atol)
        for i, one in enumerate([shown[0], QUERIES[0]]):
            np.testing.assert_allclose(rows_of(networks, [one])[0], expected[i * len(shown)], atol=atol)


def test_colpali_of_its_first_library(tmp_path: Path) -> None:
    """Under colpali_engine's names, it is the same network with the same words."""
    native, original = tmp_path / "native", tmp_path / "original"
    original.mkdir()
    spec = spec_of(save_as_colpali_engine(write_pages(native, "colpali"), original))
    shown, reference = page_images()[:1], Reference(native)
    found = rows_of(TwoNetworks(spec), [*shown, *QUERIES])
    for own, want in zip(found, [*reference.images(shown), *reference.queries(QUERIES)], strict=True):
        np.testing.assert_allclose(own, want, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "facts"),
    [
        ("qwen2_vl", {"depth": 2, "num_heads": 4, "mlp_ratio": 3, "hidden_act": "gelu"}),
        (
            "qwen2_5_vl",
            {"depth": 4, "num_heads": 4, "intermediate_size": 20, "window_size": 84, "fullatt_block_indexes": [0, 3]},
        ),
    ],
)
def test_each_setting_of_images(family: str, facts: dict[str, Any], tmp_path: Path) -> None:
    """Other layers, heads, sizes, windows and rotations, at once."""
    rope = {"rope_type": "axial", "rope_theta": 500.0}
    folder = write_colqwen(tmp_path, family, **facts, rope_parameters=rope)
    shown = page_images()[:2]
    found = rows_of(TwoNetworks(spec_of(folder)), shown)
    for own, want in zip(found, QwenReference(folder, "transformers").images(shown), strict=True):
        np.testing.assert_allclose(own, want, atol=1e-5)


def test_an_adapter_of_colpali_engine(tmp_path: Path) -> None:
    """It changes layers of texts and the projection, which its expression names; the sum is the merged model's."""
    adapted = write_colqwen(tmp_path / "adapted", "qwen2_5_vl", saved_by="colpali_engine")
    merged = shutil.copytree(adapted, tmp_path / "merged")
    tensors, generator = load_file(adapted / "model.safetensors"), np.random.default_rng(0)
    changes = {}
    for layer in ("model.layers.1.self_attn.q_proj", "model.layers.0.mlp.down_proj", "custom_text_proj"):
        outputs, inputs = tensors[f"{layer}.weight"].shape
        down, up = (generator.normal(size=shape).astype(np.float32) for shape in ((4, inputs), (outputs, 4)))
        changes |= {f"base_model.model.{layer}.lora_{side}.weight": each for side, each in (("A", down), ("B", up))}
        tensors[f"{layer}.weight"] = tensors[f"{layer}.weight"] + 0.5 * up @ down
    save_file(changes, adapted / "adapter_model.safetensors")
    save_file(tensors, merged / "model.safetensors")
    targets = "(.*(model)(?!.*visual).*(down_proj|q_proj).*$|.*(custom_text_proj).*$)"
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 2, "target_modules": targets}
    (adapted / "adapter_config.json").write_text(json.dumps(config))
    inputs = [page_images()[0], *QUERIES]
    found = [np.concatenate(rows_of(TwoNetworks(spec_of(folder)), inputs)) for folder in (adapted, merged)]
    np.testing.assert_allclose(*found, atol=1e-6)
    (adapted / "adapter_config.json").write_text(json.dumps({**config, "target_modules": targets.replace("|q", "|k")}))
    assert "target_modules" in refusal(adapted)


@pytest.mark.parametrize("name", ["openvino", "torch"])
def test_a_text_alone_is_computed_as_without_images(folder: Path, name: str) -> None:
    """Bit by bit, by the same network of a model that has none for images."""
    spec, found = spec_of(folder), []
    texts = read(spec, QUERIES, kind="query")
    for own in (spec, replace(spec, images=None, image_text=None)):
        with TwoNetworks(own, name) as networks:
            found.append(networks.answer(texts, "colbert"))
    assert np.array_equal(*found)
