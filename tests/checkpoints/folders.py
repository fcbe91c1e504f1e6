"""Model folders for the tests of checkpoints and text: small JSON files, a tiny checkpoint, a tiny tokenizer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from tokenizers import Tokenizer, models, pre_tokenizers, processors

# Module names of sentence-transformers: before version 6, and since.
OLD = "sentence_transformers.models.{}"
NEW = {
    "Transformer": "sentence_transformers.base.modules.transformer.Transformer",
    "Pooling": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    "Dense": "sentence_transformers.base.modules.dense.Dense",
    "Normalize": "sentence_transformers.base.modules.normalize.Normalize",
}
GIT_LFS_POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 90864192\n"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghij"]


def write_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def write_transformer(folder: Path, *, weight: float = 1.0, **config: Any) -> Path:
    """Write config.json, weights and tokenizer; config: entries to change, None to remove."""
    facts = {"model_type": "bert", "hidden_size": 8, "vocab_size": len(WORDS), "max_position_embeddings": 512, **config}
    write_json(folder / "config.json", {key: value for key, value in facts.items() if value is not None})
    safetensors.numpy.save_file({"x": np.full((4, 8), weight, np.float32)}, folder / "model.safetensors")
    write_tokenizer(folder / "tokenizer.json")
    return folder


def write_sentence_model(
    folder: Path,
    *,
    kinds: Sequence[str] = ("Transformer", "Pooling", "Normalize"),
    pooling: object = None,
    new: bool = False,
    **config: Any,
) -> Path:
    """Write a folder as sentence-transformers saves it; kinds: its modules in order."""
    write_transformer(folder, **config)
    write_modules(
        folder, *(NEW.get(kind, f"sentence_transformers.base.modules.{kind}") if new else kind for kind in kinds)
    )
    write_json(folder / "1_Pooling" / "config.json", pooling or {"pooling_mode_mean_tokens": True})
    return folder


def write_modules(folder: Path, *types: str) -> None:
    """Write modules.json. types: class paths; a name alone is a class of sentence-transformers before version 6."""
    modules = []
    for i, kind in enumerate(types):
        path, name = f"{i}_{kind.rpartition('.')[2]}" if i else "", kind if "." in kind else OLD.format(kind)
        modules.append({"idx": i, "name": str(i), "path": path, "type": name})
    write_json(folder / "modules.json", modules)


def write_dense(folder: Path, inputs: int, outputs: int, **config: Any) -> Path:
    facts = {"in_features": inputs, "out_features": outputs, "bias": True, **config}
    write_json(folder / "config.json", facts)
    safetensors.numpy.save_file({"linear.weight": np.ones((outputs, inputs), np.float32)}, folder / "model.safetensors")
    return folder


def write_tokenizer(path: Path, *, prefix: str = "[CLS]", suffix: str = "[SEP]") -> Path:
    """Write a tokenizer of the ten words a to j, split at spaces; prefix, suffix: special tokens, "" for none."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(WORDS[:4])
    specials = [(word, WORDS.index(word)) for word in (prefix, suffix) if word]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=" ".join(filter(None, (prefix, "$A", suffix))), special_tokens=specials
    )
    tokenizer.save(str(path))
    return path
