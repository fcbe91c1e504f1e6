"""What a test needs of an architecture: a tiny random model of it, and what that model should answer.

tiny_encoders.py and tiny_decoders.py each have `CASES`, by the name of the module in networks/; test_conformance.py
runs them all. torch is imported only by the functions that need it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tests.models import pack_texts, read_tiny_spec

from vectord.checkpoints.checkpoint import Weight, open_checkpoint
from vectord.checkpoints.spec import ModelSpec, Output
from vectord.compute.networks.network import Network
from vectord.compute.ops.numpy import NumpyOps, pack

if TYPE_CHECKING:
    import torch

VOCABULARY = 40  # tokens of a tiny model
FIRST_WORD = 5  # below are padding and its like, which no text has

Texts = Sequence[Sequence[int]]


MAX_TOKENS = 64  # of the specs here: fewer than any tiny model has positions


@dataclass(frozen=True, slots=True)
class Case:
    """One architecture."""

    write: Callable[[Path], Path]  # config.json and model.safetensors into the folder, which it returns
    reference: Callable[[Path, Texts], np.ndarray]  # last hidden states of the texts, end to end, (T, H) float64
    facts: Mapping[str, Any] = field(default_factory=dict)  # what read_tiny_spec does not find in config.json

    def spec(self, folder: Path, **facts: Any) -> ModelSpec:
        """The model as one that gives last hidden states, unless `facts` say otherwise."""
        defaults = {"outputs": frozenset({"tokens"}), "pooling": None, "max_tokens": MAX_TOKENS}
        return read_tiny_spec(folder, **{**defaults, **self.facts, **facts})


def numpy_answer(spec: ModelSpec, texts: Texts, output: Output = "tokens", **options: Any) -> np.ndarray:
    """What the reference op set answers, in float64. options: further fields of PackedTexts."""
    network = Network(spec, open_checkpoint(spec.weights), NumpyOps())
    return np.asarray(network(pack(pack_texts(*texts, **options)), {output})[output])


def texts_of(*lengths: int, seed: int = 0) -> list[list[int]]:
    """Token ids of ordinary words, reproducible, of the given lengths."""
    rng = np.random.default_rng(seed)
    return [rng.integers(FIRST_WORD, VOCABULARY, length).tolist() for length in lengths]


def randomize(model: torch.nn.Module, *, seed: int = 0, size: float = 0.3, norm: float = 0.0) -> torch.nn.Module:
    """Every parameter random, biases and norms too: at their initial 0 and 1 a network that forgot them would pass.

    size: of 0.2, scores of attention are as mild as a trained model's, and bfloat16 does as well. norm: what the
    weights of norms vary around; where a norm ends each layer, 0 leaves little of what tells one token from another.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            centre = norm if parameter.ndim == 1 and name.endswith(".weight") else 0.0
            parameter.copy_(centre + torch.randn(parameter.shape, generator=generator) * size)
    return model.eval()


def pad(texts: Texts, filler: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """ids (N, L), padded at the end, and the attention mask."""
    import torch

    longest = max(map(len, texts))
    ids = torch.tensor([[*text] + [filler] * (longest - len(text)) for text in texts])
    mask = torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in texts])
    return ids, mask


def padded_states(model: torch.nn.Module, texts: Texts, filler: int = 0, **inputs: Any) -> np.ndarray:
    """(T, H): the last hidden states a transformers model gives for a padded batch, without the padding's."""
    import torch

    ids, mask = pad(texts, filler)
    with torch.no_grad():
        states = model.double().eval()(input_ids=ids, attention_mask=mask, **inputs).last_hidden_state
    return np.asarray(states[mask.bool()].numpy())


def rename(
    weights: Mapping[str, Weight], parts: Mapping[str, str], fused: Mapping[str, Sequence[str]]
) -> dict[str, Weight]:
    """The same tensors under other names. parts: old to new; fused: of one tensor, the names of its equal parts."""
    renamed: dict[str, Weight] = {}
    for old_name, weight in weights.items():
        name = reduce(lambda name, part: name.replace(*part), parts.items(), old_name)
        whole = next((whole for whole in fused if whole in name), "")
        names = fused.get(whole, [whole])
        for part, array in zip(names, np.split(weight.array, len(names)), strict=True):
            renamed[name.replace(whole, part)] = Weight(name, weight.dtype, array)
    return renamed
