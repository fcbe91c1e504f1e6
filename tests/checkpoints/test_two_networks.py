"""Models with a network or table for queries and another network for documents, as sentence-transformers saves and
computes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Router, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding
from tests.checkpoints.reading import refusal, spec_of
from tests.checkpoints.test_router import change_router
from tests.models import WIDTH, write_bert

from vectord import Embedder
from vectord.config import Config, DeviceConfig, ModelConfig
from vectord.engine.models import open_models
from vectord.engine.models.registry import Registry

TEXTS = ["the quick brown fox jumps", "a dog, a dog and a fox", "small birds sing in green trees"]
QUERIES = ("another network", "a table")


def write_two(folder: Path, queries: str, *, width: int = WIDTH, shared: bool = True) -> Any:
    """Save a SentenceTransformer with a Router over tiny random weights, and return it. width: of a table."""
    from tokenizers import Tokenizer

    torch.manual_seed(0)
    source = write_bert(folder / "documents")
    documents = [Transformer(str(source)), Pooling(WIDTH, "mean")]
    if queries == "a table":
        tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
        asking = [StaticEmbedding(tokenizer, embedding_dim=width)]
    else:
        asking = [Transformer(str(write_bert(folder / "queries", seed=1))), Pooling(WIDTH, "cls")]
    router = Router.for_query_document(asking, documents)
    model = SentenceTransformer(modules=[router, *([Normalize()] if shared else [])], device="cpu")
    model.save_pretrained(str(folder / "saved"), create_model_card=False)
    return model


@pytest.fixture(scope="module", params=QUERIES)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("two")
    return write_two(folder, request.param), folder / "saved"


@pytest.fixture(scope="module")
def embedder(library: tuple[Any, Path]) -> Iterator[Embedder]:
    with Embedder(str(library[1]), dtype="float32", offline=True) as made:
        yield made


@pytest.mark.parametrize("kind", ["query", "document", None])
def test_vectors_equal_sentence_transformers(kind: Any, library: tuple[Any, Path], embedder: Embedder) -> None:
    """A text without a kind is a document, as the Router's default route says."""
    encode = library[0].encode_query if kind == "query" else library[0].encode_document
    np.testing.assert_allclose(embedder.embed(TEXTS, kind=kind), encode(TEXTS), atol=1e-5)
    other = library[0].encode_document if kind == "query" else library[0].encode_query
    assert not np.allclose(encode(TEXTS), other(TEXTS), atol=1e-2)


@pytest.mark.parametrize("route", ["text", "any name"])
def test_a_router_with_one_route_of_texts_is_one_model(tmp_path: Path, route: str) -> None:
    """By its name, or as the default; routes of images are not read, and shared modules follow."""
    torch.manual_seed(0)
    transformer = Transformer(str(write_bert(tmp_path / "source")))
    router = Router({route: [transformer, Pooling(WIDTH, "mean")]}, default_route=route)
    model = SentenceTransformer(modules=[router, Dense(WIDTH, 8)], device="cpu")
    saved = tmp_path / "saved"
    model.save_pretrained(str(saved), create_model_card=False)
    path = saved / "router_config.json"
    config = json.loads(path.read_text())
    config["structure"]["image"] = ["image_0_CLIPModel"]
    config["types"]["image_0_CLIPModel"] = "sentence_transformers.models.CLIPModel"
    path.write_text(json.dumps(config))
    with Embedder(str(saved), dtype="float32", offline=True) as embedder:
        np.testing.assert_allclose(embedder.embed(TEXTS, normalize=False), model.encode(TEXTS), atol=1e-5)


def test_queries_may_be_the_default(tmp_path: Path) -> None:
    """As sentence-transformers encodes a text without a task, and without the name of a prompt of documents."""
    write_two(tmp_path, "another network")
    change_router(parameters={"default_route": "query"})(tmp_path / "saved")
    model = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    with Embedder(str(tmp_path / "saved"), dtype="float32", offline=True) as embedder:
        np.testing.assert_allclose(embedder.embed(TEXTS), model.encode(TEXTS), atol=1e-5)
        np.testing.assert_allclose(embedder.embed(TEXTS, kind="document"), model.encode_document(TEXTS), atol=1e-5)
    assert not np.allclose(model.encode(TEXTS), model.encode_document(TEXTS), atol=1e-2)


def test_scores_compare_a_query_and_documents(library: tuple[Any, Path], embedder: Embedder) -> None:
    """Rerank presents the query to one network and the passages to the other."""
    query, *passages = TEXTS
    want = library[0].encode_document(passages) @ library[0].encode_query(query)
    ranked = {one.index: one.score for one in embedder.rerank(query, passages)}
    np.testing.assert_allclose([ranked[0], ranked[1]], want, atol=1e-5)


def test_one_model_is_listed(library: tuple[Any, Path]) -> None:
    """The network of queries is loaded and unloaded as a model, and clients do not see it."""
    config = Config(model=ModelConfig(models=(str(library[1]),)), device=DeviceConfig(backend="fake"))
    registry = Registry(open_models(config))
    assert [target.name for target in registry.targets] == ["saved"]
    assert [served.name for served in registry.models] == ["saved", "saved (queries)"]


def test_both_networks_are_part_of_the_fingerprint(tmp_path: Path) -> None:
    """Vectors of the same documents with another network of queries belong to another space."""
    write_two(tmp_path, "another network")
    before = spec_of(tmp_path / "saved").fingerprint
    (weights,) = (tmp_path / "saved").glob("query_0_*/model.safetensors")
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert spec_of(tmp_path / "saved").fingerprint != before


def test_vectors_of_two_widths_are_refused(tmp_path: Path) -> None:
    """They could not be compared."""
    write_two(tmp_path, "a table", width=WIDTH // 2, shared=False)
    assert f"those of documents have {WIDTH} numbers, those of queries {WIDTH // 2}" in refusal(tmp_path / "saved")
