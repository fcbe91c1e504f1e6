"""ColBERT folders of pylate, sentence-transformers and Stanford: the same facts from three formats."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from tests.checkpoints.folders import NEW, WORDS, write_dense, write_json, write_modules, write_transformer
from tests.checkpoints.reading import refusal, spec_of
from tests.models import WIDTH, write_bert

from vectord.checkpoints.spec import Colbert, DenseModule

PUNCTUATION = tuple(string.punctuation)


def colbert_of(folder: Path) -> Colbert:
    spec = spec_of(folder)
    assert spec.outputs == {"colbert", "tokens"}
    assert (spec.pooling, spec.dimensions) == (None, 0)
    assert spec.colbert is not None
    return spec.colbert


# --- pylate ---------------------------------------------------------------------------------------------------


def write_pylate(folder: Path, *, widths: tuple[int, ...] = (4,), **settings: Any) -> Path:
    """Save a folder as pylate 1 does. widths: of its Dense modules."""
    write_transformer(folder)
    write_modules(folder, "Transformer", *["pylate.models.Dense.Dense"] * len(widths))
    for i, (inputs, outputs) in enumerate(zip((8, *widths), widths, strict=False), 1):
        activation = "torch.nn.modules.linear.Identity"
        write_dense(folder / f"{i}_Dense", inputs, outputs, bias=False, activation_function=activation)
    write_json(folder / "config_sentence_transformers.json", {"prompts": {}, "model_type": "ColBERT", **settings})
    return folder


def test_a_pylate_folder(folder: Path) -> None:
    """All settings of its config, and the projection."""
    write_pylate(
        folder,
        query_prefix="[Q] ",
        document_prefix="[D] ",
        query_length=48,
        document_length=300,
        attend_to_expansion_tokens=True,
        do_query_expansion=True,
        skiplist_words=["!", "?"],
    )
    assert colbert_of(folder) == Colbert(
        dimensions=4,
        dense_modules=(
            DenseModule(
                folder=folder / "1_Dense",
                weights=folder / "1_Dense" / "model.safetensors",
                in_features=8,
                out_features=4,
                bias=False,
                activation="identity",
            ),
        ),
        query_prefix="[Q] ",
        document_prefix="[D] ",
        query_length=48,
        document_length=300,
        expand_queries=True,
        attend_to_expansion=True,
        skiplist_words=("!", "?"),
        library="pylate",
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"query_length": 2},
        {"document_length": 2**20 + 1},
        {"document_prefix": "x" * 20_001},
        {"skiplist_words": ["!"] * 10_001},
    ],
    ids=lambda settings: str(settings)[:40],
)
def test_settings_beyond_their_limits_are_refused(settings: dict[str, Any], folder: Path) -> None:
    """The message names the file and the key, never the value."""
    message = refusal(write_pylate(folder, **settings))
    assert "config_sentence_transformers.json" in message
    assert next(iter(settings)) in message
    assert len(message) < 500


# --- sentence-transformers ------------------------------------------------------------------------------------


def save_multi_vector_encoder(folder: Path, pooling: dict[str, Any] | None = None, **transformer: Any) -> Path:
    """Save the tiny BERT as a MultiVectorEncoder of the installed version. transformer: its module's settings; pooling:
    those of a last module."""
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.multi_vector_encoder.modules import HierarchicalTokenPooling, MultiVectorMask

    modules: list[Any] = [
        Transformer(str(write_bert(folder / "source")), **transformer),
        Dense(WIDTH, 16, bias=False, activation_function=None, module_input_name="token_embeddings"),
        MultiVectorMask(skiplist_words=[".", ","]),
        Normalize(module_input_name="token_embeddings"),
    ]
    if pooling is not None:
        modules.append(HierarchicalTokenPooling(**pooling))
    encoder = MultiVectorEncoder(modules=modules, device="cpu", prompts={"query": "dog", "document": "[SEP]"})
    encoder.save_pretrained(str(folder / "saved"), create_model_card=False)
    return folder / "saved"


def test_a_folder_of_the_installed_sentence_transformers(folder: Path) -> None:
    """Projection, skiplist and lengths; a prompt that is an added token becomes a token, another stays a prompt."""
    saved = save_multi_vector_encoder(folder, document_length=200, query_length=40)
    colbert = colbert_of(saved)
    assert (colbert.dimensions, len(colbert.dense_modules)) == (16, 1)
    assert (colbert.query_length, colbert.document_length, colbert.expand_queries) == (40, 200, False)
    assert colbert.skiplist_words == (".", ",")
    assert (colbert.query_prefix, colbert.document_prefix) == ("", "[SEP]")
    assert spec_of(saved).prompts == {"query": "dog"}


def write_multi_vector_encoder(folder: Path, *kinds: str) -> Path:
    write_transformer(folder)
    write_modules(folder, NEW["Transformer"], *kinds)
    write_dense(folder / "1_Dense", 8, 4, module_input_name="token_embeddings")
    write_json(folder / "2_MultiVectorMask" / "config.json", {})
    for i, kind in enumerate(kinds, 1):
        if kind == "Normalize":
            write_json(folder / f"{i}_Normalize" / "config.json", {"module_input_name": "token_embeddings"})
    return folder


@pytest.mark.parametrize(
    "kinds",
    [
        ("Dense", "MultiVectorMask"),
        ("MultiVectorMask", "Dense", "Normalize"),
        ("Dense", "Normalize", "Normalize"),
        ("Dense", "MultiVectorMask", "HierarchicalTokenPooling", "Normalize"),
    ],
    ids=", ".join,
)
def test_modules_in_another_order_are_refused(kinds: tuple[str, ...], folder: Path) -> None:
    """Vectors without normalization, or with fewer dimensions, would be other vectors."""
    assert "modules.json" in refusal(write_multi_vector_encoder(folder, *kinds))


# --- Stanford -------------------------------------------------------------------------------------------------


def write_stanford(folder: Path, *, shape: tuple[int, ...] = (4, 8), **metadata: Any) -> Path:
    """Save a folder as the original code does: the projection among the weights, settings in artifact.metadata."""
    write_transformer(folder, architectures=["HF_ColBERT"])
    weights = {"linear.weight": np.ones(shape, np.float32), "bert.x": np.ones((2, 2), np.float32)}
    safetensors.numpy.save_file(weights, folder / "model.safetensors")
    write_json(folder / "artifact.metadata", metadata)
    return folder


def test_a_stanford_folder(folder: Path) -> None:
    """The projection is read from the model's own weights, without a bias."""
    write_stanford(
        folder,
        query_token_id="[unused0]",
        doc_token_id="[unused1]",
        query_maxlen=64,
        doc_maxlen=256,
        attend_to_mask_tokens=True,
        mask_punctuation=False,
    )
    colbert = colbert_of(folder)
    (dense,) = colbert.dense_modules
    assert (dense.weights, dense.bias, dense.activation) == (folder / "model.safetensors", False, "identity")
    assert (dense.in_features, dense.out_features, colbert.dimensions) == (8, 4, 4)
    assert (colbert.query_prefix, colbert.document_prefix) == ("[unused0]", "[unused1]")
    assert (colbert.query_length, colbert.document_length) == (64, 256)
    assert (colbert.expand_queries, colbert.attend_to_expansion, colbert.skiplist_words) == (True, True, ())


