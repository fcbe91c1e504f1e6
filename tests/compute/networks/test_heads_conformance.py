"""Every head of an architecture is compared with its own class. Architectures are found by listing the folder.

The comparisons are those of test_heads_scores.py, test_heads_splade.py, test_decoders.py and, for minicpm,
tests/answers/test_decoder_rerankers.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.compute.networks import test_heads_scores, test_heads_splade
from tests.compute.networks.test_decoders import DECODERS

from vectord.compute.networks.architecture import Architecture
from vectord.compute.networks.network import ARCHITECTURES, class_of

COMPARED: dict[str, set[str]] = {  # architectures, by the function that makes the head
    "classifier": {architecture for architecture, *_ in test_heads_scores.FAMILIES.values()}
    | {*DECODERS, "llama_bidirec", "minicpm"},
    "masked_lm": {architecture for architecture, *_ in test_heads_splade.FAMILIES.values()} | {"qwen2", "qwen3"},
    "head_rows": {*DECODERS, "qwen3_vl_text", "t5gemma2_decoder"},  # the last two: test_qwen_vl.py, test_t5gemma2.py
}


def head_of(architecture: str, head: str) -> Any:
    made = getattr(class_of(architecture), head)
    return None if made is getattr(Architecture, head) else made


@pytest.mark.parametrize("head", COMPARED)
def test_every_head_is_compared(head: str) -> None:
    """An architecture without the head has none; one that uses another's is compared there."""
    for architecture in ARCHITECTURES:
        made = head_of(architecture, head)
        assert made is None or made in {head_of(compared, head) for compared in COMPARED[head]}, architecture
