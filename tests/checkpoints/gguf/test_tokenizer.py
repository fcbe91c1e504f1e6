"""Tests of checkpoints/gguf/tokenizer.py: a GGUF file's vocabulary splits texts as transformers' own classes do."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
from gguf import TokenType
from tests.checkpoints.gguf.gguf_files import add_value, add_vocabulary, finish
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from vectord.errors import ModelUnavailable
from vectord.text.tokenizer_file import load_tokenizer

CORPUS = [
    "the quick brown fox jumps over a lazy dog while 12345 birds sing in old trees near water",
    "naïve café, déjà vu! straße in München; it's they're we'll  two  spaces\n\nnew lines\ttabs",
    "def f(x):\n    return x**2  # <b>bold</b>",
]
PIECES = [
    *CORPUS,
    "THE Quick",
    "a [MASK]",
    "e\u0301 é",
    "日本語 中文",
    "🚀 emoji",
    "<mask> </s>",
    " ",
    "",
    "▁ x",
    "\r\n",
]


def texts() -> list[str]:
    """The corpus, pieces of it, and characters that it does not have, in random order."""
    rng = random.Random(0)
    characters = "".join(PIECES)
    return [*PIECES, *("".join(rng.choices(characters, k=rng.randint(1, 60))) for _ in range(300))]


def write(path: Path, tokenizer: Tokenizer, pre: str, kind: str | None, **keys: Any) -> Path:
    """keys: of tokenizer.ggml; the name of a token stands for its id."""
    source = path.with_name("tokenizer.json")
    tokenizer.save(str(source))
    writer = gguf.GGUFWriter(path, "bert")
    add_vocabulary(writer, source, pre, kind=kind)
    for key, value in keys.items():
        add_value(writer, f"tokenizer.ggml.{key}", tokenizer.token_to_id(value) if isinstance(value, str) else value)
    finish(writer)
    return path


def trained(model: Any, trainer: Any, split: Any, normalizer: Any = None) -> tuple[Any, list[list[str]]]:
    """The vocabulary and merges that a trainer learns from the corpus."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer, tokenizer.normalizer = split, normalizer or normalizers.Sequence([])
    tokenizer.train_from_iterator(CORPUS, trainer)
    fields = json.loads(tokenizer.to_str())["model"]
    return fields["vocab"], [list(merge) for merge in fields.get("merges", [])]


def bert(*, lowercase: bool = True) -> Tokenizer:
    from transformers import BertTokenizer

    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    split = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=specials)
    vocab, _ = trained(
        models.WordPiece(unk_token="[UNK]"), trainer, split, normalizers.BertNormalizer(lowercase=lowercase)
    )
    return BertTokenizer(vocab=vocab, do_lower_case=lowercase).backend_tokenizer


def qwen() -> Tokenizer:
    from transformers import Qwen2Tokenizer

    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet)
    vocab, merges = trained(models.BPE(), trainer, pre_tokenizers.ByteLevel(add_prefix_space=False))
    vocab |= {"<|endoftext|>": len(vocab)}
    return Qwen2Tokenizer(vocab=vocab, merges=[tuple(merge) for merge in merges]).backend_tokenizer


def roberta() -> Tokenizer:
    from transformers import RobertaTokenizer

    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, special_tokens=specials)
    vocab, merges = trained(models.BPE(), trainer, pre_tokenizers.ByteLevel(add_prefix_space=False))
    return RobertaTokenizer(vocab=vocab, merges=[tuple(merge) for merge in merges]).backend_tokenizer


def modern_bert() -> Tokenizer:
    """As the tokenizer.json of ModernBERT-base, which has no class of its own, with one of its tokens of spaces."""
    specials = ["[CLS]", "[SEP]", "[PAD]", "[UNK]"]
    return framed(specials, "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:0 [SEP]:0", normalizers.NFC())


def llama() -> Tokenizer:
    """As the tokenizer.json of Llama 3, with the start that LFM2 has too."""
    split = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA3_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer = framed(["<|bos|>"], "<|bos|> $A", "<|bos|> $A $B:0", None, split)
    tokenizer.model.ignore_merges = True
    return tokenizer


LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def framed(specials: list[str], single: str, pair: str, normalizer: Any, split: Any = None) -> Tokenizer:
    """A byte-level BPE with these special tokens around texts."""
    split = split or pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=specials
    )
    vocab, merges = trained(models.BPE(), trainer, split)
    tokenizer = Tokenizer(models.BPE(vocab, [tuple(merge) for merge in merges]))
    tokenizer.pre_tokenizer = split
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.add_special_tokens([AddedToken(each, normalized=False, special=True) for each in specials])
    if "[CLS]" in specials:
        tokenizer.add_tokens([AddedToken("  ", normalized=True)])
        tokenizer.add_special_tokens([AddedToken("[MASK]", lstrip=True, normalized=False, special=True)])
    places = [(each, tokenizer.token_to_id(each)) for each in specials]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=places)
    return tokenizer


def gemma() -> Tokenizer:
    from transformers import GemmaTokenizer

    specials = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=370, special_tokens=specials)
    marks = normalizers.Replace(" ", "▁")
    vocab, _ = trained(models.BPE(), trainer, pre_tokenizers.Split("\n", "isolated"), marks)
    order = sorted((token for token in vocab if len(token) > 1 and token not in specials), key=vocab.__getitem__)
    merges = [
        (token[:cut], token[cut:])
        for token in order
        for _, cut in sorted(
            (vocab[token[:cut]], cut) for cut in range(1, len(token)) if {token[:cut], token[cut:]} <= vocab.keys()
        )
    ]
    return GemmaTokenizer(vocab=vocab, merges=merges).backend_tokenizer


def xlm_roberta() -> Tokenizer:
    from transformers import XLMRobertaTokenizer

    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=300, special_tokens=specials, unk_token="<unk>")
    split = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    vocab, _ = trained(models.Unigram(), trainer, split)
    pieces = [(piece, score) for piece, score in vocab]
    return XLMRobertaTokenizer(vocab=[*pieces, ("<mask>", 0.0)]).backend_tokenizer


BERT = {
    f"{key}_token_id": f"[{name}]"
    for key, name in {"padding": "PAD", "unknown": "UNK", "bos": "CLS", "seperator": "SEP", "mask": "MASK"}.items()
}
GEMMA = {"bos_token_id": "<bos>", "unknown_token_id": "<unk>", "add_space_prefix": False}
FRAME = {"bos_token_id": "<s>", "eos_token_id": "</s>", "add_bos_token": True, "add_eos_token": True}
CASES: dict[str, tuple[Callable[[], Tokenizer], str, str | None, dict[str, Any]]] = {
    "bert": (bert, "bert-bge", None, BERT),
    "cased bert": (lambda: bert(lowercase=False), "bert-bge", None, BERT),
    "qwen": (qwen, "qwen2", None, {"eos_token_id": 0}),
    "roberta": (roberta, "roberta-bpe", None, {**FRAME, "mask_token_id": "<mask>"}),
    "modern-bert": (
        modern_bert,
        "modern-bert",
        None,
        {**FRAME, "bos_token_id": "[CLS]", "eos_token_id": "[SEP]", "mask_token_id": "[MASK]", "add_sep_token": True},
    ),
    "lfm2": (llama, "lfm2", None, {"bos_token_id": "<|bos|>"}),
    "gemma": (gemma, "default", "llama", GEMMA),
    "xlm-roberta": (xlm_roberta, "default", None, {**FRAME, "unknown_token_id": "<unk>"}),
}


@pytest.mark.parametrize("name", CASES)
def test_ids_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """Of texts, with the special tokens around them, and of pairs where the class joins them."""
    make, pre, kind, keys = CASES[name]
    theirs = make()
    ours = load_tokenizer(write(tmp_path / "m.gguf", theirs, pre, kind, **keys), None, lowercase=False)
    has_frame = name != "gemma"  # its class has no template of its own
    for text in texts():
        assert ours.encode(text, add_special_tokens=has_frame).ids == theirs.encode(text).ids, text
        if has_frame:
            assert ours.encode(text, "a").ids == theirs.encode(text, "a").ids, text


