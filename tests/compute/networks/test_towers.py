"""CLIP, SigLIP and NaFlex: the vectors of texts and of images are those of transformers' classes, on every backend."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from tests.checkpoints.reading import refusal, spec_of
from tests.compute.networks.case import load
from tests.towers import TEXTS, images, media_of, reference_vectors, write_towers

from vectord.checkpoints.checkpoint import open_checkpoint
from vectord.checkpoints.spec import ModelSpec
from vectord.compute.backends.base import Backend, TokenBatch
from vectord.compute.networks.network import Network
from vectord.compute.ops.base import PackedTexts
from vectord.compute.ops.numpy import NumpyOps, pack
from vectord.compute.processor import multiplies_bfloat16
from vectord.schema import TextOptions
from vectord.text.images import ImageEncoder, with_pixels
from vectord.text.sequence import ReadRequest, Texts
from vectord.text.tokenizer import TextEncoder

DENSE = frozenset({"dense"})


@dataclass(frozen=True, slots=True)
class Tower:
    spec: ModelSpec
    inputs: Texts
    reference: np.ndarray  # (N, D)

    def batch(self, *places: int) -> TokenBatch:
        texts = self.inputs.take(np.array(places or range(len(self.inputs)), np.int32))
        packed = PackedTexts(
            ids=texts.ids, type_ids=texts.all_type_ids, cu_seqlens=texts.cu_seqlens, features=texts.features
        )
        return TokenBatch(texts=packed, outputs=DENSE)


@pytest.fixture(scope="module", params=["CLIP", "Siglip", "Siglip2"])
def towers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tower]:
    family = request.param
    folder = write_towers(tmp_path_factory.mktemp(family), family)
    spec, shown = spec_of(folder), images()
    of_texts, of_images = reference_vectors(folder, family, TEXTS, shown)
    assert spec.images is not None and spec.images.processor is not None
    options = {"options": TextOptions(), "truncate": True}
    texts = TextEncoder(spec).read(ReadRequest(inputs=TEXTS, **options))
    rows = with_pixels(ImageEncoder(spec.images.processor).read(ReadRequest(inputs=[*map(media_of, shown)], **options)))
    return {"texts": Tower(spec, texts, of_texts), "images": Tower(spec.images, rows, of_images)}


@pytest.fixture(scope="module", params=["texts", "images"])
def tower(request: pytest.FixtureRequest, towers: dict[str, Tower]) -> Tower:
    return towers[request.param]


@pytest.fixture(scope="module", params=["openvino", "torch"])
def backend(request: pytest.FixtureRequest, tower: Tower) -> Iterator[Backend]:
    loaded = load(request.param, tower.spec, "float32")
    yield loaded
    loaded.close()


def test_vectors_equal_its_own_class(tower: Tower) -> None:
    """In float64, from the file of a text or an image to the vector."""
    network = Network(tower.spec, open_checkpoint(tower.spec.weights, tower.spec.others), NumpyOps())
    found = network(pack(tower.batch().texts), DENSE)["dense"]
    assert np.abs(tower.reference).max() > 1
    np.testing.assert_allclose(found, tower.reference, atol=1e-5)


def test_backends_agree(tower: Tower, backend: Backend) -> None:
    """In float32, alone, among others, and in another order."""
    np.testing.assert_allclose(backend.forward(tower.batch(), 0)["dense"], tower.reference, atol=1e-4)
    np.testing.assert_allclose(backend.forward(tower.batch(1), 0)["dense"], tower.reference[[1]], atol=1e-4)
    np.testing.assert_allclose(backend.forward(tower.batch(0, 2), 0)["dense"], tower.reference[[0, 2]], atol=1e-4)


@pytest.mark.parametrize("name", ["openvino", "torch"])
def test_bfloat16_keeps_the_direction(tower: Tower, name: str) -> None:
    """Pixels are whole numbers up to 255, which bfloat16 has."""
    if name == "openvino" and not multiplies_bfloat16():
        pytest.skip("this processor does not compute in bfloat16")
    loaded = load(name, tower.spec, "bfloat16")
    found, want = loaded.forward(tower.batch(), 0)["dense"].astype(float), tower.reference
    loaded.close()
    cosines = (found * want).sum(axis=1) / np.linalg.norm(found, axis=1) / np.linalg.norm(want, axis=1)
    assert cosines.min() > 0.999


def test_an_end_token_inside_a_text_ends_it(tmp_path: Path) -> None:
    """CLIP's class pools the first end token of a text."""
    folder = write_towers(tmp_path, "CLIP")
    spec, text = spec_of(folder), "the fox [SEP] jumps"
    (want,), _ = reference_vectors(folder, "CLIP", [text], images()[:1])
    texts = TextEncoder(spec).read(ReadRequest(inputs=[text], options=TextOptions(), truncate=True))
    batch = Tower(spec, texts, want).batch().texts
    spans = PackedTexts(ids=batch.ids, type_ids=batch.type_ids, cu_seqlens=batch.cu_seqlens, spans=texts.spans)
    found = Network(spec, open_checkpoint(spec.weights, spec.others), NumpyOps())(pack(spans), DENSE)["dense"]
    np.testing.assert_allclose(found[0], want, atol=1e-5)


