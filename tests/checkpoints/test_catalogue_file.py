"""The operator's catalogue file: Simple Inference Server's form is read, and other files are refused."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from vectord.checkpoints.catalogue import find
from vectord.checkpoints.catalogue_file import FILE_LIMIT_BYTES, read_catalogue_file
from vectord.checkpoints.spec import RequestedModel
from vectord.errors import ConfigError


def read(folder: Path, content: str | bytes) -> tuple[RequestedModel, ...]:
    path = folder / "model_config.yaml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_catalogue_file(path)


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
    """No names, one embedding class for all, poolings, and chat models with settings of their own. Unknown keys are
    logged: a misspelt handler would otherwise serve another model."""
    before = set(sys.modules)
    with caplog.at_level(logging.WARNING, "vectord.checkpoints"):
        embedding, chat = read(
            tmp_path,
            """
models:
  - hf_repo_id: "Qwen/Qwen3-Embedding-0.6B"
    handler: "app.models.hf_embedding.HFEmbeddingModel"
    pooling: "Last_Token"
  # a comment
  - hf_repo_id: "Qwen/Qwen3-4B-Instruct-2507"
    handler: "app.models.text_chat.TextChatModel"
    defaults:
      temperature: 0.7
model: x
""",
        )
    assert embedding == RequestedModel(
        name="Qwen/Qwen3-Embedding-0.6B", model="Qwen/Qwen3-Embedding-0.6B", handler=None, pooling="last"
    )
    assert chat.handler == "app.models.text_chat.TextChatModel"
    assert set(sys.modules) == before  # nothing is imported
    (warning,) = caplog.messages
    assert warning.endswith(": unknown keys, ignored: 'defaults', 'model'")


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


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "Expected `object`, got `null`"),
        ("models: []", "Expected `array` of length >= 1 - at `$.models`"),
        ("models: [{hf_repo_id: a/b}, bge-m3]", "Expected `object`, got `str` - at `$.models[1]`"),
        ("models: [{hf_repo_id: a/b}, {}]", "missing required field `hf_repo_id` - at `$.models[1]`"),
        ("models: [{hf_repo_id: [a/b]}]", "Expected `str`, got `array` - at `$.models[0].hf_repo_id`"),
        ("models: [{hf_repo_id: a/b, name: 'a,b'}]", "at `$.models[0].name`"),
        ('models: [{hf_repo_id: "a\\nb"}]', "at `$.models[0].hf_repo_id`"),
        ('models: [{hf_repo_id: a/b, name: "a\\n"}]', "at `$.models[0].name`"),
        ('models: [{hf_repo_id: a/b, handler: "os.system\\n"}]', "at `$.models[0].handler`"),
        ("models: [{hf_repo_id: a/b, handler: Handler}]", "at `$.models[0].handler`"),
        ("models: [{hf_repo_id: a/b, handler: 'os:system'}]", "at `$.models[0].handler`"),
        ("models: [{hf_repo_id: a/b, pooling: median}]", "(mean|last_token|cls)?"),
        ("models: [{name: a, hf_repo_id: b}, {name: A, hf_repo_id: c}]", "'A' is the name of an earlier model"),
        ("models: [{hf_repo_id: a/b}]\n---\nmodels: []", "expected a single document"),
        ("models: [{hf_repo_id: a/b}", "not YAML"),
        (b"models: \xff\xfe", "not YAML"),
        ("[" * FILE_LIMIT_BYTES, "not YAML"),
        (" " * (FILE_LIMIT_BYTES + 1), f"more than {FILE_LIMIT_BYTES:,} bytes"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_an_invalid_file_is_refused(tmp_path: Path, content: str | bytes, says: str) -> None:
    """The message is one line, and names the file, the entry and the key."""
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, content)
    assert says in caught.value.message
    assert str(tmp_path / "model_config.yaml") in caught.value.message
    assert "\n" not in caught.value.message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """With the setting."""
    with pytest.raises(ConfigError, match=r"model_catalogue: .*none\.yaml: cannot be read"):
        read_catalogue_file(tmp_path / "none.yaml")
