"""Model folders with random weights in the shapes of large published models, written once and kept.

Speed and memory depend only on shapes. Weights are float32 for BAAI's models and bfloat16 for Qwen's, as published. The
tokenizers have invented words, as many as the models have.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

Config = Mapping[str, Any]  # from config.json

BERT_SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
DONE = ".written"
POOLINGS = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens", "last": "pooling_mode_lasttoken"}


def bert(folder: Path, config: Config) -> Path:
    """An encoder of the BERT family that pools its first token; `config` has the sizes."""
    if _exists(folder):
        return folder
    save_file(dict(_encoder("", config)), folder / "model.safetensors")
    return _finish_bert(folder, config, "BertModel")


def mpnet(folder: Path, config: Config) -> Path:
    """The same with MPNet's relative bias, as all-mpnet-base-v2."""
    if _exists(folder):
        return folder
    tensors = {_MPNET_NAMES.sub(lambda found: _MPNET[found[0]], name): each for name, each in _encoder("", config)}
    del tensors["embeddings.token_type_embeddings.weight"]
    buckets, heads = config["relative_attention_num_buckets"], config["num_attention_heads"]
    tensors["encoder.relative_attention_bias.weight"] = _normal(buckets, heads)
    save_file(tensors, folder / "model.safetensors")
    return _finish_bert(folder, config, "MPNetModel")


def bge_m3(folder: Path, config: Config | None = None) -> Path:
    """BAAI/bge-m3: 24 layers, 1024 wide, dense, lexical and ColBERT heads. 2.2 GB. config: other sizes."""
    if _exists(folder):
        return folder
    config = XLM_ROBERTA if config is None else config
    width = config["hidden_size"]
    save_file(dict(_encoder("", config)), folder / "model.safetensors")
    torch.save({"weight": _normal(1, width), "bias": _normal(1)}, folder / "sparse_linear.pt")
    torch.save({"weight": _normal(width, width), "bias": _normal(width)}, folder / "colbert_linear.pt")
    _write_json(folder / "config.json", {**config, "architectures": ["XLMRobertaModel"]})
    _write_modules(folder, width, 8192)
    _write_xlm_roberta_tokenizer(folder, config["vocab_size"])
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
    save_file({**dict(_encoder("roberta.", XLM_ROBERTA)), **head}, folder / "model.safetensors")
    labels = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    _write_json(
        folder / "config.json", {**XLM_ROBERTA, **labels, "architectures": ["XLMRobertaForSequenceClassification"]}
    )
    _write_xlm_roberta_tokenizer(folder, XLM_ROBERTA["vocab_size"])
    return _finished(folder)


def qwen3(folder: Path, config: Config | None = None) -> Path:
    """Qwen/Qwen3-Embedding-0.6B: 28 layers, 1024 wide, last token. 1.2 GB. config: other sizes."""
    if _exists(folder):
        return folder
    config = QWEN3 if config is None else config
    last = config["vocab_size"] - 1
    save_file(dict(_qwen3(config)), folder / "model.safetensors")
    _write_json(folder / "config.json", config)
    words = {f"w{i}": i for i in range(last)} | {"<|endoftext|>": last}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <|endoftext|>", special_tokens=[("<|endoftext|>", last)]
    )
    _write_tokenizer(folder, tokenizer, 32_768, ["<|endoftext|>"])
    return _finished(folder)


def transformers_model(folder: Path, model_type: str, sizes: Config, changed: Config, pooling: str) -> None:
    """A body as transformers initializes it, in bfloat16. changed: entries of the written config.json."""
    import transformers  # noqa: PLC0415 - slow, and only this function needs it

    towers = {"text_config": sizes, "vision_config": None, "audio_config": None}
    config = transformers.AutoConfig.for_model(model_type, **(towers if model_type == "embedding_gemma2" else sizes))
    body = "EncoderModel" if model_type in {"t5", "mt5"} else "Model"
    torch.manual_seed(0)
    model = getattr(transformers, type(config).__name__.removesuffix("Config") + body)(config)
    model.to(torch.bfloat16).save_pretrained(folder)
    _write_json(folder / "config.json", {**json.loads((folder / "config.json").read_text()), **changed})
    _write_words(folder, sizes["vocab_size"], model.config.get_text_config().to_dict(), pooling)


