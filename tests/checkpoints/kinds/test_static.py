"""Static models answer as the library and version that saved them: model2vec 0.9 and 0.10, and StaticEmbedding."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import safetensors.numpy
from model2vec import StaticModel
from tests.checkpoints.folders import write_json, write_modules
from tests.checkpoints.reading import refusal, spec_of
from tests.models import batch_of
from tokenizers import Tokenizer, models, pre_tokenizers

from vectord.compute.backends import static
from vectord.compute.backends.base import BackendOptions
from vectord.errors import StartError
from vectord.schema import Float32, TextOptions
from vectord.text.sequence import ReadRequest
from vectord.text.tokenizer import TextEncoder

WORDS = ("<pad>", "<unk>", "alpha", "beta", "gamma", "delta", "eta")
TEXTS = [
    "alpha",
    "alpha beta",
    "beta unknown alpha",
    "gamma gamma delta eta",
    "eta " * 40,
    "unknown " * 3 + "beta " * 40,
]
WIDTH = 8


def tokenizer_of(kind: str, truncation: int | None = None) -> Tokenizer:
    """Words split at spaces; kind: WordLevel has an unknown token by name, Unigram by place."""
    if kind == "Unigram":
        tokenizer = Tokenizer(models.Unigram([(word, 0.0) for word in WORDS], unk_id=1))
    else:
        tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if truncation is not None:
        tokenizer.enable_truncation(truncation)
    return tokenizer


def write_table(folder: Path, *, dtype: str = "float32", quantized: bool = False, kind: str = "WordLevel") -> Path:
    """Save a table as model2vec 0.10 does; quantized: rows shared by tokens, and a weight for each token."""
    rng = np.random.default_rng(7)
    rows = (rng.normal(size=(4 if quantized else len(WORDS), WIDTH)) * 20).astype(dtype)
    extra: dict[str, Any] = {}
    if quantized:
        extra["token_mapping"] = rng.integers(0, 4, len(WORDS))
        extra["weights"] = rng.random(len(WORDS)).astype(np.float32)
    StaticModel(rows, tokenizer_of(kind), max_length=20, **extra).save_pretrained(folder)
    return folder


def vectors(folder: Path, texts: Sequence[str] = TEXTS) -> Float32:
    """The vectors of vectord, not normalized."""
    spec = spec_of(folder)
    sequences = TextEncoder(spec).read(ReadRequest(inputs=texts, options=TextOptions(), truncate=True))
    backend = static.load(spec, BackendOptions())
    dense = backend.forward(batch_of(*(one.ids for one in sequences), outputs=spec.outputs), 0)["dense"]
    backend.close()
    return dense[:, : spec.truncate_dim]


def assert_equal(got: Float32, want: npt.NDArray[Any]) -> None:
    np.testing.assert_allclose(got, want, rtol=2e-3 if want.dtype == np.float16 else 1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["WordLevel", "Unigram"])
@pytest.mark.parametrize("quantized", [False, True], ids=["row a token", "shared rows"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int8"])
def test_model2vec(dtype: str, quantized: bool, kind: str, folder: Path) -> None:
    """Every dtype of the table, unknown tokens left out, long texts truncated: the library's own vectors."""
    write_table(folder, dtype=dtype, quantized=quantized, kind=kind)
    assert_equal(vectors(folder), StaticModel.from_pretrained(folder).encode(TEXTS))


@pytest.mark.parametrize("quantized", [False, True], ids=["row a token", "shared rows"])
def test_many_texts_have_the_vectors_of_each(quantized: bool, folder: Path) -> None:
    """Of any lengths, a few far longer than the others, with unknown words and without any known one."""
    write_table(folder, quantized=quantized)
    rng = np.random.default_rng(5)
    sizes = [*rng.integers(1, 9, 400), *rng.integers(100, 500, 5)]
    texts = [" ".join(rng.choice([*WORDS[2:], "q"], size)) for size in rng.permutation(sizes)] + ["q"] * 3
    got = vectors(folder, texts)
    assert_equal(got, StaticModel.from_pretrained(folder).encode(texts))
    np.testing.assert_array_equal(
        got, np.concatenate([vectors(folder, texts[i : i + 100]) for i in range(0, 408, 100)])
    )


def test_a_text_of_unknown_words_is_zeros(folder: Path) -> None:
    """As in the library, so that one emoji does not fail a job of a thousand texts."""
    assert not vectors(write_table(folder), ["unknown words"]).any()


@pytest.mark.parametrize("kind", ["WordLevel", "Unigram"])
def test_version_9_of_model2vec(kind: str, folder: Path) -> None:
    """Without max_length the limit is 512 known tokens, and the unknown token of a Unigram tokenizer counts."""
    config = json.loads((write_table(folder, kind=kind) / "config.json").read_text())
    write_json(folder / "config.json", {key: value for key, value in config.items() if key != "max_length"})
    tokenizer_of(kind).save(str(folder / "tokenizer.json"))  # 0.10 leaves its truncation in the file
    rows = safetensors.numpy.load_file(folder / "model.safetensors")["embeddings"]
    unknown, beta, eta = rows[1], rows[3], rows[6]
    got = vectors(folder, ["eta q beta", "q " * 100 + "eta " * 512 + "beta"])
    if kind == "Unigram":
        assert_equal(got, np.array([(eta + unknown + beta) / 3, (unknown * 100 + eta * 412) / 512]))
    else:
        assert_equal(got, np.array([(eta + beta) / 2, eta]))


