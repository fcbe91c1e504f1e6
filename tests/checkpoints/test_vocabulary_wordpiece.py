"""A tokenizer from vocab.txt gives the same ids as transformers' BertTokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.checkpoints.folders import write_json
from tokenizers import Tokenizer

from vectord.checkpoints.vocabulary import VOCABULARY_LIMIT_BYTES, vocab_txt_json
from vectord.errors import ModelUnavailable

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*SPECIALS, "the", "The", "cafe", "café", "##s", "dog", "##gy", "中", "文", ",", "!"]
TEXTS = ["The dogs, THE doggy!", "café cafés Cafe", "中文 the", "", "[MASK] zzz [SEP]", "tab\there\u0000"]


@pytest.fixture
def vocabulary(tmp_path: Path) -> Path:
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(WORDS) + "\n")
    return path


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"do_lower_case": False},
        {"do_lower_case": True, "strip_accents": False},
        {"do_lower_case": False, "strip_accents": True, "tokenize_chinese_chars": False},
        {"additional_special_tokens": ["dog", "[D]"]},
        {"added_tokens_decoder": {"9": {"content": "dog", "normalized": True, "special": False}}},
    ],
    ids=str,
)
def test_ids_equal_those_of_transformers(config: dict[str, Any], vocabulary: Path) -> None:
    """Single texts and pairs, with special tokens and types, for all settings of tokenizer_config.json."""
    from transformers import BertTokenizer

    write_json(vocabulary.with_name("tokenizer_config.json"), {"tokenizer_class": "BertTokenizer", **config})
    theirs = BertTokenizer.from_pretrained(vocabulary.parent)
    ours = Tokenizer.from_str(vocab_txt_json(vocabulary))
    for text in TEXTS:
        assert ours.encode(text).ids == theirs(text)["input_ids"]
        pair, expected = ours.encode(text, "the dog"), theirs(text, "the dog")
        assert (pair.ids, pair.type_ids) == (expected["input_ids"], expected["token_type_ids"])


def test_special_tokens_may_have_other_names(vocabulary: Path) -> None:
    """As a text, or as the object of older versions."""
    config = {"cls_token": {"content": "the", "lstrip": False}, "sep_token": "dog"}
    write_json(vocabulary.with_name("tokenizer_config.json"), config)
    assert Tokenizer.from_str(vocab_txt_json(vocabulary)).encode("cafe").tokens == ["the", "cafe", "dog"]


def test_another_class_is_refused(vocabulary: Path) -> None:
    """It would split words in another way, by other files."""
    write_json(vocabulary.with_name("tokenizer_config.json"), {"tokenizer_class": "BertJapaneseTokenizer"})
    with pytest.raises(ModelUnavailable, match="BertJapaneseTokenizer is not made from vocab"):
        vocab_txt_json(vocabulary)


def test_windows_line_ends_are_accepted(vocabulary: Path) -> None:
    """Ids count lines, for both line ends."""
    vocabulary.write_bytes("\r\n".join(WORDS).encode())
    assert Tokenizer.from_str(vocab_txt_json(vocabulary)).token_to_id("dog") == WORDS.index("dog")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "special token '[PAD]' is not in it"),
        ("\n".join(SPECIALS[:4]).encode(), "'[MASK]'"),
        (b"\xff\xfe", "not UTF-8"),
        (b"\n" * (VOCABULARY_LIMIT_BYTES + 1), "more than 16,777,216 bytes"),
    ],
    ids=["empty", "without a special token", "no text", "too large"],
)
def test_an_invalid_vocabulary_is_refused(data: bytes, says: str, vocabulary: Path) -> None:
    """The message names the file and the problem."""
    vocabulary.write_bytes(data)
    with pytest.raises(ModelUnavailable) as caught:
        vocab_txt_json(vocabulary)
    assert str(vocabulary) in caught.value.message
    assert says in caught.value.message
