"""The declared settings and what is derived from it: the settings' names and kinds, and the two generated files."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from vectord.config.declared import Config, ServerConfig, address_only, first_bare_level, json_lines, no_service_link
from vectord.config.settings import SETTINGS, BadValue, Setting

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
    """A key, an option or an environment name says one thing."""
    values = [getattr(setting, kind) for setting in SETTINGS]
    names = values if kind == "name" else [name for group in values for name in group]
    assert [name for name, count in Counter(names).items() if count > 1] == []


def test_every_default_is_a_value_of_its_setting() -> None:
    """Writing a default out, as .env.example does, changes nothing."""
    texts = generator()
    for setting in SETTINGS:
        if written := texts._default(setting):
            assert setting.from_text(written) == setting.default, setting.name


def test_every_meaning_is_one_line_that_ends() -> None:
    """The meaning is a sentence of the help text."""
    for setting in SETTINGS:
        assert setting.meaning.endswith("."), setting.name
        assert "\n" not in setting.meaning, setting.name


def test_the_names_read_otherwise_are_names_of_their_setting() -> None:
    """A misspelt key of `reads` would never be looked at."""
    for setting in SETTINGS:
        assert set(setting.reads) <= {*setting.env, *setting.flags}, setting.name


@pytest.mark.parametrize("name", [".env.example", "docs/configuration.md", "docs/models.md", "README.md"])
def test_the_generated_files_are_current(name: str) -> None:
    """`make format` has been run since a setting changed."""
    assert (ROOT / name).read_text("utf-8") == generator().FILES[name]()


def test_secrets_are_not_in_the_repr() -> None:
    """A Config that ends up in a log or a traceback shows no key."""
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
    """Texts of the command line and the environment, in the forms that other servers take too."""
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
        ("models", " , ; "),
        ("dtype", "int8"),
        ("device", "cuda:x"),
        ("device", "gpu"),
        ("log_level", "loud"),
    ],
)
def test_a_bad_text_is_refused_with_what_was_expected(name: str, text: str) -> None:
    """Nothing is guessed and nothing is clipped; the reason does not hold the value."""
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
    """TOML's own types count as they are; a text counts as it does in the environment."""
    assert named(name).from_toml(value) == read


@pytest.mark.parametrize(
    ("name", "value"),
    [("port", True), ("port", 80.0), ("port", 70_000), ("offline", 1), ("models", [1]), ("models", {}), ("host", 1)],
)
def test_a_toml_value_of_another_type_is_refused(name: str, value: object) -> None:
    """TOML says what type it means, so nothing is converted."""
    with pytest.raises(BadValue):
        named(name).from_toml(value)


@pytest.mark.parametrize(("text", "read"), [("0.0.0.0", "0.0.0.0"), ("::1", "::1"), ("localhost", "localhost")])
def test_an_address_is_meant_for_us(text: str, read: str) -> None:
    """HOSTNAME counts when it can be listened on."""
    assert address_only(text) == read


@pytest.mark.parametrize("text", ["laptop", "4f2a9c1e77b0", "vectord-7d9f-x2x", "localhost.localdomain"])
def test_a_machines_name_is_not_meant_for_us(text: str) -> None:
    """Shells and containers set HOSTNAME to it."""
    assert address_only(text) is None


def test_a_service_link_of_kubernetes_is_not_a_port() -> None:
    """A service called vectord, or api, puts a URL into VECTORD_PORT or API_PORT of every pod."""
    assert no_service_link("tcp://10.0.0.7:8000") is None
    assert no_service_link("8000") == "8000"


@pytest.mark.parametrize(
    ("text", "level"),
    [("info,tower=debug", "info"), ("tower=debug, warn", "warn"), ("debug", "debug"), ("a=info", None), ("", None)],
)
def test_rust_log_gives_its_first_bare_level(text: str, level: str | None) -> None:
    """What RUST_LOG says for single targets has no meaning here."""
    assert first_bare_level(text) == level


@pytest.mark.parametrize(("text", "format_"), [("true", "json"), ("1", "json"), ("False", "text"), ("0", "text")])
def test_json_output_is_a_log_format(text: str, format_: str) -> None:
    """TEI's switch has two positions."""
    assert json_lines(text) == format_
