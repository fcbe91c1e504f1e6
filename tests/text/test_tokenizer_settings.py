"""tokenizer.json is used unchanged, whatever the files next to it state; the log names contradictions."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.models import read_minilm_spec
from tests.refusals import refuses
from tests.text.makers import make_spec, read
from tests.text.tokenizer_folders import FAMILIES, FURTHER, change, put_around, save, write_roberta
from tokenizers import Tokenizer

from vectord.errors import ModelUnavailable, Untokenizable
from vectord.text.tokenizer import TextEncoder
from vectord.text.tokenizer_file import load_tokenizer

TEXTS = (
    "The quick brown fox",
    "old <pad> tree [MASK] near </s> fox <mask> sing <|endoftext|> water [PAD] x</s>",
)
_PIECES = (
    *("fox", "The Quick", "don't", "1,234.5", "e.g.", "``lazy''", "HTTP://a.b/c?d=e&f", "x" * 120, ""),
    *(
        "\u00a0",
        "\u3000",
        "\u200b",
        "\u200d",
        "\ufeff",
        "\u00ad",
        "\t",
        "\n",
        "\r\n",
        "  ",
        "\x00",
        "\x1b",
        "\x7f",
        "\ufffd",
    ),
    *(
        "\u2026",
        "\ufb01",
        "\ufb03",
        "\uff26\uff4f\uff58",
        "\u2460",
        "\u00bd",
        "\u212b",
        "\ufdfa",
        "\u1e9e",
        "Stra\u00dfe",
    ),
    *("\u00c9lan", "E\u0301lan", "na\u0308i\u0308ve", "\u0130", "\u0301", "\u1112\u1161\u11ab", "\ud55c\uad6d\uc5b4"),
    *("\u4f60\u597d", "\u6771\u4eac\u306f", "\U00020000", "\u043f\u0440\u0438\u0432\u0435\u0442", "\u0e01\u0e33"),
    *("\U0001f469\u200d\U0001f4bb", "\U0001f44d\U0001f3fd", "\U0001f1e9\U0001f1ea", "\u2764\ufe0f"),
    *(
        "[SEP]",
        "[CLS]",
        "[MASK]",
        "<s>",
        "</s>",
        "<pad>",
        "<unk>",
        "<mask>",
        "<|endoftext|>",
        "<|im_start|>",
        "<extra_id_3>",
    ),
    *("\u2581", "\u0120", "##s", "<0x0A>"),
)


def nasty_texts(count: int = 360) -> list[str]:
    """Texts of the pieces above, alone and mixed, with spaces at their ends or without; none is empty."""
    chosen = random.Random(34)
    mixed = ["".join(chosen.choices([*_PIECES, " "], k=chosen.randint(2, 12))) for _ in range(count)]
    return [text for text in [*_PIECES, *mixed] if text][:count]


# --- changes that a class of transformers would undo ----------------------------------------------------------------

Change = Callable[[Path], object]


def with_step(part: str, step: dict[str, Any], key: str) -> Change:
    """Put a step before those of tokenizer.json."""

    def changed(folder: Path) -> None:
        path = folder / "tokenizer.json"
        fields = json.loads(path.read_text())
        steps = [step, *([fields[part]] if fields[part] else [])]
        change(path, **{part: {"type": "Sequence", key: steps}})

    return changed


def with_settings(**settings: Any) -> Change:
    return lambda folder: change(folder / "tokenizer_config.json", **settings)


NFKC = with_step("normalizer", {"type": "NFKC"}, "normalizers")
DIGITS = with_step("pre_tokenizer", {"type": "Digits", "individual_digits": True}, "pretokenizers")
LOWER = with_step("normalizer", {"type": "Lowercase"}, "normalizers")
CHANGES: dict[str, tuple[str, Change, str]] = {  # the family, its change, and what the log says
    "DeBERTa with NFKC": ("deberta-v2", NFKC, "its DebertaV2Tokenizer would leave out NFKC"),
    "DeBERTa with NFKC, without the name of its class": (
        "deberta-v2",
        lambda folder: (NFKC(folder), with_settings(tokenizer_class=None)(folder)),
        "its DebertaV2Tokenizer would leave out NFKC",
    ),
    "BERT with NFKC": ("bert", NFKC, "its BertTokenizer would leave out NFKC"),
    "BERT with single digits": ("bert", DIGITS, "its BertTokenizer would leave out Digits"),
    "RoBERTa in lower case": ("roberta", LOWER, "its RobertaTokenizer would leave out Lowercase"),
    "Qwen2 with NFKC": ("qwen2", NFKC, "its Qwen2Tokenizer would leave out NFKC"),
    "Llama with NFKC": ("llama", NFKC, "its LlamaTokenizer would leave out NFKC"),
    "upper case": ("bert", with_settings(do_lower_case=False), "would read do_lower_case as False, not as True"),
    "accents": ("bert", with_settings(strip_accents=False), "would read strip_accents as False, not as True"),
    "ideographs in words": (
        "bert",
        with_settings(tokenize_chinese_chars=False),
        "read tokenize_chinese_chars as False",
    ),
    "the class of another model": ("electra", with_settings(tokenizer_class="RobertaTokenizer"), "leave out BertNorm"),
    "a token that the file lacks": ("bert", with_settings(additional_special_tokens=["fox"]), "read 'fox', which"),
    "letters of special tokens": ("bert", with_settings(split_special_tokens=True), "split_special_tokens is true"),
    "an end token that the file lacks": ("llama", with_settings(add_eos_token=True), "does not put '</s>' after"),
    "another frame": ("roberta", lambda folder: put_around(folder, [], ["</s>"]), "would make '<s> text </s>'"),
    "a class unknown here": ("bert", with_settings(tokenizer_class="BertJapaneseTokenizer"), ""),
}


def check_ids(folder: Path, texts: list[str]) -> None:
    """vectord's ids are those of the tokenizers library for the same file."""
    config = json.loads((folder / "config.json").read_text())
    encoder = TextEncoder(make_spec(folder / "tokenizer.json", config=config, max_tokens=2048))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    readable = [text for text in texts if tokenizer.encode(text).ids]
    for text, got in zip(readable, read(encoder, readable), strict=True):
        assert got.ids.tolist() == tokenizer.encode(text).ids, repr(text)


