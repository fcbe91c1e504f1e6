"""Prompts of the model and of the catalogue, and the default prompt."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.checkpoints.folders import write_json, write_sentence_model
from tests.checkpoints.reading import refusal, spec_of

from vectord.errors import ConfigError


def test_prompts_and_the_default_prompt(folder: Path) -> None:
    """Prompts come from the model; the operator may choose one of them as default."""
    write_sentence_model(folder)
    prompts = {"query": "query: ", "document": ""}
    write_json(folder / "config_sentence_transformers.json", {"prompts": prompts, "default_prompt_name": "document"})
    assert spec_of(folder).prompts == prompts
    assert spec_of(folder).default_prompt_name == "document"
    assert spec_of(folder, default_prompt_name="query").default_prompt_name == "query"
    with pytest.raises(ConfigError, match="it has query, document"):
        spec_of(folder, default_prompt_name="passage")


@pytest.mark.parametrize(
    "fields",
    [{"prompts": []}, {"prompts": {"a": 3}}, {"prompts": {"a": "x" * 20_001}}, {"default_prompt_name": "a"}],
    ids=lambda fields: str(fields)[:30],
)
def test_invalid_prompts_are_refused(fields: dict[str, object], folder: Path) -> None:
    """Prompts are texts of bounded length, and the default is one of them."""
    write_sentence_model(folder)
    write_json(folder / "config_sentence_transformers.json", fields)
    assert "config_sentence_transformers.json" in refusal(folder)


@pytest.mark.parametrize("own", [{}, {"query": "", "document": ""}], ids=str)
def test_a_model_without_prompts_has_the_catalogues(own: dict[str, str], folder: Path) -> None:
    """Those of its model card; sentence-transformers 6 writes empty ones for a model without prompts."""
    write_sentence_model(folder)
    write_json(folder / "config_sentence_transformers.json", {"prompts": own})
    prompts = spec_of(folder, name="intfloat/e5-base-v2").prompts
    assert prompts == {"query": "query: ", "document": "passage: "}
    assert spec_of(folder, name="intfloat/e5-base-v2", default_prompt_name="document").default_prompt_name == "document"


def test_a_models_own_prompts_take_precedence(folder: Path) -> None:
    """The author of a fine-tuned model changed them on purpose."""
    write_sentence_model(folder)
    write_json(folder / "config_sentence_transformers.json", {"prompts": {"query": "q: "}})
    assert spec_of(folder, name="intfloat/e5-base-v2").prompts == {"query": "q: "}
