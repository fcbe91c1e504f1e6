from __future__ import annotations

from pathlib import Path

import pytest
from bench.ceiling import MODELS
from bench.gpu_shapes import SHAPES, model_folder, shape_named
from tokenizers import Tokenizer


@pytest.mark.parametrize(("name", "parameters"), [("bge-base", 85e6), ("bge-large", 302e6)])
def test_a_token_costs_two_operations_a_weight(name: str, parameters: float) -> None:
    """The linear layers of bge-base have 85 million weights, those of bge-large 302 million."""
    assert SHAPES[name].products.flop_per_token == pytest.approx(2 * parameters, rel=0.01)


@pytest.mark.parametrize("name", ["minilm", "bge-m3", "qwen3"])
def test_products_are_those_of_the_other_benchmark(name: str) -> None:
    """Both files count the same."""
    (shape,) = [shape for full_name, shape in SHAPES.items() if full_name.startswith(name)]
    assert shape.products.flop_per_token == MODELS[name].flop_per_token


def test_attention_costs_by_visible_keys() -> None:
    """4 operations for each layer, key and number of a query; a causal model sees half the keys."""
    bert, qwen3 = SHAPES["bge-base"], SHAPES["qwen3-embedding-0.6b"]
    assert bert.flop_per_token(512) - bert.products.flop_per_token == 4 * 12 * 512 * 768
    assert qwen3.flop_per_token(512) - qwen3.products.flop_per_token == 4 * 28 * 256 * 2048


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("length", [12, 50])
def test_texts_have_the_tokens_they_are_counted_with(tmp_path: Path, name: str, length: int) -> None:
    """With special tokens, without unknown words, and different for each seed."""
    shape = shape_named(name, quick=True)
    tokenizer = Tokenizer.from_file(str(model_folder(shape, tmp_path, quick=True) / "tokenizer.json"))
    encodings = tokenizer.encode_batch([shape.text(length, seed) for seed in range(8)])
    assert [len(encoding.ids) for encoding in encodings] == [length] * 8
    words = [token for encoding in encodings for token in encoding.tokens]
    assert not {"[UNK]", "<unk>"} & set(words)
    assert len({tuple(encoding.ids) for encoding in encodings}) == 8
