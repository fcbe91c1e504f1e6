"""The computation of Qwen3-Reranker's model card: the probability of "yes" against "no" as the next token.

    python qwen3_reranker.py MODEL_FOLDER INPUTS.json ANSWERS.npz

Run by tests/reference/references.py in the reference environment. INPUTS.json has the arguments of `rerank`.
Uses transformers only, in the card's steps: tokenize the three parts separately, cut the body to the remaining length,
pad on the left, and take two logits of the last position.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

PREFIX = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"


def rerank(
    folder: str, pairs: list[tuple[str, str]], instruction: str = INSTRUCTION, max_length: int = 8192
) -> dict[str, np.ndarray]:
    """Return scores (N,) and their two logits, (N, 2) no and yes."""
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    prefix = tokenizer.encode(PREFIX, add_special_tokens=False)
    suffix = tokenizer.encode(SUFFIX, add_special_tokens=False)
    bodies = [f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {passage}" for query, passage in pairs]
    room = max_length - len(prefix) - len(suffix)
    encoded = tokenizer(bodies, truncation=True, max_length=room, add_special_tokens=False)
    ids = [prefix + body + suffix for body in encoded["input_ids"]]
    padded = tokenizer.pad({"input_ids": ids}, padding=True, return_tensors="pt")
    words = tokenizer.convert_tokens_to_ids(["no", "yes"])
    with torch.no_grad():
        logits = model(**padded).logits[:, -1, words]  # (N, 2)
    return {"scores": torch.softmax(logits, dim=1)[:, 1].numpy(), "logits": logits.numpy()}


def main(folder: str, inputs: str, answers: str) -> None:
    np.savez(answers, **rerank(folder, **json.loads(Path(inputs).read_text())))


if __name__ == "__main__":
    main(*sys.argv[1:])
