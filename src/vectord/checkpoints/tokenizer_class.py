"""Which of transformers' tokenizer classes a folder selects: `find_class(config, tokenizer_config)`.

config_keys.py refuses other names; text/tokenizer_settings.py does as the class does. Source: AutoTokenizer of
transformers 5; tests/checkpoints/test_tokenizer_class.py compares these tables with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

FILE: Final = "TokenizersBackend"  # uses tokenizer.json unchanged
_BERT, _ROBERTA = "BertTokenizer", "RobertaTokenizer"

# tokenizer_class, without "Fast": the class of that name, or the one that AutoTokenizer takes instead
CLASSES: Mapping[str, str] = {
    "AlbertTokenizer": "AlbertTokenizer",
    "BartTokenizer": _ROBERTA,
    "BertTokenizer": _BERT,
    "CamembertTokenizer": "CamembertTokenizer",
    "ConvBertTokenizer": _BERT,
    "DebertaV2Tokenizer": "DebertaV2Tokenizer",
    "DistilBertTokenizer": "DistilBertTokenizer",
    "ElectraTokenizer": _BERT,
    "ErnieTokenizer": FILE,
    "GemmaTokenizer": "GemmaTokenizer",
    "LlamaTokenizer": "LlamaTokenizer",
    "LongformerTokenizer": _ROBERTA,
    "MPNetTokenizer": "MPNetTokenizer",
    "MT5Tokenizer": FILE,
    "MobileBertTokenizer": _BERT,
    "PreTrainedTokenizer": FILE,
    "PythonBackend": FILE,
    "Qwen2Tokenizer": "Qwen2Tokenizer",
    "RobertaTokenizer": _ROBERTA,
    "SqueezeBertTokenizer": _BERT,
    "T5Tokenizer": "T5Tokenizer",
    FILE: FILE,
    "XLMRobertaTokenizer": "XLMRobertaTokenizer",
}
# model_type of config.json: the class that AutoTokenizer registers for it
OF_ARCHITECTURES: Mapping[str, str] = {
    "albert": "AlbertTokenizer",
    "bert": _BERT,
    "camembert": "CamembertTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    "distilbert": _BERT,
    "electra": _BERT,
    "ernie": _BERT,
    "gemma": "GemmaTokenizer",
    "gemma2": "GemmaTokenizer",
    "gemma3": "GemmaTokenizer",
    "gemma3_text": "GemmaTokenizer",
    "gte": "XLMRobertaTokenizer",
    "jina_embeddings_v3": "XLMRobertaTokenizer",
    "ministral3": FILE,
    "mistral": FILE,
    "mobilebert": _BERT,
    "modernbert": FILE,
    "mpnet": "MPNetTokenizer",
    "mt5": "T5Tokenizer",
    "nomic_bert": _BERT,
    "qwen2": "Qwen2Tokenizer",
    "qwen3": "Qwen2Tokenizer",
    "roberta": _ROBERTA,
    "squeezebert": _BERT,
    "t5": "T5Tokenizer",
    "umt5": FILE,
    "xlm-roberta": "XLMRobertaTokenizer",
    "xlm-roberta-xl": FILE,
}
OVERRULING = frozenset({"modernbert", "qwen2"})  # model types whose folders name a wrong class


def is_known(name: object) -> bool:
    """Return whether the value of `tokenizer_class` is a class that is followed here."""
    return isinstance(name, str) and name.removesuffix("Fast") in CLASSES


def find_class(config: Mapping[str, Any], tokenizer_config: Mapping[str, Any]) -> tuple[str | None, bool]:
    """Return the class, and whether a file names it: without a name, the model type decides. None if nothing does.

    A name that `is_known` does not know, which the operator has allowed, uses tokenizer.json unchanged.
    """
    model_type = config.get("model_type")
    registered = OF_ARCHITECTURES.get(model_type) if isinstance(model_type, str) else None
    name = tokenizer_config.get("tokenizer_class") or config.get("tokenizer_class")
    if not isinstance(name, str):
        return registered or (FILE if model_type else None), False
    name = name.removesuffix("Fast")
    if registered == FILE:
        return FILE, True
    if registered is not None and model_type in OVERRULING:
        return registered, True
    return CLASSES.get(name, FILE), True
