"""`python -m bench families`: the speed and the precision of every architecture, in the size of a notable model.

The weights are random, as transformers initializes them, in bfloat16; the texts are random words with the corpus's
lengths. A large model has only some of its layers here, and its rate is that of these layers times their share. The
vocabulary is short, which changes neither.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import random_models
from bench.child import Child
from bench.large import best_rate, corpus_lengths
from bench.report import Row, at_least
from vectord.compute.processor import thread_budget

WORDS = 4096
TEXTS = 96
ALIKE = 0.9999  # target for the cosine


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes of a published model. model_type: of transformers' class; empty: the name in FAMILIES."""

    model: str
    sizes: Mapping[str, Any]
    layers: int
    measured: int = 0  # of the layers; 0: all
    model_type: str = ""
    own_class: str = ""  # `architectures` of the model's own code
    changed: Mapping[str, Any] = field(default_factory=dict)  # other entries of config.json
    pooling: str = "mean"

    @property
    def share(self) -> float:
        return (self.measured or self.layers) / self.layers


def _sizes(width: int, between: int, heads: int, **others: Any) -> dict[str, Any]:
    return {"hidden_size": width, "intermediate_size": between, "num_attention_heads": heads, **others}


def _decoder(width: int, between: int, heads: int, keys: int, size: int = 128, **others: Any) -> dict[str, Any]:
    return _sizes(width, between, heads, num_key_value_heads=keys, head_dim=size, **others)


BASE = _sizes(768, 3072, 12)
LARGE = _sizes(1024, 4096, 16)
NEMOTRON = _decoder(2048, 8192, 32, 8, 64)
MINISTRAL = _decoder(3072, 9216, 32, 8)
QWEN3 = _decoder(1024, 3072, 16, 8)
LFM2 = _sizes(1024, 6656, 16, num_key_value_heads=8, block_auto_adjust_ff_dim=True)
LFM2_LAYERS = [["conv", "full_attention"][i in (2, 5, 8, 10, 12, 14)] for i in range(16)]
T5 = {"d_model": 768, "d_kv": 64, "num_heads": 12}
DEBERTA = {
    "position_buckets": 256,
    "relative_attention": True,
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "norm_rel_ebd": "layer_norm",
    "position_biased_input": False,
    "max_relative_positions": -1,
    "type_vocab_size": 0,
}

FAMILIES: Mapping[str, Shape] = {
    "albert": Shape(model="paraphrase-albert-small-v2", sizes=BASE | {"embedding_size": 128}, layers=6),
    "bert": Shape(model="bge-base-en-v1.5", sizes=BASE, layers=12, pooling="cls"),
    "bidirectional_pplx_qwen3": Shape(
        model="pplx-embed-v1-0.6b", sizes=QWEN3, layers=28, measured=7, model_type="qwen3", own_class="PPLXQwen3Model"
    ),
    "camembert": Shape(model="camembert-base", sizes=BASE, layers=12),
    "deberta_v2": Shape(
        model="mxbai-rerank-base-v1", sizes=BASE | DEBERTA, layers=12, model_type="deberta-v2", pooling="cls"
    ),
    "distilbert": Shape(
        model="multi-qa-distilbert-cos-v1", sizes={"dim": 768, "hidden_dim": 3072, "n_heads": 12}, layers=6
    ),
    "electra": Shape(
        model="ms-marco-electra-base", sizes=BASE | {"embedding_size": 768}, layers=12, pooling="cls"
    ),
    "embedding_gemma2": Shape(model="embeddinggemma-2", sizes={}, layers=24),
    "embedding_gemma2_text": Shape(model="embeddinggemma-2, text tower", sizes={}, layers=24),
    "ernie": Shape(model="ernie-3.0-base-zh", sizes=BASE, layers=12, pooling="cls"),
    "eurobert": Shape(model="EuroBERT-210m", sizes=_decoder(768, 3072, 12, 12, 64), layers=12),
    "gemma": Shape(
        model="bge-reranker-v2-gemma", sizes=_decoder(2048, 16384, 8, 1, 256), layers=18, measured=3, pooling="last"
    ),
    "gemma2": Shape(
        model="bge-multilingual-gemma2", sizes=_decoder(3584, 14336, 16, 8, 256), layers=42, measured=2, pooling="last"
    ),
    "gemma3_text": Shape(
        model="embeddinggemma-300m",
        sizes=_decoder(768, 1152, 3, 1, 256, use_bidirectional_attention=True, sliding_window=512),
        layers=24,
    ),
    "gte": Shape(model="gte-multilingual-base", sizes=BASE, layers=12, pooling="cls"),
    "jina_bert_v2": Shape(model="jina-embeddings-v2-base-en", sizes=BASE, layers=12),
    "jina_embeddings_v3": Shape(model="jina-embeddings-v3", sizes=LARGE, layers=24, measured=6),
    "lfm2": Shape(model="LFM2-ColBERT-350M", sizes=LFM2 | {"layer_types": LFM2_LAYERS}, layers=16),
    "lfm2_bidirectional": Shape(
        model="LFM2.5-Embedding-350M",
        sizes=LFM2 | {"layer_types": LFM2_LAYERS},
        layers=16,
        model_type="lfm2",
        own_class="Lfm2BidirectionalModel",
        pooling="cls",
    ),
    "llama": Shape(model="Llama-3.2-1B", sizes=NEMOTRON, layers=16, measured=4, pooling="last"),
    "llama_bidirec": Shape(
        model="llama-nemotron-embed-1b-v2",
        sizes=NEMOTRON,
        layers=16,
        measured=4,
        model_type="llama",
        own_class="LlamaBidirectionalModel",
    ),
    "minicpm": Shape(
        model="bge-reranker-v2-minicpm-layerwise",
        sizes=_sizes(2304, 5760, 36),
        layers=40,
        measured=4,
        model_type="llama",
        own_class="LayerWiseMiniCPMForCausalLM",
        pooling="last",
        changed={"scale_emb": 12, "scale_depth": 1.4, "head_dim": None, "mlp_bias": None},
    ),
    "ministral3": Shape(model="Ministral-3-3B", sizes=MINISTRAL, layers=26, measured=3, pooling="last"),
    "ministral3_bidirec": Shape(
        model="Ministral-3-3B, bidirectional",
        sizes=MINISTRAL,
        layers=26,
        measured=3,
        model_type="ministral3",
        own_class="Ministral3BidirectionalModel",
    ),
    "mistral": Shape(
        model="e5-mistral-7b-instruct", sizes=_decoder(4096, 14336, 32, 8), layers=32, measured=2, pooling="last"
    ),
    "modernbert": Shape(model="modernbert-embed-base", sizes=_sizes(768, 1152, 12), layers=22),
    "mpnet": Shape(model="all-mpnet-base-v2", sizes=BASE | {"pad_token_id": 1}, layers=12),
    "mt5": Shape(
        model="mt5-base's encoder", sizes=T5 | {"d_ff": 2048, "feed_forward_proj": "gated-gelu"}, layers=12
    ),
    "new": Shape(
        model="gte-base-en-v1.5", sizes=BASE, layers=12, model_type="gte", pooling="cls", changed={"model_type": "new"}
    ),
    "nomic_bert": Shape(model="nomic-embed-text-v1.5", sizes=BASE, layers=12),
    "nomic_bert of experts": Shape(model="nomic-embed-text-v2-moe", sizes=BASE, layers=12),
    "qwen2": Shape(
        model="gte-Qwen2-1.5B-instruct", sizes=_sizes(1536, 8960, 12, num_key_value_heads=2), layers=28, measured=4,
        pooling="last",
    ),
    "qwen3": Shape(model="Qwen3-Embedding-0.6B", sizes=QWEN3, layers=28, measured=7, pooling="last"),
    "roberta": Shape(model="all-distilroberta-v1", sizes=BASE, layers=6),
    "t5": Shape(model="sentence-t5-base", sizes=T5 | {"d_ff": 3072}, layers=12),
    "xlm_roberta": Shape(model="multilingual-e5-base", sizes=BASE, layers=12, model_type="xlm-roberta"),
}  # fmt: skip
# Within the vocabulary; the texts have none of them.
SPECIALS = {f"{name}_token_id": i for i, name in enumerate(("pad", "bos", "eos", "cls", "sep"))} | {"mask_token_id": 1}
# The writers of architectures that transformers does not have.
WRITERS = {"jina_bert_v2": random_models.jina_bert, "nomic_bert of experts": random_models.nomic_experts}


