"""Each setting of a tokenizer's files, changed alone: the tokens of transformers' AutoTokenizer, or a refusal."""

from __future__ import annotations

import inspect
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.text.makers import make_spec, read
from tests.text.tokenizer_folders import FAMILIES, FURTHER, LAYOUTS, NAMED, change, put_around, save, write_roberta

from vectord.errors import ModelUnavailable, Untokenizable
from vectord.text.tokenizer import TextEncoder
from vectord.text.tokenizer_file import load_tokenizer

TEXTS = (
    "The quick brown fox",
    "Élan naïve 你好  foo,\n\tfox! ``lazy'' dog ",
    "old <pad> tree [MASK] near </s> fox <mask> sing <|endoftext|> water [PAD] x</s>",
    "[SEP] a [CLS]fox<s> the <extra_id_3> <bos> <eos> <unk> [UNK] dog <s>NOTUSED <0x0A>",
)
PAIR = ("quick fox", "lazy dog near the old tree")
LIMITS = (512, 9)  # tokens of a text or pair, without and with truncation


# --- changes --------------------------------------------------------------------------------------------------

_TOKEN = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": True}
_FOX = {**_TOKEN, "content": "fox"}
_OF_EVERY_CLASS: Mapping[str, Any] = {
    "additional_special_tokens": ["fox", {"__type": "AddedToken", **_TOKEN, "content": "dog", "lstrip": True}],
    "extra_special_tokens": ["fox"],
    "model_specific_special_tokens": {"image_token": "fox"},
    "image_token": "fox",
    "added_tokens_decoder": {"7": _FOX, "5": {**_FOX, "content": "dog", "normalized": True, "special": False}},
    "clean_up_tokenization_spaces": True,
    "split_special_tokens": True,
    "truncation_side": "left",
    "padding_side": "left",
    "model_max_length": 8,
    "do_basic_tokenize": False,
    "never_split": ["fox"],
    "use_fast": False,
    "sp_model_kwargs": {"enable_sampling": True},
    "spaces_between_special_tokens": True,
    "name_or_path": "someone/else",
    "init_inputs": [],
    "fix_mistral_regex": True,
}
_CLASSES = (None, "PreTrainedTokenizerFast", "DistilBertTokenizer", "RobertaTokenizerFast", "XLMRobertaTokenizer")
_FLAGS = ("do_lower_case", "strip_accents", "tokenize_chinese_chars", "keep_accents", "split_by_punct", "legacy")
_NUMBERS = {"extra_ids": (0, 3, 100), "unk_id": (0, 3)}


