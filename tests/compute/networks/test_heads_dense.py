"""Pooling and Dense modules on the reference op set against sentence-transformers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize
from sentence_transformers.sentence_transformer.modules import LayerNorm
from tests.checkpoints.reading import spec_of
from tests.compute.networks import tiny_decoders
from tests.compute.networks.case import Texts, numpy_answer, pad
from tests.models import POOLING_NAMES, random_texts, read_tiny_spec, write_bert, write_sentence_bert
from torch.nn.functional import layer_norm, linear

from vectord.checkpoints.spec import ModelSpec, Pooling
from vectord.errors import ModelUnavailable

LENGTHS = (9, 1, 30, 2, 17)
SEVERAL: tuple[Pooling, ...] = ("weighted_mean", "max", "cls")


def embed(spec: ModelSpec, texts: Texts) -> np.ndarray:
    return numpy_answer(spec, texts, "dense")


def sentence_transformers_embed(folder: Path, texts: Texts) -> np.ndarray:
    """(N, D) in float64 of a padded batch, through every module of the folder."""
    model = SentenceTransformer(str(folder), device="cpu").double().eval()
    ids, mask = pad(texts)
    with torch.no_grad():
        return np.asarray(model({"input_ids": ids, "attention_mask": mask})["sentence_embedding"].numpy())


@pytest.mark.parametrize("dense", [(), (16,), (48, 16)], ids=["no Dense", "one Dense", "two Dense"])
@pytest.mark.parametrize("pooling", [*POOLING_NAMES, SEVERAL], ids=str)
def test_vectors_equal_sentence_transformers(
    tmp_path: Path, pooling: Pooling | tuple[Pooling, ...], dense: tuple[int, ...]
) -> None:
    """Each pooling, and several at once, with and without projections after it, without normalization."""
    folder = write_sentence_bert(tmp_path, pooling=pooling, dense=dense, normalize=False)
    texts = random_texts(LENGTHS)
    got = embed(read_tiny_spec(folder, pooling=pooling), texts)
    assert got.shape == (len(LENGTHS), dense[-1] if dense else 32 if isinstance(pooling, str) else 32 * len(pooling))
    np.testing.assert_allclose(got, sentence_transformers_embed(folder, texts), atol=1e-8)


MODULES: dict[str, Callable[[], list[torch.nn.Module]]] = {
    "a layer norm": lambda: [LayerNorm(32)],
    "lengths of 1 before a layer": lambda: [Normalize(), Dense(32, 16), LayerNorm(16), Normalize(), LayerNorm(16)],
    "the input added": lambda: [Dense(32, 32, use_residual=True), Dense(32, 16, use_residual=True)],
    "a softmax": lambda: [Dense(32, 16, activation_function=torch.nn.Softmax(dim=-1)), LayerNorm(16)],
    "PReLU": lambda: [Dense(32, 16, activation_function=torch.nn.PReLU()), LayerNorm(16)],
    "PReLU, the input added": lambda: [Dense(32, 8, activation_function=torch.nn.PReLU(), use_residual=True)],
    "GLU": lambda: [Dense(32, 16, activation_function=torch.nn.GLU()), Dense(8, 8)],
}


@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
@pytest.mark.parametrize("modules", MODULES.values(), ids=MODULES)
def test_modules_after_pooling_equal_sentence_transformers(
    tmp_path: Path, modules: Callable[[], list[torch.nn.Module]]
) -> None:
    """In the order of the folder, as the reader finds them."""
    folder = write_sentence_bert(tmp_path, further=modules(), normalize=False)
    texts = random_texts(LENGTHS)
    np.testing.assert_allclose(embed(spec_of(folder), texts), sentence_transformers_embed(folder, texts), atol=1e-8)


def test_a_trained_query_pools_the_tokens_of_c2llm(tmp_path: Path) -> None:
    """As MAB_POST of github.com/codefuse-ai/CodeFuse-Embeddings computes it."""
    shutil.copy(write_bert(tmp_path / "bert") / "tokenizer.json", tiny_decoders.write_c2llm(tmp_path))
    spec = spec_of(tmp_path)
    weights = {name[8:]: value.double() for name, value in load_file(tmp_path / "model.safetensors").items()}
    query, width, heads = weights["S"][0], spec.hidden_size, spec.config["pma_num_heads"]

    def split(name: str, x: torch.Tensor) -> torch.Tensor:
        x = linear(x, weights[f"mab.fc_{name}.weight"], weights[f"mab.fc_{name}.bias"])
        return x.unflatten(1, (heads, -1)).transpose(0, 1)  # (heads, rows, size of a head)

    def norm(i: int, x: torch.Tensor) -> torch.Tensor:
        return layer_norm(x, (width,), weights[f"mab.ln{i}.weight"], weights[f"mab.ln{i}.bias"])

    texts = random_texts(LENGTHS)
    for text, got in zip(texts, embed(spec, texts), strict=True):
        x = torch.from_numpy(tiny_decoders.c2llm_reference(tmp_path, [text]))
        shares = (split("q", query) @ split("k", x).mT / width**0.5).softmax(-1)
        h = norm(0, query + (shares @ split("v", x)).transpose(0, 1).flatten(1))
        want = norm(1, h + linear(h, weights["mab.fc_o.weight"], weights["mab.fc_o.bias"]).relu())
        np.testing.assert_allclose(got, want[0].numpy(), atol=1e-5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sentence_bert(tmp_path_factory.mktemp("dense"), dense=(48, 16))


@pytest.mark.parametrize("pooling", POOLING_NAMES)
def test_only_the_span_is_pooled(folder: Path, pooling: Pooling) -> None:
    """A span gives the pooling of its rows, which have attended to the whole text. A weight counts from its start."""
    spec = read_tiny_spec(folder, pooling=pooling, dense_modules=(), dimensions=32)
    texts = random_texts((9, 12))
    rows = numpy_answer(spec, texts)
    got = numpy_answer(spec, texts, "dense", spans=np.array([[2, 6], [9, 21], [20, 21]], np.int32))
    pools: dict[Pooling, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
        "cls": lambda x, _: x[0],
        "last": lambda x, _: x[-1],
        "mean": lambda x, _: x.mean(0),
        "max": lambda x, _: x.max(0),
        "mean_sqrt_len": lambda x, _: x.sum(0) / len(x) ** 0.5,
        "weighted_mean": lambda x, places: places @ x / places.sum(),
    }
    places = np.concatenate([np.arange(1, 10), np.arange(1, 13)])
    want = [pools[pooling](rows[part], places[part]) for part in (slice(2, 6), slice(9, 21), slice(20, 21))]
    np.testing.assert_allclose(got, want, atol=1e-12)


def test_a_dense_file_must_fit_its_config(folder: Path) -> None:
    """A Dense checkpoint of another shape stops the load and names the tensor."""
    spec = read_tiny_spec(folder)
    first, second = spec.dense_modules
    with pytest.raises(ModelUnavailable, match=r"tensor linear.weight is 48 x 32; .* should be 40 x 32"):
        embed(
            replace(spec, dense_modules=(replace(first, out_features=40), replace(second, in_features=40))),
            random_texts([3]),
        )
