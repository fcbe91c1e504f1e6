"""Inference-free sparse models: documents through a network, queries through a table, as sentence-transformers saves
and computes them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sentence_transformers import SparseEncoder
from tests.checkpoints.reading import refusal, spec_of
from tests.models import write_bert

from vectord import Embedder
from vectord.errors import StartError

TEXTS = ["the quick brown fox jumps", "a dog, a dog and a fox", "small birds sing [SEP] in green trees"]


def write_router(folder: Path, *, activation: str = "log1p_relu", queries: str = "SparseStaticEmbedding") -> Any:
    """Save a SparseEncoder with a Router over tiny random weights, and return it."""
    from sentence_transformers.base.modules import Router, Transformer
    from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling
    from transformers import AutoTokenizer

    source = write_bert(folder / "source", head="ForMaskedLM")
    tokenizer = AutoTokenizer.from_pretrained(source)
    torch.manual_seed(0)
    documents = [Transformer(str(source), transformer_task="fill-mask"), SpladePooling("max", activation)]
    weight = torch.rand(len(tokenizer)) + 0.5
    weight[5] = 0.0
    table = [SparseStaticEmbedding(tokenizer, weight)]
    router = Router.for_query_document(table if queries == "SparseStaticEmbedding" else documents, documents)
    encoder = SparseEncoder(modules=[router], device="cpu")
    encoder.save_pretrained(str(folder / "saved"), create_model_card=False)
    return encoder


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("router")
    return write_router(folder), folder / "saved"


@pytest.fixture
def saved(library: tuple[Any, Path], tmp_path: Path) -> Path:
    """A copy of the folder, which a test may change."""
    return Path(shutil.copytree(library[1], tmp_path / "saved"))


@pytest.fixture(scope="module")
def embedder(library: tuple[Any, Path]) -> Iterator[Embedder]:
    with Embedder(str(library[1]), dtype="float32", offline=True) as made:
        yield made


@pytest.mark.parametrize("kind", ["query", "document"])
def test_weights_equal_sentence_transformers(kind: Any, library: tuple[Any, Path], embedder: Embedder) -> None:
    """A query has the table's weight for each of its tokens; a document log(1 + log(1 + x)) of the largest logits."""
    encode = library[0].encode_query if kind == "query" else library[0].encode_document
    want = encode(TEXTS, convert_to_sparse_tensor=False).numpy()
    got = embedder.embed(TEXTS, outputs=("sparse",), kind=kind).sparse
    rows = np.zeros(want.shape, np.float32)
    for row, one in zip(rows, got, strict=True):
        row[one.indices] = one.values
    np.testing.assert_allclose(rows, want, atol=1e-4)
    assert want[0].any()


def test_an_empty_query_has_no_weights(library: tuple[Any, Path], embedder: Embedder) -> None:
    """As sentence-transformers, which returns zeros for it among others. A document has its special tokens."""
    want = library[0].encode_query([TEXTS[0], "", "  "], convert_to_sparse_tensor=False).numpy()
    assert [bool(row.any()) for row in want] == [True, False, False]
    got = embedder.embed([TEXTS[0], "", "  "], outputs=("sparse",), kind="query").sparse
    assert [len(one.indices) > 0 for one in got] == [True, False, False]
    assert all(one.indices.dtype == np.int32 for one in got)
    (alone,) = embedder.embed([""], outputs=("sparse",), kind="query").sparse
    assert len(alone.indices) == len(alone.values) == 0


def test_a_text_without_a_kind_is_a_document(embedder: Embedder) -> None:
    """As the Router's default route says."""
    plain, document = (embedder.embed(TEXTS[0], outputs=("sparse",), **kind) for kind in ({}, {"kind": "document"}))
    np.testing.assert_array_equal(plain.sparse[0].indices, document.sparse[0].indices)


def test_a_text_without_a_kind_is_a_query_if_the_router_says_so(saved: Path) -> None:
    """Its vector is the table's, as sentence-transformers computes it. Another route, for images, is not read."""
    add_route(saved, "image")
    change_router(parameters={"default_route": "query"})(saved)
    want = SparseEncoder(str(saved), device="cpu").encode(TEXTS, convert_to_sparse_tensor=False).numpy()
    with Embedder(str(saved), dtype="float32", offline=True) as embedder:
        plain, document = (embedder.embed(TEXTS, outputs=("sparse",), kind=kind).sparse for kind in (None, "document"))
    for row, one, other in zip(want, plain, document, strict=True):
        np.testing.assert_allclose(row[one.indices], one.values, atol=1e-4)
        assert len(one.indices) == np.count_nonzero(row) != len(other.indices)