@pytest.mark.parametrize("family", ["CLIP", "Siglip", "Siglip2"])
def test_each_setting_of_both_sections(family: str, tmp_path: Path) -> None:
    """Other layers, heads, sizes, activations and norms, at once."""
    facts = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 20}
    folder = write_towers(tmp_path, family, **facts, hidden_act="gelu", layer_norm_eps=0.01)
    spec, shown = spec_of(folder), images()
    assert spec.images is not None and spec.images.processor is not None
    rows = with_pixels(
        ImageEncoder(spec.images.processor).read(
            ReadRequest(inputs=[*map(media_of, shown)], options=TextOptions(), truncate=True)
        )
    )
    texts = TextEncoder(spec).read(ReadRequest(inputs=TEXTS, options=TextOptions(), truncate=True))
    pairs = ((spec, texts), (spec.images, rows))
    for (own, inputs), want in zip(pairs, reference_vectors(folder, family, TEXTS, shown), strict=True):
        batch = Tower(own, inputs, want).batch()
        found = Network(own, open_checkpoint(own.weights, own.others), NumpyOps())(pack(batch.texts), DENSE)["dense"]
        np.testing.assert_allclose(found, want, atol=1e-5)


def test_the_facts_of_both_networks(towers: dict[str, Tower]) -> None:
    """The limit of texts is that of the network, and both make vectors of one width."""
    texts, shown = towers["texts"].spec, towers["images"].spec
    assert (texts.max_tokens, texts.dimensions) == (20, shown.dimensions)
    assert shown.fingerprint != texts.fingerprint
    assert shown.processor is not None and shown.max_tokens == shown.processor.rows


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"do_normalize": False}, "do_normalize False is not supported"),
        ({"do_center_crop": False}, "must give all images one size"),
        ({"image_mean": [0.5]}, "image_mean"),
        ({"do_flip": True}, "do_flip True is not supported"),
    ],
    ids=["normalize", "crop", "mean", "unknown"],
)
def test_steps_that_are_not_computed_are_refused(settings: dict[str, object], reason: str, tmp_path: Path) -> None:
    """A processor with other steps would make other vectors."""
    folder = write_towers(tmp_path, "CLIP")
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    assert reason in refusal(folder)


def test_texts_of_siglip_1_lose_case_punctuation_and_further_space(tmp_path: Path) -> None:
    """As SiglipTokenizer canonicalizes them, whatever its tokenizer.json says."""
    folder = write_towers(tmp_path, "Siglip")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings = {**settings, "tokenizer_class": "SiglipTokenizer", "do_lower_case": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    texts = ["  The quick,\t\xa0BROWN fox's (#1)! ", "the quick brown foxs 1"]
    found = TextEncoder(spec_of(folder)).read(ReadRequest(inputs=texts, options=TextOptions(), truncate=True))
    first, second = found
    assert first.length.kept > 5
    np.testing.assert_array_equal(first.ids, second.ids)
