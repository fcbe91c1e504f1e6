"""tokenizer.json and its settings: a file that does not fit the model is refused; a text that fails, fails alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.checkpoints.folders import write_json
from tests.models import read_minilm_spec
from tests.refusals import refuses
from tests.text.makers import byte_level, make_encoder, make_spec, qwen3, read, unigram, wordpiece

from vectord.checkpoints.spec import ModelSpec
from vectord.errors import ModelUnavailable, Untokenizable
from vectord.schema import TextOptions
from vectord.text.tokenizer import TextEncoder
from vectord.text.tokenizer_file import load_tokenizer

Fields = dict[str, Any]


def set_(**entries: Any) -> Callable[[Fields], None]:
    return lambda fields: fields.update(entries)


def _foreign_special(part: str) -> Callable[[Fields], None]:
    """A special token of one template, with an id that the model has no row for."""

    def spoil(fields: Fields) -> None:
        processor = fields["post_processor"]
        processor[part].append({"SpecialToken": {"id": "[FAR]", "type_id": 0}})
        processor["special_tokens"]["[FAR]"] = {"id": "[FAR]", "ids": [2_000_000], "tokens": ["[FAR]"]}

    return spoil


REFUSED: dict[str, tuple[Callable[[Fields], None], str]] = {
    "an id beyond all tables": (
        lambda fields: fields["model"].update(vocab={"[UNK]": 0, "a": 2**32 - 1}),
        "no model has a row for",
    ),
    "a special token beyond the table": (_foreign_special("single"), "puts the id 2000000 around texts"),
    "one beyond it in pairs": (_foreign_special("pair"), "puts the id 2000000 around texts"),
    "a text twice": (
        lambda fields: fields["post_processor"]["single"].append({"Sequence": {"id": "A", "type_id": 0}}),
        "special tokens inside texts",
    ),
    "no token of a letter": (
        set_(normalizer={"type": "Replace", "pattern": {"String": "a"}, "content": ""}),
        "has no tokens for 'a'",
    ),
    "a model that makes the library panic at load": (
        set_(model={"type": "BPE", "vocab": {"a": 0}, "merges": ["a a"]}),
        "cannot be used as a tokenizer",
    ),
}


@pytest.fixture
def spec() -> ModelSpec:
    return read_minilm_spec()


def spoilt(spec: ModelSpec, folder: Path, spoil: Callable[[Fields], None]) -> ModelSpec:
    fields = json.loads(spec.tokenizer.read_text("utf-8"))
    spoil(fields)
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(fields))
    return replace(spec, tokenizer=path)


@pytest.mark.parametrize("name", REFUSED)
def test_a_tokenizer_that_does_not_fit_is_rejected_by_name(name: str, spec: ModelSpec, tmp_path: Path) -> None:
    """The error names the file, before a text is read."""
    spoil, message = REFUSED[name]
    with pytest.raises(ModelUnavailable, match=message) as caught:
        TextEncoder(spoilt(spec, tmp_path, spoil))
    assert "tokenizer.json" in caught.value.message


def test_a_tokenizer_over_the_limit_is_not_opened(
    spec: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library would read any size."""
    monkeypatch.setattr("vectord.text.tokenizer_file.TOKENIZER_LIMIT_BYTES", 1000)
    with pytest.raises(ModelUnavailable, match="more than 1,000 bytes"):
        TextEncoder(spoilt(spec, tmp_path, lambda fields: None))


def test_ids_with_gaps_never_reach_beyond_the_models_table(spec: ModelSpec, tmp_path: Path) -> None:
    """The tokenizer has as many tokens as the table has rows, but one id is far above the last row."""

    def spoil(fields: Fields) -> None:
        fields["model"]["vocab"]["hello"] = 2_000_000_000

    encoder = TextEncoder(spoilt(spec, tmp_path, spoil))
    read(encoder, ["good morning"], TextOptions())
    with refuses(Untokenizable, index=1):
        read(encoder, ["good morning", "hello"], TextOptions())


