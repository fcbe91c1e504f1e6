"""The catalogue: every entry is found by all its names, without a network, and its facts are consistent."""

from __future__ import annotations

import re
from collections import Counter
from typing import get_args

import pytest

from vectord.checkpoints.catalogue import CATALOGUE, Entry, ModelTask, find, other_names
from vectord.checkpoints.spec import Pooling
from vectord.compute.networks.network import ARCHITECTURES
from vectord.schema import AnswerKind

# model_type of every architecture with a network, of static models, and of one that the backend transformers serves
SERVED = {*ARCHITECTURES, "model2vec", "static", "qwen3_5_text"}


def known(name: str) -> Entry:
    entry = find(name)
    assert entry is not None, name
    return entry


# --- names ----------------------------------------------------------------------------------------------------


def test_names_are_unique() -> None:
    """Hub ids, aliases and last parts of all entries differ, ignoring case."""
    names = Counter(name.lower() for entry in CATALOGUE for name in entry.names)
    assert [name for name, count in names.items() if count > 1] == []


def test_a_model_is_found_by_each_of_its_names() -> None:
    """In any case. Each name returns all others and not itself."""
    for entry in CATALOGUE:
        for name in entry.names:
            assert find(name) is find(name.upper()) is find(name.lower()) is entry, entry.hub_id
            assert {name, *other_names(name)} == set(entry.names), entry.hub_id
            assert name not in other_names(name), entry.hub_id


def test_a_hub_id_has_an_owner_and_a_name() -> None:
    """A typing error here would otherwise show at the first download."""
    for entry in CATALOGUE:
        assert re.fullmatch(r"[A-Za-z0-9-]+/[A-Za-z0-9][A-Za-z0-9_.-]{0,95}", entry.hub_id), entry.hub_id


@pytest.mark.parametrize(
    ("name", "hub_id"),
    [
        ("bge-m3", "BAAI/bge-m3"),
        ("embedding-gemma-300m", "google/embeddinggemma-300m"),
        ("all-minilm-l6-v2", "sentence-transformers/all-MiniLM-L6-v2"),
        ("Xenova/ms-marco-MiniLM-L-6-v2", "cross-encoder/ms-marco-MiniLM-L-6-v2"),
        ("all-minilm:33m", "sentence-transformers/all-MiniLM-L12-v2"),
        ("nomic-embed-text:latest", "nomic-ai/nomic-embed-text-v1.5"),
        ("qwen3-embedding:0.6b", "Qwen/Qwen3-Embedding-0.6B"),
    ],
)
def test_short_names_of_other_servers_are_known(name: str, hub_id: str) -> None:
    """The names that other servers use mean the same models here."""
    assert known(name).hub_id == hub_id


@pytest.mark.parametrize("name", ["", "bge", "BAAI", "BAAI/", "org/bge-m3", " bge-m3", "bge-m3\0"])
def test_an_unknown_name_finds_nothing(name: str) -> None:
    """A part of a name does not match."""
    assert find(name) is None
    assert other_names(name) == ()


# --- facts ----------------------------------------------------------------------------------------------------


def test_an_entrys_facts_are_consistent() -> None:
    """ModelTask, outputs, dimensions and pooling fit each other."""
    for entry in CATALOGUE:
        assert entry.model_type.replace("-", "_") in SERVED, entry.hub_id
        assert entry.task in get_args(ModelTask), entry.hub_id
        assert entry.kinds, entry.hub_id
        assert set(entry.kinds) <= set(get_args(AnswerKind)), entry.hub_id
        assert (entry.kinds == ("scores",)) == (entry.task != "embed"), entry.hub_id
        assert entry.pooling is None or "dense" in entry.kinds, entry.hub_id
        assert entry.pooling in (None, *get_args(Pooling)), entry.hub_id
        assert (entry.dimensions is not None) == bool({"dense", "colbert"} & set(entry.kinds)), entry.hub_id


def test_matryoshka_dimensions_end_at_the_full_length() -> None:
    """They ascend to the full length, which every request may ask for; only dense vectors are cut."""
    for entry in CATALOGUE:
        dimensions = list(entry.matryoshka or ())
        assert dimensions == sorted(set(dimensions)), entry.hub_id
        assert dimensions == [] or (dimensions[0] >= 32 and dimensions[-1] == entry.dimensions), entry.hub_id
        assert dimensions == [] or "dense" in entry.kinds, entry.hub_id


def test_an_entrys_texts_are_complete() -> None:
    """Only embedding models have prompts, and the template of a reranker has each placeholder once."""
    for entry in CATALOGUE:
        assert not entry.prompts or entry.task == "embed", entry.hub_id
        assert all(re.fullmatch("[a-z]+", kind) and text for kind, text in entry.prompts.items()), entry.hub_id
        if entry.yes_no is not None:
            assert entry.task == "rerank", entry.hub_id
            body = entry.yes_no.body
            passages = entry.yes_no.passages
            parts = [body] if isinstance(body, str) else [*body]
            parts += [] if passages is None else [passages.text]
            places = re.findall(r"{(\w+)}", " ".join(parts))
            assert [place for place in places if place != "instruction"] == ["query", "document"], entry.hub_id
            assert not re.findall("[{}]", entry.yes_no.prefix + entry.yes_no.suffix + entry.yes_no.instruction), (
                entry.hub_id
            )
        if entry.listwise is not None:
            assert entry.task == "rerank", entry.hub_id
            words = entry.listwise
            places = re.findall(r"{(\w+)}", words.opening + words.passage + words.closing)
            assert places == ["count", "query", "instruction", "number", "document", "query"], entry.hub_id
            assert not re.findall("[{}]", words.prefix + words.between), entry.hub_id
