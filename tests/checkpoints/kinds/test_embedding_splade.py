"""SPLADE folders are recognized, and other masked-language models are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.checkpoints.folders import write_json, write_modules, write_transformer
from tests.checkpoints.reading import refusal, spec_of

NAVER = "naver/splade-cocondenser-ensembledistil"


def write_splade(folder: Path, *, first: str = "MLMTransformer", **pooling: Any) -> Path:
    """Save a folder as sentence-transformers 5 does."""
    write_transformer(folder, architectures=["BertForMaskedLM"])
    write_modules(folder, *(f"sentence_transformers.sparse_encoder.models.{kind}" for kind in (first, "SpladePooling")))
    write_json(folder / "config_sentence_transformers.json", {"model_type": "SparseEncoder"})
    task = {"transformer_task": "fill-mask"} if first == "Transformer" else {}
    write_json(folder / "sentence_bert_config.json", task)
    write_json(folder / "1_SpladePooling" / "config.json", {"word_embedding_dimension": None, **pooling})
    return folder


@pytest.mark.parametrize("first", ["Transformer", "MLMTransformer"])
def test_old_and_new_names_of_the_first_module(first: str, folder: Path) -> None:
    """Version 6 calls it Transformer."""
    assert spec_of(write_splade(folder, first=first, pooling_strategy="max")).outputs == {"splade"}


@pytest.mark.parametrize("name", [NAVER, "someone/splade-v9"])
def test_a_bare_splade_model_is_recognized(name: str, folder: Path) -> None:
    """By the catalogue, or by its name."""
    write_transformer(folder, architectures=["BertForMaskedLM"])
    assert spec_of(folder, name=name).outputs == {"splade"}


def test_a_known_masked_language_model_embeds(folder: Path) -> None:
    """jina-embeddings-v2: the hidden states are pooled."""
    write_transformer(folder, architectures=["BertForMaskedLM"])
    assert spec_of(folder, name="jinaai/jina-embeddings-v2-base-en").outputs == {"dense", "tokens"}


def test_further_modules_are_refused(folder: Path) -> None:
    """SpladePooling ends the pipeline."""
    write_splade(folder)
    write_modules(folder, "Transformer", "SpladePooling", "Normalize")
    assert "in the order" in refusal(folder)
