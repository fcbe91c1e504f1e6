"""Tiny random CLIP, SigLIP and NaFlex models, in the files that transformers saves, and images for them.

torch, transformers and Pillow are imported only by the functions that use them.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tests.models import randomize, write_bert

from vectord.schema import Media

LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
SIDE, PATCH = 32, 8  # pixels of an image, and of a patch: 16 patches
MOST_PATCHES = 24  # of an image of any ratio (Siglip2)
TEXTS = ["the quick brown fox", "a lazy dog near water", "birds"]


def write_towers(folder: Path, family: str, **facts: Any) -> Path:
    """A model of transformers' class {family}Model (CLIP, Siglip, Siglip2), with a tokenizer and an image processor.

    facts: entries of both sections of config.json to change.
    """
    import transformers
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
    from transformers.models.siglip2.image_processing_pil_siglip2 import Siglip2ImageProcessorPil

    tokens = len(json.loads((write_bert(folder / "bert") / "tokenizer.json").read_text())["model"]["vocab"])
    texts = {**LAYERS, "hidden_size": 32, "vocab_size": tokens, "max_position_embeddings": 20, "eos_token_id": 3}
    images = {**LAYERS, "hidden_size": 40 if family == "CLIP" else 32, "patch_size": PATCH}
    images |= {"num_patches": 16} if family == "Siglip2" else {"image_size": SIDE}
    ignored = {"made_up": 2.5}  # by the classes, so it changes nothing here
    config = getattr(transformers, f"{family}Config")(
        text_config={**texts, "pad_token_id": 0, **ignored, **facts},
        vision_config={**images, **ignored, **facts},
        **({"projection_dim": 24} if family == "CLIP" else {}),
        **ignored,
    )
    randomize(getattr(transformers, f"{family}Model")(config), size=0.2, norm=1.0).save_pretrained(folder)
    processors: dict[str, Any] = {
        "CLIP": CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}),
        "Siglip": SiglipImageProcessorPil(size={"height": SIDE, "width": SIDE}, resample=2),
        "Siglip2": Siglip2ImageProcessorPil(patch_size=PATCH, max_num_patches=MOST_PATCHES),
    }
    processors[family].save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((folder / "bert" / name).read_bytes())
    return folder


def image_of(width: int, height: int, *, seed: int = 0, mode: str = "RGB") -> Any:
    """A Pillow image of soft random colours."""
    from PIL import Image

    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (6, 5, 3), dtype=np.uint8).astype(np.uint8))
    return coarse.resize((width, height), 2).convert(mode)


def media_of(image: Any, kind: str = "PNG", **options: Any) -> Media:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return Media(file.getvalue())


IMAGE_SIZES = ((60, 40), (31, 90), (32, 32), (8, 8))


def images() -> list[Any]:
    return [image_of(*size, seed=seed) for seed, size in enumerate(IMAGE_SIZES)]


def reference_vectors(folder: Path, family: str, texts: Sequence[str], shown: Sequence[Any]) -> tuple[np.ndarray, ...]:
    """The vectors of texts and of Pillow images, (N, D) each, by the model's own class in float64."""
    import torch
    import transformers

    model = getattr(transformers, f"{family}Model").from_pretrained(folder).double().eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "bert")
    with torch.no_grad():
        rows = []
        for text in texts:
            given = {} if family == "CLIP" else {"padding": "max_length", "max_length": 20}
            ids = tokenizer([text], return_tensors="pt", **given).input_ids
            rows.append(model.get_text_features(input_ids=ids).pooler_output[0].numpy())
        given = {key: torch.tensor(rows) for key, rows in reference_inputs(folder, shown).items()}
        given["pixel_values"] = given["pixel_values"].double()
        vectors = model.get_image_features(**given).pooler_output.numpy()
    return np.stack(rows), vectors


def reference_inputs(folder: Path, shown: Sequence[Any]) -> dict[str, np.ndarray]:
    """What transformers' processor on Pillow gives the model: `pixel_values` (N, 3, H, W), or by patches."""
    from transformers import AutoImageProcessor

    processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    made = [processor(image, return_tensors="np") for image in shown]
    return {key: np.concatenate([one[key] for one in made]) for key in made[0]}
