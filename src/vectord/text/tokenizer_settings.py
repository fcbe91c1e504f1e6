"""tokenizer_config.json next to tokenizer.json: `apply_settings` does as transformers' classes, or refuses the model.

Classes such as BertTokenizer rebuild most of the tokenizer from their own settings, so the two files may disagree. The
classes of _FILE_CLASSES use tokenizer.json unchanged. Called once per model, at load. Source: transformers 5.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, normalizers, processors

from vectord.checkpoints.files.read import Settings, read_settings
from vectord.errors import ModelUnavailable

_FILE_CLASSES = frozenset({"PreTrainedTokenizer", "TokenizersBackend"})  # names without "Fast"
_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_TOKENS_LIMIT = 10_000


@dataclass(frozen=True, slots=True)
class _Class:
    """What one of transformers' classes makes of its settings."""

    model: str  # tokenizer.json's model
    frame: tuple[str, str] | None = None  # settings of the first and last token around a text
    tokens: tuple[str, str] = ("", "")  # their defaults
    ends_twice: bool = False  # the last token is twice between two texts
    has_types: bool = False
    strips_spaces: bool = True  # whether special tokens keep their lstrip and rstrip


_CLASSES = {
    "BertTokenizer": _Class("WordPiece", ("cls_token", "sep_token"), ("[CLS]", "[SEP]"), has_types=True),
    "DistilBertTokenizer": _Class("WordPiece", ("cls_token", "sep_token"), ("[CLS]", "[SEP]")),
    "MPNetTokenizer": _Class("WordPiece", ("cls_token", "sep_token"), ("<s>", "</s>"), ends_twice=True),
    "RobertaTokenizer": _Class("BPE", ("cls_token", "sep_token"), ("<s>", "</s>"), ends_twice=True),
    "XLMRobertaTokenizer": _Class("Unigram", ("bos_token", "eos_token"), ("<s>", "</s>"), ends_twice=True),
    "Qwen2Tokenizer": _Class("BPE", strips_spaces=False),
    "LlamaTokenizer": _Class("BPE"),
}


def apply_settings(tokenizer: Tokenizer, path: Path) -> None:
    """Add the special tokens of tokenizer_config.json, and make type ids zero where transformers sends none.

    Raises ModelUnavailable, naming the setting, if it asks for other tokens than tokenizer.json at `path` makes.
    """
    config = read_settings(path.with_name("tokenizer_config.json"), optional=True)
    name = config.get("tokenizer_class")
    name = name.removesuffix("Fast") if isinstance(name, str) else None
    known = None if name is None else _CLASSES.get(name)
    refused = {
        "truncation_side": config.get("truncation_side") == "left",
        "split_special_tokens": config.get("split_special_tokens") is True,
        "tokenizer_class": known is not None and type(tokenizer.model).__name__ != known.model,
    }
    if name not in _FILE_CLASSES:
        refused |= _changes(tokenizer, path, config)
    for key, is_refused in refused.items():
        if is_refused:
            raise ModelUnavailable(
                f"{config.path}: {key} is {json.dumps(config.get(key))[:200]}, which is not what {path.name} does; "
                "change one of the two files"
            )
    if config.get("auto_map") and (config.get("add_bos_token") is True or config.get("add_eos_token") is True):
        _put_around(tokenizer, config)
    _add_tokens(tokenizer, config, strips_spaces=known is None or known.strips_spaces)
    if known is not None and known.frame is not None:
        _check_frame(tokenizer, path, config, known)
    names = config.get("model_input_names")
    if isinstance(names, list):
        has_types = "token_type_ids" in names
    else:
        is_bert_like = name not in _FILE_CLASSES and (name is not None or type(tokenizer.model).__name__ != "BPE")
        has_types = is_bert_like if known is None else known.has_types
    if not has_types:
        _drop_types(tokenizer)


def _changes(tokenizer: Tokenizer, path: Path, config: Settings) -> dict[str, bool]:
    """Whether each setting of a rebuilt tokenizer differs from the file's."""
    own: dict[str, Any] = {}
    normalizer = tokenizer.normalizer
    if path.suffix != ".txt" and isinstance(normalizer, normalizers.BertNormalizer):
        strips = normalizer.strip_accents
        own = {
            "do_lower_case": normalizer.lowercase,
            "strip_accents": normalizer.lowercase if strips is None else strips,
            "tokenize_chinese_chars": normalizer.handle_chinese_chars,
        }
    own["add_prefix_space"] = _prefix_space(tokenizer)
    given = {key: (config.get(key), value) for key, value in own.items()}
    changed = {
        key: isinstance(wanted, bool) and value is not None and wanted != value
        for key, (wanted, value) in given.items()
    }
    unknown = getattr(tokenizer.model, "unk_token", None)
    if type(tokenizer.model).__name__ == "WordPiece" and config.get("unk_token") is not None:
        changed["unk_token"] = _content(config.get("unk_token")) != unknown
    return changed


