"""The maximum number of tokens of a text, from all files of a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.checkpoints.folders import write_json, write_sentence_model
from tests.checkpoints.reading import refusal, spec_of


@pytest.mark.parametrize(
    ("max_seq_length", "model_max_length", "config", "max_tokens"),
    [
        (256, 512, {}, 256),
        (None, 512, {}, 512),
        (None, 128, {}, 128),
        (None, 1e30, {}, 512),
        (None, None, {}, 512),
        (8192, 512, {"max_position_embeddings": 8192}, 8192),  # max_seq_length takes precedence
        (1024, 512, {"max_position_embeddings": 512}, 512),  # the position table limits all others
        (None, 512, {"model_type": "xlm-roberta", "max_position_embeddings": 514, "pad_token_id": 1}, 512),
        (8192, 8192, {"model_type": "xlm-roberta", "max_position_embeddings": 8194, "pad_token_id": 1}, 8192),
        (None, 1e30, {"max_position_embeddings": -1}, 512),  # T5: no table; the default limit
        (1024, 512, {"model_type": "t5", "n_positions": 512, "max_position_embeddings": None}, 1024),  # by distance
        (None, None, {"max_position_embeddings": None}, 512),
        (None, 512, {"model_type": "roberta", "max_position_embeddings": 514}, 512),  # pad_token_id: 1
        (None, 512, {"model_type": "roberta", "max_position_embeddings": 513, "pad_token_id": 0}, 512),
        (None, 10**6, {"model_type": "nomic_bert", "n_positions": 8192, "max_position_embeddings": 2048}, 8192),
        (None, 131_072, {"model_type": "qwen3", "max_position_embeddings": 32_768}, 32_768),
    ],
)
def test_max_tokens(
    max_seq_length: object, model_max_length: object, config: dict[str, object], max_tokens: int, folder: Path
) -> None:
    """The limit is sentence-transformers' own, else the tokenizer's, and at most the positions."""
    write_sentence_model(folder, **config)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": max_seq_length})
    write_json(folder / "tokenizer_config.json", {"model_max_length": model_max_length})
    assert spec_of(folder).max_tokens == max_tokens


@pytest.mark.parametrize("value", [0, -1, True, "64", 0.5, [], float("nan")])
@pytest.mark.parametrize(
    ("file", "key"),
    [
        ("sentence_bert_config.json", "max_seq_length"),
        ("tokenizer_config.json", "model_max_length"),
        ("tokenizer_config.json", "max_len"),
    ],
)
def test_an_invalid_limit_is_refused(file: str, key: str, value: object, folder: Path) -> None:
    """The libraries would read one token, none, or fail."""
    write_sentence_model(folder)
    (folder / file).write_text(json.dumps({key: value}))
    assert f"{file}: {key} " in refusal(folder)


def test_positions_without_room_are_refused(folder: Path) -> None:
    """All rows of the table come before the first token's."""
    write_sentence_model(folder, model_type="roberta", max_position_embeddings=2)
    assert "leaves no room" in refusal(folder)
