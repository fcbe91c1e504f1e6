"""The list of served models: one answer with the keys of everyone who asks for it at the same path."""

from __future__ import annotations

import msgspec
import pytest
from tests.products.results import model_info, model_list

from vectord.products.common.models import ListedModels, listed_models, model_item
from vectord.products.common.vectors import dump_json

RERANKER = {"outputs": frozenset(), "reranks": True, "labels": ("LABEL_0",), "dimensions": 0}


def test_an_item_has_everyones_keys():
    """OpenAI's, Simple Inference Server's width, vLLM's length, infinity's figures and llama.cpp's meta, in full."""
    assert model_item(model_info("org/a")) == {
        "id": "org/a",
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "local",
        "embedding_dimensions": 384,
        "max_model_len": 256,
        "backend": "openvino",
        "capabilities": ["embed"],
        "stats": {"state": "ready"},
        "meta": {"n_ctx_train": 256, "n_embd": 384},
    }


def test_models_are_sorted_by_what_they_are_for():
    """Semantic Explorer lists those with dense vectors and those that rerank, by name, in the order they are served."""
    sparse = model_info("sparse", outputs=frozenset({"sparse"}), dimensions=0)
    both = model_info("both", reranks=True)
    listed = listed_models(model_list(model_info("a"), model_info("b", **RERANKER), sparse, both))
    assert [item["id"] for item in listed["data"]] == ["a", "b", "sparse", "both"]
    assert listed["object"] == "list"
    assert listed["embedding_models"] == ["a", "both"]
    assert listed["reranking_models"] == ["b", "both"]


@pytest.mark.parametrize(
    ("facts", "capabilities"),
    [
        pytest.param({}, ["embed"], id="embeds"),
        pytest.param({"outputs": frozenset({"sparse"}), "dimensions": 0}, [], id="no dense vector"),
        pytest.param(RERANKER, ["rerank", "classify"], id="cross-encoder"),
        pytest.param({"outputs": frozenset(), "labels": ("sad", "glad")}, ["classify"], id="classifier"),
    ],
)
def test_capabilities_in_infinitys_words(facts, capabilities):
    """What the model has of its own."""
    assert model_item(model_info(**facts))["capabilities"] == capabilities


def test_infinitys_client_reads_its_own_name_only():
    """It raises on any other `owned_by`, so its dialect can say so, for every item."""
    listed = listed_models(model_list("a", "b"), owned_by="infinity")
    assert [item["owned_by"] for item in listed["data"]] == ["infinity", "infinity"]


def test_the_list_fits_its_schema():
    """What OpenAPI promises is what is sent."""
    body = dump_json(listed_models(model_list("a", model_info("b", **RERANKER))))
    assert [item.id for item in msgspec.json.decode(body, type=ListedModels).data] == ["a", "b"]