@pytest.mark.parametrize("name", ["SSE.SSE", "maker/model--SSE.SSE"])
def test_a_table_with_a_tanh(name: str, folder: Path) -> None:
    """RikkaBotan's SSE: torch's EmbeddingBag, then beta * tanh(alpha * mean + bias)."""
    import torch

    generator = torch.Generator().manual_seed(1)
    bag = torch.nn.EmbeddingBag(len(WORDS), WIDTH)
    alpha, beta, bias = (torch.randn(WIDTH, generator=generator) for _ in range(3))
    tensors = {"embedding.weight": bag.weight, "dyt.alpha": alpha, "dyt.beta": beta, "dyt.bias": bias}
    folder.mkdir()
    safetensors.numpy.save_file({key: t.detach().numpy() for key, t in tensors.items()}, folder / "model.safetensors")
    tokenizer = tokenizer_of("WordLevel")
    tokenizer.save(str(folder / "tokenizer.json"))
    write_modules(folder, name)
    ids = [torch.tensor(tokenizer.encode(text).ids) for text in TEXTS]
    starts = torch.tensor(np.cumsum([0, *map(len, ids[:-1])]))
    want = beta * torch.tanh(alpha * bag(torch.cat(ids), starts) + bias)
    assert_equal(vectors(folder), want.detach().numpy())
    safetensors.numpy.save_file({"embedding.weight": bag.weight.detach().numpy()}, folder / "model.safetensors")
    assert "dyt.alpha must have 8 numbers" in refusal(folder)


def test_a_table_of_four_bits(folder: Path) -> None:
    """RikkaBotan's SSEQ: the upper half of a byte is the first of two columns, and each row has a scale."""
    rng = np.random.default_rng(7)
    numbers, scales = rng.integers(0, 16, (len(WORDS), WIDTH)), rng.random((len(WORDS), 1)).astype(np.float32)
    alpha, beta, bias = rng.normal(size=(3, WIDTH)).astype(np.float32)
    folder.mkdir()
    packed = (numbers[:, ::2] * 16 + numbers[:, 1::2]).astype(np.uint8)
    (folder / "embedding.q4_k_m.bin").write_bytes(packed.tobytes() + scales.tobytes())
    tensors = {"dyt.alpha": alpha, "dyt.beta": beta, "dyt.bias": bias}
    safetensors.numpy.save_file(tensors, folder / "model_rest.safetensors")
    tokenizer = tokenizer_of("WordLevel")
    tokenizer.save(str(folder / "tokenizer.json"))
    write_modules(folder, "maker/model--SSEQ.SSEQ")
    table = (numbers / 7.5 - 1) * scales
    means = np.array([table[tokenizer.encode(text).ids].mean(axis=0) for text in TEXTS])
    assert_equal(vectors(folder), beta * np.tanh(alpha * means + bias))
    safetensors.numpy.save_file({"dyt.alpha": alpha[:4]}, folder / "model_rest.safetensors")
    assert "are not rows of 4 numbers" in refusal(folder)


def test_facts(folder: Path) -> None:
    """What /info and the scheduler show; the facts come from the tensors."""
    spec = spec_of(write_table(folder, quantized=True))
    assert (spec.outputs, spec.dimensions, spec.max_tokens, spec.pooling) == ({"dense"}, WIDTH, 20, "mean")
    backend = static.load(spec, BackendOptions(streams=3))
    assert (backend.facts.name, backend.facts.dtype, backend.facts.streams) == ("static", "float32", 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"config": {"sif_power": 2}}, "sif_power 2 is not supported"),
        ({"config": {"max_length": -1}}, "max_length must be"),
        ({"tensors": {"bias": np.zeros(3, np.float32)}}, "no tensor 'bias'"),
        ({"tensors": {"weights": np.zeros(3, np.float32)}}, "one number for each token"),
        ({"tensors": {"embeddings": np.zeros(3, np.float32)}}, "rows and columns"),
        ({"modules": ["StaticEmbedding", "Dense"]}, "supported is StaticEmbedding, Normalize"),
    ],
    ids=str,
)
def test_what_is_not_understood_is_refused(change: dict[str, Any], message: str, folder: Path) -> None:
    """Never a table read in another way than its library reads it."""
    write_table(folder)
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", {**config, **change.get("config", {})})
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    safetensors.numpy.save_file({**tensors, **change.get("tensors", {})}, folder / "model.safetensors")
    if "modules" in change:
        write_modules(folder, *change["modules"])
    assert message in refusal(folder)


def test_a_pooling_other_than_the_mean_is_refused(folder: Path) -> None:
    assert "whose vectors are means" in refusal(write_table(folder), pooling="cls")


def test_a_mapping_to_missing_rows_is_refused(folder: Path) -> None:
    """numpy would read a negative row from the table's end."""
    tensors = safetensors.numpy.load_file(write_table(folder, quantized=True) / "model.safetensors")
    tensors["mapping"][2] = -1
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    with pytest.raises(StartError, match="outside the table"):
        static.load(spec_of(folder), BackendOptions())
