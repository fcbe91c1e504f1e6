"""Tiny random models with every kind of output, and a decoder, for the backends' tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from tests.models import WIDTH, randomize, read_tiny_spec, write_bert

from vectord.checkpoints.spec import Colbert, ModelSpec, Output, StaticTable, YesNo

VOCABULARY = 60
COLBERT_WIDTH = 24
LABELS = ("contradiction", "entailment", "neutral")


def write_all_kinds(folder: Path) -> ModelSpec:
    """BGE-M3's form: one body for dense, lexical and ColBERT vectors, the heads in files of their own."""
    import torch
    from transformers import XLMRobertaConfig, XLMRobertaModel

    # transformers gives padding tokens no position, anywhere: no text of the tests contains the last word.
    padding = {"pad_token_id": VOCABULARY - 1, "max_position_embeddings": 520 + VOCABULARY}
    _save(XLMRobertaModel(XLMRobertaConfig(**{**_facts(), **padding}, type_vocab_size=1)), folder)
    torch.manual_seed(1)
    lexical, colbert = folder / "sparse_linear.pt", folder / "colbert_linear.pt"
    torch.save(torch.nn.Linear(WIDTH, 1).state_dict(), lexical)
    torch.save(torch.nn.Linear(WIDTH, COLBERT_WIDTH).state_dict(), colbert)
    return read_tiny_spec(
        folder,
        outputs=frozenset({"dense", "tokens", "lexical", "colbert"}),
        pooling="cls",
        lexical=lexical,
        colbert=Colbert(dimensions=COLBERT_WIDTH, linear=colbert, drops_first=True),
        max_tokens=500,
    )


def write_splade(folder: Path) -> ModelSpec:
    """A masked-language model with one number per word."""
    from transformers import BertConfig, BertForMaskedLM

    _save(BertForMaskedLM(BertConfig(**_facts())), folder)
    return read_tiny_spec(folder, outputs=frozenset({"splade", "tokens"}), pooling=None)


def write_classifier(folder: Path) -> ModelSpec:
    """A classifier of three labels."""
    from transformers import BertConfig, BertForSequenceClassification

    _save(BertForSequenceClassification(BertConfig(**_facts(), num_labels=len(LABELS))), folder)
    return read_tiny_spec(folder, outputs=frozenset({"scores"}), pooling=None, labels=LABELS)


def write_cross_encoder(folder: Path) -> ModelSpec:
    """A classifier of one label, for pairs."""
    from transformers import BertConfig, BertForSequenceClassification

    _save(BertForSequenceClassification(BertConfig(**_facts(), num_labels=1)), folder)
    return read_tiny_spec(folder, outputs=frozenset({"scores"}), pooling=None, labels=("0",))


def write_yes_no(folder: Path) -> ModelSpec:
    """A causal model that scores a text by two words."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    facts = {"num_key_value_heads": 2, "head_dim": 16, "use_cache": False, "tie_word_embeddings": False}
    _save(Qwen3ForCausalLM(Qwen3Config(**_facts(), **facts)), folder)
    yes_no = YesNo(prefix="", body="", suffix="", token_ids=(7, 8))
    return read_tiny_spec(folder, outputs=frozenset({"scores"}), pooling=None, yes_no=yes_no, max_tokens=500)


def write_static(folder: Path) -> ModelSpec:
    """A table with a row for each token, of which one does not count."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "static", "hidden_size": WIDTH}))
    table = np.random.default_rng(0).normal(size=(VOCABULARY, WIDTH)).astype(np.float32)
    save_file({"embeddings": table}, folder / "model.safetensors")
    return read_tiny_spec(folder, outputs=frozenset({"dense"}), static=StaticTable(tensor="embeddings", unknown_id=3))


def write_tagger(folder: Path) -> ModelSpec:
    """A classifier of tokens with a layer before its labels. It embeds too."""
    from transformers import ModernBertConfig, ModernBertForTokenClassification

    facts = {**_facts(), "pad_token_id": VOCABULARY - 1, "num_labels": len(LABELS)}
    _save(ModernBertForTokenClassification(ModernBertConfig(**facts)), folder)
    outputs: frozenset[Output] = frozenset({"dense", "token_scores"})
    return read_tiny_spec(folder, outputs=outputs, pooling="cls", token_labels=LABELS)


def write_decoder(folder: Path) -> ModelSpec:
    """A causal model with shared keys and rotary positions, pooled at the last token."""
    from transformers import Qwen3Config, Qwen3Model

    config = Qwen3Config(**_facts(), num_key_value_heads=2, head_dim=16, use_cache=False)
    _save(Qwen3Model(config), folder)
    return read_tiny_spec(folder, pooling="last", outputs=frozenset({"dense", "tokens"}), max_tokens=500)


def write_plain(folder: Path) -> ModelSpec:
    """BERT, mean pooling."""
    return read_tiny_spec(write_bert(folder))


def _facts() -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 520,
    }


def _save(model: Any, folder: Path) -> None:
    randomize(model).save_pretrained(folder)
