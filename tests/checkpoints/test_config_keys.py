"""Each key of a model's configuration files is read, harmless, or refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoints.folders import write_dense, write_json, write_sentence_model
from tests.checkpoints.reading import spec_of

from vectord.errors import ModelUnavailable

KINDS = ("Transformer", "Pooling", "Dense", "Normalize")
FORWARD = {"method": "forward", "method_output_name": "last_hidden_state"}

UNKNOWN: dict[str, tuple[str, dict[str, Any]]] = {
    "a changed config": ("sentence_bert_config.json", {"config_kwargs": {"is_causal": False}}),
    "texts in a chat template": (
        "sentence_bert_config.json",
        {
            "modality_config": {"text": FORWARD, "message": {**FORWARD, "format": "flat"}},
            "module_output_name": "token_embeddings",
        },
    ),
    "an unknown key": ("sentence_bert_config.json", {"made_up": 1}),
    "truncation at the start": ("tokenizer_config.json", {"truncation_side": "left"}),
    "dense": ("2_Dense/config.json", {"made_up": False}),
}
KNOWN: dict[str, dict[str, Any]] = {
    "before version 6": {"max_seq_length": 16, "do_lower_case": False},
    "since version 6": {
        "transformer_task": "feature-extraction",
        "modality_config": {"text": FORWARD},
        "module_output_name": "token_embeddings",
        "processing_kwargs": {"text": {}, "chat_template": {"add_generation_prompt": True}},
        "unpad_inputs": False,
        "query_length": None,
    },
    "arguments without effect": {
        "model_args": {"trust_remote_code": True, "torch_dtype": "bfloat16", "attn_implementation": "sdpa"},
        "tokenizer_args": {},
        "config_args": {"trust_remote_code": True, "use_memory_efficient_attention": False},
    },
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = write_sentence_model(tmp_path, kinds=KINDS)
    write_dense(folder / "2_Dense", 8, 4)
    return folder


@pytest.mark.parametrize(("file", "change"), UNKNOWN.values(), ids=UNKNOWN)
def test_an_unknown_key_is_refused_and_can_be_allowed(folder: Path, file: str, change: dict[str, Any]) -> None:
    """One line names the file, the key and the option that ignores it."""
    path, key = folder / file, next(iter(change))
    write_json(path, {**(json.loads(path.read_text()) if path.is_file() else {}), **change})
    with pytest.raises(ModelUnavailable, match=rf"{file}: {key} .*--allow-unknown-config {key}"):
        spec_of(folder)
    assert spec_of(folder, allow_unknown=[key]).outputs == {"dense", "tokens"}


@pytest.mark.parametrize("config", KNOWN.values(), ids=KNOWN)
def test_known_keys_are_accepted(folder: Path, config: dict[str, Any]) -> None:
    """As sentence-transformers and its users write them."""
    write_json(folder / "sentence_bert_config.json", config)
    assert spec_of(folder).outputs == {"dense", "tokens"}


def test_a_key_with_control_characters_stays_on_one_line(folder: Path) -> None:
    """Else a model's file could write lines of its own into the log."""
    write_json(folder / "sentence_bert_config.json", {"key\nERROR \x1b[31m": 1})
    with pytest.raises(ModelUnavailable, match=r"json: key\\nERROR \\x1b\[31m 1 is not supported") as caught:
        spec_of(folder)
    assert str(caught.value).isprintable()


def test_settings_of_a_tokenizer_are_accepted(folder: Path) -> None:
    """tokenizer.json alone decides the tokens, so no key next to it can change them."""
    config = {"tokenizer_class": "BertJapaneseTokenizer", "add_dummy_prefix": True, "init_inputs": ["vocab.txt"]}
    write_json(folder / "tokenizer_config.json", config)
    assert spec_of(folder).outputs == {"dense", "tokens"}


@pytest.mark.parametrize("listed", [[0], "BertModel", ["BertModel", None]], ids=str)
def test_architectures_that_are_no_names_are_refused(listed: object, folder: Path) -> None:
    """The class decides the kind of model, so none is left out."""
    path = folder / "config.json"
    write_json(path, {**json.loads(path.read_text()), "architectures": listed})
    with pytest.raises(ModelUnavailable, match=r"config\.json: architectures"):
        spec_of(folder)
