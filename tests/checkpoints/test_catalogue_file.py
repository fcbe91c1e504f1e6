"""The operator's catalogue file: Simple Inference Server's form is read, and hostile files are refused."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from vectord.checkpoints.catalogue import find
from vectord.checkpoints.catalogue_file import (
    FILE_LIMIT_BYTES,
    TEXT_LIMIT_CHARACTERS,
    read_catalogue_file,
)
from vectord.checkpoints.spec import RequestedModel
from vectord.errors import ConfigError


def write(folder: Path, content: str | bytes) -> Path:
    path = folder / "model_config.yaml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def read(folder: Path, content: str | bytes) -> tuple[RequestedModel, ...]:
    return read_catalogue_file(write(folder, content))


def refusal(folder: Path, content: str | bytes) -> str:
    """Return the message, which is one line and names the file."""
    with pytest.raises(ConfigError) as caught:
        read(folder, content)
    message = caught.value.message
    assert "\n" not in message
    assert message.startswith(f"{folder / 'model_config.yaml'}: ")
    assert len(message) < len(str(folder)) + 500
    return message.partition("model_config.yaml: ")[2]


# --- what is read ---------------------------------------------------------------------------------------------


def test_the_models_of_simple_inference_server_are_served_natively(tmp_path: Path) -> None:
    """Its first published file: both built-in handlers mean native models, found in the catalogue by both names."""
    entries = read(
        tmp_path,
        """
models:
  - name: "bge-m3"
    handler: "app.models.bge_m3.BgeM3Embedding"
    hf_repo_id: "BAAI/bge-m3"
  - name: "embedding-gemma-300m"
    handler: "app.models.embedding_gemma.EmbeddingGemmaEmbedding"
    hf_repo_id: "google/embeddinggemma-300m"
""",
    )
    assert entries == (
        RequestedModel(name="bge-m3", model="BAAI/bge-m3", handler=None, pooling=None),
        RequestedModel(name="embedding-gemma-300m", model="google/embeddinggemma-300m", handler=None, pooling=None),
    )
    for entry in entries:
        assert find(entry.name) is find(entry.model) is not None


def test_its_later_form_is_read_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """No names, one embedding class for all, poolings, and chat models with settings of their own."""
    with caplog.at_level(logging.WARNING, "vectord.checkpoints"):
        embedding, chat = read(
            tmp_path,
            """
models:
  - hf_repo_id: "Qwen/Qwen3-Embedding-0.6B"
    handler: "app.models.hf_embedding.HFEmbeddingModel"
    supports_structured_outputs: false
    pooling: "last_token"
  # a comment
  - hf_repo_id: "Qwen/Qwen3-4B-Instruct-2507"
    handler: "app.models.text_chat.TextChatModel"
    supports_structured_outputs: false
    defaults:
      temperature: 0.7
      top_p: 0.9
      max_tokens: 512
""",
        )
    assert embedding == RequestedModel(
        name="Qwen/Qwen3-Embedding-0.6B", model="Qwen/Qwen3-Embedding-0.6B", handler=None, pooling="last"
    )
    assert chat.handler == "app.models.text_chat.TextChatModel"
    (warning,) = caplog.messages
    assert "'supports_structured_outputs' (2 times), 'defaults' (1 times)" in warning


def test_an_unknown_key_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In an entry and next to the list: a misspelt handler would otherwise serve another model."""
    with caplog.at_level(logging.WARNING, "vectord.checkpoints"):
        read(tmp_path, "models: [{hf_repo_id: b/c, handle: a.B}]\nmodel: x")
    (warning,) = caplog.messages
    assert "'handle'" in warning
    assert "'model'" in warning


@pytest.mark.parametrize("handler", ["embedders.house.HouseEmbedding", "a.b", "_x.Y1", "app.models.bge_m3.Other"])
def test_the_operators_class_is_not_imported(tmp_path: Path, handler: str) -> None:
    """Reading the file returns data only."""
    before = set(sys.modules)
    (entry,) = read(tmp_path, f"models: [{{name: house, hf_repo_id: house/model, handler: {handler}}}]")
    assert entry.handler == handler
    assert set(sys.modules) == before


@pytest.mark.parametrize("null", ["", " null", " ~", " ''"])
def test_an_empty_value_counts_as_missing(tmp_path: Path, null: str) -> None:
    """An unfilled line of a template has no effect."""
    (entry,) = read(
        tmp_path, f"models:\n  - hf_repo_id: a/b\n    name:{null}\n    handler:{null}\n    pooling:{null}\n"
    )
    assert entry == RequestedModel(name="a/b", model="a/b", handler=None, pooling=None)


@pytest.mark.parametrize("text", ["1.0", "2024-01-01", "yes", "007", "1e3", "'null'"])
def test_a_name_is_always_a_text(tmp_path: Path, text: str) -> None:
    """No name becomes a number, a date or a boolean."""
    assert read(tmp_path, f"models: [{{name: {text}, hf_repo_id: a/b}}]")[0].name == text.strip("'")


