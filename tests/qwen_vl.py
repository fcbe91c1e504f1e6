"""Tiny random models of Qwen3-VL, in the files that transformers saves, and the steps of the models' own scripts.

torch, transformers and Pillow are imported only by the functions that use them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace
from tests.models import randomize
from tests.towers import image_of

from vectord.checkpoints.spec import FreeSize, ImageProcessor
from vectord.text.planes import free_size

PATCH, MERGE, SIDE = 16, 2, 6
IMAGE = "<|image_pad|>"
VISION_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
TEXT_CONFIG = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [4, 2, 2]},
}
IMAGE_CONFIG = {
    "depth": 3,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "patch_size": PATCH,
    "spatial_merge_size": MERGE,
    "out_hidden_size": 32,
    "num_position_embeddings": SIDE**2,
    "deepstack_visual_indexes": [0, 1],
}
# Of blocks of 32 x 32 pixels: 3 x 2, 7 x 3, one that grows to the least area, and one of a single line.
IMAGE_SIZES = ((60, 90), (95, 230), (20, 20), (330, 33))
SYSTEM = "Represent the user's input."
JUDGE = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the "
    'answer can only be "yes" or "no".'
)


def write_qwen3_vl(folder: Path, *, head: bool = False, text: dict[str, Any] | None = None, **facts: Any) -> Path:
    """head: with the language model's, as a reranker. text: entries of the text_config; facts: of the vision_config."""
    import transformers
    from tests.reference.reference_models import train_qwen_bpe
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    tokenizer = train_qwen_bpe()
    tokenizer.add_tokens([*VISION_TOKENS], special_tokens=True)
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in VISION_TOKENS}
    config = transformers.Qwen3VLConfig(
        text_config={**TEXT_CONFIG, "vocab_size": len(tokenizer), **(text or {})},
        vision_config={**IMAGE_CONFIG, **facts},
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )
    model = (transformers.Qwen3VLForConditionalGeneration if head else transformers.Qwen3VLModel)(config)
    randomize(model, size=0.2, norm=1.0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    Qwen2VLImageProcessorPil(
        size={"shortest_edge": 65_536, "longest_edge": 16_777_216},
        patch_size=PATCH,
        merge_size=MERGE,
        image_mean=[0.5, 0.4, 0.5],
        image_std=[0.5, 0.5, 0.6],
    ).save_pretrained(folder)
    return folder


def shown() -> list[Any]:
    return [image_of(*size, seed=seed) for seed, size in enumerate(IMAGE_SIZES)]


def embedder_text(parts: Sequence[Any], system: str = SYSTEM) -> str:
    """The chat template of the embedder; an image is one token, as before its processor."""
    return _chat(system, _words(parts))


def judge_text(query: Sequence[Any], document: Sequence[Any], instruction: str) -> str:
    """That of the reranker, whose texts its script joins."""
    return _chat(JUDGE, f"<Instruct>: {instruction}<Query>:{_words(query)}\n<Document>:{_words(document)}")


def _chat(system: str, user: str) -> str:
    return f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n"


def _words(parts: Sequence[Any]) -> str:
    return "".join(part if isinstance(part, str) else f"<|vision_start|>{IMAGE}<|vision_end|>" for part in parts)


class Reference:
    """The steps of the models' own scripts, in float64: images are resized first, by qwen_vl_utils' rule."""

    def __init__(self, folder: Path) -> None:
        import transformers

        self.config = transformers.AutoConfig.from_pretrained(folder)
        name = self.config.architectures[0]
        self.model = getattr(transformers, name).from_pretrained(folder).double().eval()
        self.images = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def inputs(self, text: str, images: Sequence[Any]) -> dict[str, Any]:
        """As of Qwen3VLProcessor, which would need torchvision for its processor of videos."""
        given: dict[str, Any] = {}
        if images:
            resized = [image.resize(free_size(*image.size, PROCESSOR), 3) for image in images]
            given = dict(self.images(resized, do_resize=False, return_tensors="pt"))
            for height, width in given["image_grid_thw"][:, 1:].tolist():
                text = text.replace(IMAGE, "<row>" * (height * width // MERGE**2), 1)
        ids = self.tokenizer(text.replace("<row>", IMAGE), return_tensors="pt").input_ids
        is_image = (ids == self.config.image_token_id).int()
        return {**given, "input_ids": ids, **({"mm_token_type_ids": is_image} if images else {})}

    def states(self, text: str, images: Sequence[Any]) -> np.ndarray:
        """(T, H) of one input."""
        import torch

        inputs = self.inputs(text, images)
        given = {key: value.double() if value.is_floating_point() else value for key, value in inputs.items()}
        body = getattr(self.model, "model", self.model)
        with torch.no_grad():
            states: np.ndarray = body(**given).last_hidden_state[0].numpy()
        return states

    def embed(self, parts: Sequence[Any], system: str = SYSTEM) -> np.ndarray:
        """(H,) not normalized."""
        return self.states(embedder_text(parts, system), [part for part in parts if not isinstance(part, str)])[-1]

    def logit(self, query: Sequence[Any], document: Sequence[Any], instruction: str) -> float:
        """That of "yes" less that of "no"."""
        text = judge_text(query, document, instruction)
        state = self.states(text, [part for part in (*query, *document) if not isinstance(part, str)])[-1]
        yes, no = self.tokenizer.convert_tokens_to_ids(["yes", "no"])
        rows = self.model.lm_head.weight.detach().numpy()
        return float((rows[yes] - rows[no]) @ state)


LIMITS = FreeSize(min_pixels=4 * 32**2, max_pixels=1800 * 32**2, side=SIDE)
PROCESSOR = ImageProcessor(resample=3, patch=PATCH, class_token=False, merge=MERGE, free=LIMITS)


def write_gme(folder: Path) -> Path:
    """GME-Qwen2-VL's files: Qwen2-VL's, with its own class in auto_map. Few rows of each image."""
    import transformers
    from tests.reference.reference_models import train_qwen_bpe
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    tokenizer = train_qwen_bpe()
    tokenizer.add_tokens([*VISION_TOKENS], special_tokens=True)
    text = {key: value for key, value in TEXT_CONFIG.items() if key != "head_dim"}
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 1, 1]}
    config = transformers.Qwen2VLConfig(
        text_config={**text, "vocab_size": len(tokenizer), "rope_parameters": rope},
        vision_config={"depth": 2, "embed_dim": 32, "hidden_size": 32, "mlp_ratio": 2, "num_heads": 2},
        image_token_id=tokenizer.convert_tokens_to_ids(IMAGE),
    )
    randomize(transformers.Qwen2VLModel(config), size=0.2, norm=1.0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    Qwen2VLImageProcessorPil().save_pretrained(folder)
    own = {"auto_map": {"AutoModel": "modeling_gme_qwen2vl.GmeQwen2VL"}, "architectures": ["GmeQwen2VL"]}
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **own, "min_image_tokens": 6, "max_image_tokens": 12}))
    modules = [{"idx": 0, "name": "0", "path": "", "type": "custom_st.MultiModalTransformer"}]
    modules += [{"idx": 1, "name": "1", "path": "1_Normalize", "type": "sentence_transformers.models.Normalize"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


class GmeReference(Reference):
    """The steps of modeling_gme_qwen2vl.py, under transformers' Qwen2VLModel."""

    def __init__(self, folder: Path) -> None:
        import transformers

        config = transformers.Qwen2VLConfig.from_pretrained(folder)
        self.model = transformers.Qwen2VLModel.from_pretrained(folder, config=config).double().eval()
        size = {"shortest_edge": 6 * 28**2, "longest_edge": 12 * 28**2}
        self.images = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil", size=size)
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder, config=config)

    def embed(self, parts: Sequence[Any], system: str = SYSTEM) -> np.ndarray:
        """(H,) not normalized."""
        import torch

        text, shown = embedder_text(parts, system) + "<|endoftext|>", [x for x in parts if not isinstance(x, str)]
        first = replace(PROCESSOR, patch=14, free=FreeSize(min_pixels=4 * 28**2, max_pixels=16_384 * 28**2))
        resized = [image.resize(free_size(*image.size, first)) for image in shown]
        given = dict(self.images(resized, return_tensors="pt")) if shown else {}
        for height, width in given["image_grid_thw"][:, 1:].tolist() if shown else ():
            text = text.replace(IMAGE, "<row>" * (height * width // 4), 1)
        ids = self.tokenizer(text.replace("<row>", IMAGE), return_tensors="pt").input_ids
        with torch.no_grad():
            states = self.model.get_input_embeddings()(ids)
            if shown:
                rows = self.model.visual(given["pixel_values"].double(), grid_thw=given["image_grid_thw"])
                states[ids == self.model.config.image_token_id] = rows.pooler_output
            vectors: np.ndarray = self.model.language_model(inputs_embeds=states).last_hidden_state[0].numpy()
        return vectors[-1]
