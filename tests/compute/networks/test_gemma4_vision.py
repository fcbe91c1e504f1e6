"""EmbeddingGemma 2 with images: pixels, rows and vectors are those of transformers' classes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.checkpoints.reading import refusal, spec_of
from tests.compute.networks.tiny_decoders import CONFIGS
from tests.models import packed_texts, randomize, write_bert
from tests.towers import image_of, media_of

from vectord import Embedder
from vectord.checkpoints.checkpoint import open_checkpoint
from vectord.checkpoints.spec import ModelSpec
from vectord.compute.networks.network import Network
from vectord.compute.ops.numpy import NumpyOps, pack
from vectord.schema import TextOptions
from vectord.text.images import ImageEncoder, with_pixels
from vectord.text.sequence import ReadRequest, Texts

PATCH, SOFT_TOKENS = 4, 70  # pixels, and the most rows of an image in a text
TOKENS = ("<image>", "<start>", "<end>")
SIZES = [(90, 60), (31, 90), (17, 17), (400, 3)]
VISION = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 40, "patch_size": PATCH}
VISION |= {"hidden_size": 24, "num_key_value_heads": 1, "head_dim": 8, "position_embedding_size": 256}


def write(folder: Path, *, clips: bool = False, **vision: Any) -> Path:
    """A model of transformers' class. clips: its linear layers of images have limits, which most numbers reach."""
    import torch
    import transformers
    from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

    tokenizer = transformers.AutoTokenizer.from_pretrained(write_bert(folder / "bert"))
    tokenizer.add_tokens([*TOKENS], special_tokens=True)
    tokenizer.save_pretrained(folder)
    image, start, end = tokenizer.convert_tokens_to_ids([*TOKENS])
    vision = {"model_type": "gemma4_vision", **VISION, "use_clipped_linears": clips, **vision}
    text = {**CONFIGS["embedding_gemma2_text"], "vocab_size": len(tokenizer), "max_position_embeddings": 512}
    ids = {"image_token_id": image, "boi_token_id": start, "eoi_token_id": end}
    config = transformers.EmbeddingGemma2Config(text_config=text, vision_config=vision, audio_config=None, **ids)
    model = randomize(transformers.EmbeddingGemma2Model(config), norm=1.0)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name.endswith(("put_min", "put_max")):
                buffer.fill_(-0.5 if name.endswith("min") else 0.75)
            elif "std_" in name:
                buffer.copy_(torch.rand(buffer.shape, generator=torch.Generator().manual_seed(1)) + 0.5)
    model.save_pretrained(folder)
    Gemma4ImageProcessorPil(patch_size=PATCH, max_soft_tokens=SOFT_TOKENS).save_pretrained(folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "mean", "embedding_dimension": 20}))
    return folder


@cache
def _model(folder: Path) -> tuple[Any, Any, Any]:
    import transformers

    model = transformers.EmbeddingGemma2Model.from_pretrained(folder).double().eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return model, tokenizer, transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")


def reference_rows(folder: Path, image: Any) -> np.ndarray:
    """(n, H) of a Pillow image, in the width of the text's network."""
    import torch

    model, _, processor = _model(folder)
    with torch.no_grad():
        inputs = processor(image, return_tensors="pt")
        rows: np.ndarray = (
            model.get_image_features(inputs["pixel_values"].double(), inputs["image_position_ids"])
            .pooler_output[0]
            .numpy()
        )
    return rows


def reference_vector(folder: Path, parts: Sequence[Any]) -> np.ndarray:
    """The mean of all rows of an input's texts and Pillow images, in the order given."""
    import torch

    model, tokenizer, processor = _model(folder)
    shown = [part for part in parts if not isinstance(part, str)]
    inputs = processor(shown, return_tensors="pt") if shown else {}
    counts = iter(inputs.pop("num_soft_tokens_per_image") if shown else ())
    token, start, end = TOKENS
    text = "".join(part if isinstance(part, str) else f"{start}{token * int(next(counts))}{end}" for part in parts)
    if shown:
        inputs["pixel_values"] = inputs["pixel_values"].double()
    with torch.no_grad():
        states = model(**tokenizer([text], return_tensors="pt"), **inputs).last_hidden_state[0]
    vector: np.ndarray = states.mean(dim=0).numpy()
    return vector


def read(spec: ModelSpec, *shown: Any) -> Texts:
    assert spec.processor is not None
    request = ReadRequest(inputs=[*map(media_of, shown)], options=TextOptions(), truncate=True)
    return with_pixels(ImageEncoder(spec.processor).read(request))


