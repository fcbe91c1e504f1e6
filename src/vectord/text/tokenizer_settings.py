"""What the files next to a tokenizer.json declare: tokens around a text, token types, and contradictions.

tokenizer.json is used unchanged: the model was trained with it. transformers 5 builds a normalizer, pre-tokenizer and
special tokens of 12 classes anew from their settings; `find_contradictions` states for the log where they would make
other tokens. Called once per model, at load, without an import of transformers.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers, processors

from vectord.checkpoints.gguf.tokenizer import QWEN2_WORDS
from vectord.checkpoints.vocabulary import read_token_settings, token_text
from vectord.errors import ModelUnavailable

Values = Mapping[str, Any]
_PROBES = (
    "The Quick brown fox's dog, 1,234.",
    "É naïve cafe\u0301 …",
    "\ufb01\u00a0\uff26\uff11\u200b\u00ad",
    "  two  spaces\tand\nlines\r\n ",
    "你好世界 한국어 かな",
    "``quoted'' a\u0000b",
    "👩\u200d💻 Straße ß",
)
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


# --- tokens that a class of the repository's own adds ---------------------------------------------------------------


def add_ends_of_own_class(tokenizer: Tokenizer, path: Path) -> None:
    """Put BOS and EOS around texts where a tokenizer class of the model's own repository does.

    gte-Qwen2 has such a class: it obeys add_bos_token and add_eos_token, and its tokenizer.json lacks both tokens.
    Raises ModelUnavailable if the vocabulary lacks them too.
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


def declares_no_types(path: Path) -> bool:
    """Return whether the settings state that the model is given no token types: they are zeros then.

    transformers 5 writes the class TokenizersBackend, which gives none unless model_input_names has them.
    """
    values = read_token_settings(path)
    names = values.get("model_input_names")
    if isinstance(names, list):
        return "token_type_ids" not in names
    return values.get("tokenizer_class") == "TokenizersBackend"


# --- contradictions -------------------------------------------------------------------------------------------------


def find_contradictions(tokenizer: Tokenizer, path: Path, config: Values) -> Iterator[str]:
    """Yield a clause for each way in which transformers 5 would make other tokens of a text than tokenizer.json.

    tokenizer: of the file at `path`, unchanged; config: config.json's entries.
    """
    values = read_token_settings(path)
    name = _class_name(values, config)
    known = _CLASSES.get(name)
    if known is not None and not (name == "LlamaTokenizer" and _is_byte_level(tokenizer)):  # Llama 3
        yield from _other_words(tokenizer, name, known, values)
        yield from _other_frame(tokenizer, name, known, values)
    if name in _WITHOUT_TYPES and not values.get("model_input_names") and _has_types(tokenizer, config):
        yield "it would give both texts of a pair the same type"
    has_tokens = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    if lacking := [token for token in _declared_tokens(values) if token not in has_tokens]:
        yield f"it would read {', '.join(map(repr, lacking[:4]))}, which the settings add, as single tokens"
    if values.get("split_special_tokens") is True:
        yield "split_special_tokens is true: it would read special tokens inside a text as letters"
    if values.get("add_eos_token") is True:
        end = token_text(values.get("eos_token"))
        if tokenizer.encode("a").tokens[-1:] != [end]:
            yield f"add_eos_token (obeyed before version 5) is true, and the file does not put {end!r} after a text"


def _class_name(values: Values, config: Values) -> str:
    """The class that AutoTokenizer of transformers 5 selects; empty if it takes tokenizer.json."""
    model_type = config.get("model_type")
    registered = next((name for name, types in _REGISTERED.items() if model_type in types), None)
    if model_type in FROM_FILE.split():
        return ""
    name = values.get("tokenizer_class") or config.get("tokenizer_class") or registered or ""
    if model_type in _OVERRULING:
        name = registered
    name = str(name).removesuffix("Fast")
    return next((known for known, aliases in _ALIASES.items() if name in aliases), name)


def _has_types(tokenizer: Tokenizer, config: Values) -> bool:
    types = config.get("type_vocab_size")
    return isinstance(types, int) and types > 1 and any(tokenizer.encode("a", "b").type_ids)


def _other_words(tokenizer: Tokenizer, name: str, known: _Class, values: Values) -> Iterator[str]:
    charsmap = _charsmap(tokenizer)
    rebuilt = Tokenizer(tokenizer.model)
    normalizer = known.normalizer(values, charsmap)
    if normalizer is not None:
        rebuilt.normalizer = normalizer
    rebuilt.pre_tokenizer = known.words(values)
    for probe in _PROBES:
        ours, theirs = (each.encode(probe, add_special_tokens=False).tokens for each in (tokenizer, rebuilt))
        if ours != theirs:
            yield f"its {name} would read {probe!r} as {' '.join(theirs)!r}, not as {' '.join(ours)!r}"
            return


