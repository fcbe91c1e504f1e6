"""Tiny random models of the kinds whose reference results come from the reference environment.

The folders have the files of the real ones. torch and transformers of the development environment write them; pylate
makes ColBERT models of such folders, in the reference environment.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from tests.compute.networks.tiny_decoders import write, write_minicpm
from tests.models import randomize
from tests.reference.references import run_script
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    BertConfig,
    BertModel,
    GemmaTokenizer,
    ModernBertConfig,
    ModernBertModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
    XLMRobertaModel,
)

WIDTH = 32
MAX_TOKENS = 256  # above pylate's document_length of 180
CORPUS = [
    "The quick, brown fox; it jumps over the lazy dog! Does it? Yes: many (small) birds sing in green old trees.",
    "yes\nno\nyes\nno\nyes\nno",
    "Zürich's café sells naïve jalapeño crêpes: $3.50 each, 20% off @ noon #deal & more...",
    "今日は天気がいいですね。明日は雨が降るかもしれません。",
    "Given a web search query, retrieve relevant passages that answer the query",
]
# How Qwen's tokenizers split a text before its bytes are merged.
QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def write_bge_m3(folder: Path, *, weights: Literal["bin", "safetensors"] = "bin") -> Path:
    """Write an XLM-RoBERTa with sparse_linear.pt and colbert_linear.pt, as BAAI/bge-m3.

    Its weights are in pytorch_model.bin, as in the original, or in model.safetensors.
    """
    tokenizer = _make_unigram()
    model = XLMRobertaModel(_xlm_roberta_config(tokenizer), add_pooling_layer=True)
    _write(folder, model, tokenizer)
    if weights == "bin":
        (folder / "model.safetensors").unlink()
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
    for name, width in (("sparse_linear", 1), ("colbert_linear", WIDTH)):
        head = torch.nn.Linear(WIDTH, width)
        randomize(head, size=0.2, norm=1.0)
        torch.save(head.state_dict(), folder / f"{name}.pt")
    return folder


def write_bge_reranker(folder: Path) -> Path:
    """Write an XLM-RoBERTa with one logit for a pair of texts, as BAAI/bge-reranker-v2-m3."""
    tokenizer = _make_unigram()
    config = _xlm_roberta_config(tokenizer, num_labels=1)
    return _write(folder, XLMRobertaForSequenceClassification(config), tokenizer)


def write_qwen3_reranker(folder: Path, *, tied: bool = True) -> Path:
    """Write a Qwen3 with a language model head, as Qwen/Qwen3-Reranker-0.6B. tied: the head is the embedding table."""
    tokenizer = train_qwen_bpe()
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,  # as in the real models, not hidden_size / num_attention_heads
        intermediate_size=48,
        max_position_embeddings=1024,
        tie_word_embeddings=tied,
    )
    return _write(folder, Qwen3ForCausalLM(config), tokenizer)


def write_layerwise_reranker(folder: Path) -> Path:
    """Write a MiniCPM with a head after each layer from the second on, as BAAI/bge-reranker-v2-minicpm-layerwise."""
    tokenizer = _make_unigram()
    tokenizer.model_max_length = 512
    write_minicpm(folder, vocab_size=len(tokenizer))
    tokenizer.save_pretrained(folder)
    return folder


def write_gemma_reranker(folder: Path) -> Path:
    """Write a Gemma with a language model head, as BAAI/bge-reranker-v2-gemma."""
    tokenizer = _make_gemma_bpe()
    write("gemma", folder, head="AutoModelForCausalLM", vocab_size=len(tokenizer), max_position_embeddings=1024)
    tokenizer.save_pretrained(folder)
    return folder


def write_colbert(
    folder: Path,
    *,
    network: Literal["bert", "modernbert"] = "bert",
    dense: Sequence[dict[str, Any]] = ({"in_features": WIDTH, "out_features": 16, "bias": False},),
    **settings: Any,
) -> Path:
    """Write a ColBERT as pylate saves it. dense: arguments of its Dense modules; settings: of its ColBERT.

    These settings are saved in the folder: query_prefix, document_prefix, query_length, document_length,
    do_query_expansion, attend_to_expansion_tokens, skiplist_words.
    """
    source = (_write_bert if network == "bert" else _write_modernbert)(folder / "source")
    saved = folder / "saved"
    arguments = {"dense": list(dense), "settings": settings}
    run_script("pylate_save", source, json.dumps(arguments), saved)
    return saved


def _write_bert(folder: Path) -> Path:
    tokenizer = _make_wordpiece()
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=MAX_TOKENS,
    )
    return _write(folder, BertModel(config), tokenizer)


def _write_modernbert(folder: Path) -> Path:
    tokenizer = _train_modern_bpe()
    config = ModernBertConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=MAX_TOKENS,
        local_attention=16,  # narrower than a text, so that the window matters
        global_attn_every_n_layers=2,
        pad_token_id=tokenizer.pad_token_id,
        cls_token_id=tokenizer.cls_token_id,
        sep_token_id=tokenizer.sep_token_id,
        bos_token_id=tokenizer.cls_token_id,
        eos_token_id=tokenizer.sep_token_id,
    )
    return _write(folder, ModernBertModel(config), tokenizer)


def _xlm_roberta_config(tokenizer: PreTrainedTokenizerFast, **changes: Any) -> XLMRobertaConfig:
    return XLMRobertaConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=MAX_TOKENS + 2,  # positions begin after padding's id, which is 1
        type_vocab_size=1,
        bos_token_id=0,
        pad_token_id=1,
        eos_token_id=2,
        **changes,
    )


def _write(folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> Path:
    randomize(model, size=0.2, norm=1.0)  # with smaller norms all vectors would be similar
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(3)  # a vector should depend more on its token than on its place
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _make_unigram() -> PreTrainedTokenizerFast:
    """As XLM-RoBERTa's: the special tokens have its ids, <mask> is last, and a pair is <s> a </s></s> b </s>.

    Its vocabulary is fixed: training a Unigram model twice gives two vocabularies.
    """
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    words, characters = _pieces_of_corpus(tokenizer)
    scores = dict.fromkeys(characters, -8.0) | dict.fromkeys(words, -10.0)  # a word is more likely than its letters
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    tokenizer.model = models.Unigram([(token, 0.0) for token in specials] + list(scores.items()), unk_id=3)
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(specials)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        cls_token="<s>",
        eos_token="</s>",
        sep_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        mask_token="<mask>",
        model_max_length=MAX_TOKENS,
        model_input_names=["input_ids", "attention_mask"],
    )


def _make_wordpiece() -> PreTrainedTokenizerFast:
    """As BERT's. Its vocabulary is fixed for the same reason."""
    tokenizer = Tokenizer(models.WordPiece())
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    words, characters = _pieces_of_corpus(tokenizer)
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = dict.fromkeys([*specials, *characters, *(f"##{character}" for character in characters), *words])
    tokenizer.model = models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]")
    return _with_bert_frame(tokenizer)


