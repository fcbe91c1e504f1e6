"""tokenizer_config.json and its companions next to tokenizer.json: `apply_settings` does as transformers' classes.

Most of transformers' classes take only the model, the template of special tokens and the character map of
tokenizer.json, and build all else from their own settings: CLASSES has one entry for each. The others use the file
unchanged. Then all add the special tokens of the settings. A folder whose settings and tokenizer.json contradict each
other is refused. Called once per model, at load. Source: transformers 5.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from vectord.checkpoints.files.read import Settings, read_json_object, read_settings
from vectord.checkpoints.gguf.tokenizer import QWEN2_WORDS
from vectord.checkpoints.tokenizer_class import FILE, find_class
from vectord.errors import ModelUnavailable

_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")
_SWITCHES = (
    *("add_prefix_space", "do_lower_case", "keep_accents", "legacy", "split_by_punct", "strip_accents"),
    "tokenize_chinese_chars",
)
_TOKENS_LIMIT = 10_000
_Token: TypeAlias = str | AddedToken


def apply_settings(tokenizer: Tokenizer, path: Path, config: Mapping[str, Any]) -> Tokenizer:
    """Return the tokenizer that transformers makes of tokenizer.json or vocab.txt at `path` and the files next to it.

    Token types are zero where transformers sends none. config: config.json's entries. Raises ModelUnavailable, naming
    the setting, where it cannot be followed.
    """
    given = _Given(read_settings(path.with_name("tokenizer_config.json"), optional=True))
    name, is_declared = find_class(config, given.file)
    if path.suffix == ".txt":
        name = name if name in CLASSES else "BertTokenizer"
    if name == "LlamaTokenizer" and _is_byte_level(tokenizer):
        name = FILE  # Llama 3
    known = None if name is None else CLASSES.get(name)
    if known is not None and type(tokenizer.model).__name__ != known.model:
        if is_declared:
            raise given.refusal("tokenizer_class", f"which does not fit the model of {path.name}; name another class")
        name = known = None
    _refuse_other_calls(tokenizer, given)
    tokens = _read_tokens(tokenizer, path, given, known)
    has_template = tokenizer.post_processor is not None
    if known is not None:
        tokenizer = _rebuilt(tokenizer, given, known, tokens)
    _add_tokens(tokenizer, tokens)
    if known is not None and known.adds_again:
        names = dict.fromkeys(str(token) for token in [*tokens.named.values(), *tokens.extra])
        tokenizer.add_tokens([AddedToken(name, special=True) for name in names])
    if given.get("auto_map") and (given.get("add_bos_token") is True or given.get("add_eos_token") is True):
        _put_around(tokenizer, given)
    elif known is not None and known.frame is not None and not (known.prefers_file and has_template):
        _set_frame(tokenizer, path, given, known, tokens)
    elif tokenizer.post_processor is None and name is not None:
        tokenizer.post_processor = processors.TemplateProcessing(single="$A:0", pair="$A:0 $B:1", special_tokens=[])
    if not _has_types(given, name, known):
        _drop_types(tokenizer)
    return tokenizer


def named_token(path: Path, key: str) -> str | None:
    """Return the token of a name such as eos_token in the files next to the tokenizer.json at `path`, if one has it."""
    values = read_settings(path.with_name("tokenizer_config.json"), optional=True).fields
    if "added_tokens_decoder" not in values:
        values = {**values, **read_settings(path.with_name("special_tokens_map.json"), optional=True).fields}
    token = _name(values.get(key))
    return token if isinstance(token, str) else None


class _Given:
    """The settings of a folder, read by type."""

    def __init__(self, file: Settings) -> None:
        self.file = file
        self.values = dict(file.items())

    def get(self, key: str) -> Any:
        return self.values.get(key)

    def flag(self, key: str, default: bool, *, null: bool | None = None) -> bool:
        """null: what a null means; None: it is refused."""
        value = self.values.get(key, default)
        value = null if value is None else value
        if not isinstance(value, bool):
            raise self.refusal(key, "must be true or false")
        return value

    def refusal(self, key: str, why: str) -> ModelUnavailable:
        value = json.dumps(self.values.get(key), default=str)
        return ModelUnavailable(f"{self.file.path}: {key} is {value[:200]}, {why}")


def _refuse_other_calls(tokenizer: Tokenizer, given: _Given) -> None:
    truncation = tokenizer.truncation or {}
    if given.values.setdefault("truncation_side", truncation.get("direction", "right")) != "right":
        raise given.refusal("truncation_side", "which is not supported as a model's own setting")
    if given.flag("split_special_tokens", False):
        raise given.refusal("split_special_tokens", "which is not supported")


def _has_types(given: _Given, name: str | None, known: _Class | None) -> bool:
    names = given.values.get("model_input_names", [])
    if not isinstance(names, list):
        raise given.refusal("model_input_names", "must be a list")
    if "model_input_names" in given.values:
        return "token_type_ids" in names
    return name is None if known is None else known.has_types  # None: no class is known


# --- the classes ----------------------------------------------------------------------------------------------


def _bert_normalizer(given: _Given, charsmap: bytes | None) -> normalizers.Normalizer:
    strips = given.get("strip_accents")
    return normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=given.flag("tokenize_chinese_chars", True),
        strip_accents=None if strips is None else given.flag("strip_accents", False),
        lowercase=given.flag("do_lower_case", True),
    )


def _albert_normalizer(given: _Given, charsmap: bytes | None) -> normalizers.Normalizer:
    steps: list[normalizers.Normalizer] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not given.flag("keep_accents", False):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if given.flag("do_lower_case", True):
        steps.append(normalizers.Lowercase())
    return normalizers.Sequence(steps if charsmap is None else [*steps, normalizers.Precompiled(charsmap)])


def _deberta_normalizer(given: _Given, charsmap: bytes | None) -> normalizers.Normalizer:
    lower = [normalizers.Lowercase()] if given.flag("do_lower_case", False) else []
    spaces = normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " ")
    return normalizers.Sequence([*lower, spaces, normalizers.NFC(), normalizers.Strip(left=False, right=True)])


def _charsmap_normalizer(given: _Given, charsmap: bytes | None) -> normalizers.Normalizer | None:
    return None if charsmap is None else normalizers.Precompiled(charsmap)


def _metaspace_words(given: _Given) -> pre_tokenizers.PreTokenizer:
    return _split_words("always" if given.flag("add_prefix_space", True) else "never")


def _split_words(scheme: str) -> pre_tokenizers.PreTokenizer:
    """scheme: which words begin with a mark: "always" or "never"."""
    return pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme)]
    )


def _deberta_words(given: _Given) -> pre_tokenizers.PreTokenizer:
    scheme = "always" if given.flag("add_prefix_space", True) else "first"
    splits = [pre_tokenizers.Punctuation(behavior="isolated")] if given.flag("split_by_punct", False) else []
    return pre_tokenizers.Sequence([*splits, pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme)])


def _qwen2_words(given: _Given) -> pre_tokenizers.PreTokenizer:
    adds = given.flag("add_prefix_space", False, null=False)
    words = pre_tokenizers.Split(Regex(QWEN2_WORDS), behavior="isolated", invert=False)
    return pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=adds, use_regex=False)])


def _llama_words(given: _Given) -> pre_tokenizers.PreTokenizer:
    if not given.flag("add_prefix_space", True, null=True):
        scheme = "never"
    else:
        scheme = "always" if given.flag("legacy", False, null=False) else "first"
    return pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=False)


@dataclass(frozen=True, slots=True)
class _Class:
    """What one of transformers' classes makes of its settings."""

    model: str  # of tokenizer.json
    tokens: Mapping[str, _Token]  # its named special tokens, unless set
    normalizer: Callable[[_Given, bytes | None], normalizers.Normalizer | None]
    words: Callable[[_Given], pre_tokenizers.PreTokenizer]
    frame: tuple[str | None, str] | None = None  # settings of the first and last token; None: tokenizer.json's template
    second_type: int = 0  # of the second text and its last token
    ends_twice: bool = False  # the last token is twice between two texts
    prefers_file: bool = False  # the frame is only for a file without a template
    has_types: bool = False
    unknown: int | str | None = None  # the unknown token, or its id in a Unigram; None: none
    options: Mapping[str, Any] = field(default_factory=dict)  # of the model
    wraps: Mapping[str, Mapping[str, bool]] = field(
        default_factory=dict
    )  # flags of its named tokens that are given by name only
    trims_offsets: bool = False
    further: Callable[[_Given, list[Any] | None], list[Any]] = lambda given, listed: listed or []  # special tokens
    adds_again: bool = False  # all special tokens, without their flags


