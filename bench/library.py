"""The engine as a library next to sentence-transformers and fastembed: the same texts in one process each, in turn.

All have their default settings and all processor cores, and every call includes tokenization.
"""

from __future__ import annotations

import shutil
import sys
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from bench.child import Child
from bench.peer_environments import peer_environment
from bench.report import Row
from bench.run import best_rate
from bench.subject import Subject

PEERS = ("Embedder, float32", "sentence-transformers", "fastembed")
SINGLE_TEXTS = 256  # of a round with one text a call, which is slower
COMPARED_TEXTS = 8
LEAST_COSINE = 0.999  # to the float32 reference; below it, a library does different work


@dataclass(frozen=True, slots=True)
class Found:
    rounds: Mapping[str, Sequence[Any]]
    cosines: Mapping[str, float]  # least over COMPARED_TEXTS, to sentence-transformers


def measure(subject: Subject, rounds: int, texts: int) -> Found:
    """Start all, then call each in turn, `rounds` times. Raises RuntimeError if their vectors differ."""
    model, corpus = str(subject.model_folder), str(subject.corpus_file)
    onnx = export_onnx(subject.model_folder, subject.folder / "onnx")
    python = subject.command.parent / "python"
    found: dict[str, list[Any]] = defaultdict(list)
    with ExitStack() as stack:

        def start(interpreter: Path, module: str, *arguments: str) -> Child:
            return stack.enter_context(Child(interpreter, module, *arguments))

        libraries = {
            "Embedder": start(python, "bench.library_child", model, subject.dtype, corpus),
            "Embedder, float32": start(python, "bench.library_child", model, "float32", corpus),
            "sentence-transformers": start(
                peer_environment("sentence-transformers", ".venv-peer-st") / "python",
                "bench.peer_sentence_transformers",
                model,
                corpus,
            ),
            "fastembed": start(
                peer_environment("fastembed", ".venv-peer-fastembed") / "python",
                "bench.peer_fastembed",
                str(onnx),
                corpus,
            ),
        }
        cosines = _compare(libraries)
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
            for count, per_call, what in calls(texts):
                tokens = subject.corpus.first(count).tokens
                for name, library in libraries.items():
                    elapsed_s = library.ask(texts=count, texts_per_call=per_call)["elapsed_s"]
                    found[f"{name}, {what}"].append({"tokens": tokens, "elapsed_s": elapsed_s})
    return Found(found, cosines)


def calls(texts: int) -> list[tuple[int, int, str]]:
    """Texts in all, texts a call, and what that is called."""
    single = min(texts, SINGLE_TEXTS)
    return [(texts, texts, "all texts in one call"), (texts, 32, "32 texts a call"), (single, 1, "one text a call")]


def _compare(libraries: Mapping[str, Child]) -> dict[str, float]:
    """Also warms up. Raises RuntimeError for a library whose vectors differ from sentence-transformers'."""
    vectors = {
        name: np.array(library.ask(texts=COMPARED_TEXTS, texts_per_call=COMPARED_TEXTS)["first_vectors"])
        for name, library in libraries.items()
    }
    reference = vectors["sentence-transformers"]
    cosines = {name: float((rows * reference).sum(axis=1).min()) for name, rows in vectors.items()}  # of length 1
    for name, cosine in cosines.items():
        if cosine < LEAST_COSINE:
            raise RuntimeError(f"{name} gives other vectors than sentence-transformers: cosine {cosine:.4f}")
    return cosines


def export_onnx(model: Path, folder: Path) -> Path:
    """The model in the form of the file that fastembed downloads: token ids to the last hidden states, in float32."""
    import torch  # noqa: PLC0415 - this environment has it, the measured one does not
    from transformers import AutoModel  # noqa: PLC0415

    class States(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = AutoModel.from_pretrained(model, dtype=torch.float32).eval()

        def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
            states: torch.Tensor = self.model(ids, attention_mask=mask, token_type_ids=types).last_hidden_state
            return states

    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    names = ["input_ids", "attention_mask", "token_type_ids"]
    axes = {name: {0: "texts", 1: "tokens"} for name in [*names, "last_hidden_state"]}
    # The exporter imports onnx in this function, for models that use functions of onnxscript.
    unused = "torch.onnx._internal.torchscript_exporter.onnx_proto_utils._add_onnxscript_fn"
    with patch(unused, lambda file, _: file), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            States(),
            (torch.ones(2, 7, dtype=torch.long),) * 3,
            folder / "model.onnx",
            dynamo=False,
            input_names=names,
            output_names=["last_hidden_state"],
            dynamic_axes=axes,
            opset_version=17,
        )
    return folder


def rows(found: Found, texts: int) -> list[Row]:
    """Best rounds; `value` is the Embedder's tokens per second as a multiple of the library's."""
    table = []
    for _, _, what in calls(texts):
        ours = best_rate(found.rounds[f"Embedder, {what}"])
        for name in ("Embedder", *PEERS):
            rate = best_rate(found.rounds[f"{name}, {what}"])
            value = "" if name == "Embedder" else f"{ours / rate:.1f} x"
            table.append(Row(what=f"{name}, {what}", value=value, tokens_per_s=rate))
    return table + [Row(what=f"least cosine, {name}", value=f"{cosine:.5f}") for name, cosine in found.cosines.items()]
