"""Folders of tiny tokenizers: of each family that is served, as versions of transformers save them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.models import CORPUS

NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

Writer = Callable[[Path], None]
LETTERS = "abcdefghijklmnopqrstuvwxyzTÉé你好[]<>/|,!_"


def _bpe(specials: list[str]) -> dict[str, Any]:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=specials, initial_alphabet=alphabet)
    tokenizer.train_from_iterator([CORPUS, " fox"], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return {"vocab": model["vocab"], "merges": [tuple(merge) for merge in model["merges"]]}


def _words(specials: list[str]) -> dict[str, Any]:
    words = [*specials, *LETTERS, *(f"##{letter}" for letter in LETTERS), *sorted(set(CORPUS.split()))]
    return {"vocab": {word: i for i, word in enumerate(words)}}


def _unigram(specials: list[str]) -> dict[str, Any]:
    pieces = [f"▁{word}" for word in sorted(set(CORPUS.split()))] + ["▁", *LETTERS]
    return {"vocab": [(piece, 0.0) for piece in specials] + [(piece, -1.0 - i / 10) for i, piece in enumerate(pieces)]}


def _bytes(specials: list[str]) -> dict[str, Any]:
    """BPE of letters that falls back to bytes, as SentencePiece makes it."""
    pieces = [*specials, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *sorted(set(CORPUS) - {" "})]
    merges = [("▁", "f"), ("▁f", "o"), ("▁fo", "x"), ("f", "o"), ("fo", "x"), ("▁", "t"), ("▁t", "h"), ("▁th", "e")]
    return {
        "vocab": {piece: i for i, piece in enumerate([*pieces, *("".join(merge) for merge in merges)])},
        "merges": merges,
    }


def writer(name: str, vocabulary: Callable[[list[str]], dict[str, Any]], *specials: str) -> Writer:
    """Return a function that saves a tokenizer of this class of transformers."""

    def write(folder: Path) -> None:
        import transformers

        getattr(transformers, name)(**vocabulary(list(specials))).save_pretrained(folder)

    return write


write_bert = writer("BertTokenizer", _words, "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
write_roberta = writer("RobertaTokenizer", _bpe, "<s>", "<pad>", "</s>", "<unk>", "<mask>")
write_xlm_roberta = writer("XLMRobertaTokenizer", _unigram, "<s>", "<pad>", "</s>", "<unk>", "<mask>")
write_qwen2 = writer("Qwen2Tokenizer", _bpe, "<|endoftext|>", "<|im_start|>")
write_llama = writer("LlamaTokenizer", _bytes, "<unk>", "<s>", "</s>")
write_gemma = writer("GemmaTokenizer", _bytes, "<pad>", "<eos>", "<bos>", "<unk>", "<mask>")
write_t5 = writer("T5Tokenizer", _unigram, "<pad>", "</s>", "<unk>", *(f"<extra_id_{i}>" for i in range(100)))


def put_around(folder: Path, first: list[str], last: list[str]) -> None:
    """Let tokenizer.json put these tokens around a text."""
    from tokenizers import Tokenizer, processors

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokens = [(token, tokenizer.token_to_id(token)) for token in dict.fromkeys([*first, *last])]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*first, "$A", *last],
        pair=[*first, "$A", *last, "$B:1", *(f"{token}:1" for token in last)],
        special_tokens=tokens,
    )
    tokenizer.save(str(folder / "tokenizer.json"))


def framed(write: Writer, first: list[str], last: list[str]) -> Writer:
    def framed_write(folder: Path) -> None:
        write(folder)
        put_around(folder, first, last)

    return framed_write


def named(write: Writer, name: str) -> Writer:
    """With another tokenizer_class."""

    def named_write(folder: Path) -> None:
        write(folder)
        change(folder / "tokenizer_config.json", tokenizer_class=name)

    return named_write


write_qwen2_with_end = framed(write_qwen2, [], ["<|endoftext|>"])
write_file_class = named(framed(write_roberta, ["<s>"], ["</s>"]), "PreTrainedTokenizerFast")
CAMEMBERT = ("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<s>", "</s>", "<mask>")
FAMILIES: Mapping[str, Writer] = {  # model_type, and what differs
    "albert": writer("AlbertTokenizer", _unigram, "<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"),
    "bert": write_bert,
    "camembert": writer("CamembertTokenizer", _unigram, *CAMEMBERT),
    "deberta-v2": writer("DebertaV2Tokenizer", _unigram, "[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"),
    "distilbert": named(write_bert, "DistilBertTokenizer"),
    "gemma3_text": framed(write_gemma, ["<bos>"], ["<eos>"]),
    "llama": write_llama,
    "llama with a beginning": framed(write_llama, ["<s>"], []),
    "mistral": framed(write_llama, ["<s>"], ["</s>"]),
    "modernbert": write_file_class,
    "mpnet": writer("MPNetTokenizer", _words, "<s>", "<pad>", "</s>", "[UNK]", "<mask>"),
    "qwen2": write_qwen2,
    "qwen3 with an end": write_qwen2_with_end,
    "roberta": write_roberta,
    "t5": write_t5,
    "xlm-roberta": write_xlm_roberta,
}
# Families whose folders select one of the same classes
FURTHER: Mapping[str, Writer] = {
    "electra": named(write_bert, "ElectraTokenizer"),
    "ernie": write_bert,
    "eurobert": write_file_class,
    "gemma": write_gemma,
    "gemma2": write_gemma,
    "gte": write_xlm_roberta,
    "jina_embeddings_v3": write_xlm_roberta,
    "lfm2": write_file_class,
    "llama of bytes": named(framed(write_roberta, ["<s>"], []), "LlamaTokenizer"),
    "ministral3": named(framed(write_llama, ["<s>"], ["</s>"]), "LlamaTokenizerFast"),
    "mobilebert": named(write_bert, "MobileBertTokenizer"),
    "mt5": named(write_t5, "MT5Tokenizer"),
    "nomic_bert": write_bert,
    "qwen2 of the wrong class": named(write_qwen2, "PreTrainedTokenizerFast"),
    "squeezebert": named(write_bert, "SqueezeBertTokenizer"),
    "eurobert of Longformer's class": named(write_roberta, "LongformerTokenizer"),
}


def change(path: Path, **fields: Any) -> None:
    given = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**given, **fields}))


# --- layouts --------------------------------------------------------------------------------------------------


def as_version_4(folder: Path) -> None:
    """Added tokens in tokenizer_config.json too, and special_tokens_map.json."""
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    tokens = {token.pop("id"): token for token in json.loads((folder / "tokenizer.json").read_text())["added_tokens"]}
    by_name = {token["content"]: token for token in tokens.values()}
    specials = {key: by_name.get(config[key], config[key]) for key in NAMED if config.get(key)}
    if "extra_special_tokens" in config:
        specials["additional_special_tokens"] = config["additional_special_tokens"] = config.pop("extra_special_tokens")
    path.write_text(json.dumps({**config, "added_tokens_decoder": tokens, "name_or_path": "someone/else"}))
    change(folder / "special_tokens_map.json", **specials)


def before_4_34(folder: Path) -> None:
    """Without added tokens in tokenizer_config.json, and with the class of fast tokenizers."""
    as_version_4(folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    del config["added_tokens_decoder"]
    name = config["tokenizer_class"].removesuffix("Fast")
    path.write_text(json.dumps({**config, "tokenizer_class": f"{name}Fast", "special_tokens_map_file": None}))


def without_class(folder: Path) -> None:
    change(folder / "tokenizer_config.json", tokenizer_class=None)


def without_settings(folder: Path) -> None:
    (folder / "tokenizer_config.json").unlink()


LAYOUTS: Mapping[str, Writer] = {
    "version 5": lambda folder: None,
    "version 4": as_version_4,
    "before 4.34": before_4_34,
    "without class": without_class,
    "without settings": without_settings,
}


def save(folder: Path, name: str, layout: str = "version 5") -> Path:
    """Write a folder of FAMILIES or FURTHER."""
    folder.mkdir(exist_ok=True)
    {**FAMILIES, **FURTHER}[name](folder)
    change(folder / "config.json", model_type=name.split(maxsplit=1)[0])
    LAYOUTS[layout](folder)
    return folder
