"""Images of any size: their sizes, pixels and coordinates are those of Qwen's own processing."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from msgspec.structs import replace
from tests.qwen_vl import LIMITS, MERGE, PATCH, PROCESSOR, shown
from tests.towers import media_of

from vectord.schema import TextOptions
from vectord.text.images import ImageEncoder, with_pixels
from vectord.text.planes import free_size, text_coordinates
from vectord.text.sequence import ReadRequest


def test_sizes_equal_those_of_the_processor() -> None:
    """Of images that are more than half a block wide and high; smaller ones follow the models' scripts."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    limits = {"min_pixels": LIMITS.min_pixels, "max_pixels": LIMITS.max_pixels}
    sizes = np.exp(np.random.default_rng(0).uniform(np.log(PATCH + 1), np.log(3000), (2000, 2))).astype(int)
    for width, height in sizes.tolist():
        assert free_size(width, height, PROCESSOR) == smart_resize(height, width, PATCH * MERGE, **limits)[::-1]


def test_a_narrow_image_is_a_line_of_blocks() -> None:
    """qwen_vl_utils keeps the length; transformers' processor, which models of pages have, enlarges both sides."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    assert free_size(200, 10, PROCESSOR) == (192, 32)
    of_pages = replace(PROCESSOR, free=replace(LIMITS, rounds_to_none=True))
    limits = {"min_pixels": LIMITS.min_pixels, "max_pixels": LIMITS.max_pixels}
    for width, height in [(200, 10), (10, 200), (9, 9), (3000, 15), (15, 3000)]:
        assert free_size(width, height, of_pages) == smart_resize(height, width, PATCH * MERGE, **limits)[::-1]


def test_pixels_equal_those_of_the_processor() -> None:
    """Patches in the order of blocks, from the file."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    processor = Qwen2VLImageProcessorPil(
        size={"shortest_edge": LIMITS.min_pixels, "longest_edge": LIMITS.max_pixels},
        patch_size=PATCH,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    )
    inputs = [media_of(image) for image in shown()]
    texts = with_pixels(ImageEncoder(PROCESSOR).read(ReadRequest(inputs=inputs, options=TextOptions(), truncate=True)))
    frames = processor(shown(), return_tensors="np")["pixel_values"].reshape(len(texts.ids), 3, 2, -1)
    assert texts.features is not None
    found = texts.features.reshape(len(texts.ids), 3, -1) / 127.5 - 1
    for frame in (0, 1):
        np.testing.assert_allclose(found, frames[:, :, frame], atol=1e-5)


@pytest.mark.parametrize("blocks", [[(2, 3)], [(1, 1), (4, 2)], [(5, 1), (1, 6), (2, 2)]], ids=str)
def test_positions_equal_those_of_the_class(blocks: list[tuple[int, int]]) -> None:
    """In time, and of row and column, of texts with several images."""
    import torch
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel

    marks = np.concatenate([[0, 0, *[1] * (high * wide)] for high, wide in blocks] + [[0, 0, 0]])
    grids = torch.tensor([[1, high * MERGE, wide * MERGE] for high, wide in blocks])
    own = SimpleNamespace(config=SimpleNamespace(vision_config=SimpleNamespace(spatial_merge_size=MERGE)))
    own.get_vision_position_ids = lambda *args, **options: Qwen3VLModel.get_vision_position_ids(own, *args, **options)
    expected, _ = Qwen3VLModel.get_rope_index(
        own, torch.zeros((1, len(marks)), dtype=torch.long), torch.tensor(marks)[None].int(), image_grid_thw=grids
    )
    found = text_coordinates(marks == 1, blocks) + np.arange(len(marks))[:, None]
    np.testing.assert_array_equal(found, expected[:, 0].numpy().T)