def _other_frame(tokenizer: Tokenizer, name: str, known: _Class, values: Values) -> Iterator[str]:
    if known.frame is None:
        return
    encoding = tokenizer.encode("a")
    inside = [i for i, special in enumerate(encoding.special_tokens_mask) if not special]
    ours = [*encoding.tokens[: inside[0]], "text", *encoding.tokens[inside[-1] + 1 :]] if inside else []
    first, last = (token_text(values.get(key)) or default for key, default in known.frame)
    theirs = [*([first] if first else []), "text", last]
    if ours != theirs:
        yield f"its {name} would make {' '.join(theirs)!r} of a text, not {' '.join(ours)!r}"


def _declared_tokens(values: Values) -> Iterator[str]:
    """The tokens that transformers adds to those of the file."""
    decoder = values.get("added_tokens_decoder")
    lists = (values.get("additional_special_tokens"), values.get("extra_special_tokens"))
    listed = [token for tokens in lists if isinstance(tokens, list) for token in tokens]
    added = list(decoder.values()) if isinstance(decoder, dict) else []
    named = [values.get(key) for key in _NAMED]
    texts = (token_text(token) for token in (*added, *named, *listed))
    return iter(dict.fromkeys(text for text in texts if text is not None))


def _is_byte_level(tokenizer: Tokenizer) -> bool:
    parts = (tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.post_processor, tokenizer.decoder)
    return any(b'"ByteLevel"' in part.__getstate__() for part in parts if part is not None)


def _charsmap(tokenizer: Tokenizer) -> bytes | None:
    """The map of characters of a SentencePiece model: a step of the normalizer."""
    state = {} if tokenizer.normalizer is None else json.loads(tokenizer.normalizer.__getstate__())
    for step in state.get("normalizers", [state]):
        if step.get("type") == "Precompiled":
            return base64.b64decode(step["precompiled_charsmap"])
    return None


# --- the classes ----------------------------------------------------------------------------------------------------


def _bert_normalizer(values: Values, charsmap: bytes | None) -> normalizers.Normalizer:
    strips = values.get("strip_accents")
    return normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=bool(values.get("tokenize_chinese_chars", True)),
        strip_accents=strips if isinstance(strips, bool) else None,
        lowercase=bool(values.get("do_lower_case", True)),
    )


def _albert_normalizer(values: Values, charsmap: bytes | None) -> normalizers.Normalizer:
    steps: list[normalizers.Normalizer] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not values.get("keep_accents", False):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if values.get("do_lower_case", True):
        steps.append(normalizers.Lowercase())
    return normalizers.Sequence(steps if charsmap is None else [*steps, normalizers.Precompiled(charsmap)])


def _deberta_normalizer(values: Values, charsmap: bytes | None) -> normalizers.Normalizer:
    lower = [normalizers.Lowercase()] if values.get("do_lower_case", False) else []
    spaces = normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " ")
    return normalizers.Sequence([*lower, spaces, normalizers.NFC(), normalizers.Strip(left=False, right=True)])


def _charsmap_normalizer(values: Values, charsmap: bytes | None) -> normalizers.Normalizer | None:
    return None if charsmap is None else normalizers.Precompiled(charsmap)


def _metaspace_words(values: Values) -> pre_tokenizers.PreTokenizer:
    scheme = "always" if values.get("add_prefix_space", True) else "never"
    return pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), _metaspace(scheme)])


def _deberta_words(values: Values) -> pre_tokenizers.PreTokenizer:
    scheme = "always" if values.get("add_prefix_space", True) else "first"
    splits = [pre_tokenizers.Punctuation(behavior="isolated")] if values.get("split_by_punct", False) else []
    return pre_tokenizers.Sequence([*splits, _metaspace(scheme)])


def _qwen2_words(values: Values) -> pre_tokenizers.PreTokenizer:
    words = pre_tokenizers.Split(Regex(QWEN2_WORDS), behavior="isolated", invert=False)
    return pre_tokenizers.Sequence([words, _byte_level(values, use_regex=False)])


def _llama_words(values: Values) -> pre_tokenizers.PreTokenizer:
    if values.get("add_prefix_space", True) is False:
        return _metaspace("never", split=False)
    return _metaspace("always" if values.get("legacy", False) else "first", split=False)


def _metaspace(scheme: str, *, split: bool = True) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=split)


def _byte_level(values: Values, *, use_regex: bool = True) -> pre_tokenizers.PreTokenizer:
    adds = bool(values.get("add_prefix_space", False))
    return pre_tokenizers.ByteLevel(add_prefix_space=adds, use_regex=use_regex)