def jina_bert(folder: Path, config: Config) -> None:
    """jina-embeddings-v2: a BERT without positions, whose MLPs have a gate."""
    config = {**BERT, **config, "position_embedding_type": "alibi", "feed_forward_type": "geglu"}
    width, between = config["hidden_size"], config["intermediate_size"]
    tensors = {
        name.replace(".output.LayerNorm", ".mlp.layernorm") if ".attention." not in name else name: tensor
        for name, tensor in _encoder("", config)
        if "position_embeddings" not in name and ("attention" in name or ".dense." not in name)
    }
    for i in range(config["num_hidden_layers"]):
        tensors[f"encoder.layer.{i}.mlp.gated_layers.weight"] = _normal(2 * between, width)
        tensors |= dict(_linear(f"encoder.layer.{i}.mlp.wo", between, width))
    _write_body(folder, tensors, {**config, "architectures": ["JinaBertModel"]}, "mean")


def nomic_experts(folder: Path, config: Config) -> None:
    """nomic-embed-text-v2: every other layer has eight experts, of which each token takes two."""
    width, between, layers = (config[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers"))
    own = {"n_embd": width, "n_inner": between, "n_layer": layers, "n_head": config["num_attention_heads"]}
    tensors = {"embeddings.word_embeddings.weight": _normal(config["vocab_size"], width)}
    tensors["embeddings.token_type_embeddings.weight"] = _normal(1, width)
    tensors |= dict(_norm("emb_ln", width))
    for layer in (f"encoder.layers.{i}" for i in range(layers)):
        tensors |= dict(_linear(f"{layer}.attn.Wqkv", width, 3 * width))
        tensors |= dict(_linear(f"{layer}.attn.out_proj", width, width))
        tensors |= dict(_norm(f"{layer}.norm1", width)) | dict(_norm(f"{layer}.norm2", width))
        if int(layer.rpartition(".")[2]) % 2 == 0:
            tensors |= dict(_linear(f"{layer}.mlp.fc1", width, between))
            tensors |= dict(_linear(f"{layer}.mlp.fc2", between, width))
            continue
        tensors[f"{layer}.mlp.router.layer.weight"] = _normal(NOMIC_V2["num_experts"], width)
        for part in ("w1", "w2"):
            tensors[f"{layer}.mlp.experts.mlp.{part}"] = _normal(NOMIC_V2["num_experts"] * between, width)
        tensors[f"{layer}.mlp.experts.bias"] = torch.zeros(width)
    _write_body(folder, tensors, {**NOMIC_V2, **own, "vocab_size": config["vocab_size"]}, "mean")


NOMIC_V2: Config = {
    "model_type": "nomic_bert",
    "architectures": ["NomicBertModel"],
    "activation_function": "gelu",
    "layer_norm_epsilon": 1e-5,
    "mlp_fc1_bias": True,
    "mlp_fc2_bias": True,
    "moe_every_n_layers": 2,
    "moe_top_k": 2,
    "n_positions": 2048,
    "num_experts": 8,
    "pad_token_id": 1,
    "qkv_proj_bias": True,
    "rotary_emb_base": 10_000,
    "type_vocab_size": 1,
}

BERT: Config = {
    "model_type": "bert",
    "vocab_size": 30_522,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
}
BGE_SMALL = {**BERT, "hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 12, "num_attention_heads": 12}

MPNET: Config = {
    "model_type": "mpnet",
    "vocab_size": 30_527,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 514,
    "relative_attention_num_buckets": 32,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
    "hidden_act": "gelu",
    "pad_token_id": 1,
}

XLM_ROBERTA: Config = {
    "model_type": "xlm-roberta",
    "vocab_size": 250_002,
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

QWEN3: Config = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151_669,
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


def _encoder(prefix: str, config: Config) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights of BERT and XLM-RoBERTa, which have the same names."""
    width, between = config["hidden_size"], config["intermediate_size"]
    tables = {"word": "vocab_size", "position": "max_position_embeddings", "token_type": "type_vocab_size"}
    for name, rows in tables.items():
        yield f"{prefix}embeddings.{name}_embeddings.weight", _normal(config[rows], width)
    yield from _norm(f"{prefix}embeddings.LayerNorm", width)
    for i in range(config["num_hidden_layers"]):
        layer = f"{prefix}encoder.layer.{i}"
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            yield from _linear(f"{layer}.attention.{name}", width, width)
        yield from _norm(f"{layer}.attention.output.LayerNorm", width)
        yield from _linear(f"{layer}.intermediate.dense", width, between)
        yield from _linear(f"{layer}.output.dense", between, width)
        yield from _norm(f"{layer}.output.LayerNorm", width)


def _qwen3(config: Config) -> Iterator[tuple[str, torch.Tensor]]:
    width, between, half = config["hidden_size"], config["intermediate_size"], torch.bfloat16
    queries, keys = (config[heads] * config["head_dim"] for heads in ("num_attention_heads", "num_key_value_heads"))
    yield "embed_tokens.weight", _normal(config["vocab_size"], width).to(half)
    yield "norm.weight", torch.ones(width, dtype=half)
    for i in range(config["num_hidden_layers"]):
        layer = f"layers.{i}"
        shapes = {
            "self_attn.q_proj": (queries, width),
            "self_attn.k_proj": (keys, width),
            "self_attn.v_proj": (keys, width),
            "self_attn.o_proj": (width, queries),
            "mlp.gate_proj": (between, width),
            "mlp.up_proj": (between, width),
            "mlp.down_proj": (width, between),
        }
        for name, shape in shapes.items():
            yield f"{layer}.{name}.weight", _normal(*shape).to(half)
        for name, size in (("input_layernorm", width), ("post_attention_layernorm", width)):
            yield f"{layer}.{name}.weight", torch.ones(size, dtype=half)
        for name in ("q_norm", "k_norm"):
            yield f"{layer}.self_attn.{name}.weight", torch.ones(config["head_dim"], dtype=half)


def _linear(name: str, inputs: int, outputs: int) -> Iterator[tuple[str, torch.Tensor]]:
    yield f"{name}.weight", _normal(outputs, inputs)
    yield f"{name}.bias", torch.zeros(outputs)


def _norm(name: str, width: int) -> Iterator[tuple[str, torch.Tensor]]:
    yield f"{name}.weight", torch.ones(width)
    yield f"{name}.bias", torch.zeros(width)


def _normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape) * 0.02


_MPNET = {
    "self.query": "attn.q",
    "self.key": "attn.k",
    "self.value": "attn.v",
    "attention.output.dense": "attention.attn.o",
    "attention.output.LayerNorm": "attention.LayerNorm",
}
_MPNET_NAMES = re.compile("|".join(map(re.escape, _MPNET)))


def _finish_bert(folder: Path, config: Config, body: str) -> Path:
    longest = min(512, config["max_position_embeddings"])
    _write_json(folder / "config.json", {**config, "architectures": [body]})
    _write_modules(folder, config["hidden_size"], longest)
    words = [*BERT_SPECIALS, *(f"w{i}" for i in range(config["vocab_size"] - len(BERT_SPECIALS)))]
    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(BERT_SPECIALS)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    _write_tokenizer(folder, tokenizer, longest, BERT_SPECIALS)
    return _finished(folder)


def _write_body(folder: Path, tensors: Mapping[str, torch.Tensor], config: Config, pooling: str) -> None:
    folder.mkdir(parents=True)
    save_file({name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}, folder / "model.safetensors")
    _write_json(folder / "config.json", config)
    _write_words(folder, config["vocab_size"], config, pooling)


def _write_words(folder: Path, count: int, config: Config, pooling: str) -> None:
    """A tokenizer of `count` words, without specials, and the modules of a model of at most 512 tokens."""
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(count)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    _write_tokenizer(folder, tokenizer, 512, [])
    width = next(config[key] for key in ("embedding_dim", "hidden_size", "dim", "d_model", "n_embd") if key in config)
    _write_modules(folder, width, 512, pooling)


def _write_modules(folder: Path, width: int, longest: int, pooling: str = "cls") -> None:
    """sentence-transformers' files for one vector of a text, normalized."""
    modules = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(modules)
    ]
    _write_json(folder / "modules.json", listed)
    (folder / "1_Pooling").mkdir(exist_ok=True)
    modes = {key: name == pooling for name, key in POOLINGS.items()}  # sentence-transformers' default is the mean
    _write_json(folder / "1_Pooling/config.json", {"word_embedding_dimension": width, **modes})
    _write_json(folder / "sentence_bert_config.json", {"max_seq_length": longest, "do_lower_case": False})


def _write_xlm_roberta_tokenizer(folder: Path, words: int) -> None:
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    pieces = [(special, 0.0) for special in specials]
    pieces += [(f"\u2581w{i}", -8.0 - i / words) for i in range(words - 5)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=3))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.add_special_tokens([*specials, "<mask>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    _write_tokenizer(folder, tokenizer, 8192, ["<pad>", "<unk>", "<s>", "</s>"])


def _write_tokenizer(folder: Path, tokenizer: Tokenizer, longest: int, specials: Sequence[str]) -> None:
    """specials: the tokens for padding, unknown words, start and end, if any."""
    tokenizer.save(str(folder / "tokenizer.json"))
    named = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), specials, strict=False))
    about = {"model_max_length": longest, "tokenizer_class": "PreTrainedTokenizerFast"}
    _write_json(folder / "tokenizer_config.json", about | named)


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
