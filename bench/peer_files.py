"""A model in the file formats of the peers: `python -m bench.peer_files FORMAT SOURCE TARGET`.

A child process, so that the memory of a conversion does not stay in the benchmark, in the development environment; for
OpenVINO in the peer's.
"""

from __future__ import annotations

import json
import shutil
import sys
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from bench.child import REPOSITORY

CALIBRATION_TEXTS = REPOSITORY / "bench/calibration_texts.txt"


def onnx(source: Path, target: Path) -> None:
    """The folder with model.onnx in float32, as published models have it: ids to last hidden states, or to logits."""
    import torch  # noqa: PLC0415 - each format needs other packages
    from transformers import AutoModel, AutoModelForSequenceClassification  # noqa: PLC0415

    config = json.loads((source / "config.json").read_text())
    is_reranker = config["architectures"][0].endswith("ForSequenceClassification")
    loader: Any = AutoModelForSequenceClassification if is_reranker else AutoModel
    body = loader.from_pretrained(source, dtype=torch.float32).eval()
    output = "logits" if is_reranker else "last_hidden_state"
    names = ["input_ids", "attention_mask", "token_type_ids"][: 3 if config["model_type"] == "bert" else 2]

    class Graph(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = body

        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.body(**dict(zip(names, inputs, strict=True)))[output]
            return result

    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.safetensors", "*.pt"))
    batch = {name: {0: "texts", 1: "tokens"} for name in names}
    # The exporter imports onnx in this function, for models that use functions of onnxscript.
    unused = "torch.onnx._internal.torchscript_exporter.onnx_proto_utils._add_onnxscript_fn"
    with patch(unused, lambda file, _: file), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Graph(),
            tuple(torch.ones(2, 7, dtype=torch.long) for _ in names),
            str(target / "model.onnx"),  # beyond 2 GiB, weights go to files next to a str, not next to a Path
            dynamo=False,
            input_names=names,
            output_names=[output],
            dynamic_axes={**batch, output: {0: "texts"} if is_reranker else {0: "texts", 1: "tokens"}},
            opset_version=17,
        )


def gguf(source: Path, target: Path, quantization: str) -> None:
    """A GGUF file as llama.cpp's convert script writes it, by the writer of the tests."""
    from gguf import GGMLQuantizationType  # noqa: PLC0415
    from tests.checkpoints.gguf.gguf_files import add_vocabulary, write_gguf  # noqa: PLC0415

    target.mkdir()
    pooling = json.loads((source / "1_Pooling/config.json").read_text())
    write_gguf(
        source,
        target / f"{quantization}.gguf",
        GGMLQuantizationType[quantization],
        metadata={"pooling_type": 2 if pooling.get("pooling_mode_cls_token") else 1},
        add=partial(add_vocabulary, tokenizer=source / "tokenizer.json"),
    )


def static(source: Path, target: Path) -> None:
    """A table of model2vec: the model's own word vectors, whose quality does not matter here."""
    from model2vec import StaticModel  # noqa: PLC0415
    from safetensors import safe_open  # noqa: PLC0415
    from tokenizers import Tokenizer  # noqa: PLC0415

    with safe_open(source / "model.safetensors", "numpy") as file:
        (name,) = (name for name in file.keys() if name.endswith("embeddings.word_embeddings.weight"))  # noqa: SIM118
        table = file.get_tensor(name)
    StaticModel(table, Tokenizer.from_file(str(source / "tokenizer.json"))).save_pretrained(str(target))


def openvino_int8(source: Path, target: Path) -> None:
    """sentence-transformers' static quantization, calibrated with our own texts instead of a data set of the hub."""
    from sentence_transformers import SentenceTransformer, export_static_quantized_openvino_model  # noqa: PLC0415

    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.safetensors", "*.pt"))
    texts = target / "texts"
    texts.mkdir()
    shutil.copy(CALIBRATION_TEXTS, texts / "train.txt")
    model = SentenceTransformer(str(source), backend="openvino", local_files_only=True)
    export_static_quantized_openvino_model(model, None, str(target), str(texts), "default", "train", "text")


FORMATS: Mapping[str, Callable[[Path, Path], None]] = {
    "onnx": onnx,
    "gguf F16": partial(gguf, quantization="F16"),
    "gguf Q8_0": partial(gguf, quantization="Q8_0"),
    "static": static,
    "openvino int8": openvino_int8,
}

if __name__ == "__main__":
    form, source, target = sys.argv[1:]
    FORMATS[form](Path(source), Path(target))
