"""Each setting of a static model's files, changed alone, gives its library's numbers or is refused by name.

The keys are those that model2vec and tokenizers save and read; test_every_setting.py has those of
sentence-transformers. Where the library raises an error, only a refusal passes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model2vec import StaticModel
from model2vec.types import StaticModelConfig
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding
from tests.checkpoints.folders import write_json
from tests.checkpoints.kinds.test_static import WIDTH, WORDS, tokenizer_of, vectors, write_table

from vectord.errors import ModelUnavailable
from vectord.schema import Float32

VALUES: tuple[Any, ...] = (None, True, False, 0, 1, -1, 7, 10**30, 0.5, float("nan"), "x", "", [], ["x"], {}, {"a": 1})
TEXTS = [
    "alpha",
    "beta unknown alpha <unk> <pad>",
    "gamma gamma delta eta",
    "eta beta " * 40,
    "unknown " * 9 + "beta " * 600,
]

OLD_CONFIG = ("max_length", "seq_length", "embedding_dtype", "vocabulary_quantization", "matryoshka_dimensions")
TRUNCATION = {"direction": "Right", "max_length": 5, "strategy": "LongestFirst", "stride": 0}


def write_embedding(folder: Path) -> Path:
    """A StaticEmbedding with a tokenizer that truncates, normalized, with a prompt for queries."""
    rows = np.random.default_rng(7).normal(size=(len(WORDS), WIDTH)).astype(np.float32)
    module = StaticEmbedding(tokenizer_of("WordLevel"), embedding_weights=rows)
    prompts = {"query": "alpha ", "document": ""}
    model = SentenceTransformer(modules=[module, Normalize()], device="cpu", prompts=prompts)
    model.save_pretrained(str(folder), create_model_card=False)
    return folder


def model2vec_vectors(folder: Path) -> Float32:
    return StaticModel.from_pretrained(folder).encode(TEXTS)


def sentence_transformers_vectors(folder: Path) -> Float32:
    return SentenceTransformer(str(folder), device="cpu").encode(TEXTS)


@dataclass(frozen=True, slots=True)
class Case:
    """section: the key of the object whose settings change; empty: the file's own."""

    write: Callable[[Path], Path]
    reference: Callable[[Path], Float32]
    file: str
    section: str
    saved: Mapping[str, Any]  # settings that the file is written with, besides its own
    keys: Sequence[str]
    values: Mapping[str, Sequence[Any]]


def model2vec_case(section: str = "", saved: Mapping[str, Any] | None = None, **options: Any) -> Case:
    file = "tokenizer.json" if section else "config.json"
    keys = (*StaticModelConfig.__annotations__, *OLD_CONFIG) if not section else ()
    return Case(
        lambda folder: write_table(folder, **options), model2vec_vectors, file, section, saved or {}, keys, FURTHER
    )


FURTHER: Mapping[str, Sequence[Any]] = {
    "max_length": (5, 20.0, 40_000),
    "embedding_dtype": ("int8", "float16"),
    "direction": ("Left", "right"),
    "strategy": ("OnlyFirst", "OnlySecond"),
    "stride": (3,),
}
CASES: Mapping[str, Case] = {
    **{
        f"model2vec {kind} {dtype} {'quantized' if quantized else ''}": model2vec_case(
            kind=kind, dtype=dtype, quantized=quantized
        )
        for kind, dtype, quantized in (
            ("WordLevel", "float16", True),
            ("Unigram", "int8", False),
        )
    },
    "model2vec truncation": model2vec_case("truncation", TRUNCATION),
    "StaticEmbedding truncation": Case(
        write_embedding, sentence_transformers_vectors, "tokenizer.json", "truncation", TRUNCATION, (), FURTHER
    ),
}


def unit(rows: Float32) -> Float32:
    """A text without known tokens stays zero."""
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def same(got: Float32, want: Float32) -> bool:
    """As the library: `normalize` is the request's choice in vectord, so directions count."""
    tolerance = 2e-3 if want.dtype == np.float16 else 1e-5
    return got.shape == want.shape and np.allclose(unit(got), unit(want.astype(np.float32)), atol=tolerance)


@pytest.mark.parametrize("name", CASES)
def test_a_changed_setting_gives_the_library_s_numbers_or_is_refused(name: str, tmp_path: Path) -> None:
    """Each refusal names the key."""
    case, wrong = CASES[name], []
    folder = case.write(tmp_path / "model")
    place = next(folder.rglob(case.file))
    content = json.loads(place.read_text())
    saved = {**((content[case.section] or {}) if case.section else content), **case.saved}

    def change(settings: Mapping[str, Any]) -> None:
        write_json(place, {**content, case.section: settings} if case.section else dict(settings))

    change(saved)
    assert same(vectors(folder, TEXTS), case.reference(folder))
    for key in dict.fromkeys((*saved, *case.keys)):
        for value in (*VALUES, *case.values.get(key, ())):
            change({**saved, key: value})
            try:
                got = vectors(folder, TEXTS)
            except ModelUnavailable as refused:
                if key not in str(refused) and case.file not in str(refused):
                    wrong.append(f"{key} = {value!r}: {refused}")
                continue
            try:
                want = case.reference(folder)
            except BaseException as error:  # tokenizers' panics are no Exception
                wrong.append(f"{key} = {value!r} is accepted; the library raises {type(error).__name__} {error}"[:150])
                continue
            if not same(got, want):
                wrong.append(f"{key} = {value!r}")
    assert not wrong, "\n".join(["", *wrong])
