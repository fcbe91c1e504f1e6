"""Folders of random weights in the shape of large published models, written once and kept: their files are not here.

Speed and memory depend on shapes alone. Weights are float32 as BAAI publishes them, bfloat16 for Qwen; words of the
tokenizers are made up, as many as the models have.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

BGE_M3_WORDS = 250_002
QWEN3_WORDS = 151_669
DONE = ".written"


def bge_m3(folder: Path) -> Path:
    """BAAI/bge-m3: 24 layers, 1024 wide, dense, lexical and ColBERT heads. 2.2 GB."""
    if _exists(folder):
        return folder
    save_file(dict(_xlm_roberta("")), folder / "model.safetensors")
    torch.save({"weight": _normal(1, 1024), "bias": _normal(1)}, folder / "sparse_linear.pt")
    torch.save({"weight": _normal(1024, 1024), "bias": _normal(1024)}, folder / "colbert_linear.pt")
    _write_json(folder / "config.json", {**_XLM_ROBERTA, "architectures": ["XLMRobertaModel"]})
    modules = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(modules)
    ]
    _write_json(folder / "modules.json", listed)
    (folder / "1_Pooling").mkdir(exist_ok=True)
    _write_json(folder / "1_Pooling/config.json", {"word_embedding_dimension": 1024, "pooling_mode_cls_token": True})
    _write_json(folder / "sentence_bert_config.json", {"max_seq_length": 8192, "do_lower_case": False})
    _write_xlm_roberta_tokenizer(folder)
    return _finished(folder)


def bge_reranker(folder: Path) -> Path:
    """BAAI/bge-reranker-v2-m3: the same body under a classifier of one label. 2.2 GB."""
    if _exists(folder):
        return folder
    head = {
        "classifier.dense.weight": _normal(1024, 1024),
        "classifier.dense.bias": _normal(1024),
        "classifier.out_proj.weight": _normal(1, 1024),
        "classifier.out_proj.bias": _normal(1),
    }
    save_file({**dict(_xlm_roberta("roberta.")), **head}, folder / "model.safetensors")
    labels = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    _write_json(
        folder / "config.json", {**_XLM_ROBERTA, **labels, "architectures": ["XLMRobertaForSequenceClassification"]}
    )
    _write_xlm_roberta_tokenizer(folder)
    return _finished(folder)


def qwen3(folder: Path) -> Path:
    """Qwen/Qwen3-Embedding-0.6B: 28 layers, 1024 wide, last token. 1.2 GB."""
    if _exists(folder):
        return folder
    save_file(dict(_qwen3()), folder / "model.safetensors")
    _write_json(folder / "config.json", _QWEN3)
    words = {f"w{i}": i for i in range(QWEN3_WORDS - 1)} | {"<|endoftext|>": QWEN3_WORDS - 1}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <|endoftext|>", special_tokens=[("<|endoftext|>", QWEN3_WORDS - 1)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", {"model_max_length": 32_768})
    return _finished(folder)


_XLM_ROBERTA = {
    "model_type": "xlm-roberta",
    "vocab_size": BGE_M3_WORDS,
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "max_position_embeddings": 8194,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
    "hidden_act": "gelu",
    "pad_token_id": 1,
    "position_embedding_type": "absolute",
}

_QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": QWEN3_WORDS,
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": True,
}


def _xlm_roberta(prefix: str) -> Iterator[tuple[str, torch.Tensor]]:
    width, between = 1024, 4096
    tables = {"word": BGE_M3_WORDS, "position": 8194, "token_type": 1}
    for name, rows in tables.items():
        yield f"{prefix}embeddings.{name}_embeddings.weight", _normal(rows, width)
    yield from _norm(f"{prefix}embeddings.LayerNorm", width)
    for i in range(24):
        layer = f"{prefix}encoder.layer.{i}"
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            yield from _linear(f"{layer}.attention.{name}", width, width)
        yield from _norm(f"{layer}.attention.output.LayerNorm", width)
        yield from _linear(f"{layer}.intermediate.dense", width, between)
        yield from _linear(f"{layer}.output.dense", between, width)
        yield from _norm(f"{layer}.output.LayerNorm", width)


def _qwen3() -> Iterator[tuple[str, torch.Tensor]]:
    width, half = 1024, torch.bfloat16
    yield "embed_tokens.weight", _normal(QWEN3_WORDS, width).to(half)
    yield "norm.weight", torch.ones(width, dtype=half)
    for i in range(28):
        layer = f"layers.{i}"
        shapes = {
            "self_attn.q_proj": (2048, width),
            "self_attn.k_proj": (1024, width),
            "self_attn.v_proj": (1024, width),
            "self_attn.o_proj": (width, 2048),
            "mlp.gate_proj": (3072, width),
            "mlp.up_proj": (3072, width),
            "mlp.down_proj": (width, 3072),
        }
        for name, shape in shapes.items():
            yield f"{layer}.{name}.weight", _normal(*shape).to(half)
        for name, size in (("input_layernorm", width), ("post_attention_layernorm", width)):
            yield f"{layer}.{name}.weight", torch.ones(size, dtype=half)
        for name in ("q_norm", "k_norm"):
            yield f"{layer}.self_attn.{name}.weight", torch.ones(128, dtype=half)


def _linear(name: str, inputs: int, outputs: int) -> Iterator[tuple[str, torch.Tensor]]:
    yield f"{name}.weight", _normal(outputs, inputs)
    yield f"{name}.bias", torch.zeros(outputs)


def _norm(name: str, width: int) -> Iterator[tuple[str, torch.Tensor]]:
    yield f"{name}.weight", torch.ones(width)
    yield f"{name}.bias", torch.zeros(width)


def _normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape) * 0.02


def _write_xlm_roberta_tokenizer(folder: Path) -> None:
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    pieces = [(special, 0.0) for special in specials]
    pieces += [(f"\u2581w{i}", -8.0 - i / BGE_M3_WORDS) for i in range(BGE_M3_WORDS - 5)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=3))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.add_special_tokens([*specials, "<mask>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", {"model_max_length": 8192})


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))


def _exists(folder: Path) -> bool:
    if (folder / DONE).exists():
        return True
    print(f"writing {folder} (once)", file=sys.stderr)
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    return False


def _finished(folder: Path) -> Path:
    (folder / DONE).touch()
    return folder