@dataclass(frozen=True, slots=True)
class _Class:
    """What one of transformers' classes makes of its settings."""

    normalizer: Callable[[Values, bytes | None], normalizers.Normalizer | None]
    words: Callable[[Values], pre_tokenizers.PreTokenizer]
    # the settings of the tokens before and after a text, with their defaults; None: as in tokenizer.json
    frame: tuple[tuple[str, str], tuple[str, str]] | None = None


_CLS, _SEP = ("cls_token", "[CLS]"), ("sep_token", "[SEP]")
_BERT = _Class(_bert_normalizer, lambda values: pre_tokenizers.BertPreTokenizer(), (_CLS, _SEP))
_ROBERTA_FRAME = (("cls_token", "<s>"), ("sep_token", "</s>"))
_XLM_ROBERTA = _Class(_charsmap_normalizer, _metaspace_words, (("bos_token", "<s>"), ("eos_token", "</s>")))
_CLASSES: Mapping[str, _Class] = {
    "AlbertTokenizer": _Class(_albert_normalizer, _metaspace_words),
    "BertTokenizer": _BERT,
    "CamembertTokenizer": _XLM_ROBERTA,
    "DebertaV2Tokenizer": _Class(_deberta_normalizer, _deberta_words, (_CLS, _SEP)),
    "GemmaTokenizer": _Class(
        lambda values, charsmap: normalizers.Replace(" ", "▁"),
        lambda values: pre_tokenizers.Split(pattern=" ", behavior="merged_with_previous", invert=False),
    ),
    "LlamaTokenizer": _Class(lambda values, charsmap: None, _llama_words),
    "MPNetTokenizer": _Class(_BERT.normalizer, _BERT.words, _ROBERTA_FRAME),
    "Qwen2Tokenizer": _Class(lambda values, charsmap: normalizers.NFC(), _qwen2_words),
    "RobertaTokenizer": _Class(lambda values, charsmap: None, _byte_level, _ROBERTA_FRAME),
    "T5Tokenizer": _Class(_charsmap_normalizer, _metaspace_words, (("", ""), ("eos_token", "</s>"))),
    "XLMRobertaTokenizer": _XLM_ROBERTA,
}
_WITHOUT_TYPES = _CLASSES.keys() - {"BertTokenizer", "DebertaV2Tokenizer"} | {"PreTrainedTokenizer"}
_ALIASES: Mapping[str, frozenset[str]] = {  # further names of a class
    "BertTokenizer": frozenset(
        f"{name}Tokenizer" for name in ("ConvBert", "DistilBert", "Electra", "MobileBert", "SqueezeBert")
    ),
    "RobertaTokenizer": frozenset({"BartTokenizer", "LongformerTokenizer"}),
}
# the class for a model_type whose folder names none
_REGISTERED: Mapping[str, frozenset[str]] = {
    "AlbertTokenizer": frozenset({"albert"}),
    "BertTokenizer": frozenset(
        {"bert", "convbert", "distilbert", "electra", "ernie", "mobilebert", "nomic_bert", "squeezebert"}
    ),
    "CamembertTokenizer": frozenset({"camembert"}),
    "DebertaV2Tokenizer": frozenset({"deberta-v2"}),
    "GemmaTokenizer": frozenset({"gemma", "gemma2", "gemma3", "gemma3_text"}),
    "MPNetTokenizer": frozenset({"mpnet"}),
    "Qwen2Tokenizer": frozenset({"qwen2", "qwen3"}),
    "RobertaTokenizer": frozenset({"longformer", "roberta"}),
    "T5Tokenizer": frozenset({"mt5", "t5"}),
    "XLMRobertaTokenizer": frozenset({"gte", "jina_embeddings_v3", "xlm-roberta"}),
}
_OVERRULING = frozenset({"qwen2"})  # model types whose folders name a wrong class
# model types for which transformers 5 takes tokenizer.json, whatever class a folder names
FROM_FILE = (
    "beam bigbird_pegasus ernie4_5 ernie4_5_moe flex_olmo glm glm4 glm4_moe glm4_moe_lite gpt_bigcode granite "
    "granitemoe granitemoehybrid granitemoeshared hyperclovax internlm3 iquestcoder jamba kimi_linear mimo_v2_flash "
    "minicpm3 minimax_m2 ministral ministral3 mistral mixtral modernbert modernbert-decoder nemotron nystromformer "
    "olmo2 olmo3 olmo_hybrid pegasus_x persimmon phi3 phimoe pixtral stablelm umt5 xlm-roberta-xl"
)
