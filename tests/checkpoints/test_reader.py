"""The facts of every kind of model, and the errors for broken folders."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from tests.checkpoints.folders import write_json, write_sentence_model, write_transformer
from tests.checkpoints.reading import refusal, spec_of

from vectord.checkpoints.hub import resolve
from vectord.checkpoints.reader import read_spec
from vectord.errors import StartError


def test_the_default_model() -> None:
    """all-MiniLM-L6-v2: mean pooling, normalized, 384 dimensions, 256 tokens though its position table has 512 rows."""
    spec = read_spec(resolve("sentence-transformers/all-MiniLM-L6-v2", offline=True))
    assert spec.model_id == "sentence-transformers/all-MiniLM-L6-v2"
    assert spec.model_type == "bert"
    assert (spec.pooling, spec.include_prompt, spec.dense_modules) == ("mean", True, ())
    assert (spec.hidden_size, spec.dimensions, spec.max_tokens) == (384, 384, 256)
    assert (dict(spec.prompts), spec.default_prompt_name) == ({}, None)
    assert [path.name for path in (*spec.weights, spec.tokenizer)] == ["model.safetensors", "tokenizer.json"]
    assert len(bytes.fromhex(spec.fingerprint)) == 8


def test_a_bidirectional_language_model_is_known(folder: Path) -> None:
    """Its own code, which is never run, makes it so. config.json may lack it, and precedes the catalogue."""
    name = "Alibaba-NLP/gte-Qwen2-7B-instruct"
    write_transformer(folder, model_type="qwen2")
    assert spec_of(folder, name=name).config["is_causal"] is False
    assert "is_causal" not in spec_of(folder, name="Qwen/Qwen2.5-7B").config
    write_transformer(folder, model_type="qwen2", is_causal=True)
    assert spec_of(folder, name=name).config["is_causal"] is True


def test_a_masked_language_model_without_pooling_is_not_guessed(folder: Path) -> None:
    """It may be a SPLADE under any name. --pooling splade makes it one; another pooling, or --task embed, makes dense
    vectors, as a file with the pooling does."""
    write_transformer(folder, architectures=["BertForMaskedLM"])
    assert "--pooling splade" in refusal(folder)
    assert spec_of(folder, is_splade=True).outputs == {"splade"}
    assert spec_of(folder, pooling="cls").pooling == "cls"
    assert spec_of(folder, task="embed").pooling == "mean"
    write_json(folder / "1_Pooling" / "config.json", {"pooling_mode_cls_token": True})
    assert spec_of(folder).pooling == "cls"


BROKEN: Mapping[str, Callable[[Path], object]] = {
    "config.json": lambda folder: (folder / "config.json").write_text("{"),
    "config.json is": lambda folder: (folder / "config.json").unlink(),
    "modules.json": lambda folder: (folder / "modules.json").write_text("{}"),
    "tokenizer.json": lambda folder: (folder / "tokenizer.json").unlink(),
    "model.safetensors": lambda folder: (folder / "model.safetensors").unlink(),
    "more than 8,388,608 bytes": lambda folder: (folder / "config.json").write_text(" " * (8 * 2**20 + 1)),
    "nested too deeply": lambda folder: (folder / "config.json").write_text("[" * 200_000),
    "model_type": lambda folder: write_json(folder / "config.json", {"model_type": "../evil", "hidden_size": 8}),
    "hidden_size": lambda folder: write_json(folder / "config.json", {"model_type": "bert", "hidden_size": "8"}),
    "expected a JSON object": lambda folder: write_json(folder / "config.json", [1]),
    "is missing or not a name": lambda folder: write_json(
        folder / "config.json", {"model_type": "a b", "hidden_size": 8}
    ),
    "half a surrogate pair": lambda folder: (folder / "config.json").write_text('{"id2label": {"0": "\\uDC00"}}'),
}


@pytest.mark.parametrize("says", BROKEN)
def test_a_broken_folder_names_the_problem(says: str, folder: Path) -> None:
    """Missing, truncated, huge, deep or absurd files: one sentence that names the file."""
    BROKEN[says](write_sentence_model(folder))
    assert says.removesuffix(" is") in refusal(folder)


@pytest.mark.parametrize("name", ["config.json", "modules.json", "tokenizer_config.json", "1_Pooling/config.json"])
def test_a_pipe_is_refused(name: str, folder: Path) -> None:
    """It would never end, and must not count as a missing file."""
    write_sentence_model(folder)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    assert f"{name}: not a regular file" in refusal(folder)


@pytest.mark.parametrize("levels", [10, 100, 300, 400, 500, 700, 900, 950, 990, 2000])
def test_json_of_any_depth_is_read_or_refused(levels: int, folder: Path) -> None:
    """A depth that the parser still accepts must not break later steps."""
    write_sentence_model(folder)
    config = (folder / "config.json").read_text()
    deep = "[" * levels + "]" * levels
    (folder / "config.json").write_text(config.replace("{", f'{{"x": {deep}, ', 1))
    try:
        assert spec_of(folder).hidden_size == 8
    except StartError as error:
        assert "nested too deeply" in error.message


@pytest.mark.parametrize(
    ("config", "architecture"),
    [
        ({"model_type": "bert"}, "bert"),
        ({"model_type": "bert", "position_embedding_type": "absolute"}, "bert"),
        ({"model_type": "bert", "position_embedding_type": "alibi"}, "jina_bert_v2"),
        ({"model_type": "xlm-roberta"}, "xlm-roberta"),
        ({"model_type": "brand-new_model.2"}, "brand-new_model.2"),
    ],
    ids=str,
)
def test_the_architecture_is_the_model_type(config: dict[str, object], architecture: str, folder: Path) -> None:
    """Except JinaBERT, whose config says bert. The backend decides about unknown ones."""
    spec = spec_of(write_sentence_model(folder, **config))
    assert (spec.model_type, spec.architecture) == (config["model_type"], architecture)


@pytest.mark.parametrize("key", ["dim", "d_model", "n_embd"])
def test_the_width_has_several_names(key: str, folder: Path) -> None:
    """In distilbert, t5, and gpt2 or nomic; or it is in the config of the text part."""
    assert spec_of(write_transformer(folder, hidden_size=None, **{key: 24})).hidden_size == 24
    assert spec_of(write_transformer(folder, hidden_size=None, text_config={key: 16})).hidden_size == 16


def test_vocab_txt_replaces_tokenizer_json_for_a_bert(folder: Path) -> None:
    """A tokenizer is made from it. For other models the message names the way out."""
    (write_transformer(folder) / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("[PAD]\n")
    assert spec_of(folder).tokenizer == folder / "vocab.txt"
    write_transformer(folder, model_type="xlm-roberta")
    (folder / "tokenizer.json").unlink()
    assert "AutoTokenizer" in refusal(folder)
