"""The activation functions that a model's files may name: classes of torch.nn, and their formulas.

folder.py and kinds/scores.py read the names; compute/ops/numpy.py and the engine's scores use the formulas.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from vectord.checkpoints.files.read import OPTION, Settings
from vectord.checkpoints.spec import DenseActivation, ScoreActivation
from vectord.errors import ModelUnavailable

Array: TypeAlias = npt.NDArray[Any]

# Classes of torch.nn, which sentence-transformers constructs without arguments.
ACTIVATIONS: Mapping[str, ScoreActivation] = {
    "Identity": "identity",
    "Sigmoid": "sigmoid",
    "Tanh": "tanh",
    "ReLU": "relu",
    "GELU": "gelu",
    "SiLU": "silu",
    "Softmax": "softmax",
}
DENSE_ACTIVATIONS: Mapping[str, DenseActivation] = {**ACTIVATIONS, "PReLU": "prelu", "GLU": "glu"}
_TORCH = re.compile(r"torch\.nn\.(modules\.((activation|linear)\.)?)?(?P<name>\w{1,40})")


A = TypeVar("A", bound=str)


def read_activation(settings: Settings, key: str, path: object, known: Mapping[str, A]) -> A:
    """Return the activation function of a class path, which is compared and never imported.

    key: of the path in `settings`. known: the supported classes of torch.nn.
    """
    match = _TORCH.fullmatch(path) if isinstance(path, str) else None
    if match is None or match["name"] not in known:
        raise ModelUnavailable(
            f"{settings.path}: {key} {repr(path)[:80]} is not supported; supported are the classes of torch.nn "
            f"{', '.join(known)}; {OPTION} {key} ignores it"
        )
    return known[match["name"]]


def _sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), in a form that neither overflows nor loses small values."""
    return np.exp(-np.logaddexp(0, -x))


# By ScoreActivation; torch.nn.functional has the formulas.
FORMULAS: Mapping[str, Callable[[Array], Array]] = {
    "identity": lambda x: x,
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * (1 + np.vectorize(math.erf, otypes=[np.float64])(x / math.sqrt(2))) / 2,
    "silu": lambda x: x * _sigmoid(x),
    "softmax": lambda x: np.exp(x - np.logaddexp.reduce(x, axis=-1, keepdims=True)),
}
