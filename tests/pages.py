"""Tiny random models of pages, in the files that transformers saves.

torch, transformers and Pillow are imported only by the functions that use them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tests.compute.networks.case import randomize
from tests.models import write_bert
from tests.towers import image_of

LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
SIDE, PATCH, MERGE = 32, 4, 2  # pixels of a tile and of a patch; blocks of 2 x 2 patches become rows: 16 of a tile
LONGEST = 4 * SIDE
TOKENS = ("<image>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>", "\n")
QUERIES = ["the quick brown fox", "a lazy dog near water", "birds"]


def write_colmodernvbert(folder: Path, **facts: Any) -> Path:
    """A model of transformers' class ColModernVBertForRetrieval, with a tokenizer and the images' processor.

    facts: entries of the text_config to change.
    """
    import transformers
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    tokenizer = _tokenizer(folder)
    tokens = len(tokenizer)
    text = {
        **LAYERS,
        "hidden_size": 32,
        "vocab_size": tokens,
        "max_position_embeddings": 512,
        "local_attention": 16,
        "pad_token_id": 0,
        **facts,
    }
    images = {**LAYERS, "hidden_size": 24, "image_size": SIDE, "patch_size": PATCH}
    config = transformers.ColModernVBertConfig(
        vlm_config={
            "model_type": "modernvbert",
            "text_config": {"model_type": "modernbert", **text},
            "vision_config": {"model_type": "siglip_vision_model", **images},
            "image_token_id": tokenizer.convert_tokens_to_ids("<image>"),
            "pixel_shuffle_factor": MERGE,
        },
        embedding_dim=16,
    )
    randomize(transformers.ColModernVBertForRetrieval(config), size=0.2, norm=1.0).save_pretrained(folder)
    images = Idefics3ImageProcessorPil(size={"longest_edge": LONGEST}, max_image_size={"longest_edge": SIDE})
    processor = transformers.ColModernVBertProcessor(images, tokenizer, image_seq_len=(SIDE // PATCH // MERGE) ** 2)
    processor.save_pretrained(folder)
    return folder


def write_colpali(folder: Path, **facts: Any) -> Path:
    """A model of transformers' class ColPaliForRetrieval, with a tokenizer and the images' processor."""
    import transformers
    from tokenizers import Tokenizer
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    words = Tokenizer.from_file(str(write_bert(folder / "bert") / "tokenizer.json"))
    words.post_processor = None
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<bos>", pad_token="<pad>")
    tokenizer.add_tokens(["\n"])
    images: Any = SiglipImageProcessorPil(size={"height": SIDE, "width": SIDE}, resample=3)
    images.image_seq_length = (SIDE // PATCH) ** 2
    processor = transformers.ColPaliProcessor(images, tokenizer)
    text = {**LAYERS, "hidden_size": 32, "vocab_size": len(tokenizer), "num_key_value_heads": 1, "head_dim": 16}
    config = transformers.ColPaliConfig(
        vlm_config={
            "model_type": "paligemma",
            "text_config": {"model_type": "gemma", **text, "max_position_embeddings": 512, **facts},
            "vision_config": {
                "model_type": "siglip_vision_model",
                **LAYERS,
                "hidden_size": 24,
                "image_size": SIDE,
                "patch_size": PATCH,
                "vision_use_head": False,
            },
            "image_token_index": processor.image_token_id,
            "projection_dim": 32,
            "hidden_size": 32,
            "vocab_size": len(tokenizer),
        },
        embedding_dim=16,
    )
    randomize(transformers.ColPaliForRetrieval(config), size=0.2, norm=0.0).save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def _tokenizer(folder: Path) -> Any:
    import transformers

    source = write_bert(folder / "bert")
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    tiles = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    tokenizer.add_tokens([*TOKENS, *tiles], special_tokens=True)
    return tokenizer


def write_pages(folder: Path, family: str, **facts: Any) -> Path:
    """A model of transformers' class for the family. facts: entries of the text_config to change."""
    return {"colmodernvbert": write_colmodernvbert, "colpali": write_colpali}[family](folder, **facts)


def page_images() -> list[Any]:
    """Of several tiles: high and wide; of one."""
    return [image_of(*size, seed=seed) for seed, size in enumerate([(90, 200), (300, 110), (7, 7)])]


class Reference:
    """transformers' own class and processor, in float64."""

    def __init__(self, folder: Path) -> None:
        import transformers

        name = json.loads((folder / "config.json").read_text())["architectures"][0]
        self.model = getattr(transformers, name).from_pretrained(folder).double().eval()
        self.processor = transformers.AutoProcessor.from_pretrained(folder, backend="pil")

    def images(self, shown: Sequence[Any]) -> list[np.ndarray]:
        """The rows (n, C) of each Pillow image."""
        return [self._rows(self.processor.process_images(images=[image])) for image in shown]

    def queries(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [self._rows(self.processor.process_queries(text=[text])) for text in texts]

    def _rows(self, inputs: Any) -> np.ndarray:
        import torch

        given = {key: value.double() if value.is_floating_point() else value for key, value in inputs.items()}
        with torch.no_grad():
            rows: np.ndarray = self.model(**given).embeddings[0].numpy()
        return rows