def test_a_stanford_folder_without_metadata(folder: Path) -> None:
    """ColBERT's default settings."""
    (write_stanford(folder) / "artifact.metadata").unlink()
    colbert = colbert_of(folder)
    assert (colbert.query_prefix, colbert.document_prefix) == ("[unused0]", "[unused1]")
    assert (colbert.query_length, colbert.document_length) == (32, 180)
    assert (colbert.attend_to_expansion, colbert.skiplist_words) == (False, PUNCTUATION)


@pytest.mark.parametrize("shape", [(4,), (4, 9), (0, 8)], ids=str)
def test_a_projection_that_does_not_fit_is_refused(shape: tuple[int, ...], folder: Path) -> None:
    """Not a matrix, or of another width than the network."""
    assert str(folder) in refusal(write_stanford(folder, shape=shape))


def test_the_settings_that_stanfords_code_saves_are_known(folder: Path) -> None:
    """Those of training and of the index change no vector."""
    known = {"dim": 4, "bsize": 32, "similarity": "cosine", "interaction": "colbert", "meta": {"version": 1}}
    assert colbert_of(write_stanford(folder, **known, index_path=None)).query_length == 32


@pytest.mark.parametrize(
    "metadata",
    [
        {"query_maxlen": -1},
        {"similarity": "l2"},
        {"interaction": "flipr"},
        {"pool_factor": 2},
        {"attend_to_mask_tokens": 1},
        {"mask_punctuation": 0},
    ],
    ids=str,
)
def test_other_metadata_is_refused(metadata: dict[str, Any], folder: Path) -> None:
    """Another score than MaxSim, fewer vectors, and flags that are none; the message names the key."""
    message = refusal(write_stanford(folder, **metadata))
    assert "artifact.metadata" in message and next(iter(metadata)) in message


def test_the_vocabulary_is_read_only_for_prompts(folder: Path) -> None:
    """A folder without prompts starts without reading the tokenizer, which may be large."""
    write_multi_vector_encoder(folder, "Dense", "MultiVectorMask", "Normalize")
    (folder / "tokenizer.json").write_text("no JSON")
    assert colbert_of(folder).query_prefix == ""
    write_json(folder / "config_sentence_transformers.json", {"prompts": {"query": WORDS[5]}})
    assert "tokenizer.json" in refusal(folder)