def test_gemma_begins_with_its_first_token(tmp_path: Path) -> None:
    """Which is the default of such files."""
    ours = load_tokenizer(write(tmp_path / "m.gguf", gemma(), "default", "llama", **GEMMA), None, lowercase=False)
    assert ours.encode("dog").tokens[0] == "<bos>"


def test_a_file_may_add_an_end_that_the_class_does_not(tmp_path: Path) -> None:
    """As Qwen3-Embedding's files do."""
    theirs, keys = qwen(), {"eos_token_id": "<|endoftext|>", "add_eos_token": True}
    ours = load_tokenizer(write(tmp_path / "m.gguf", theirs, "qwen2", None, **keys), None, lowercase=False)
    assert ours.encode("dog").tokens == [*theirs.encode("dog").tokens, "<|endoftext|>"]


def vocabulary(path: Path, **changes: Any) -> Path:
    """A small byte-level vocabulary with changed keys; None leaves one out."""
    keys: dict[str, Any] = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": ["a", "b", "ab"],
        "merges": ["a b"],
        "token_type": [int(TokenType.NORMAL)] * 3,
        **changes,
    }
    writer = gguf.GGUFWriter(path, "bert")
    for key, value in keys.items():
        add_value(writer, f"tokenizer.ggml.{key}", value)
    finish(writer)
    return path


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown kind": ({"model": "rwkv"}, "model must be bert, gpt2, llama or t5"),
    "an unknown rule": ({"pre": "tekken"}, "pre 'tekken' is not supported; supported are gpt-2"),
    "no rule": ({"pre": None}, "pre 'default' is not supported"),
    "no tokens": ({"tokens": None}, "tokens must be a list of texts"),
    "a token twice": ({"tokens": ["a", "a", "b"]}, "the same token twice"),
    "too few types": ({"token_type": [1]}, "token_type must be a list of 3 numbers"),
    "merges of one part": ({"merges": ["ab"]}, "an entry that is not two parts"),
    "an end that is not there": ({"add_eos_token": True, "eos_token_id": 9}, "eos_token_id must be an id below 3"),
    "a flag that is a number": ({"add_eos_token": 1}, "add_eos_token 1 is not supported: Expected `bool`"),
    "no scores": ({"model": "t5", "unknown_token_id": 0, "eos_token_id": 1}, "scores must be a list of 3 numbers"),
    "BERT without frame": (
        {
            "model": "bert",
            "add_bos_token": False,
            "bos_token_id": 0,
            "unknown_token_id": 0,
            "seperator_token_id": 0,
            "padding_token_id": 0,
            "mask_token_id": 0,
        },
        "must be true",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_vocabulary_that_is_not_known_gives_one_line(name: str, tmp_path: Path) -> None:
    """With the file and the key."""
    changes, why = REFUSED[name]
    path = vocabulary(tmp_path / "m.gguf", **changes)
    with pytest.raises(ModelUnavailable) as refused:
        load_tokenizer(path, None, lowercase=False)
    assert why in refused.value.message
    assert refused.value.message.startswith(f"{path}: tokenizer.ggml.")


def test_the_small_vocabulary_is_valid(tmp_path: Path) -> None:
    """So that each refusal above has the reason that it names."""
    assert load_tokenizer(vocabulary(tmp_path / "m.gguf"), None, lowercase=False).encode("ab").ids == [2]


def test_a_long_token_takes_no_more_memory_than_the_file(tmp_path: Path) -> None:
    """All ways to cut it would take 100 MB, and the memory of the machine for a token of a megabyte."""
    keys = {"model": "llama", "pre": None, "merges": None, "scores": [0.0] * 3, "tokens": ["<unk>", "b", "ab" * 5000]}
    path = vocabulary(tmp_path / "m.gguf", **keys, bos_token_id=0, eos_token_id=0, unknown_token_id=0)
    tracemalloc.start()
    try:
        load_tokenizer(path, None, lowercase=False)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 20 * 2**20
