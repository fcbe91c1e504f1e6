"""Small tokenizers of the kinds that models have, made here, and TextEncoders over them."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from vectord.checkpoints.spec import ModelSpec
from vectord.schema import TextOptions
from vectord.text.sequence import ReadRequest, TextOrPair, TokenSequence
from vectord.text.tokenizer import TextEncoder

SENTENCES = (
    "The quick brown fox jumps over a lazy dog, while many small birds sing in green old trees near the water.",
    "Query and document: does the passage answer the question? It does not! Judge it by the instruction given.",
    "Größe und Maß in der Straße; naïve café, 3.14 and 1,000 of 50%.",
    "東京 は 日本 の 首都 です。 北京 是 中国 的 首都。 привет мир",
)
PLAIN = TextOptions()
LIGATURE = "\ufdfa"  # one character, 18 under NFKC, three of them spaces
CHAT_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def make_encoder(folder: Path, tokenizer: Tokenizer, **facts: Any) -> TextEncoder:
    """facts: entries of the ModelSpec."""
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return TextEncoder(make_spec(path, **facts))


def read(
    encoder: TextEncoder,
    inputs: Sequence[TextOrPair],
    options: TextOptions = PLAIN,
    *,
    part: range | None = None,
    truncate: bool = True,
    **what: Any,
) -> list[TokenSequence]:
    """what: further fields of the ReadRequest."""
    return [*encoder.read(ReadRequest(inputs=inputs, options=options, truncate=truncate, **what), part)]


def content_of(encoder: TextEncoder, text: str) -> list[int]:
    """The tokens of a text alone, as many as there are."""
    ((*tokens,),) = encoder.tokenize([text], add_special_tokens=False, prompt_name=None)
    return [token.id for token in tokens]


def attended(sequence: TokenSequence) -> int:
    """How many of its tokens are attended to."""
    return len(sequence.ids) if sequence.keys is None else sequence.keys


def prompt_tokens(sequence: TokenSequence) -> int:
    """How many of its tokens, at the beginning, are not pooled."""
    if sequence.spans is None:
        return 0
    ((start, stop),) = sequence.spans.tolist()
    assert stop == len(sequence.ids)
    return int(start)


def make_spec(path: Path, **facts: Any) -> ModelSpec:
    defaults: dict[str, Any] = {
        "model_id": "tests/tiny",
        "revision": None,
        "folder": path.parent,
        "config": {},
        "model_type": "bert",
        "architecture": "bert",
        "weights": (),
        "tokenizer": path,
        "outputs": frozenset({"dense"}),
        "hidden_size": 8,
        "max_tokens": 64,
        "fingerprint": "0" * 16,
    }
    return ModelSpec(**{**defaults, **facts})


def wordpiece() -> Tokenizer:
    """As BERT: pairs have types 0 and 1."""
    tokenizer = Tokenizer(models.WordPiece())
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]"]
    words = _words(tokenizer)
    letters = sorted(set("".join(words)))
    pieces = dict.fromkeys([*names, *letters, *(f"##{letter}" for letter in letters), *words])
    tokenizer.model = models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]")
    tokenizer.add_special_tokens(names)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def unigram() -> Tokenizer:
    """As XLM-RoBERTa: a double separator between texts, and NFKC, under which one character can be many tokens."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    words = _words(tokenizer)
    letters = sorted(set("".join([*words, unicodedata.normalize("NFKC", LIGATURE)])) - {" "})
    pieces = [*names, *dict.fromkeys([*words, *letters])]  # the earlier, the likelier
    scores = [(piece, -i / len(pieces) - 9 * (len(piece) == 1)) for i, piece in enumerate(pieces)]
    tokenizer.model = models.Unigram(scores, unk_id=3, byte_fallback=False)
    tokenizer.add_special_tokens(names)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return tokenizer


def _words(tokenizer: Tokenizer) -> list[str]:
    """Of SENTENCES, for a vocabulary: training one of these two kinds gives another each time."""
    texts = map(tokenizer.normalizer.normalize_str, SENTENCES)
    words = (word for text in texts for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text))
    return sorted(set(words))


def byte_level(*names: str) -> Tokenizer:
    """As Qwen3: bytes, and no special tokens around texts. names: its special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def qwen3() -> Tokenizer:
    """As Qwen3-Embedding: an end of text after the text."""
    tokenizer = byte_level(*CHAT_SPECIALS)
    end = (CHAT_SPECIALS[0], tokenizer.token_to_id(CHAT_SPECIALS[0]))
    template = processors.TemplateProcessing(single=f"$A {end[0]}", special_tokens=[end])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return tokenizer


def modernbert() -> Tokenizer:
    """As ModernBERT: bytes, one separator between texts, and one type for both."""
    tokenizer = byte_level("[CLS]", "[SEP]", "[PAD]", "[MASK]")
    names = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:0 [SEP]:0", special_tokens=names
    )
    return tokenizer


def roberta() -> Tokenizer:
    """As RoBERTa: bytes, and a processor of its own."""
    tokenizer = byte_level("<s>", "</s>", "<mask>")
    ids = {name: tokenizer.token_to_id(name) for name in ("<s>", "</s>")}
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", ids["</s>"]), ("<s>", ids["<s>"]))
    return tokenizer


PAIRING: tuple[Callable[[], Tokenizer], ...] = (wordpiece, unigram, modernbert, roberta)
ALL: tuple[Callable[[], Tokenizer], ...] = (*PAIRING, qwen3)


def varied_texts(count: int, *, longest: int = 40, seed: int = 7) -> list[str]:
    """Texts of many scripts and lengths, two empty ones among them; the same ones every time."""
    rng = random.Random(seed)
    words = [*" ".join(SENTENCES).split(" "), "antidisestablishmentarianism", "\U0001f44d", "e\u0301", "\n\n", "[SEP]"]
    texts = [" ".join(rng.choices(words, k=rng.randint(1, longest))) for _ in range(count - 2)]
    return [*texts, "", " "]
