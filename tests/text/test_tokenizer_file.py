"""A hostile tokenizer.json is rejected before it reads a text, or fails on one text only; published ones are read."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.models import read_minilm_spec
from tests.refusals import refuses
from tests.text.makers import read

from vectord.checkpoints.spec import ModelSpec
from vectord.errors import ModelUnavailable, Untokenizable
from vectord.schema import TextOptions
from vectord.text.tokenizer import TextEncoder

Fields = dict[str, Any]


def split(pattern: str) -> Fields:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def sequence(*steps: Fields) -> Fields:
    return {"type": "Sequence", "normalizers": list(steps)}


def charsmap(written: bytes) -> Fields:
    """A Precompiled map with an empty trie and these replacements."""
    units = bytes(1024)
    data = len(units).to_bytes(4, "little") + units + written
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()}


def replacing(text: str, content: str) -> Fields:
    return {"type": "Replace", "pattern": {"String": text}, "content": content}


def set_(**entries: Any) -> Callable[[Fields], None]:
    return lambda fields: fields.update(entries)


def _long_template(fields: Fields) -> None:
    fields["post_processor"]["single"] = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}] * 1000 + fields[
        "post_processor"
    ]["single"]


def _wide_template(fields: Fields) -> None:
    token = fields["post_processor"]["special_tokens"]["[CLS]"]
    token.update(ids=[101] * 1000, tokens=["[CLS]"] * 1000)


def _long_words(fields: Fields) -> None:
    fields["model"]["max_input_chars_per_word"] = 10**9


def _id_beyond_all(fields: Fields) -> None:
    fields["model"]["vocab"] = {"[UNK]": 0, "a": 2**32 - 1}


def _panics_at_load(fields: Fields) -> None:
    fields["model"] = {"type": "BPE", "vocab": {"a": 0}, "merges": ["a a"]}


def _foreign_special(part: str) -> Callable[[Fields], None]:
    """A special token of one template, with an id that the model has no row for."""

    def spoil(fields: Fields) -> None:
        processor = fields["post_processor"]
        processor[part].append({"SpecialToken": {"id": "[FAR]", "type_id": 0}})
        processor["special_tokens"]["[FAR]"] = {"id": "[FAR]", "ids": [2_000_000], "tokens": ["[FAR]"]}

    return spoil


REFUSED: dict[str, tuple[Callable[[Fields], None], str]] = {
    "a long replacement": (set_(normalizer=replacing("a", "b" * 65)), "more than 64 characters"),
    "a long prefix": (set_(normalizer={"type": "Prepend", "prepend": "b" * 65}), "more than 64 characters"),
    "replacement after replacement": (
        set_(normalizer=sequence(*[replacing("a", "a" * 9)] * 4)),
        "up to 6,561 times",
    ),
    "a pattern that matches nothing": (
        set_(normalizer=sequence(*[{"type": "Replace", "pattern": {"Regex": ""}, "content": "abcdef"}] * 2)),
        "up to 49 times",
    ),
    "a map to long texts": (set_(normalizer=charsmap(b"x" * 65 + b"\0")), "64 characters for one"),
    "more steps than any": (set_(normalizer=sequence(*[{"type": "Lowercase"}] * 64)), r"a tokenizer of 6\d steps"),
    "steps within steps": (
        lambda fields: fields.update(normalizer=json.loads('{"type":"Sequence","normalizers":[' * 200 + "]}" * 200)),
        "recursion",
    ),
    "a template of a thousand tokens": (_long_template, "template of more than 256"),
    "one special token that is a thousand": (_wide_template, "template of more than 256"),
    "words without end": (_long_words, "max_input_chars_per_word"),
    "an id beyond all tables": (_id_beyond_all, "no model has a row for"),
    "a special token beyond the table": (_foreign_special("single"), "puts the id 2000000 around texts"),
    "one beyond it in pairs": (_foreign_special("pair"), "puts the id 2000000 around texts"),
    "a model that makes the library panic at load": (_panics_at_load, "cannot be used as a tokenizer"),
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
def test_a_tokenizer_bomb_is_rejected_by_name(name: str, spec: ModelSpec, tmp_path: Path) -> None:
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
    encoder = TextEncoder(spoilt(spec, tmp_path, set_(pre_tokenizer=split("(a+)+$"))))
    with refuses(Untokenizable, index=1):
        read(encoder, ["good", "a" * 30 + "!"], TextOptions())
    assert len(read(encoder, ["good"], TextOptions())) == 1


@pytest.mark.parametrize(
    "normalizer",
    [
        sequence({"type": "Prepend", "prepend": "▁"}, replacing(" ", "▁")),
        sequence(charsmap("ﷺ".encode() + b"\0"), {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}),
        sequence(replacing("``", '"'), replacing("''", '"'), {"type": "NFKD"}, {"type": "StripAccents"}),
    ],
    ids=["Llama's", "XLM-RoBERTa's", "ALBERT's"],
)
def test_the_steps_of_published_models_are_allowed(normalizer: Fields, spec: ModelSpec, tmp_path: Path) -> None:
    """They are far below the limits."""
    TextEncoder(spoilt(spec, tmp_path, set_(normalizer=normalizer)))
