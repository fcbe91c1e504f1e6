"""FlagEmbedding's results for BGE-M3 and BGE reranker folders.

    python flag_embedding.py MODEL_FOLDER INPUTS.json ANSWERS.npz

Run by tests/reference/references.py in the reference environment. INPUTS.json has the tasks (names of TASKS) and the
arguments of each function here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from FlagEmbedding import BGEM3FlagModel, FlagLLMReranker, FlagReranker, LayerWiseFlagLLMReranker
from FlagEmbedding.inference.reranker.decoder_only.models.configuration_minicpm_reranker import LayerWiseMiniCPMConfig
from FlagEmbedding.inference.reranker.decoder_only.models.modeling_minicpm_reranker import LayerWiseMiniCPMForCausalLM
from ragged import pack
from safetensors.torch import load_file

Pair = tuple[str, str]


def embed(folder: str, texts: list[str], max_length: int = 512) -> dict[str, np.ndarray]:
    """Return the three kinds of vectors of every text.

    dense_vecs (N, D); lexical_ids and lexical_weights, ragged, (R,); colbert_vecs, ragged, (R, D).
    """
    model = BGEM3FlagModel(folder, use_fp16=False, devices="cpu")
    vectors = model.encode(
        texts, max_length=max_length, return_dense=True, return_sparse=True, return_colbert_vecs=True
    )
    lexical = vectors["lexical_weights"]
    return {
        "dense_vecs": vectors["dense_vecs"],
        **pack("lexical_ids", [np.array(list(map(int, row)), np.int64) for row in lexical]),
        **pack("lexical_weights", [np.array(list(row.values()), np.float32) for row in lexical]),
        **pack("colbert_vecs", vectors["colbert_vecs"]),
    }


def score(
    folder: str,
    pairs: list[Pair],
    weights: Sequence[float] | None = None,
) -> dict[str, np.ndarray]:
    """score_dense, score_sparse, score_colbert, score_sparse+dense, score_colbert+sparse+dense, each (N,).

    weights: of dense, sparse and colbert. A pair at a time, because in larger batches the ColBERT scores depend on the
    neighbours: a padded passage gets rows of zeros, and no row of the query can match it worse than 0.
    """
    model = BGEM3FlagModel(folder, use_fp16=False, devices="cpu")
    scores = model.compute_score(pairs, batch_size=1, weights_for_different_modes=weights)
    return {f"score_{mode}": np.array(values, np.float64) for mode, values in scores.items()}


def rerank(folder: str, pairs: list[Pair], max_length: int = 512) -> dict[str, np.ndarray]:
    """Return rerank_logits and rerank_scores (their sigmoid), (N,). A pair at a time: its text is not padded."""
    reranker = FlagReranker(folder, use_fp16=False, devices="cpu")
    logits, scores = (
        [reranker.compute_score([pair], max_length=max_length, normalize=normalize)[0] for pair in pairs]
        for normalize in (False, True)
    )
    return {"rerank_logits": np.array(logits), "rerank_scores": np.array(scores)}


def rerank_by_layer(folder: str, pairs: list[Pair], cutoff_layers: list[int]) -> dict[str, np.ndarray]:
    """Return layer_logits (layers, N): the logits of LayerWiseLLMReranker after each of the layers.

    The class is older than this version of transformers, so the test builds the model: from_pretrained leaves its
    tables of positions empty. The configuration's rope_scaling is that of the folder, which has none.
    """
    LayerWiseMiniCPMConfig.rope_scaling = property(lambda _: None, lambda _, value: None)
    LayerWiseMiniCPMForCausalLM._tied_weights_keys = None

    def load(cls: type, path: str, **_: Any) -> Any:
        model = cls(LayerWiseMiniCPMConfig.from_pretrained(path, attn_implementation="eager", use_cache=False))
        model.load_state_dict(load_file(Path(path) / "model.safetensors"))
        return model.eval()

    LayerWiseMiniCPMForCausalLM.from_pretrained = classmethod(load)
    reranker = LayerWiseFlagLLMReranker(folder, devices="cpu", cutoff_layers=cutoff_layers)
    logits = reranker.compute_score(pairs)
    return {"layer_logits": np.array(logits, np.float64).reshape(len(cutoff_layers), len(pairs))}


def rerank_by_answer(folder: str, pairs: list[Pair]) -> dict[str, np.ndarray]:
    """Return answer_logits (N,): the logits of "Yes" of FlagLLMReranker."""
    return {"answer_logits": np.array(FlagLLMReranker(folder, devices="cpu").compute_score(pairs), np.float64)}


TASKS = {
    "embed": embed,
    "score": score,
    "rerank": rerank,
    "rerank_by_layer": rerank_by_layer,
    "rerank_by_answer": rerank_by_answer,
}


def main(folder: str, inputs: str, answers: str) -> None:
    arrays: dict[str, np.ndarray] = {}
    for task, arguments in json.loads(Path(inputs).read_text()).items():
        arrays |= TASKS[task](folder, **arguments)
    np.savez(answers, **arrays)


if __name__ == "__main__":
    main(*sys.argv[1:])