@dataclass(slots=True)
class Measured:
    """rates: tokens per second of every round, on all cores."""

    rates: list[float] = field(default_factory=list)
    cosine: float = 0.0  # the least of texts in the default dtype, with those in float32
    dtype: str = ""


def measure(names: Sequence[str], backend: str, folder: Path, rounds: int) -> dict[str, Measured]:
    """folder: for one model at a time, which is deleted again."""
    found: dict[str, Measured] = {}
    lengths = corpus_lengths(TEXTS)
    for name in names or FAMILIES:
        print(name, file=sys.stderr)
        shape, place = FAMILIES[name], folder / name.replace(" ", "-")
        write(place, name)
        with Child(sys.executable, "bench.large_child", backend, str(place)) as child:
            questions = {"lengths": lengths, "outputs": ["dense"], "words": WORDS}
            child.ask(measure="throughput", **questions)  # arranges weights and compiles kernels
            measured = [child.ask(measure="throughput", **questions) for _ in range(rounds)]
            found[name] = Measured(
                [shape.share * best_rate([one]) for one in measured],
                child.ask(measure="cosine", lengths=lengths[::8], words=WORDS),
                child.ask(measure="facts")["dtype"],
            )
        shutil.rmtree(place)
    return found


def write(folder: Path, name: str) -> None:
    """A folder with the random model of a family."""
    shape = FAMILIES[name]
    if name in WRITERS:
        WRITERS[name](folder, {**shape.sizes, "num_hidden_layers": shape.layers, "vocab_size": WORDS})
        return
    sizes = {**SPECIALS, **shape.sizes, "vocab_size": WORDS, _layers_key(name): shape.measured or shape.layers}
    own = {"model_type": name, "architectures": [shape.own_class]} if shape.own_class else {}
    random_models.transformers_model(folder, shape.model_type or name, sizes, {**own, **shape.changed}, shape.pooling)


def _layers_key(name: str) -> str:
    return {"distilbert": "n_layers", "t5": "num_layers", "mt5": "num_layers"}.get(name, "num_hidden_layers")


def rows(found: Mapping[str, Measured]) -> list[Row]:
    return [
        Row(
            what=f"{name}, {FAMILIES[name].model}",
            value=f"cosine {measured.cosine:.6f}",
            tokens_per_s=max(measured.rates) / thread_budget(),
            **at_least(measured.cosine, ALIKE, ""),
        )
        for name, measured in found.items()
    ]
