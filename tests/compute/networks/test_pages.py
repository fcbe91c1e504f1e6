"""Models of pages: the vectors of images and of queries are those of transformers' classes, on every backend."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from safetensors.numpy import load_file, save_file
from tests.checkpoints.reading import refusal, spec_of
from tests.compute.networks.test_towers import load
from tests.models import packed_texts
from tests.pages import (
    QUERIES,
    QwenReference,
    Reference,
    page_images,
    save_as_colpali_engine,
    write_colqwen,
    write_pages,
)
from tests.towers import media_of

from vectord.checkpoints.checkpoint import open_checkpoint
from vectord.checkpoints.spec import ModelSpec
from vectord.compute.backends.base import TokenBatch
from vectord.compute.networks.network import Network
from vectord.compute.ops.base import PackedTexts
from vectord.compute.ops.numpy import NumpyOps, pack
from vectord.schema import Input, TextOptions
from vectord.text.sequence import ReadRequest
from vectord.text.tokenizer import TextEncoder

Forward = Callable[[PackedTexts], np.ndarray]


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


@pytest.fixture(scope="module", params=["openvino", "torch"])
def forwards(request: pytest.FixtureRequest, folder: Path) -> Iterator[tuple[Forward, Forward]]:
    """Of images and of texts."""
    spec = spec_of(folder)
    assert spec.images is not None
    loaded = [load(request.param, each, "float32") for each in (spec.images, spec)]
    kinds = ("dense", "colbert")
    yield tuple(  # type: ignore[misc]
        lambda texts, own=own, kind=kind: own.forward(TokenBatch(texts=texts, outputs=frozenset({kind})), 0)[kind]
        for own, kind in zip(loaded, kinds, strict=True)
    )
    for own in loaded:
        own.close()


def exact(spec: ModelSpec, kind: str) -> Forward:
    network = Network(spec, open_checkpoint(spec.weights, spec.others), NumpyOps())
    return lambda texts: network(pack(texts), {kind})[kind]  # type: ignore[arg-type, index]


def rows_of(folder: Path, inputs: Sequence[Input], of_images: Forward, of_texts: Forward) -> list[np.ndarray]:
    """The rows of each input, all in one batch; strings are queries."""
    request = ReadRequest(inputs=inputs, options=TextOptions(kind="query"), truncate=True)
    texts = TextEncoder(spec_of(folder)).read(request)
    if texts.images is not None:
        rows = of_images(packed_texts(texts.images))
        features = np.zeros((len(texts.ids), rows.shape[1]), np.float32)
        features[texts.all_type_ids == 1] = rows
        texts = replace(texts, features=features)
    return np.split(of_texts(packed_texts(texts)), texts.cu_seqlens[1:-1])


def test_vectors_equal_its_own_class(folder: Path, reference: Reference) -> None:
    """In float64, from the file of an image to the vectors: of one view, of tiles, wide, high, small."""
    spec, shown = spec_of(folder), page_images()
    assert spec.images is not None
    inputs = [*map(media_of, shown), *QUERIES]
    found = rows_of(folder, inputs, exact(spec.images, "dense"), exact(spec, "colbert"))
    for own, want in zip(found, [*reference.images(shown), *reference.queries(QUERIES)], strict=True):
        np.testing.assert_allclose(own, want, atol=1e-5)


def test_colpali_of_its_first_library(tmp_path: Path) -> None:
    """Under colpali_engine's names, it is the same network with the same words."""
    native, original = tmp_path / "native", tmp_path / "original"
    original.mkdir()
    spec = spec_of(save_as_colpali_engine(write_pages(native, "colpali"), original))
    assert spec.images is not None
    shown, reference = page_images()[:1], Reference(native)
    found = rows_of(original, [*map(media_of, shown), *QUERIES], exact(spec.images, "dense"), exact(spec, "colbert"))
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
    spec, shown = spec_of(folder), page_images()[:2]
    assert spec.images is not None
    found = rows_of(folder, [*map(media_of, shown)], exact(spec.images, "dense"), exact(spec, "colbert"))
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
    found = []
    for folder in (adapted, merged):
        spec = spec_of(folder)
        assert spec.images is not None
        networks = exact(spec.images, "dense"), exact(spec, "colbert")
        found.append(np.concatenate(rows_of(folder, [media_of(page_images()[0]), *QUERIES], *networks)))
    np.testing.assert_allclose(*found, atol=1e-6)
    (adapted / "adapter_config.json").write_text(json.dumps({**config, "target_modules": targets.replace("|q", "|k")}))
    assert "target_modules" in refusal(adapted)


def test_backends_agree(folder: Path, reference: Reference, forwards: tuple[Forward, Forward]) -> None:
    """In float32, in one batch of images and texts, and alone."""
    shown = page_images()
    want = [*reference.images(shown), *reference.queries(QUERIES)]
    together = rows_of(folder, [*map(media_of, shown), *QUERIES], *forwards)
    for own, expected in zip(together, want, strict=True):
        np.testing.assert_allclose(own, expected, atol=1e-4)
    for i, one in enumerate([media_of(shown[0]), QUERIES[0]]):
        (own,) = rows_of(folder, [one], *forwards)
        np.testing.assert_allclose(own, want[i * len(shown)], atol=1e-4)


@pytest.mark.parametrize("name", ["openvino", "torch"])
def test_a_text_alone_is_computed_as_without_images(folder: Path, name: str) -> None:
    """Bit by bit, by the same network of a model that has none for images."""
    spec = spec_of(folder)
    request = ReadRequest(inputs=QUERIES, options=TextOptions(kind="query"), truncate=True)
    batch = TokenBatch(texts=packed_texts(TextEncoder(spec).read(request)), outputs=frozenset({"colbert"}))
    found = []
    for own in (spec, replace(spec, images=None, image_text=None)):
        loaded = load(name, own, "float32")
        found.append(loaded.forward(batch, 0)["colbert"])
        loaded.close()
    assert np.array_equal(*found)
