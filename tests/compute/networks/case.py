"""A test case of an architecture: a tiny random model, and the expected hidden states.

tiny_encoders.py and tiny_decoders.py each have `CASES`, by the name of the module in networks/; test_conformance.py
runs them all. Only functions that need torch import it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tests.models import batch_of, pack_texts, read_tiny_spec

from vectord.checkpoints.checkpoint import Weight, open_checkpoint
from vectord.checkpoints.spec import ModelSpec, Output
from vectord.compute.backends.base import Backend, BackendOptions
from vectord.compute.networks.network import Network
from vectord.compute.ops.numpy import NumpyOps, pack

if TYPE_CHECKING:
    import torch

VOCABULARY = 40  # tokens of a tiny model
FIRST_WORD = 5  # the lower ids are padding and specials, which no text has

Texts = Sequence[Sequence[int]]


MAX_TOKENS = 64  # of the specs here: fewer than the positions of any tiny model


@dataclass(frozen=True, slots=True)
class Case:
    """One architecture."""

    write: Callable[[Path], Path]  # writes config.json and model.safetensors into the folder, which it returns
    reference: Callable[[Path, Texts], np.ndarray]  # last hidden states of the texts, end to end, (T, H) float64
    facts: Mapping[str, Any] = field(default_factory=dict)  # values that read_tiny_spec does not find in config.json

    def spec(self, folder: Path, **facts: Any) -> ModelSpec:
        """The model with last hidden states as output, unless `facts` change it."""
        defaults = {"outputs": frozenset({"tokens"}), "pooling": None, "max_tokens": MAX_TOKENS}
        return read_tiny_spec(folder, **{**defaults, **self.facts, **facts})


def numpy_answer(
    spec: ModelSpec,
    texts: Texts,
    output: Output = "tokens",
    weights: Mapping[str, Weight] | None = None,
    **options: Any,
) -> np.ndarray:
    """Results of the reference op set, in float64. weights: those of the folder by default; options: further fields of
    PackedTexts."""
    network = Network(spec, open_checkpoint(spec.weights) if weights is None else weights, NumpyOps())
    return np.asarray(network(pack(pack_texts(*texts, **options)), {output})[output])


def load(name: str, spec: ModelSpec, dtype: str = "float32") -> Backend:
    """The model on a backend, on one thread of the processor."""
    loaded: Backend = import_module(f"vectord.compute.backends.{name}").load(
        spec, BackendOptions(device="cpu", dtype=dtype, threads=1)
    )
    return loaded


def backend_answer(
    name: str, spec: ModelSpec, texts: Texts, output: Output = "tokens", dtype: str = "float32"
) -> np.ndarray:
    """Results of a backend that is loaded for them."""
    loaded = load(name, spec, dtype)
    try:
        return loaded.forward(batch_of(*texts, outputs=(output,)), 0)[output]
    finally:
        loaded.close()


def texts_of(*lengths: int, seed: int = 0) -> list[list[int]]:
    """Reproducible token ids of ordinary words, with these lengths."""
    rng = np.random.default_rng(seed)
    return [rng.integers(FIRST_WORD, VOCABULARY, length).tolist() for length in lengths]


def pad(texts: Texts, filler: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """ids (N, L), padded at the end, and the attention mask."""
    import torch

    longest = max(map(len, texts))
    ids = torch.tensor([[*text] + [filler] * (longest - len(text)) for text in texts])
    mask = torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in texts])
    return ids, mask


def padded_states(model: torch.nn.Module, texts: Texts, filler: int = 0, **inputs: Any) -> np.ndarray:
    """(T, H): the last hidden states of a transformers model for a padded batch, without the padding's."""
    import torch

    ids, mask = pad(texts, filler)
    with torch.no_grad():
        states = model.double().eval()(input_ids=ids, attention_mask=mask, **inputs).last_hidden_state
    return np.asarray(states[mask.bool()].numpy())


def rename(
    weights: Mapping[str, Weight], parts: Mapping[str, str], fused: Mapping[str, Sequence[str]]
) -> dict[str, Weight]:
    """Rename tensors. parts: old to new; fused: names of the equal parts of one tensor."""
    renamed: dict[str, Weight] = {}
    for old_name, weight in weights.items():
        name = reduce(lambda name, part: name.replace(*part), parts.items(), old_name)
        whole = next((whole for whole in fused if whole in name), "")
        names = fused.get(whole, [whole])
        for part, array in zip(names, np.split(weight.array, len(names)), strict=True):
            renamed[name.replace(whole, part)] = Weight(name, weight.dtype, array)
    return renamed
