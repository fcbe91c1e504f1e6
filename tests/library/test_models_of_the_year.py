"""Models of the year with the settings of docs/mteb.toml: sentence-transformers' vectors, with its prompts.

Random tiny models of each architecture's own class, in folders that sentence-transformers saves.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import MultiVectorEncoder, SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sentence_transformer.modules import Pooling
from tests.compute.networks.tiny_decoders import CONFIGS
from tests.models import WIDTH, randomize, write_bert

from vectord import Embedder

TEXTS = ["the quick brown fox jumps over a lazy dog while many small birds sing", "fox", "a dog and birds near water"]
PROMPTS = {"query": "old trees: ", "document": "green water "}
SPECIALS = {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": None, "eos_token_id": None}
CAUSAL_GEMMA = {**CONFIGS["gemma3_text"], "use_bidirectional_attention": False}

KINDS: dict[str, tuple[str, dict[str, Any], str, str]] = {  # model_type, config, pooling, backend
    "Qwen3, last token: F2LLM-v2, Octen, harrier, zembed-1": ("qwen3", dict(CONFIGS["qwen3"]), "lasttoken", "openvino"),
    "causal Gemma 3, last token: harrier": ("gemma3_text", CAUSAL_GEMMA, "lasttoken", "openvino"),
    "ModernBERT, cls: DenseOn, granite-embedding r2": ("modernbert", {}, "cls", "openvino"),
    "UltraBERT, last token": ("ultrabert", dict(CONFIGS["ultrabert"]), "lasttoken", "openvino"),
    "Qwen3.5, last token": ("qwen3_5_text", {"num_hidden_layers": 4, "head_dim": 16}, "lasttoken", "transformers"),
}
SIZES = {"hidden_size": WIDTH, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8}


def write(folder: Path, model_type: str, config: dict[str, Any], pooling: str) -> Path:
    source = write_bert(folder / "source")
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    known = {**SIZES, "vocab_size": len(tokenizer), "max_position_embeddings": 512, **SPECIALS, **config}
    known |= DELTA if model_type == "qwen3_5_text" else {}
    known = {key: value for key, value in known.items() if key not in ("use_sliding_window", "max_window_layers")}
    facts = transformers.AutoConfig.for_model(model_type, **known)
    (source / "config.json").unlink()
    randomize(transformers.AutoModel.from_config(facts), size=0.2, norm=1.0).save_pretrained(source)
    modules = [Transformer(str(source)), Pooling(WIDTH, pooling), Normalize()]
    model = SentenceTransformer(modules=modules, device="cpu", prompts=PROMPTS)
    model.save_pretrained(str(folder / "saved"), create_model_card=False)
    return folder / "saved"


@pytest.mark.parametrize(("model_type", "config", "pooling", "backend"), KINDS.values(), ids=KINDS)
def test_vectors_equal_sentence_transformers(
    tmp_path: Path, model_type: str, config: dict[str, Any], pooling: str, backend: str
) -> None:
    """With the prompt of queries, that of documents, and without one."""
    folder = write(tmp_path, model_type, config, pooling)
    library = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": torch.float32})
    with Embedder(str(folder), backend=backend, dtype="float32") as embedder:
        for name in ("query", "document", None):
            prompt = PROMPTS.get(str(name), "")
            want = library.encode(TEXTS, prompt=prompt or None, batch_size=1)
            got = embedder.embed(TEXTS, prompt_name=name)
            np.testing.assert_allclose(got, want, atol=1e-5)


def test_token_vectors_equal_sentence_transformers(tmp_path: Path) -> None:
    """A ColBERT on ModernBERT, as LateOn: queries and documents, with their own prompt and length."""
    source = write(tmp_path, "modernbert", {}, "mean").parent / "source"
    dense = Dense(WIDTH, 16, bias=False, activation_function=None, module_input_name="token_embeddings")
    norm = Normalize(module_input_name="token_embeddings")
    lengths = {"query_length": 9, "document_length": 12}
    modules = [Transformer(str(source), **lengths), dense, MultiVectorMask(skiplist_words=["a"]), norm]
    library = MultiVectorEncoder(modules=modules, device="cpu", prompts=PROMPTS)
    library.save_pretrained(str(tmp_path / "colbert"), create_model_card=False)
    with Embedder(str(tmp_path / "colbert"), dtype="float32") as embedder:
        for kind, encode in (("query", library.encode_query), ("document", library.encode_document)):
            got = embedder.embed(TEXTS, outputs="colbert", kind=kind).colbert
            for rows, want in zip(got, encode(TEXTS), strict=True):
                np.testing.assert_allclose(rows, want, atol=1e-5)