def _tokens(start: str, end: str, unknown: str, pad: str, mask: str, *, has_ends: bool = True) -> dict[str, _Token]:
    ends = {"bos_token": start, "eos_token": end} if has_ends else {}
    return {**ends, "unk_token": unknown, "sep_token": end, "pad_token": pad, "cls_token": start, "mask_token": mask}


def _t5_sentinels(given: _Given, listed: list[Any] | None) -> list[Any]:
    count = given.values.get("extra_ids", 100)
    if type(count) is not int or not 0 <= count <= _TOKENS_LIMIT:
        raise given.refusal("extra_ids", f"must be a whole number up to {_TOKENS_LIMIT:,}")
    found = sum("<extra_id_" in str(token) for token in listed or [])
    if found and count not in (0, found):
        raise given.refusal("extra_ids", f"but additional_special_tokens has {found:,} of these tokens")
    return [*(listed or []), *([] if found else [f"<extra_id_{i}>" for i in range(count)])]


_PLAIN_BPE = {"dropout": None, "unk_token": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
_BERT = _Class(
    model="WordPiece",
    tokens=_tokens("[CLS]", "[SEP]", "[UNK]", "[PAD]", "[MASK]", has_ends=False),
    normalizer=_bert_normalizer,
    words=lambda given: pre_tokenizers.BertPreTokenizer(),
    frame=("cls_token", "sep_token"),
    second_type=1,
    has_types=True,
    unknown="unk_token",
    options={"continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
)
_XLM_ROBERTA = _Class(
    model="Unigram",
    tokens=_tokens("<s>", "</s>", "<unk>", "<pad>", "<mask>"),
    normalizer=_charsmap_normalizer,
    words=_metaspace_words,
    frame=("bos_token", "eos_token"),
    ends_twice=True,
    unknown=3,
)
CLASSES: Mapping[str, _Class] = {
    "AlbertTokenizer": _Class(
        model="Unigram",
        tokens=_tokens("[CLS]", "[SEP]", "<unk>", "<pad>", "[MASK]"),
        normalizer=_albert_normalizer,
        words=_metaspace_words,
        frame=("cls_token", "sep_token"),
        second_type=1,
        prefers_file=True,
        unknown=1,
    ),
    "BertTokenizer": _BERT,
    "CamembertTokenizer": replace(
        _XLM_ROBERTA,
        unknown="unk_token",
        wraps={"mask_token": {"lstrip": True, "special": True}},
        further=lambda given, listed: ["<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"] if listed is None else listed,
    ),
    "DebertaV2Tokenizer": _Class(
        model="Unigram",
        tokens=_tokens("[CLS]", "[SEP]", "[UNK]", "[PAD]", "[MASK]"),
        normalizer=_deberta_normalizer,
        words=_deberta_words,
        frame=("cls_token", "sep_token"),
        second_type=1,
        has_types=True,
        unknown="unk_id",
    ),
    "DistilBertTokenizer": replace(_BERT, has_types=False),
    "GemmaTokenizer": _Class(
        model="BPE",
        tokens={key: f"<{key.removesuffix('_token')}>" for key in _NAMED if key not in {"cls_token", "sep_token"}},
        normalizer=lambda given, charsmap: normalizers.Replace(" ", "▁"),
        words=lambda given: pre_tokenizers.Split(pattern=" ", behavior="merged_with_previous", invert=False),
        unknown="unk_token",
        options={**_PLAIN_BPE, "fuse_unk": True, "byte_fallback": True},
    ),
    "LlamaTokenizer": _Class(
        model="BPE",
        tokens={"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
        normalizer=lambda given, charsmap: None,
        words=_llama_words,
        options={**_PLAIN_BPE, "fuse_unk": True, "byte_fallback": True},
    ),
    "MPNetTokenizer": replace(
        _BERT,
        tokens=_tokens("<s>", "</s>", "[UNK]", "<pad>", "<mask>"),
        second_type=0,
        ends_twice=True,
        has_types=False,
        wraps={key: {"lstrip": key == "mask_token"} for key in _NAMED},
    ),
    "Qwen2Tokenizer": _Class(
        model="BPE",
        tokens=dict.fromkeys(("eos_token", "unk_token", "pad_token"), "<|endoftext|>"),
        normalizer=lambda given, charsmap: normalizers.NFC(),
        words=_qwen2_words,
        options=_PLAIN_BPE,
        adds_again=True,
    ),
    "RobertaTokenizer": _Class(
        model="BPE",
        tokens=_tokens("<s>", "</s>", "<unk>", "<pad>", "<mask>"),
        normalizer=lambda given, charsmap: None,
        words=lambda given: pre_tokenizers.ByteLevel(add_prefix_space=given.flag("add_prefix_space", False)),
        frame=("cls_token", "sep_token"),
        ends_twice=True,
        trims_offsets=True,
        options=_PLAIN_BPE,
    ),
    "T5Tokenizer": _Class(
        model="Unigram",
        tokens={"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
        normalizer=_charsmap_normalizer,
        words=lambda given: _split_words("always"),
        frame=(None, "eos_token"),
        unknown=2,
        further=_t5_sentinels,
    ),
    "XLMRobertaTokenizer": _XLM_ROBERTA,
}


def _is_byte_level(tokenizer: Tokenizer) -> bool:
    parts = (tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.post_processor, tokenizer.decoder)
    return any(b'"ByteLevel"' in part.__getstate__() for part in parts if part is not None)


def _rebuilt(tokenizer: Tokenizer, given: _Given, known: _Class, tokens: _Tokens) -> Tokenizer:
    """Return the file's model and template with all else as the class makes it, and without added tokens."""
    rebuilt = Tokenizer(_model(tokenizer, given, known, tokens))
    charsmap = _charsmap(tokenizer)
    normalizer, words = known.normalizer(given, charsmap), known.words(given)
    _refuse_contradiction(tokenizer, given, known, charsmap)
    if normalizer is not None:
        rebuilt.normalizer = normalizer
    rebuilt.pre_tokenizer = words
    if tokenizer.post_processor is not None:
        rebuilt.post_processor = tokenizer.post_processor
    if tokenizer.decoder is not None:
        rebuilt.decoder = tokenizer.decoder
    return rebuilt


def _refuse_contradiction(tokenizer: Tokenizer, given: _Given, known: _Class, charsmap: bytes | None) -> None:
    """Raise ModelUnavailable if tokenizer.json is what the class makes of another value of one setting."""

    def states(given: _Given) -> list[Any]:
        return _states(known.normalizer(given, charsmap), known.words(given))

    file = _states(tokenizer.normalizer, tokenizer.pre_tokenizer)
    if states(given) == file:
        return
    for key in _SWITCHES:
        for value in ({key: True}, {key: False}, {}):
            rest = {name: other for name, other in given.values.items() if name != key}
            if states(_Given(Settings(given.file.path, {**rest, **value}))) == file:
                raise given.refusal(key, "which is not what tokenizer.json does; change one of the two files")


def _states(normalizer: normalizers.Normalizer | None, words: pre_tokenizers.PreTokenizer | None) -> list[Any]:
    states: list[Any] = [None if part is None else json.loads(part.__getstate__()) for part in (normalizer, words)]
    if isinstance(normalizer, normalizers.BertNormalizer) and normalizer.strip_accents is None:
        states[0]["strip_accents"] = normalizer.lowercase
    return states


def _charsmap(tokenizer: Tokenizer) -> bytes | None:
    """The map of characters of a SentencePiece model: a step of the normalizer."""
    state = {} if tokenizer.normalizer is None else json.loads(tokenizer.normalizer.__getstate__())
    for step in state.get("normalizers", [state]):
        if step.get("type") == "Precompiled":
            return base64.b64decode(step["precompiled_charsmap"])
    return None


def _model(tokenizer: Tokenizer, given: _Given, known: _Class, tokens: _Tokens) -> models.Model:
    model: models.Model = tokenizer.model
    if known.model == "Unigram":
        state = json.loads(model.__getstate__())
        fixed = {"unk_id": _unknown_id(state["vocab"], given, known, tokens), "byte_fallback": False}
        if any(state.get(key) != value for key, value in fixed.items()):
            model.__setstate__(json.dumps({**state, **fixed}).encode())
        return model
    if isinstance(model, models.BPE) and (model.continuing_subword_prefix or model.end_of_word_suffix):
        raise given.refusal("tokenizer_class", "which does not support tokenizer.json's marks inside words")
    options = dict(known.options)
    if known.unknown is not None:
        options["unk_token"] = _required(given, tokens, "unk_token")
    for key, value in options.items():
        if getattr(model, key) != value:
            setattr(model, key, value)
    return model


def _unknown_id(vocab: list[list[Any]], given: _Given, known: _Class, tokens: _Tokens) -> int:
    if isinstance(known.unknown, int):
        return known.unknown
    unknown = str(tokens.named.get("unk_token"))
    if known.unknown == "unk_token":
        return next((i for i, (piece, _) in enumerate(vocab) if piece == unknown), 0)
    given_id = given.values.get("unk_id", 1)
    if type(given_id) is not int:
        raise given.refusal("unk_id", "must be a whole number")
    return next((i for i, (piece, score) in enumerate(vocab) if piece == unknown and score == 0), given_id)


# --- special tokens -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Tokens:
    """The tokens of the settings, in the order in which transformers adds them."""

    added: list[AddedToken]
    named: dict[str, _Token]
    extra: list[_Token]


def _read_tokens(tokenizer: Tokenizer, path: Path, given: _Given, known: _Class | None) -> _Tokens:
    values = given.values
    if "additional_special_tokens" in values and not values.get("extra_special_tokens"):
        values["extra_special_tokens"] = values.pop("additional_special_tokens")
    own = _pop_own(values) or values.get("model_specific_special_tokens") or {}
    if "added_tokens_decoder" in values:
        added = _read_decoder(given)
    else:  # before version 4.34 of transformers
        _merge_special_tokens_map(path, given)
        own = {**_pop_own(values), **own}
        added = _read_added_tokens(path, given)
        if path.suffix != ".txt":
            added |= tokenizer.get_added_tokens_decoder()
    by_name = {str(token): token for token in added.values()}
    named: dict[str, _Token] = {}
    for key in _NAMED:
        value = None if known is None else known.tokens.get(key)
        if value is None and key == "pad_token" and tokenizer.padding is not None:
            value = tokenizer.padding["pad_token"]
        if key in values:
            value = None if values[key] is None else _token(given, key, values[key])
            value = value if value is None else by_name.get(str(value), value)
        if known is not None and isinstance(value, str) and key in known.wraps:
            value = AddedToken(value, **known.wraps[key])
        if value is not None:
            named[key] = value
    named |= {key: _token(given, key, value) for key, value in own.items()}
    extra = _extra(given, known)
    if len(named) + len(extra) > _TOKENS_LIMIT:
        raise ModelUnavailable(f"{given.file.path}: more than {_TOKENS_LIMIT:,} special tokens")
    return _Tokens([added[i] for i in sorted(added)], named, extra)


def _pop_own(values: dict[str, Any]) -> dict[str, Any]:
    """Remove and return the special tokens that have names of the model's own, such as image_token."""
    keys = [key for key, value in values.items() if key.endswith("_token") and isinstance(value, str | dict)]
    own = {key: values.pop(key) for key in keys if key not in _NAMED}
    if isinstance(values.get("extra_special_tokens"), dict):
        own |= values.pop("extra_special_tokens")
    return own


def _extra(given: _Given, known: _Class | None) -> list[_Token]:
    values = given.values
    key = "extra_special_tokens" if "extra_special_tokens" in values else "additional_special_tokens"
    listed = values.get(key)
    if listed is not None and not isinstance(listed, list):
        raise given.refusal(key, "must be a list")
    if known is not None and key == "additional_special_tokens":
        listed = known.further(given, listed)
    return [_token(given, key, value) for value in listed or []]


def _read_decoder(given: _Given) -> dict[int, AddedToken]:
    key = "added_tokens_decoder"
    decoder = given.values[key]
    if not isinstance(decoder, dict) or not all(
        i.isdecimal() and isinstance(token, dict) for i, token in decoder.items()
    ):
        raise given.refusal(key, "must be an object of tokens by their ids")
    if len(decoder) > _TOKENS_LIMIT:
        raise ModelUnavailable(f"{given.file.path}: {key} has more than {_TOKENS_LIMIT:,} tokens")
    return {int(i): _added(given, key, token) for i, token in decoder.items()}


def _merge_special_tokens_map(path: Path, given: _Given) -> None:
    """Its tokens replace those of tokenizer_config.json."""
    file = read_settings(path.with_name("special_tokens_map.json"), optional=True)
    for key, value in file.items():
        # transformers also takes settings from this file, such as add_eos_token.
        is_token = key.endswith("_token") and isinstance(value, str | dict | None)
        if not is_token and key not in {"additional_special_tokens", "extra_special_tokens"}:
            raise ModelUnavailable(f"{file.path}: {key[:80]} is not supported")
        token = _added(given, key, {**value, "special": True}) if is_token and isinstance(value, dict) else value
        if key == "extra_special_tokens" and isinstance(value, list):
            before = given.values.get(key) or []
            token = [*before, *(one for one in value if one not in before)]
        given.values[key] = token


def _read_added_tokens(path: Path, given: _Given) -> dict[int, AddedToken]:
    file = path.with_name("added_tokens.json")
    ids = read_json_object(file) if file.exists() else {}
    if len(ids) > _TOKENS_LIMIT or not all(type(i) is int for i in ids.values()):
        raise ModelUnavailable(f"{file}: must have the ids of at most {_TOKENS_LIMIT:,} tokens")
    values = given.values
    special = {_name(token) for token in (*map(values.get, _NAMED), *(values.get("extra_special_tokens") or []))}
    return {
        i: AddedToken(name, lstrip=False, rstrip=False, normalized=name not in special, special=name in special)
        for name, i in ids.items()
    }


def _token(given: _Given, key: str, value: Any) -> _Token:
    return _added(given, key, value) if isinstance(value, dict) else _checked(given, key, value)


def _added(given: _Given, key: str, value: Mapping[str, Any]) -> AddedToken:
    content = _checked(given, key, value.get("content"))
    return AddedToken(str(content), **{flag: value[flag] for flag in _FLAGS if flag in value})


def _checked(given: _Given, key: str, value: Any) -> _Token:
    if not isinstance(value, str | AddedToken):
        raise given.refusal(key, "must be a token")
    return value


def _name(value: Any) -> Any:
    return value.get("content") if isinstance(value, dict) else None if value is None else str(value)


def _add_tokens(tokenizer: Tokenizer, tokens: _Tokens) -> None:
    """Special tokens of the settings are single tokens inside a text too."""
    existing = tokenizer.get_added_tokens_decoder().values()
    as_text = {repr(token) for token in existing}
    missing: list[_Token] = [token for token in tokens.added if repr(token) not in as_text]
    names = {token.content for token in existing} | {str(token) for token in missing}
    for token in (*tokens.named.values(), *tokens.extra):
        if str(token) not in names and token not in missing:
            missing.append(token)
    special = {str(token) for token in tokens.named.values()}
    for i, token in enumerate(missing):
        if isinstance(token, str):
            missing[i] = AddedToken(token, special=True)
        elif token.content in special:
            token.special = True
    tokenizer.add_tokens(missing)


# --- the frame around texts -----------------------------------------------------------------------------------


def _required(given: _Given, tokens: _Tokens, key: str) -> str:
    if key not in tokens.named:
        raise given.refusal(key, "but the class of this tokenizer needs it")
    return str(tokens.named[key])


def _set_frame(tokenizer: Tokenizer, path: Path, given: _Given, known: _Class, tokens: _Tokens) -> None:
    """Raises ModelUnavailable if tokenizer.json puts other special tokens around a text or a pair than the class."""
    before = None if tokenizer.post_processor is None else (tokenizer.encode("a").ids, tokenizer.encode("a", "a").ids)
    tokenizer.post_processor = _frame(tokenizer, given, known, tokens)
    if before not in (None, (tokenizer.encode("a").ids, tokenizer.encode("a", "a").ids)):
        settings = " and ".join(f"{key} {str(tokens.named[key])!r:.100}" for key in known.frame or () if key)
        raise ModelUnavailable(
            f"{path}: its special tokens around a text or pair are not those that its tokenizer_class makes of "
            f"{settings}; change {path.name} or {given.file.path.name}"
        )


def _frame(tokenizer: Tokenizer, given: _Given, known: _Class, tokens: _Tokens) -> processors.PostProcessor:
    """The special tokens that the class puts around a text or a pair."""
    assert known.frame is not None
    start, end = ("" if key is None else _required(given, tokens, key) for key in known.frame)
    ids = {name: id_ for name in (start, end) if name and (id_ := tokenizer.token_to_id(name)) is not None}
    if known.trims_offsets:
        return processors.RobertaProcessing(
            (end, ids[end]),
            (start, ids[start]),
            trim_offsets=given.flag("trim_offsets", True),
            add_prefix_space=given.flag("add_prefix_space", False),
        )
    single = [*([f"{start}:0"] if start else []), "$A:0", f"{end}:0"]
    between = [f"{end}:0"] if known.ends_twice else []
    return processors.TemplateProcessing(
        single=single,
        pair=[*single, *between, f"$B:{known.second_type}", f"{end}:{known.second_type}"],
        special_tokens=list(ids.items()),
    )


def _put_around(tokenizer: Tokenizer, given: _Given) -> None:
    """Add BOS and EOS as gte-Qwen2's own tokenizer class does; transformers' classes ignore these settings."""
    begin, end = (
        [_name(given.get(f"{name}_token"))] * (given.get(f"add_{name}_token") is True) for name in ("bos", "eos")
    )
    ids = {token: tokenizer.token_to_id(token) if isinstance(token, str) else None for token in (*begin, *end)}
    if None in ids.values():
        raise ModelUnavailable(
            f"{given.file.path}: add_bos_token and add_eos_token need a bos_token and eos_token of the vocabulary"
        )
    single = [*begin, "$A", *end]
    pair = [*single, *(f"{token}:1" for token in begin), "$B:1", *(f"{token}:1" for token in end)]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=list(ids.items()))


def _drop_types(tokenizer: Tokenizer) -> None:
    """Give every token the type 0, in texts and pairs."""
    processor = tokenizer.post_processor
    if processor is None:
        tokenizer.post_processor = processors.TemplateProcessing(single="$A", pair="$A:0 $B:0", special_tokens=[])
    elif isinstance(processor, processors.BertProcessing):
        state = json.loads(processor.__getstate__())
        first, last = (f"{state[key][0]}:0" for key in ("cls", "sep"))
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{first} $A {last}",
            pair=f"{first} $A {last} $B:0 {last}",
            special_tokens=[tuple(state["cls"]), tuple(state["sep"])],
        )
    else:
        state = processor.__getstate__()
        processor.__setstate__(json.dumps(_zeroed(json.loads(state))).encode())
        tokenizer.post_processor = processor


def _zeroed(state: Any) -> Any:
    if isinstance(state, list):
        return [_zeroed(item) for item in state]
    if isinstance(state, dict):
        return {key: 0 if key == "type_id" else _zeroed(value) for key, value in state.items()}
    return state
