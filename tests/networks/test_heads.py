"""Pooling and Dense modules on the reference op set against sentence-transformers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from tests.models import batch_of, random_texts, read_tiny_spec, write_bert, write_sentence_bert

from vectord.artifacts.checkpoint import open_checkpoint
from vectord.artifacts.spec import ModelSpec, Pooling
from vectord.errors import ModelUnavailable
from vectord.networks.network import Network
from vectord.ops.numpy import NumpyOps, pack

LENGTHS = (9, 1, 30, 2, 17)


def embed(spec: ModelSpec, texts: list[list[int]]) -> np.ndarray:
    batch = batch_of(*texts)
    network = Network(spec, open_checkpoint(spec.weights), NumpyOps())
    return network(pack(batch.ids, batch.type_ids, batch.cu_seqlens), "dense")


def sentence_transformers_embed(folder: Path, texts: list[list[int]]) -> np.ndarray:
    """(N, D) in float64 of a padded batch, through every module of the folder."""
    model = SentenceTransformer(str(folder), device="cpu").double().eval()
    longest = max(map(len, texts))
    features = {
        "input_ids": torch.tensor([text + [0] * (longest - len(text)) for text in texts]),
        "attention_mask": torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in texts]),
    }
    with torch.no_grad():
        return model(features)["sentence_embedding"].numpy()


@pytest.mark.parametrize("dense", [(), (16,), (48, 16)], ids=["no Dense", "one Dense", "two Dense"])
@pytest.mark.parametrize("pooling", ["cls", "mean", "last"])
def test_vectors_are_those_of_sentence_transformers(tmp_path: Path, pooling: Pooling, dense: tuple[int, ...]) -> None:
    """Each pooling, with and without projections after it, gives the library's numbers, not normalised."""
    folder = write_sentence_bert(tmp_path, pooling=pooling, dense=dense, normalize=False)
    texts = random_texts(LENGTHS)
    got = embed(read_tiny_spec(folder, pooling=pooling), texts)
    assert got.shape == (len(LENGTHS), (32, *dense)[-1])
    np.testing.assert_allclose(got, sentence_transformers_embed(folder, texts), atol=1e-8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sentence_bert(tmp_path_factory.mktemp("dense"), dense=(48, 16))


def test_dense_widths_must_chain(folder: Path) -> None:
    """A Dense module that does not take what comes before it stops the load and is named."""
    spec = read_tiny_spec(folder)
    with pytest.raises(ModelUnavailable, match="Dense module 3_Dense takes 48 numbers, not 32"):
        embed(replace(spec, dense_modules=spec.dense_modules[1:]), random_texts([3]))


def test_dimensions_must_be_what_the_modules_give(folder: Path) -> None:
    """The dimensions that clients are told are those that come out."""
    with pytest.raises(ModelUnavailable, match="give 16 numbers a text, not 32"):
        embed(read_tiny_spec(folder, dimensions=32), random_texts([3]))


def test_dense_file_must_fit_its_config(folder: Path) -> None:
    """A Dense checkpoint of another shape stops the load and names the tensor."""
    spec = read_tiny_spec(folder)
    first, second = spec.dense_modules
    with pytest.raises(ModelUnavailable, match=r"tensor linear.weight is 48 x 32; .* should be 40 x 32"):
        embed(
            replace(spec, dense_modules=(replace(first, out_features=40), replace(second, in_features=40))),
            random_texts([3]),
        )


def test_pooling_without_the_prompt_is_refused(tmp_path: Path) -> None:
    """Vectors would be silently wrong for a model that leaves its prompt out of the pooling."""
    folder = write_bert(tmp_path)
    with pytest.raises(ModelUnavailable, match="include_prompt"):
        embed(read_tiny_spec(folder, include_prompt=False, prompts={"query": "query: "}), random_texts([3]))
    without_prompts = read_tiny_spec(folder, include_prompt=False, prompts={"query": ""})
    np.testing.assert_array_equal(
        embed(without_prompts, random_texts([3])), embed(read_tiny_spec(folder), random_texts([3]))
    )