@pytest.mark.parametrize("layout", ["version 5", "before 4.34"])
@pytest.mark.parametrize("name", [*FAMILIES, *FURTHER])
def test_every_family_has_the_ids_of_its_file(
    name: str, layout: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """On 360 texts that are hard to normalize and split. The log is silent: transformers makes the same ids."""
    folder = save(tmp_path, name, layout)
    check_ids(folder, nasty_texts())
    assert caplog.messages == []


@pytest.mark.parametrize("name", CHANGES)
def test_a_file_that_a_class_would_not_make_is_used_unchanged(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One line in the log states where transformers would make other tokens."""
    family, make_change, says = CHANGES[name]
    folder = save(tmp_path, family)
    make_change(folder)
    check_ids(folder, nasty_texts())
    assert len(caplog.messages) == bool(says)
    assert says in caplog.text


def test_a_file_that_makes_no_token_of_a_letter_is_refused(tmp_path: Path) -> None:
    """The tokens around a text are found by one."""
    folder = save(tmp_path, "roberta")
    put_around(folder, [], [])
    with_step("normalizer", {"type": "Replace", "pattern": {"String": "a"}, "content": ""}, "normalizers")(folder)
    with pytest.raises(ModelUnavailable, match="has no tokens for 'a'"):
        check_ids(folder, [])


@pytest.mark.parametrize("name", ["deberta-v2", "bert", "mpnet", "xlm-roberta", "albert", "qwen2", "gemma", "t5"])
def test_a_class_of_transformers_leaves_out_a_step_of_the_file(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As the log says, by the installed version."""
    from transformers import AutoTokenizer

    folder = save(tmp_path, name)
    NFKC(folder)
    load_tokenizer(folder / "tokenizer.json", {}, lowercase=False)
    assert "would leave out NFKC" in caplog.text
    assert '"NFKC"' not in AutoTokenizer.from_pretrained(folder).backend_tokenizer.to_str()


def test_a_published_model_has_the_ids_of_its_file(caplog: pytest.LogCaptureFixture) -> None:
    """all-MiniLM-L6-v2, without a line in the log."""
    check_ids(read_minilm_spec().folder, nasty_texts())
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("settings", "types", "is_logged"),
    [
        ({}, {0, 1}, False),
        ({"model_input_names": ["input_ids", "attention_mask"]}, {0}, False),
        ({"tokenizer_class": "TokenizersBackend"}, {0}, False),
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, {0, 1}, True),  # types in version 4 of transformers, none in 5
    ],
    ids=["as in the file", "none", "none by version 5", "another class"],
)
def test_token_types_are_those_of_the_file_unless_the_model_gets_none(
    settings: dict[str, Any], types: set[int], is_logged: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """model_input_names is a statement about the network, which tokenizer.json does not make."""
    folder = save(tmp_path, "bert")
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_input_names": None, **settings}))
    encoder = TextEncoder(make_spec(folder / "tokenizer.json", config={"type_vocab_size": 2}))
    (pair,) = read(encoder, [("quick fox", "lazy dog")])
    assert {*pair.type_ids.tolist()} == types
    assert ("both texts of a pair the same type" in caplog.text) == is_logged


@pytest.mark.parametrize("has_end", [False, True])
def test_a_last_token_that_the_text_decides_is_logged(
    has_end: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Pooling reads it."""
    folder = save(tmp_path, "qwen3 with an end" if has_end else "qwen2")
    TextEncoder(make_spec(folder / "tokenizer.json", pooling="last"))
    assert ("the vector is that of the text's last token" in caplog.text) != has_end


@pytest.mark.parametrize("name", ["qwen2", "qwen3 with an end"])
def test_the_end_token_of_gte_qwen2(name: str, tmp_path: Path) -> None:
    """Its own tokenizer class, which is not run, puts eos_token after each text by add_eos_token."""
    FAMILIES[name](tmp_path)
    path = tmp_path / "tokenizer_config.json"
    config = json.loads(path.read_text())
    own = {"add_eos_token": True, "auto_map": {"AutoTokenizer": ["x.Qwen2Tokenizer", "x.Qwen2TokenizerFast"]}}
    path.write_text(json.dumps({**config, **own}))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json", {}, lowercase=False)
    end = tokenizer.token_to_id("<|endoftext|>")
    for text in TEXTS:
        assert tokenizer.encode(text).ids == [*tokenizer.encode(text, add_special_tokens=False).ids, end]
    path.write_text(json.dumps({**config, **own, "eos_token": None}))
    with pytest.raises(ModelUnavailable, match="add_eos_token need a bos_token and eos_token"):
        load_tokenizer(tmp_path / "tokenizer.json", {}, lowercase=False)


@pytest.mark.parametrize("value", ["old <pad> tree", [0, 1, 2]], ids=["text", "ids"])
def test_a_padding_token_in_a_text_is_refused_where_positions_skip_it(value: Any, tmp_path: Path) -> None:
    """RoBERTa and MPNet of transformers give later tokens other positions than the networks here; BERT does not."""
    write_roberta(tmp_path)

    def encoder(model_type: str) -> TextEncoder:
        return TextEncoder(make_spec(tmp_path / "tokenizer.json", model_type=model_type))

    assert 1 in read(encoder("bert"), [value])[0].ids
    for model_type in ("roberta", "mpnet"):
        assert 1 not in read(encoder(model_type), ["old tree"])[0].ids
        with refuses(Untokenizable, index=1):
            read(encoder(model_type), ["old tree", value])
