"""Qwen3-VL's folders: embedders and rerankers, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoints.reading import refusal, spec_of
from tests.qwen_vl import PROCESSOR, write_gme, write_qwen3_vl

RERANKER = "Qwen/Qwen3-VL-Reranker-2B"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen3_vl(tmp_path_factory.mktemp("original"), head=True)


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    for file in original.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def change(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_an_embedder_needs_no_pooling_folder(folder: Path) -> None:
    """The last token, of the template with the script's instruction; images within the script's limits."""
    spec = spec_of(folder, name="Qwen/Qwen3-VL-Embedding-2B")
    assert (spec.pooling, spec.dimensions, spec.matryoshka) == ("last", 32, tuple(range(64, 2049)))
    assert spec.template is not None and spec.template.prompt == "Represent the user's input."
    assert spec.images is not None and spec.images.processor == PROCESSOR


def test_a_reranker_is_known_by_its_name(folder: Path) -> None:
    """Its answers are "no" and "yes", and its template has the query too."""
    spec = spec_of(folder, name=RERANKER)
    assert spec.yes_no is not None and spec.yes_no.token_ids is not None and spec.reranks
    assert spec.template is not None and "{query}" in spec.template.text
    assert spec_of(folder, name="mine/qwen-vl-rerank").template == spec.template


@pytest.mark.parametrize(
    ("file", "fields", "reason"),
    [
        ("preprocessor_config.json", {"patch_size": 14}, "patch_size"),
        ("preprocessor_config.json", {"do_resize": False}, "do_resize"),
        ("preprocessor_config.json", {"do_flip": True}, "do_flip True is not supported"),
        ("config.json", {"image_token_id": 3}, "image_token_id 3 is not <|image_pad|>"),
    ],
    ids=["patch", "resize", "unknown step", "token"],
)
def test_other_steps_are_refused(folder: Path, file: str, fields: dict[str, Any], reason: str) -> None:
    """They would make other vectors."""
    change(folder / file, **fields)
    assert reason in refusal(folder)


def test_the_processors_own_limits_have_no_effect(folder: Path) -> None:
    """The models' scripts do not read them."""
    change(folder / "preprocessor_config.json", size={"shortest_edge": 1, "longest_edge": 2**20})
    images = spec_of(folder).images
    assert images is not None and images.processor == PROCESSOR


def test_a_qwen2_vl_without_a_known_class_is_refused(tmp_path: Path) -> None:
    """Its words around inputs are not known."""
    folder = write_gme(tmp_path)
    change(folder / "config.json", auto_map=None, architectures=["Qwen2VLForConditionalGeneration"])
    (folder / "modules.json").unlink()
    assert "GmeQwen2VL (auto_map) are supported" in refusal(folder)
