"""Each setting of sentence-transformers' files, changed alone, gives its numbers or is refused by name.

Random tiny models. The keys are those that its classes save, so a later version's are covered too, and those of
earlier versions. Where sentence-transformers raises an error, only a refusal passes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from tests.checkpoints.reading import spec_of
from tests.models import write_sentence_bert

from vectord.checkpoints.checkpoint import open_checkpoint
from vectord.compute.backends.base import Answers, Backend, TokenBatch
from vectord.compute.networks.network import Network
from vectord.compute.ops.numpy import NumpyOps, pack
from vectord.engine.queue.batch import Item, apart_from_queue
from vectord.engine.queue.execution import Execution
from vectord.errors import ModelUnavailable
from vectord.schema import AnswerKind, TextOptions
from vectord.text.sequence import ReadRequest
from vectord.text.tokenizer import TextEncoder

VALUES: tuple[Any, ...] = (None, True, False, 0, 1, -1, 7, 10**30, 0.5, float("nan"), "x", "", [], ["x"], {}, {"a": 1})
TEXTS = ["The quick brown fox jumps over the lazy dog", "a", "Ünïcode [CLS] WORDS [cls] and more of every kind " * 9]

# Their refusals name the tensor or the widths that do not fit, or the tokenizer without room for a text.
SHAPES = ("in_features", "out_features", "max_seq_length")

Arrays = Sequence[np.ndarray]


@dataclass(frozen=True, slots=True)
class Case:
    """A model, and the settings of its files."""

    write: Callable[[Path], Path]
    answer: Callable[[Path], Arrays]
    reference: Callable[[Path], Arrays]
    keys: Mapping[str, Sequence[str]]  # by file; those that the file has are added
    values: Mapping[str, Sequence[Any]]  # further values of a key


# --- vectord --------------------------------------------------------------------------------------------------


class NumpyBackend:
    def __init__(self, folder: Path, **options: Any) -> None:
        self.spec = spec_of(folder, **options)
        self.encoder = TextEncoder(self.spec)
        self._network = Network(self.spec, open_checkpoint(self.spec.weights), NumpyOps())

    def forward(self, batch: TokenBatch, stream: int) -> Answers:
        return {name: np.asarray(rows) for name, rows in self._network(pack(batch.texts), batch.outputs).items()}

    def answers(self, kind: AnswerKind, inputs: Sequence[Any], **options: Any) -> list[Any]:
        read = ReadRequest(inputs=inputs, options=TextOptions(**options), truncate=True)
        items = [Item(one, frozenset({kind}), "", "bulk") for one in self.encoder.read(read)]
        return [
            reply[kind]
            for reply in Execution(cast(Backend, self), self.spec, self.encoder.special_ids).run(
                apart_from_queue(items), 0
            )
        ]


def dense_answer(folder: Path) -> Arrays:
    return unit(np.concatenate(NumpyBackend(folder).answers("dense", TEXTS)))


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


# --- sentence-transformers ------------------------------------------------------------------------------------


def write_dense(folder: Path) -> Path:
    """With the modules and the prompt that each of the files can affect."""
    saved = write_sentence_bert(folder, dense=(8,), normalize=True)
    path = saved / "config_sentence_transformers.json"
    prompts = {"prompts": {"query": "search: "}, "default_prompt_name": "query"}
    path.write_text(json.dumps({**json.loads(path.read_text()), **prompts}))
    return saved


def dense_reference(folder: Path) -> Arrays:
    return unit(SentenceTransformer(str(folder), device="cpu").encode(TEXTS))


FLAGS = tuple(f"pooling_mode_{mode}_tokens" for mode in ("mean", "max", "mean_sqrt_len", "weightedmean"))
OLD_TRANSFORMER = (
    "max_seq_length",
    "do_lower_case",
    "model_args",
    "tokenizer_args",
    "config_args",
    "model_kwargs",
    "processor_kwargs",
    "config_kwargs",
    "tokenizer_name_or_path",
    "backend",
)
CASES = {
    "dense": Case(
        write_dense,
        dense_answer,
        dense_reference,
        keys={
            "config_sentence_transformers.json": (
                "truncate_dim",
                "requirements",
                "similarity_fn_name",
                "activation_fn",
            ),
            "sentence_bert_config.json": (*Transformer.config_keys, *OLD_TRANSFORMER),
            "1_Pooling/config.json": (
                *Pooling.config_keys,
                "word_embedding_dimension",
                *FLAGS,
                "pooling_mode_cls_token",
                "pooling_mode_lasttoken",
            ),
            "2_Dense/config.json": Dense.config_keys,
            "3_Normalize/config.json": Normalize.config_keys,
        },
        values={
            "pooling_mode": ("cls", "max", "lasttoken", "mean_sqrt_len_tokens", ["cls"], ["cls", "mean"]),
            "activation_function": ("torch.nn.modules.activation.ReLU", "torch.nn.Softmax", "os.system"),
            "module_input_name": ("token_embeddings",),
            "module_output_name": ("token_embeddings",),
            "model_type": ("SparseEncoder", "CrossEncoder", "ColBERT"),
            "transformer_task": ("fill-mask", "sequence-classification"),
        },
    ),
}


def changes(case: Case, file: str, saved: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key in dict.fromkeys((*saved, *case.keys[file])):
        own = (saved.get(key), type(saved.get(key)))
        yield from (
            (key, value)
            for value in (*VALUES, *case.values.get(key, ()))
            if (value, type(value)) != own or key not in saved
        )


def same(got: Arrays, want: Arrays) -> bool:
    return len(got) == len(want) and all(
        a.shape == b.shape and np.allclose(a, b, atol=1e-5) for a, b in zip(got, want, strict=True)
    )


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads make models of this size many times slower on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(("name", "file"), [(name, file) for name, case in CASES.items() for file in case.keys])
def test_a_changed_setting_gives_the_reference_numbers_or_is_refused(name: str, file: str, tmp_path: Path) -> None:
    """Each refusal names the key."""
    case, wrong = CASES[name], []
    folder = case.write(tmp_path)
    path = folder / file
    saved = json.loads(path.read_text())
    assert same(case.answer(folder), case.reference(folder))
    for key, value in changes(case, file, saved):
        path.write_text(json.dumps({**saved, key: value}))
        try:
            got = case.answer(folder)
        except ModelUnavailable as refused:
            if key not in str(refused) and key not in SHAPES:
                wrong.append(f"{key} = {value!r}: {refused}")
            continue
        try:
            want = case.reference(folder)
        except Exception as error:  # of any class
            wrong.append(
                f"{key} = {value!r} is accepted; sentence-transformers raises {type(error).__name__} {str(error)[:90]}"
            )
            continue
        if not same(got, want):
            wrong.append(f"{key} = {value!r}")
    assert not wrong, "\n".join(["", *wrong])