def _pieces_of_corpus(tokenizer: Tokenizer) -> tuple[list[str], list[str]]:
    """The words and characters of the corpus as this tokenizer splits them, each once, always in the same order."""
    normal = [tokenizer.normalizer.normalize_str(line) for line in CORPUS]
    words = [word for line in normal for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(line)]
    return list(dict.fromkeys(words)), sorted(set("".join(words)))


def _train_modern_bpe() -> PreTrainedTokenizerFast:
    """As ModernBERT's: bytes with BERT's special tokens; a blank is part of the token after it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    _train_bpe(tokenizer, ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"])
    return _with_bert_frame(tokenizer)


def _with_bert_frame(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=MAX_TOKENS,
    )


def train_qwen_bpe() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    words = pre_tokenizers.Split(Regex(QWEN_WORDS), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    _train_bpe(tokenizer, [])
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens(["<think>", "</think>"])  # added, but not special: as in the real one
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", model_max_length=1024
    )


def _make_gemma_bpe() -> GemmaTokenizer:
    """Letters and their bytes; a blank is a letter, and the answer "Yes" is one token. Its vocabulary is fixed."""
    merges = [("Y", "e"), ("Ye", "s"), ("f", "o"), ("fo", "x"), ("t", "h"), ("th", "e"), ("s", "▁"), (":", "▁")]
    letters = sorted(set("".join(CORPUS).replace(" ", "▁")))
    specials = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces = [*specials, *letters, *("".join(merge) for merge in merges)]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    return GemmaTokenizer(vocab=vocabulary, merges=merges, model_max_length=1024)


def _train_bpe(tokenizer: Tokenizer, specials: list[str]) -> None:
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