def test_a_word_without_an_id_fails_its_text_alone(spec: ModelSpec, tmp_path: Path) -> None:
    """A vocabulary of whole words without an unknown token: the library raises a bare Exception."""
    words = ["[CLS]", "[SEP]", "a", "hello", "world"]
    vocabulary = {"type": "WordLevel", "vocab": {word: i for i, word in enumerate(words)}, "unk_token": "[UNK]"}

    def spoil(fields: Fields) -> None:
        fields.update(model=vocabulary, added_tokens=[])
        for i, token in enumerate(("[CLS]", "[SEP]")):
            fields["post_processor"]["special_tokens"][token]["ids"] = [i]

    encoder = TextEncoder(spoilt(spec, tmp_path, spoil))
    with refuses(Untokenizable, index=1):
        read(encoder, ["hello", "goodbye"], TextOptions())


def test_a_pattern_that_gives_up_fails_its_text_alone(spec: ModelSpec, tmp_path: Path) -> None:
    """The library panics with a BaseException, which would end the tokenizing thread."""
    pattern = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    encoder = TextEncoder(spoilt(spec, tmp_path, set_(pre_tokenizer=pattern)))
    with refuses(Untokenizable, index=1):
        read(encoder, ["good", "a" * 30 + "!"], TextOptions())
    assert len(read(encoder, ["good"], TextOptions())) == 1


@pytest.mark.parametrize(
    ("settings", "types"),
    [
        ({}, {0, 1}),
        ({"model_input_names": ["input_ids", "attention_mask"]}, {0}),
        ({"tokenizer_class": "TokenizersBackend"}, {0}),
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, {0, 1}),  # types in version 4 of transformers, none in 5
    ],
    ids=["as in the file", "none", "none by version 5", "another class"],
)
def test_token_types_are_those_of_the_file_unless_the_model_gets_none(
    settings: dict[str, Any], types: set[int], tmp_path: Path
) -> None:
    """model_input_names is a statement about the network, which tokenizer.json does not make."""
    write_json(tmp_path / "tokenizer_config.json", settings)
    encoder = make_encoder(tmp_path, wordpiece(), config={"type_vocab_size": 2})
    (pair,) = read(encoder, [("quick fox", "lazy dog")])
    assert {*pair.type_ids.tolist()} == types


@pytest.mark.parametrize("has_end", [False, True])
def test_a_last_token_that_the_text_decides_is_logged(
    has_end: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Pooling reads it."""
    make_encoder(tmp_path, qwen3() if has_end else byte_level(), pooling="last")
    assert ("the vector is that of the text's last token" in caplog.text) != has_end


@pytest.mark.parametrize("make", [qwen3, lambda: byte_level("<|endoftext|>")], ids=["with an end", "without"])
def test_the_end_token_of_gte_qwen2(make: Any, tmp_path: Path) -> None:
    """Its own tokenizer class, which is not run, puts eos_token after each text by add_eos_token."""
    path = tmp_path / "tokenizer.json"
    make().save(str(path))
    own = {"add_eos_token": True, "auto_map": {"AutoTokenizer": ["x.Qwen2Tokenizer", "x.Qwen2TokenizerFast"]}}
    write_json(tmp_path / "tokenizer_config.json", {**own, "eos_token": "<|endoftext|>"})
    tokenizer = load_tokenizer(path, {}, lowercase=False)
    end = tokenizer.token_to_id("<|endoftext|>")
    for text in ("The quick brown fox", "fox <|endoftext|> dog"):
        assert tokenizer.encode(text).ids == [*tokenizer.encode(text, add_special_tokens=False).ids, end]
    write_json(tmp_path / "tokenizer_config.json", own)
    with pytest.raises(ModelUnavailable, match="add_eos_token need a bos_token and eos_token"):
        load_tokenizer(path, {}, lowercase=False)


@pytest.mark.parametrize("value", ["old <pad> tree", [0, 1, 2]], ids=["text", "ids"])
def test_a_padding_token_in_a_text_is_refused_where_positions_skip_it(value: Any, tmp_path: Path) -> None:
    """RoBERTa and MPNet of transformers give later tokens other positions than the networks here; BERT does not."""
    unigram().save(str(tmp_path / "tokenizer.json"))

    def encoder(model_type: str) -> TextEncoder:
        return TextEncoder(make_spec(tmp_path / "tokenizer.json", model_type=model_type))

    assert 1 in read(encoder("bert"), [value])[0].ids
    for model_type in ("roberta", "mpnet"):
        assert 1 not in read(encoder(model_type), ["old tree"])[0].ids
        with refuses(Untokenizable, index=1):
            read(encoder(model_type), ["old tree", value])
