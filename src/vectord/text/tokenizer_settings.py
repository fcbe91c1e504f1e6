"""What the files next to a tokenizer.json declare: tokens around a text, token types, and contradictions.

tokenizer.json is used unchanged: the model was trained with it. Some classes of transformers 5 build its steps anew
from tokenizer_config.json; `find_contradictions` states for the log what they would change. Called once per model, at
load, without an import of transformers.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, processors

from vectord.checkpoints.files.read import OPTION
from vectord.checkpoints.vocabulary import read_token_settings, token_text
from vectord.errors import ModelUnavailable

Values = Mapping[str, Any]
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def add_ends_of_own_class(tokenizer: Tokenizer, path: Path) -> None:
    """Put BOS and EOS around texts where a tokenizer class of the model's own repository does.

    gte-Qwen2 has such a class: it obeys add_bos_token and add_eos_token, and its tokenizer.json lacks both tokens.
    """
    values = read_token_settings(path)
    if not values.get("auto_map"):
        return
    begin, end = (
        [token_text(values.get(f"{name}_token"))] * (values.get(f"add_{name}_token") is True) for name in ("bos", "eos")
    )
    ids = {token: None if token is None else tokenizer.token_to_id(token) for token in (*begin, *end)}
    if None in ids.values():
        raise ModelUnavailable(
            f"{path.with_name('tokenizer_config.json')}: add_bos_token and add_eos_token need a bos_token and "
            "eos_token of the vocabulary"
        )
    if ids:
        single = [*begin, "$A", *end]
        pair = [*single, *(f"{token}:1" for token in begin), "$B:1", *(f"{token}:1" for token in end)]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=single, pair=pair, special_tokens=list(ids.items())
        )


def refuse_cut_at_start(tokenizer: Tokenizer, path: Path, allowed: Collection[str]) -> None:
    """Raise ModelUnavailable if the file truncates texts at their start, which transformers obeys where the settings
    name no truncation_side (checkpoints/reader.py refuses theirs). allowed: keys that the operator ignores."""
    own = tokenizer.truncation or {}
    is_left = own.get("direction", "right") != "right" and read_token_settings(path).get("truncation_side") is None
    if is_left and "truncation_side" not in allowed:
        raise ModelUnavailable(
            f"{path}: truncation with the direction {own['direction']} is not supported and could change the results; "
            f"{OPTION} truncation_side ignores it"
        )


def declares_no_types(path: Path) -> bool:
    """Return whether the settings state that the model is given no token types: they are zeros then.

    transformers 5 writes the class TokenizersBackend, which gives none unless model_input_names has them.
    """
    values = read_token_settings(path)
    names = values.get("model_input_names")
    if isinstance(names, list):
        return "token_type_ids" not in names
    return values.get("tokenizer_class") == "TokenizersBackend"


_BERT = "BertNormalizer BertPreTokenizer"
_SENTENCEPIECE = "Precompiled Replace WhitespaceSplit Metaspace"
# The steps that a class of transformers 5 makes, or that do the same in files of earlier versions.
_STEPS: Mapping[str, str] = {
    "AlbertTokenizer": f"{_SENTENCEPIECE} NFKD StripAccents Lowercase",
    **dict.fromkeys(("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MPNetTokenizer"), _BERT),
    "CamembertTokenizer": _SENTENCEPIECE,
    "DebertaV2Tokenizer": "Lowercase Replace NFC Strip Punctuation Metaspace",
    "GemmaTokenizer": "Replace Split",
    "LlamaTokenizer": "Prepend Replace Metaspace Split ByteLevel",
    "Qwen2Tokenizer": "NFC Split ByteLevel",
    "RobertaTokenizer": "ByteLevel",
    "T5Tokenizer": _SENTENCEPIECE,
    "XLMRobertaTokenizer": _SENTENCEPIECE,
}
# The class of a model_type, where the settings name none.
_CLASSES: Mapping[str, str] = {
    "albert": "AlbertTokenizer",
    **dict.fromkeys(("bert", "convbert", "distilbert", "electra", "ernie", "nomic_bert"), "BertTokenizer"),
    "camembert": "CamembertTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text"), "GemmaTokenizer"),
    "mpnet": "MPNetTokenizer",
    **dict.fromkeys(("qwen2", "qwen3"), "Qwen2Tokenizer"),
    **dict.fromkeys(("data2vec-text", "roberta"), "RobertaTokenizer"),
    **dict.fromkeys(("mt5", "t5"), "T5Tokenizer"),
    "xlm-roberta": "XLMRobertaTokenizer",
}
_FRAMED = _STEPS.keys() - {"AlbertTokenizer", "GemmaTokenizer", "LlamaTokenizer", "Qwen2Tokenizer", "T5Tokenizer"}
_WITHOUT_TYPES = _STEPS.keys() - {"BertTokenizer", "DebertaV2Tokenizer", "DistilBertTokenizer", "ElectraTokenizer"}


def find_contradictions(tokenizer: Tokenizer, path: Path, config: Values) -> Iterator[str]:
    """Yield a clause for each way in which transformers 5 would make other tokens of a text than tokenizer.json.
    tokenizer: of the file at `path`, unchanged; config: config.json's entries."""
    values = read_token_settings(path)
    name = values.get("tokenizer_class") or config.get("tokenizer_class") or _CLASSES.get(str(config.get("model_type")))
    name = str(name or "").removesuffix("Fast")
    if name in _STEPS:
        yield from _other_steps(tokenizer, name, values)
    if name in _FRAMED:
        tokens = tokenizer.encode("a").tokens
        frame = [token_text(values.get(key)) for key in ("cls_token", "sep_token")]
        if None not in frame and [*tokens[:1], *tokens[-1:]] != frame:
            yield f"its {name} would make {' text '.join(map(str, frame))!r} of a text"
    has_types = config.get("type_vocab_size") not in (None, 0, 1) and any(tokenizer.encode("a", "b").type_ids)
    if has_types and not values.get("model_input_names") and name in {*_WITHOUT_TYPES, "PreTrainedTokenizer"}:
        yield "it would give both texts of a pair the same type"
    decoder = values.get("added_tokens_decoder")
    added = list(decoder.values()) if isinstance(decoder, dict) else []
    declared = dict.fromkeys(map(token_text, (*added, *map(values.get, _NAMED), *further_tokens(values))))
    has_tokens = {None, *(token.content for token in tokenizer.get_added_tokens_decoder().values())}
    if lacking := [token for token in declared if token not in has_tokens]:
        yield f"it would read {', '.join(map(repr, lacking[:4]))}, which the settings add, as single tokens"
    if values.get("split_special_tokens") is True:
        yield "split_special_tokens is true: it would read special tokens inside a text as letters"
    if values.get("add_eos_token") is True:
        end = token_text(values.get("eos_token"))
        if tokenizer.encode("a").tokens[-1:] != [end]:
            yield f"add_eos_token (obeyed before version 5) is true, and the file does not put {end!r} after a text"


