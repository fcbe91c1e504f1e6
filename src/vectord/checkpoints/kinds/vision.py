"""The network of images of an embedding model that reads texts without it too: EmbeddingGemma 2. reader.py calls this.

Files that leave it out, or the settings of images, are served for texts. Defaults are those of transformers 5.24.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from vectord.checkpoints.checkpoint import find_tensor
from vectord.checkpoints.config_keys import class_defaults
from vectord.checkpoints.folder import WIDTH_LIMIT, ModelFolder
from vectord.checkpoints.kinds.towers import (
    image_settings,
    pixel_settings,
    read_filter,
    refuse_unused,
    second_network,
)
from vectord.checkpoints.spec import ImageProcessor, ImageText, ModelSpec
from vectord.checkpoints.vocabulary import find_tokens
from vectord.errors import ModelUnavailable

MODEL_TYPES = frozenset({"embedding_gemma2"})
_TABLE = "vision_tower.patch_embedder.position_embedding_table"
_TOKENS = {"image_token_id": 258_880, "boi_token_id": 255_999, "eoi_token_id": 258_882}
_UNCHANGED = {"image_mean": (0.0, 0.0, 0.0), "image_std": (1.0, 1.0, 1.0)}
_TOKENS_LIMIT = 1120  # of an image, as in Gemma4ImageProcessor


def add_vision(folder: ModelFolder, spec: ModelSpec) -> ModelSpec:
    """Return the spec of texts, with that of images where the files have all of it."""
    prefix = next((each for each in ("", "model.") if find_tensor(spec.weights, each + _TABLE)), None)
    files = (folder.tokenizer / name for name in ("preprocessor_config.json", "processor_config.json"))
    section: dict[str, Any] | None = folder.config.value("vision_config", dict[str, Any])
    if prefix is None or section is None or not any(path.is_file() for path in files):
        return spec
    towers = tuple(f"{prefix}{name}." for name in ("audio_tower", "embed_audio"))
    vision = tuple(f"{prefix}{name}." for name in ("vision_tower", "embed_vision"))
    images = _images(folder, spec, section, (f"{prefix}language_model.", *towers))
    ids = [folder.config.whole(key, default, least=0, most=2**24) for key, default in _TOKENS.items()]
    found = find_tokens(spec.tokenizer, ids)
    if len(found) < len(ids):
        raise ModelUnavailable(f"{spec.tokenizer}: not all of {', '.join(_TOKENS)} of config.json are in it")
    token, before, after = map(found.__getitem__, ids)
    return replace(
        spec,
        others=(*vision, *towers),
        images=images,
        image_text=ImageText(token=token, view=f"{before}{{rows}}{after}", alone=False),
    )


def _images(folder: ModelFolder, spec: ModelSpec, section: dict[str, Any], others: tuple[str, ...]) -> ModelSpec:
    settings = image_settings(folder, "Gemma4", normalizes=False)
    merge = settings.whole("pooling_kernel_size", 3, most=64)
    if section.get("pooling_kernel_size", 3) != merge:
        raise ModelUnavailable(f"{settings.path}: pooling_kernel_size {merge} is not that of config.json")
    normalizes = settings.flag("do_normalize", False)
    processor = ImageProcessor(
        resample=read_filter(settings),
        patch=settings.whole("patch_size", 16, most=256),
        class_token=False,
        merge=merge,
        most_patches=settings.whole("max_soft_tokens", 280, most=_TOKENS_LIMIT) * merge**2,
    )
    width = folder.config.section("text_config").whole("hidden_size", 512, most=WIDTH_LIMIT)
    pixels = pixel_settings(settings, _UNCHANGED)
    config = folder.config.of(
        {
            **class_defaults("gemma4_vision"),
            **section,
            **(pixels if normalizes else {**pixels, **_UNCHANGED}),
            "model_type": "gemma4_vision",
            "max_position_embeddings": processor.rows,
            "vocab_size": section.get("position_embedding_size", 10 * 1024),
            "patch_size": processor.patch,
            "text_size": width,
        }
    )
    refuse_unused(settings, "crop_size size")
    return second_network(
        spec,
        config,
        tokenizer=settings.path,
        others=others,
        hidden_size=config.whole("hidden_size", most=WIDTH_LIMIT),
        include_prompt=True,
        dense_modules=(),
        dimensions=width,
        truncate_dim=None,
        matryoshka=None,
        processor=processor,
    )
