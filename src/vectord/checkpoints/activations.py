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
LEAK = 0.01  # of leaky_relu
SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805  # torch.nn.SELU's

# Classes of torch.nn, which sentence-transformers constructs without arguments; CELU then equals ELU.
ACTIVATIONS: Mapping[str, ScoreActivation] = {
    "Identity": "identity",
    "Sigmoid": "sigmoid",
    "LogSigmoid": "log_sigmoid",
    "Hardsigmoid": "hardsigmoid",
    "Tanh": "tanh",
    "Hardtanh": "hardtanh",
    "ReLU": "relu",
    "ReLU6": "relu6",
    "LeakyReLU": "leaky_relu",
    "ELU": "elu",
    "CELU": "elu",
    "SELU": "selu",
    "GELU": "gelu",
    "SiLU": "silu",
    "Hardswish": "hardswish",
    "Mish": "mish",
    "Softplus": "softplus",
    "Softsign": "softsign",
    "Softmax": "softmax",
    "LogSoftmax": "log_softmax",
    "Softmin": "softmin",
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


def _softplus(x: Array) -> Array:
    return np.logaddexp(0, x)


def _sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), in a form that neither overflows nor loses small values."""
    return np.exp(-_softplus(-x))


def _log_softmax(x: Array) -> Array:
    logarithms: Array = x - np.logaddexp.reduce(x, axis=-1, keepdims=True)
    return logarithms


# By ScoreActivation; torch.nn.functional has the formulas.
FORMULAS: Mapping[str, Callable[[Array], Array]] = {
    "identity": lambda x: x,
    "sigmoid": _sigmoid,
    "log_sigmoid": lambda x: -_softplus(-x),
    "hardsigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
    "tanh": np.tanh,
    "hardtanh": lambda x: np.clip(x, -1, 1),
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "leaky_relu": lambda x: np.where(x < 0, LEAK * x, x),
    "elu": lambda x: np.where(x < 0, np.expm1(np.minimum(x, 0)), x),
    "selu": lambda x: SELU_SCALE * np.where(x < 0, SELU_ALPHA * np.expm1(np.minimum(x, 0)), x),
    "gelu": lambda x: x * (1 + np.vectorize(math.erf, otypes=[np.float64])(x / math.sqrt(2))) / 2,
    "silu": lambda x: x * _sigmoid(x),
    "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "mish": lambda x: x * np.tanh(_softplus(x)),
    "softplus": _softplus,
    "softsign": lambda x: x / (1 + np.abs(x)),
    "softmax": lambda x: np.exp(_log_softmax(x)),
    "log_softmax": _log_softmax,
    "softmin": lambda x: np.exp(_log_softmax(-x)),
}