def _other_steps(tokenizer: Tokenizer, name: str, values: Values) -> Iterator[str]:
    parts = (tokenizer.normalizer, tokenizer.pre_tokenizer)
    steps = {step["type"]: step for part in parts if part for step in steps_of(json.loads(part.__getstate__()))}
    if own := sorted(steps.keys() - {"Sequence", *_STEPS[name].split()}):
        yield f"its {name} would leave out {', '.join(own)}"
    if "BertNormalizer" not in _STEPS[name] or "BertNormalizer" not in steps:
        return
    step, lowercase, strips = steps["BertNormalizer"], values.get("do_lower_case", True), values.get("strip_accents")
    own_lowercase, own_strips = step["lowercase"], step["strip_accents"]
    for setting, theirs, ours in (
        ("do_lower_case", lowercase, own_lowercase),
        ("strip_accents", lowercase if strips is None else strips, own_lowercase if own_strips is None else own_strips),
        ("tokenize_chinese_chars", values.get("tokenize_chinese_chars", True), step["handle_chinese_chars"]),
    ):
        if theirs != ours:
            yield f"its {name} would read {setting} as {theirs}, not as {ours}"


def steps_of(state: Any) -> Iterator[Values]:
    """Every object with a type in the state of a tokenizer's part, at any depth: sequences nest."""
    if isinstance(state, list):
        for item in state:
            yield from steps_of(item)
    elif isinstance(state, dict):
        if "type" in state:
            yield state
        for value in state.values():
            yield from steps_of(value)


def further_tokens(values: Values) -> list[str]:
    """The special tokens that the settings add to those of a class of tokenizers."""
    lists = (values.get("additional_special_tokens"), values.get("extra_special_tokens"))
    texts = (token_text(token) for tokens in lists if isinstance(tokens, list) for token in tokens)
    return [text for text in texts if text is not None]