def test_scores_are_dot_products_of_a_query_and_documents(library: tuple[Any, Path], embedder: Embedder) -> None:
    """Rerank presents the query to the table and the passages to the network."""
    query, *passages = TEXTS[:3]
    encoder = library[0]
    one, many = (
        encode(texts, convert_to_sparse_tensor=False).numpy()
        for encode, texts in ((encoder.encode_query, [query]), (encoder.encode_document, passages))
    )
    want = many @ one[0]
    ranked = {one.index: one.score for one in embedder.rerank(query, passages)}
    np.testing.assert_allclose([ranked[0], ranked[1]], want, rtol=1e-4)


def test_the_table_is_part_of_the_fingerprint(saved: Path) -> None:
    """Vectors of the same documents with other query weights belong to another space."""
    before = spec_of(saved).fingerprint
    write_weight(saved, 96)
    assert spec_of(saved).fingerprint != before


def edit(pattern: str, **changes: Any) -> Callable[[Path], object]:
    """Change entries of the folder's JSON file of this name."""

    def change(folder: Path) -> None:
        (path,) = folder.glob(pattern)
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


change_router = partial(edit, "router_config.json")


def add_route(folder: Path, name: str) -> None:
    """The route `name` has the modules of documents."""
    structure = json.loads((folder / "router_config.json").read_text())["structure"]
    change_router(structure={**structure, name: structure["document"]})(folder)


def write_weight(folder: Path, *shape: int) -> None:
    """Replace the table."""
    (path,) = folder.glob("query_0_*/model.safetensors")
    save_file({"weight": torch.ones(shape)}, path)


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "an unknown default": (change_router(parameters={"default_route": "image"}), "default_route"),
    "no default": (change_router(parameters={"default_route": None, "allow_empty_key": False}), "default_route"),
    "a third route of texts": (lambda folder: add_route(folder, "text"), "structure has the routes"),
    "mappings": (
        change_router(parameters={"default_route": "document", "route_mappings": {"('query', 'text')": "document"}}),
        "route_mappings",
    ),
    "no types": (change_router(types=None), "types"),
    "a place outside": (
        change_router(
            types={
                "../x": "sentence_transformers.models.SparseStaticEmbedding",
                "y": "sentence_transformers.models.Transformer",
            },
            structure={"query": ["../x"], "document": ["y"]},
        ),
        "out of the folder",
    ),
    "an unknown place": (change_router(structure={"query": ["x"], "document": ["y"]}), "types has no class"),
    "one route": (change_router(structure={}), "structure has the routes"),
    "another tokenizer": (
        edit("query_0_*/tokenizer.json", normalizer={"type": "NFC"}),
        "tokenizer.json: a tokenizer of queries that differs from the documents'",
    ),
    "a shorter limit": (
        edit("query_0_*/tokenizer_config.json", model_max_length=8),
        "model_max_length 8 is not supported",
    ),
    "no tokenizer": (lambda folder: next(folder.glob("query_0_*/tokenizer.json")).unlink(), "tokenizer.json"),
    "another shape": (lambda folder: write_weight(folder, 4, 4), "one number for each token"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_routers_are_refused(name: str, saved: Path) -> None:
    """The message names the file."""
    change, says = REFUSED[name]
    change(saved)
    assert says in refusal(saved)


def test_two_sparse_networks_are_refused(tmp_path: Path) -> None:
    """Two networks are supported where both make dense vectors."""
    write_router(tmp_path, queries="another network")
    assert "two networks are supported where both make dense vectors" in refusal(tmp_path / "saved")


def test_a_table_that_is_too_short_is_refused(saved: Path) -> None:
    """A token without a weight would fail in a request."""
    write_weight(saved, 4)
    with pytest.raises(StartError, match="a finite number for each of"):
        Embedder(str(saved), dtype="float32", offline=True)
