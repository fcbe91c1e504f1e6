"""Folders of adapters as sentence-transformers and peft save them, and the vectors of these libraries for them.

    python peft_save.py BASE_FOLDER INPUTS.json ARRAYS.npz

Inputs: saved, bare and rich (folders to write), texts, pooling and prompts of the saved one.
Arrays: saved, bare and rich, (N, D) float32 of `encode`; base, the same of the base model without an adapter.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer
from transformers import AutoModel

LORA: dict[str, Any] = {"r": 4, "lora_alpha": 6, "target_modules": ["query", "value", "dense"]}
RICH: dict[str, Any] = {
    "rank_pattern": {"query": 2, r"^encoder\.layer\.[1-9]+\.attention\.(self|other)\.value": 3, "value": 5},
    "alpha_pattern": {"output.dense": 12, ".*dense": 3},
    "use_dora": True,
    "modules_to_save": ["LayerNorm", "key"],
}


def main(base_folder: str, inputs_file: str, arrays_file: str) -> None:
    inputs = json.loads(Path(inputs_file).read_text())
    texts = inputs["texts"]
    transformer = Transformer(base_folder)
    pooling = Pooling(transformer.get_word_embedding_dimension(), inputs["pooling"])
    model = SentenceTransformer(modules=[transformer, pooling], device="cpu", prompts=inputs["prompts"])
    model.default_prompt_name = next(iter(inputs["prompts"]))
    model.add_adapter(LoraConfig(**LORA))
    randomise(model, 1)
    model.save_pretrained(inputs["saved"], create_model_card=False)
    # Of the model in memory: transformers 5.3 loads its own files of adapters without their tensors.
    arrays = {"saved": model.encode(texts), "base": SentenceTransformer(base_folder, device="cpu").encode(texts)}
    for name, further in (("bare", {}), ("rich", RICH)):
        adapted = get_peft_model(AutoModel.from_pretrained(base_folder), LoraConfig(**LORA, **further))
        randomise(adapted, 2)
        adapted.save_pretrained(inputs[name])
        bare = SentenceTransformer(base_folder, device="cpu")
        bare[0].auto_model = PeftModel.from_pretrained(bare[0].auto_model, inputs[name])
        arrays[name] = bare.encode(texts)
    np.savez(arrays_file, **arrays)


def randomise(model: torch.nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name or "modules_to_save" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)


if __name__ == "__main__":
    main(*sys.argv[1:])
