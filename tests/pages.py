"""Tiny random models of pages, in the files that transformers saves.

torch, transformers and Pillow are imported only by the functions that use them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tests.models import randomize, write_bert
from tests.towers import image_of

LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
SIDE, PATCH, MERGE = 32, 4, 2  # pixels of a tile and of a patch; blocks of 2 x 2 patches become rows: 16 of a tile
LONGEST = 4 * SIDE
TOKENS = ("<image>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>", "\n")
QWEN_IMAGES: dict[str, dict[str, Any]] = {
    "qwen2_vl": {"depth": 3, "embed_dim": 32, "hidden_size": 32, "mlp_ratio": 2, "num_heads": 2, "patch_size": 14},
    "qwen2_5_vl": {
        "depth": 3,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_heads": 2,
        "patch_size": 14,
        "out_hidden_size": 32,
        "window_size": 56,
        "fullatt_block_indexes": [1],
    },
    "qwen3_vl": {
        "depth": 3,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_heads": 2,
        "patch_size": 16,
        "out_hidden_size": 32,
        "num_position_embeddings": 36,
        "deepstack_visual_indexes": [0, 1],
    },
}
# The names of other libraries, by the beginnings of transformers'.
COLPALI = {"vlm.": "model.", "embedding_proj_layer.": "custom_text_proj."}
COLQWEN = {"vlm.visual.": "visual.", "vlm.language_model.": "model.", "embedding_proj_layer.": "custom_text_proj."}
TOMORO = {"vlm.": "vlm.model."}
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


def save_as_colpali_engine(native: Path, folder: Path) -> Path:
    """The ColPali of a folder, in the files that colpali_engine saved."""
    from safetensors.torch import load_file, save_file

    for path in native.iterdir():
        if path.is_file() and path.suffix == ".json" and path.name != "processor_config.json":
            (folder / path.name).write_bytes(path.read_bytes())
    processor = json.loads((native / "processor_config.json").read_text())
    (folder / "preprocessor_config.json").write_text(json.dumps(processor["image_processor"]))
    config = json.loads((native / "config.json").read_text())["vlm_config"]
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["ColPali"]}))
    saved = _renamed(load_file(native / "model.safetensors"), COLPALI)
    save_file(saved, folder / "model.safetensors")
    return folder


def _renamed(tensors: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """names: new beginnings of names, by the old ones; the first that fits counts."""
    renamed = {}
    for name, tensor in tensors.items():
        old = next((each for each in names if name.startswith(each)), "")
        renamed[names.get(old, "") + name[len(old) :]] = tensor.contiguous()
    return renamed


def _tokenizer(folder: Path) -> Any:
    import transformers

    source = write_bert(folder / "bert")
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    tiles = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    tokenizer.add_tokens([*TOKENS, *tiles], special_tokens=True)
    return tokenizer


def write_colqwen(folder: Path, family: str, *, saved_by: str = "transformers", **facts: Any) -> Path:
    """A model of pages over Qwen's networks. family: that of the networks; saved_by: the library, for the names in its
    files. The reference is in the folder `reference`: transformers' ColQwen2ForRetrieval, or Qwen3VLModel. facts:
    entries of the vision_config to change."""
    import torch
    import transformers
    from safetensors.torch import save_file
    from tests.qwen_vl import VISION_TOKENS
    from tests.reference.reference_models import train_qwen_bpe
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    tokenizer = train_qwen_bpe()
    tokenizer.add_tokens([*VISION_TOKENS], special_tokens=True)
    tokenizer.pad_token = "<|endoftext|>"
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in VISION_TOKENS}
    text = {**LAYERS, "hidden_size": 32, "num_key_value_heads": 2, "vocab_size": len(tokenizer)}
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 1, 1]}
    vlm = {
        "model_type": family,
        "text_config": {**text, "max_position_embeddings": 512, "rope_parameters": rope},
        "vision_config": {**QWEN_IMAGES[family], **facts},
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
    }
    if family == "qwen3_vl":
        vlm["text_config"]["head_dim"] = 8
        body = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(**vlm))
        model: Any = torch.nn.ModuleDict({"vlm": body, "embedding_proj_layer": torch.nn.Linear(32, 16)})
        randomize(model, size=0.2, norm=1.0)
        body.save_pretrained(folder / "reference")
    else:
        model = transformers.ColQwen2ForRetrieval(transformers.ColQwen2Config(vlm_config=vlm, embedding_dim=16))
        randomize(model, size=0.2, norm=1.0).save_pretrained(folder / "reference")
    patch = QWEN_IMAGES[family]["patch_size"]
    images = Qwen2VLImageProcessorPil(
        size={"shortest_edge": 4 * (2 * patch) ** 2, "longest_edge": 12 * (2 * patch) ** 2}, patch_size=patch
    )
    processor = transformers.ColQwen2Processor(images, tokenizer)
    processor.save_pretrained(folder / "reference")
    if saved_by == "transformers":
        model.save_pretrained(folder)
        processor.save_pretrained(folder)
        return folder
    tokenizer.save_pretrained(folder)
    images.save_pretrained(folder)
    names = COLQWEN if saved_by == "colpali_engine" else TOMORO
    save_file(_renamed(model.state_dict(), names), folder / "model.safetensors")
    classes = {"qwen2_vl": "ColQwen2", "qwen2_5_vl": "ColQwen2_5", "qwen3_vl": "ColQwen3"}
    written = {**vlm, "architectures": [classes[family]]}
    if saved_by == "tomoro":
        auto_map = {"AutoModel": "modeling_colqwen3.ColQwen3"}
        written |= {"model_type": "colqwen3", "auto_map": auto_map, "embed_dim": 16, "padding_side": "left"}
    elif family != "qwen3_vl":  # before text_config
        written = {**written, **written.pop("text_config")}
        written["rope_scaling"] = {"type": "mrope", "mrope_section": written.pop("rope_parameters")["mrope_section"]}
        written["rope_theta"] = 10_000.0
    (folder / "config.json").write_text(json.dumps(written))
    return folder


def write_pages(folder: Path, family: str, **facts: Any) -> Path:
    """A model of transformers' class for the family. facts: entries of the text_config to change."""
    return {"colmodernvbert": write_colmodernvbert, "colpali": write_colpali}[family](folder, **facts)