def images_of(folder: Path) -> ModelSpec:
    found = spec_of(folder).images
    assert found is not None
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("gemma"))


@pytest.fixture(scope="module", params=["openvino", "torch"])
def embedder(request: pytest.FixtureRequest, folder: Path) -> Iterator[Embedder]:
    with Embedder(str(folder), dtype="float32", offline=True, backend=request.param) as made:
        yield made


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_patches_are_the_processors(folder: Path, size: tuple[int, int]) -> None:
    """As many whole blocks as the limit allows, also of a narrow strip; each patch with its column and line."""
    image, spec = image_of(*size), images_of(folder)
    want, texts = _model(folder)[2](image, return_tensors="np"), read(spec, image)
    places = want["image_position_ids"][0]
    count = int((places >= 0).all(axis=1).sum())
    assert texts.features is not None and texts.type_ids is not None and spec.processor is not None
    by_place = {tuple(place): row for place, row in zip(places[:count], want["pixel_values"][0], strict=False)}
    for x, y, row in zip(texts.type_ids, texts.ids, texts.features, strict=True):
        by_channel = by_place.pop((x, y)).reshape(-1, 3).T.ravel()
        np.testing.assert_allclose(row / 255, by_channel, atol=1e-5)
    assert not by_place
    assert texts.pooled is not None and texts.pooled[0] == want["num_soft_tokens_per_image"][0]


@pytest.mark.parametrize(
    "facts",
    [{}, {"clips": True}, {"standardize": True}, {"rope_parameters": {"rope_type": "axial", "rope_theta": 7.0}}],
    ids=["plain", "clipped", "standardized", "theta"],
)
def test_rows_of_images_equal_its_own_class(tmp_path: Path, facts: dict[str, Any]) -> None:
    """In float64, from the file to the rows of a text."""
    folder = write(tmp_path, **facts)
    spec, shown = images_of(folder), [image_of(*size, seed=seed) for seed, size in enumerate(SIZES)]
    texts = read(spec, *shown)
    found = Network(spec, open_checkpoint(spec.weights, spec.others), NumpyOps())(pack(packed_texts(texts)), {"dense"})[
        "dense"
    ]
    want = np.concatenate([reference_rows(folder, image) for image in shown])
    assert np.abs(want).max() > 0.5
    np.testing.assert_allclose(found, want, atol=1e-5)


def test_texts_and_images_in_the_order_given(folder: Path, embedder: Embedder) -> None:
    """A text, an image, and both in each order; a text is read as by the text's network alone."""
    from tests.library.test_images import answer

    first, other = image_of(90, 60), image_of(31, 90, seed=1)
    items = [["the quick fox"], [first], ["a fox ", first], [first, " a fox"], ["both: ", first, " and ", other]]
    given = [[part if isinstance(part, str) else media_of(part) for part in parts] for parts in items]
    inputs = [parts[0] if len(parts) == 1 else parts for parts in given]
    found = answer(embedder, *inputs, normalize=False).dense["float"]
    want = np.stack([reference_vector(folder, parts) for parts in items])
    assert np.abs(want[2] - want[3]).max() > 1e-3
    np.testing.assert_allclose(found, want, atol=1e-4)


def test_a_prompt_comes_before_an_image(folder: Path, embedder: Embedder) -> None:
    """As before a text."""
    image = image_of(90, 60)
    found = embedder.embed([image], prompt="query: ", normalize=False)
    np.testing.assert_allclose(found[0], reference_vector(folder, ["query: ", image]), atol=1e-4)


def test_files_without_images_are_served_for_texts(folder: Path, tmp_path: Path) -> None:
    """Without the settings of images; their tensors are left out."""
    for path in folder.iterdir():
        if path.is_file() and path.name != "preprocessor_config.json":
            (tmp_path / path.name).symlink_to(path)
    (tmp_path / "1_Pooling").symlink_to(folder / "1_Pooling")
    spec = spec_of(tmp_path)
    assert spec.images is None
    with Embedder(str(tmp_path), dtype="float32", offline=True) as embedder:
        found = embedder.embed("the quick fox", normalize=False)
    np.testing.assert_allclose(found, reference_vector(folder, ["the quick fox"]), atol=1e-4)


def test_other_blocks_than_the_networks_are_refused(tmp_path: Path) -> None:
    """They would make other rows."""
    folder = write(tmp_path)
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "pooling_kernel_size": 2}))
    assert "pooling_kernel_size 2 is not that of config.json" in refusal(folder)
