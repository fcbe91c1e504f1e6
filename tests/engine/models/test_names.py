"""models/names.py: what clients may call each model."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.opening import minilm_folder, opened

from vectord.config import DEFAULT_MODEL
from vectord.errors import ConfigError


def test_the_default_model_goes_by_all_its_names() -> None:
    """Its id, its catalogue names and its last part; a client may use any."""
    (model,) = opened()
    assert model.name == DEFAULT_MODEL
    assert "all-MiniLM-L6-v2" in model.aliases


def test_a_served_name_stands_beside_the_id(tmp_path: Path) -> None:
    """The first model is served as told, the second keeps its own name; a folder's path is nobody's business."""
    folder = str(minilm_folder(tmp_path / "mine"))
    first, second = opened(DEFAULT_MODEL, folder, served_model_name=("text-embed",))
    assert (first.name, second.name) == ("text-embed", "mine")
    assert DEFAULT_MODEL in first.aliases
    assert second.aliases == ()


def test_a_name_that_two_models_could_claim_is_nobodys(tmp_path: Path) -> None:
    """A short name must not depend on the order of the models."""
    here, there = minilm_folder(tmp_path / "here" / "m"), minilm_folder(tmp_path / "there" / "m")
    models = opened(str(here), str(there), served_model_name=("a", "b"))
    assert [model.aliases for model in models] == [(), ()]


def test_two_models_of_one_name_are_refused(tmp_path: Path) -> None:
    """Which one would answer?"""
    here, there = minilm_folder(tmp_path / "here" / "m"), minilm_folder(tmp_path / "there" / "m")
    with pytest.raises(ConfigError, match="served as m;"):
        opened(str(here), str(there))


def test_more_names_than_models_are_refused() -> None:
    """One of the names would lead nowhere."""
    with pytest.raises(ConfigError, match="2 names for 1 models"):
        opened(DEFAULT_MODEL, served_model_name=("a", "b"))


def test_a_model_has_the_aliases_it_is_given(tmp_path: Path) -> None:
    """Clients with a model's name built in need no change; the target may be any name that the model has."""
    aliases = ("text-embedding-3-small=all-MiniLM-L6-v2", "house=mine", f"ada={DEFAULT_MODEL}")
    first, second = opened(DEFAULT_MODEL, str(minilm_folder(tmp_path / "mine")), model_aliases=aliases)
    assert {"text-embedding-3-small", "ada", "all-MiniLM-L6-v2"} <= set(first.aliases)
    assert second.aliases == ("house",)


def test_an_alias_outranks_a_name_that_follows_from_a_model(tmp_path: Path) -> None:
    """The operator may say which model a short name means; it then means that one alone."""
    aliases = ("all-MiniLM-L6-v2=mine",)
    first, second = opened(DEFAULT_MODEL, str(minilm_folder(tmp_path / "mine")), model_aliases=aliases)
    assert "all-MiniLM-L6-v2" not in first.aliases
    assert second.aliases == ("all-MiniLM-L6-v2",)


@pytest.mark.parametrize(
    ("aliases", "message"),
    {
        "no model": (("ada",), "expected NAME=MODEL, got 'ada'"),
        "a blank": (("a da=mine",), "expected NAME=MODEL"),
        "unknown model": (("ada=nobody",), "ada: no model is served as 'nobody'; there are: mine"),
        "a model's name": (("mine=mine",), "mine is taken"),
        "twice": (("ada=mine", "ada=mine"), "ada is taken"),
    }.values(),
    ids=str,
)
def test_an_alias_that_cannot_be_is_refused(tmp_path: Path, aliases: tuple[str, ...], message: str) -> None:
    """The start stops with what was expected."""
    with pytest.raises(ConfigError, match=f"model_aliases: {message}"):
        opened(str(minilm_folder(tmp_path / "mine")), model_aliases=aliases)


def test_pins_are_of_served_names() -> None:
    """A pin that meets no model is a mistake, and is told."""
    with pytest.raises(ConfigError, match="pinned_models: no model is served as 'nobody'"):
        opened(pinned_models=("nobody",))