@pytest.mark.parametrize(("text", "pooling"), [("mean", "mean"), ("Last_Token", "last"), ("CLS", "cls")])
def test_pooling_uses_that_servers_names(tmp_path: Path, text: str, pooling: str) -> None:
    """In any case."""
    assert read(tmp_path, f"models: [{{hf_repo_id: a/b, pooling: {text}}}]")[0].pooling == pooling


# --- what is refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "Expected `object`, got `null`"),
        ("- name: a", "Expected `object`, got `array`"),
        ("model: []", "Object missing required field `models`"),
        ("models:", "Expected `array`, got `null` - at `$.models`"),
        ("models: []", "Expected `array` of length >= 1 - at `$.models`"),
        ("models: [{hf_repo_id: a/b}, bge-m3]", "Expected `object`, got `str` - at `$.models[1]`"),
        ("models: [{hf_repo_id: a/b}, {}]", "models[1]: no hf_repo_id"),
        ("models: [{hf_repo_id: [a/b]}]", "Expected `str | null`, got `array` - at `$.models[0].hf_repo_id`"),
        ("models: [{hf_repo_id: a/b, name: 'a b'}]", "models[0].name: expected no spaces"),
        ("models: [{hf_repo_id: a/b, name: 'a,b'}]", "models[0].name: expected no spaces, commas or semicolons"),
        ('models: [{hf_repo_id: "a\\nb"}]', "models[0].hf_repo_id: expected printable characters"),
        ('models: [{hf_repo_id: "a\\0b"}]', "models[0].hf_repo_id: expected printable characters"),
        (
            f"models: [{{hf_repo_id: {'x' * 1001}}}]",
            f"of length <= {TEXT_LIMIT_CHARACTERS} - at `$.models[0].hf_repo_id`",
        ),
        ("models: [{hf_repo_id: a/b, handler: Handler}]", "models[0].handler: expected a path such as"),
        ("models: [{hf_repo_id: a/b, handler: a..B}]", "models[0].handler: expected a path such as"),
        ("models: [{hf_repo_id: a/b, handler: a.B()}]", "models[0].handler: expected a path such as"),
        ("models: [{hf_repo_id: a/b, handler: ../a.B}]", "models[0].handler: expected a path such as"),
        ("models: [{hf_repo_id: a/b, handler: 'os:system'}]", "models[0].handler: expected a path such as"),
        (
            "models: [{hf_repo_id: a/b, handler: [a.B]}]",
            "Expected `str | null`, got `array` - at `$.models[0].handler`",
        ),
        ("models: [{hf_repo_id: a/b, pooling: median}]", "models[0].pooling: expected one of mean, last_token, cls"),
        (
            "models: [{name: a, hf_repo_id: b}, {name: a, hf_repo_id: c}]",
            "models[1].name: 'a' is the name of an earlier model",
        ),
        (
            "models: [{name: a, hf_repo_id: b}, {name: A, hf_repo_id: c}]",
            "models[1].name: 'A' is the name of an earlier model",
        ),
        ("models: [{hf_repo_id: a/b}, {hf_repo_id: a/b}]", "models[1].name: 'a/b' is the name of an earlier model"),
    ],
)
def test_an_invalid_file_is_refused(tmp_path: Path, content: str, says: str) -> None:
    """The message names the entry, the key, the expected and the given value."""
    assert says in refusal(tmp_path, content)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("models: [{hf_repo_id: a/b}]\n---\nmodels: []", "expected a single document"),
        ("models: [{hf_repo_id: a/b}", "not YAML"),
        ("models:\n\t- a", "not YAML"),
        ("'", "not YAML"),
        ("%YAML 9.9\n---\na: b", "not YAML"),
        (b"models: \xff\xfe", "not YAML"),
        (b"models: \0", "not YAML"),
    ],
)
def test_a_file_that_is_not_yaml_is_refused(tmp_path: Path, content: str | bytes, says: str) -> None:
    """With the parser's reason."""
    assert says in refusal(tmp_path, content)


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    """The parser recurses."""
    assert "not YAML" in refusal(tmp_path, "[" * FILE_LIMIT_BYTES)


def test_a_file_over_the_limit_is_not_parsed(tmp_path: Path) -> None:
    """One byte over the limit is refused even if harmless; a file of exactly the limit is read."""
    content = "models: [{hf_repo_id: a/b}]\n#"
    full = content + "x" * (FILE_LIMIT_BYTES - len(content))
    assert len(read(tmp_path, full)) == 1
    assert f"more than {FILE_LIMIT_BYTES:,} bytes" in refusal(tmp_path, full + "x")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A folder counts as missing."""
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(ConfigError, match="no such regular file") as caught:
            read_catalogue_file(path)
        assert str(path) in caught.value.message
