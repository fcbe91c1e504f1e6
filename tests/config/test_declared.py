"""The declared settings, the names and values derived from them, and the generated files."""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from vectord.config import DEFAULT_MODEL, Config, ModelConfig, ServerConfig
from vectord.config.settings import SETTINGS, BadValue, Setting, option_name

ROOT = Path(__file__).resolve().parents[2]


def named(name: str) -> Setting:
    return next(setting for setting in SETTINGS if setting.name == name)


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("kind", ["name", "flags", "env"])
def test_no_two_settings_share_a_name(kind: str) -> None:
    """A key, an option or a variable has one meaning."""
    values = [getattr(setting, kind) for setting in SETTINGS]
    names = values if kind == "name" else [name for group in values for name in group]
    assert [name for name, count in Counter(names).items() if count > 1] == []


def test_every_default_is_a_value_of_its_setting() -> None:
    """A written default, as in .env.example, changes nothing."""
    texts = generator()
    for setting in SETTINGS:
        if written := texts.default_of(setting):
            assert setting.from_text(written) == setting.default, setting.name


def test_every_variable_is_an_option_too() -> None:
    """VECTORD_PORT is --port, and HF_HUB_CACHE is --hf-hub-cache."""
    for setting in SETTINGS:
        assert {option_name(name) for name in setting.env} <= set(setting.flags), setting.name


# Properties that other code reads in place of some settings.
READ_AS = {
    "api_key": "accepted_keys",
    "models": "in_order",
}


def test_every_setting_is_used() -> None:
    """In the source code outside its declaration."""
    declared = ROOT / "src" / "vectord" / "config" / "declared.py"
    source = "".join(path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py") if path != declared)
    attributes = set(re.findall(r"\.(\w+)", source))
    assert [one.name for one in SETTINGS if READ_AS.get(one.name, one.name) not in attributes] == []


SCHEMA = "deploy/helm/vectord/values.schema.json"


MODELS = ("docs/models.md", "docs/models.csv")


@pytest.mark.parametrize("name", [".env.example", "docs/configuration.md", *MODELS, SCHEMA])
def test_the_generated_files_are_current(name: str) -> None:
    """`make format` has run since the last change of a setting."""
    assert (ROOT / name).read_text("utf-8") == generator().FILES[name]()


def test_secrets_are_not_in_the_repr() -> None:
    """A Config in a log or a traceback shows no key."""
    assert "hush" not in repr(Config(server=ServerConfig(api_key="hush")))


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("port", "8080", 8080),
        ("port", " 8080 ", 8080),
        ("cache_bytes", "1_000", 1000),
        ("batch_window_ms", "2.5", 2.5),
        ("batch_window_ms", "4", 4.0),
        ("offline", "Yes", True),
        ("offline", "OFF", False),
        ("auto_truncate", "t", True),
        ("models", "a, b;c,", ("a", "b", "c")),
        ("served_model_name", "", ()),
        ("dtype", "BFloat16", "bfloat16"),
        ("log_level", "WARN", "warning"),
        ("pooling", "last-token", "last"),
        ("pooling", "auto", None),
        ("api_key", "", None),
        ("device", "cuda:3", "cuda:3"),
    ],
)
def test_a_text_becomes_a_value(name: str, text: str, value: object) -> None:
    """From the command line and the environment, in the forms that other servers accept too."""
    assert named(name).from_text(text) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("port", "eighty"),
        ("port", "65536"),
        ("port", "-1"),
        ("port", "8000.0"),
        ("port", "٨٠٨٠"),
        ("port", ""),
        ("port", "9" * 5000),
        ("batch_window_ms", "nan"),
        ("max_queue_wait_s", "inf"),
        ("max_queue_wait_s", "0"),
        ("offline", "maybe"),
        ("dtype", "int4"),
        ("device", "cuda:x"),
        ("device", "gpu"),
        ("log_level", "loud"),
    ],
)
def test_a_bad_text_is_refused_with_the_expected_form(name: str, text: str) -> None:
    """Nothing is guessed or clipped. The reason does not contain the value."""
    with pytest.raises(BadValue) as refusal:
        named(name).from_text(text)
    assert str(refusal.value) == named(name).expected


@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        ("port", 8080, 8080),
        ("batch_window_ms", 4, 4.0),
        ("models", ["a,b", "c"], ("a,b", "c")),
        ("auto_truncate", False, False),
        ("port", "8080", 8080),
    ],
)
def test_a_toml_value_becomes_a_value(name: str, value: object, read: object) -> None:
    """TOML's types are used unchanged; a text is read as in the environment."""
    assert named(name).from_toml(value) == read


@pytest.mark.parametrize(
    ("name", "value"),
    [("port", True), ("port", 80.0), ("port", 70_000), ("offline", 1), ("models", [1]), ("models", {}), ("host", 1)],
)
def test_a_toml_value_of_another_type_is_refused(name: str, value: object) -> None:
    """TOML has types, so nothing is converted."""
    with pytest.raises(BadValue):
        named(name).from_toml(value)


@pytest.mark.parametrize(
    ("given", "models"),
    {
        "nothing": ({}, (DEFAULT_MODEL,)),
        "a reranker": ({"reranker_model": "r"}, (DEFAULT_MODEL, "r")),
        "a default": ({"default_embedding_model": "d"}, ("d",)),
        "all": (
            {
                "models": ("a", "b"),
                "default_embedding_model": "d",
                "dense_embedding_model": "q",
                "reranker_model": "r",
                "rerankers": ("s", "r"),
            },
            ("d", "q", "a", "b", "r", "s"),
        ),
        "one in two places": ({"models": ("a", "b"), "default_embedding_model": "b"}, ("b", "a")),
    }.values(),
    ids=str,
)
def test_embedding_models_precede_rerankers(given: dict[str, Any], models: tuple[str, ...]) -> None:
    """The order decides which model answers without `model`; each model is served once."""
    assert ModelConfig(**given).in_order == models


@pytest.mark.parametrize(
    ("keys", "accepted"),
    [
        ({}, {}),
        ({"api_key": "a"}, {"api_key": "a"}),
        ({"api_token": "b"}, {"api_token": "b"}),
        ({"api_key": "a", "api_token": "b"}, {"api_key": "a", "api_token": "b"}),
        ({"api_key": "a", "api_token": "a"}, {"api_key": "a"}),
    ],
    ids=str,
)
def test_either_key_opens_the_server(keys: dict[str, str], accepted: dict[str, str]) -> None:
    """Both may be set."""
    assert ServerConfig(**keys).accepted_keys == accepted