def _prefix_space(tokenizer: Tokenizer) -> bool | None:
    """Whether the pre-tokenizer puts a space before a text; None if it does not say."""
    if tokenizer.pre_tokenizer is None:
        return None
    state = json.loads(tokenizer.pre_tokenizer.__getstate__())
    for step in state.get("pretokenizers", [state]):
        match step:
            case {"type": "ByteLevel", "add_prefix_space": bool(adds)}:
                return adds
            case {"type": "Metaspace", "prepend_scheme": str(scheme)}:
                return scheme != "never"
    return None


# --- special tokens -------------------------------------------------------------------------------------------


def _add_tokens(tokenizer: Tokenizer, config: Settings, *, strips_spaces: bool) -> None:
    """Special tokens of the settings are single tokens inside a text too. They are added in transformers' order."""
    has = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    missing: dict[str, AddedToken] = {}
    for token in _special_tokens(config, strips_spaces=strips_spaces):
        if token.content and token.content not in has:
            missing.setdefault(token.content, token)
    if missing:
        tokenizer.add_tokens(list(missing.values()))


def _special_tokens(config: Settings, *, strips_spaces: bool) -> Iterator[AddedToken]:
    decoder = config.get("added_tokens_decoder")
    decoder = decoder if isinstance(decoder, dict) else {}
    further = [config.get(key) for key in ("additional_special_tokens", "extra_special_tokens")]
    lists = [tokens if isinstance(tokens, list) else [] for tokens in further]
    if len(decoder) + sum(map(len, lists)) > _TOKENS_LIMIT:
        raise ModelUnavailable(f"{config.path}: more than {_TOKENS_LIMIT:,} special tokens")
    for key in sorted((key for key in decoder if key.isdecimal()), key=int):
        yield from _token(decoder[key], special=False)
    for value in (*(config.get(key) for key in _TOKENS), *(token for tokens in lists for token in tokens)):
        yield from _token(value if strips_spaces else _content(value), special=True)


def _token(value: Any, *, special: bool) -> Iterator[AddedToken]:
    if not isinstance(content := _content(value), str):
        return
    fields = value if isinstance(value, dict) else {}
    flags = {key: fields[key] for key in ("lstrip", "rstrip", "single_word", "normalized") if key in fields}
    is_special = special or fields.get("special") is True
    yield AddedToken(content, special=is_special, **{"normalized": not is_special, **flags})


def end_token(path: Path) -> str | None:
    """Return eos_token of tokenizer_config.json next to the tokenizer.json at `path`; None if it has none."""
    token = _content(read_settings(path.with_name("tokenizer_config.json"), optional=True).get("eos_token"))
    return token if isinstance(token, str) else None


def _content(value: Any) -> Any:
    return value.get("content") if isinstance(value, dict) else value


# --- the frame around texts -----------------------------------------------------------------------------------


def _put_around(tokenizer: Tokenizer, config: Settings) -> None:
    """As gte-Qwen2's own tokenizer class, which is never run. transformers' classes ignore these settings."""
    begin, end = (
        [_content(config.get(f"{name}_token"))] * (config.get(f"add_{name}_token") is True) for name in ("bos", "eos")
    )
    ids = {token: tokenizer.token_to_id(token) if isinstance(token, str) else None for token in (*begin, *end)}
    if None in ids.values():
        raise ModelUnavailable(
            f"{config.path}: add_bos_token and add_eos_token need a bos_token and eos_token of the vocabulary"
        )
    single = [*begin, "$A", *end]
    pair = [*single, *(f"{token}:1" for token in begin), "$B:1", *(f"{token}:1" for token in end)]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=list(ids.items()))


def _check_frame(tokenizer: Tokenizer, path: Path, config: Settings, known: _Class) -> None:
    """Raises ModelUnavailable if the class would put other special tokens around a text or a pair."""
    assert known.frame is not None
    given = [_content(config.get(key)) or usual for key, usual in zip(known.frame, known.tokens, strict=True)]
    first, last = (tokenizer.token_to_id(token) if isinstance(token, str) else None for token in given)
    text: list[int] = tokenizer.encode("a", add_special_tokens=False).ids
    between = [last, last] if known.ends_twice else [last]
    expected = [first, *text, last], [first, *text, *between, *text, last]
    if (tokenizer.encode("a").ids, tokenizer.encode("a", "a").ids) != expected:
        raise ModelUnavailable(
            f"{path}: its special tokens around a text or pair are not those that tokenizer_class "
            f"{config.get('tokenizer_class')} makes of {known.frame[0]} {given[0]!r:.100} and {known.frame[1]} "
            f"{given[1]!r:.100}; change {path.name} or {config.path.name}"
        )


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