def settings(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Settings of the tokenizer's class and of every class, each with another value than it has."""
    import transformers

    own = inspect.signature(getattr(transformers, config["tokenizer_class"], transformers.BertTokenizer).__init__)
    for name in dict.fromkeys([*own.parameters, *_FLAGS, "add_prefix_space", "add_bos_token", "add_eos_token"]):
        if name in {"self", "args", "kwargs", "vocab", "vocab_file", "merges", "_spm_precompiled_charsmap"}:
            continue
        if not name.endswith("_token") or name.startswith("add_"):
            yield from ((name, value) for value in _NUMBERS.get(name, (True, False)) if value is not config.get(name))
    for name in NAMED:
        yield name, None
        yield name, "fox"
        yield name, {"__type": "AddedToken", **_FOX, "lstrip": True}
        if isinstance(value := config.get(name), str):
            yield name, {"__type": "AddedToken", **_TOKEN, "content": value, "lstrip": True, "rstrip": True}
    yield from _OF_EVERY_CLASS.items()
    for names in (["input_ids", "attention_mask"], ["input_ids", "token_type_ids", "attention_mask"]):
        yield "model_input_names", names
    yield from (("tokenizer_class", name) for name in _CLASSES)


def special_tokens_maps(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name in NAMED:
        yield name, "fox"
        yield name, {**_TOKEN, "content": config.get(name) or "fox", "rstrip": True}
    yield "additional_special_tokens", ["fox", "<extra_id_3>"]
    yield "additional_special_tokens", []
    yield "extra_special_tokens", ["fox"]
    yield "image_token", "fox"
    yield "do_lower_case", False
    yield from (("add_bos_token", value) for value in (True, False))
    yield from (("add_eos_token", value) for value in (True, False))


def tokenizer_files(file: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    truncation = {"direction": "Left", "max_length": 9, "strategy": "LongestFirst", "stride": 0}
    padding = {"strategy": {"Fixed": 20}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 5}
    yield "truncation", truncation | {"direction": "Right"}
    yield "truncation", truncation
    yield "padding", {**padding, "pad_type_id": 0, "pad_token": "fox"}
    yield "post_processor", None
    twice = {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 2}
    pair = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
    yield "post_processor", {**twice, "pair": pair, "special_tokens": {}}
    yield "normalizer", {"type": "Lowercase"}
    yield "added_tokens", [{**token, "lstrip": True} for token in file["added_tokens"]]
    yield "added_tokens", [*file["added_tokens"], {**_FOX, "id": 60_000}]
    yield "added_tokens", []


def changes(folder: Path) -> Iterator[tuple[str, str, Any]]:
    """The file, the key and its value."""
    config = json.loads((folder / "tokenizer_config.json").read_text())
    for file, found in (
        ("tokenizer_config.json", settings(config)),
        ("special_tokens_map.json", special_tokens_maps(config)),
        ("added_tokens.json", iter([("fox", 60_000), ("</s>", 3)])),
        ("tokenizer.json", tokenizer_files(json.loads((folder / "tokenizer.json").read_text()))),
    ):
        yield from ((file, key, value) for key, value in found)


# --- comparison -----------------------------------------------------------------------------------------------

Tokens = list[tuple[list[int], list[int]]]


def ours(folder: Path) -> Tokens:
    config = json.loads((folder / "config.json").read_text())
    tokens = []
    for limit in LIMITS:
        encoder = TextEncoder(make_spec(folder / "tokenizer.json", config=config, max_tokens=limit))
        tokens += read(encoder, [*TEXTS, PAIR])
    return [(one.ids.tolist(), one.type_ids.tolist()) for one in tokens]


def reference(folder: Path) -> Tokens:
    """Without type ids the networks use zeros."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.model_max_length = 10**6
    inputs = [*((text, None) for text in TEXTS), PAIR]
    found = [tokenizer(*texts, truncation=True, max_length=limit) for limit in LIMITS for texts in inputs]
    return [(one["input_ids"], one.get("token_type_ids", [0] * len(one["input_ids"]))) for one in found]


def difference(folder: Path, key: str) -> str | None:
    """What is wrong with the tokens or the refusal of the folder; None if nothing is."""
    try:
        expected = reference(folder)
    except Exception:  # whatever transformers raises: it makes no tokens
        return None
    try:
        got = ours(folder)
    except ModelUnavailable as error:
        return None if key in str(error) else str(error)
    return None if got == expected else f"{got} instead of {expected}"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", [*FAMILIES, *FURTHER])
def test_folders_of_all_versions_have_the_tokens_of_transformers(name: str, layout: str, tmp_path: Path) -> None:
    """No family is refused."""
    folder = save(tmp_path, name, layout)
    assert ours(folder) == reference(folder)


@pytest.mark.parametrize("layout", ["version 5", "version 4"])
@pytest.mark.parametrize("name", FAMILIES)
def test_every_setting_is_followed_or_refused(name: str, layout: str, tmp_path: Path) -> None:
    """In each of the four files; a refusal names the setting."""
    saved = save(tmp_path / "saved", name, layout)
    wrong = []
    for i, (file, key, value) in enumerate(changes(saved)):
        folder = Path(shutil.copytree(saved, tmp_path / str(i)))
        change(folder / file, **{key: value})
        if (found := difference(folder, key)) is not None:
            wrong.append((file, key, value, found))
    assert wrong == []


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
        with pytest.raises(Untokenizable, match="contains <pad>, this model's padding token") as caught:
            read(encoder(model_type), ["old tree", value])
        assert caught.value.index == 1


def test_a_frame_of_another_class_is_refused(tmp_path: Path) -> None:
    """transformers' class of RoBERTa puts <s> and </s> around a text whatever tokenizer.json says."""
    write_roberta(tmp_path)
    put_around(tmp_path, [], ["</s>"])
    with pytest.raises(
        ModelUnavailable, match=r"not those that its tokenizer_class makes of cls_token '<s>' and sep_token"
    ):
        load_tokenizer(tmp_path / "tokenizer.json", {}, lowercase=False)
