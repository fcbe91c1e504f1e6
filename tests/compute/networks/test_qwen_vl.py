"""Qwen3-VL: the vectors of texts, images and both are those of transformers' class, on every backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.checkpoints.reading import spec_of
from tests.compute.networks.two_networks import TwoNetworks, read
from tests.qwen_vl import GmeReference, Reference, embedder_text, shown, write_gme, write_qwen3_vl

from vectord.checkpoints.spec import ModelSpec

IMAGES = shown()
INPUTS: list[list[Any]] = [
    ["the quick brown fox"],
    [IMAGES[0]],
    [IMAGES[1], "a caption\n"],
    ["two ", IMAGES[2], " and", IMAGES[3]],
]


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    return spec_of(write_qwen3_vl(tmp_path_factory.mktemp("qwen3-vl")))


@pytest.fixture(scope="module")
def reference(spec: ModelSpec) -> Reference:
    return Reference(spec.folder)


@pytest.fixture(scope="module")
def expected(reference: Reference) -> np.ndarray:
    return np.stack([reference.embed(parts) for parts in INPUTS])


def test_tokens_are_those_of_the_script(spec: ModelSpec, reference: Reference) -> None:
    """In its template, with a token for each row of an image."""
    texts = read(spec, INPUTS)
    for i, parts in enumerate(INPUTS):
        images = [part for part in parts if not isinstance(part, str)]
        np.testing.assert_array_equal(texts[i].ids, reference.inputs(embedder_text(parts), images)["input_ids"][0])


@pytest.mark.parametrize("name", ["numpy", "openvino", "torch"])
def test_vectors_equal_its_own_class(name: str, spec: ModelSpec, expected: np.ndarray) -> None:
    """From texts and files to the vector of the last token; together and alone."""
    assert np.abs(expected).max() > 1
    atol = 1e-5 if name == "numpy" else 1e-4
    with TwoNetworks(spec, name) as networks:
        np.testing.assert_allclose(networks.answer(read(spec, INPUTS)), expected, atol=atol)
        for parts, want in zip(INPUTS, expected, strict=True):
            np.testing.assert_allclose(networks.answer(read(spec, [parts])), [want], atol=atol)


def test_texts_alone_have_plain_positions(spec: ModelSpec) -> None:
    """Without coordinates, features, and the network of images; next to inputs with images nothing changes."""
    alone, networks = read(spec, INPUTS[:1]), TwoNetworks(spec)
    assert alone.images is None and alone.coordinates is None and alone.features is None
    np.testing.assert_array_equal(networks.answer(alone), networks.answer(read(spec, INPUTS))[:1])


def test_reranker_scores_equal_its_script(tmp_path: Path) -> None:
    """The logit of "yes" less that of "no", of a query with each document; both may have texts and images."""
    folder = write_qwen3_vl(tmp_path, head=True)
    spec, reference = spec_of(folder, name="Qwen/Qwen3-VL-Reranker-2B"), Reference(folder)
    query: list[Any] = ["the quick ", IMAGES[0]]
    documents = [["a lazy dog"], [IMAGES[1]], ["many birds ", IMAGES[2], " sing"]]
    texts = read(spec, documents, query=query, instruction="Find birds")
    logits = TwoNetworks(spec).answer(texts, "scores")
    wanted = [reference.logit(query, document, "Find birds") for document in documents]
    np.testing.assert_allclose(logits[:, 1] - logits[:, 0], wanted, atol=1e-5)
    (query_length, document), *others = texts.parts
    assert {parts[0] for parts in others} == {query_length}
    assert document.kept == len(reference.tokenizer("a lazy dog").input_ids)


def test_gme_equals_the_steps_of_its_script(tmp_path: Path) -> None:
    """In its template, with the images resized twice and plain positions; an instruction stays unchanged."""
    folder = write_gme(tmp_path)
    spec, reference = spec_of(folder), GmeReference(folder)
    inputs = [*INPUTS[:2], [IMAGES[1], "a caption"], [IMAGES[2], "x"]]
    for prompt, system in ((None, "You are a helpful assistant."), ("Find the fox", "Find the fox")):
        wanted = np.stack([reference.embed(parts, system) for parts in inputs])
        found = TwoNetworks(spec).answer(read(spec, inputs, prompt=prompt))
        np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_each_setting_of_both_sections(tmp_path: Path) -> None:
    """Other layers, heads, sizes, taps, sections of the rotation and activations, at once."""
    folder = write_qwen3_vl(
        tmp_path,
        text={"num_hidden_layers": 2, "rms_norm_eps": 0.01, "attention_bias": True, "head_dim": 12}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "mrope_section": [3, 1, 2]}},
        depth=2,
        num_heads=4,
        intermediate_size=20,
        hidden_act="gelu",
        deepstack_visual_indexes=[1],
        num_position_embeddings=16,
    )
    spec, parts = spec_of(folder), ["a lazy dog ", *IMAGES[:2]]
    found = TwoNetworks(spec).answer(read(spec, [parts]))
    np.testing.assert_allclose(found, [Reference(folder).embed(parts)], atol=1e-5)