def page_images() -> list[Any]:
    """Of several tiles: high and wide; of one; a narrow one."""
    return [image_of(*size, seed=seed) for seed, size in enumerate([(90, 200), (300, 110), (7, 7), (300, 9)])]


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
        """(n, C)"""
        import torch

        given = {key: value.double() if value.is_floating_point() else value for key, value in inputs.items()}
        with torch.no_grad():
            rows: np.ndarray = self.model(**given).embeddings[0].numpy()
        return rows


class QwenReference(Reference):
    """The model in the folder `reference`: where another library saved it, with the positions of its images."""

    def __init__(self, folder: Path, saved_by: str) -> None:
        super().__init__(folder / "reference")
        self.is_native = saved_by == "transformers"
        self.prefix = "Query: "
        if not hasattr(self.model, "embedding_proj_layer"):  # Qwen3VLModel
            self.layer, self.prefix = _layer_of(folder), ""
        if saved_by == "tomoro":
            self.processor.image_processor.size["longest_edge"] = 1280 * 32**2

    def queries(self, texts: Sequence[str]) -> list[np.ndarray]:
        """transformers 5.24 puts a line break after them, which the models were not trained with."""
        words = (f"{self.prefix}{text}{'<|endoftext|>' * 10}" for text in texts)
        return [self._rows(self.processor.tokenizer(each, return_tensors="pt")) for each in words]

    def _rows(self, inputs: Any) -> np.ndarray:
        if self.is_native:
            return super()._rows(inputs)
        import torch

        given = {key: value.double() if value.is_floating_point() else value for key, value in inputs.items()}
        body = getattr(self.model, "vlm", self.model)
        given["mm_token_type_ids"] = is_image = (given["input_ids"] == body.config.image_token_id).int()
        if "pixel_values" in given:
            grid = {"image_grid_thw": given["image_grid_thw"]}
            given["position_ids"] = body.get_rope_index(given["input_ids"], mm_token_type_ids=is_image, **grid)[0]
            given["pixel_values"] = given["pixel_values"][0]
        with torch.no_grad():
            states = body(**given).last_hidden_state[0]
            rows = getattr(self.model, "embedding_proj_layer", None) or self.layer
            vectors: np.ndarray = torch.nn.functional.normalize(rows(states)).numpy()
        return vectors


def _layer_of(folder: Path) -> Any:
    import torch
    from safetensors.torch import load_file

    layer, saved = torch.nn.Linear(32, 16).double(), load_file(folder / "model.safetensors")
    name = next(name for name in saved if name.endswith(("proj_layer.weight", "text_proj.weight")))
    layer.load_state_dict({part: saved[name.replace("weight", part)].double() for part in ("weight", "bias")})
    return layer
