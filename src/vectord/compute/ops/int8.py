"""Two variants of the OpenVINO op set: one exposes the inputs of linear layers, one computes them in int8.

openvino_int8.py fits a recipe with a graph over `ObservingOps`; openvino.py serves one over `Int8Ops`.
A place is an input that linear layers share, numbered in the order of the network. The numbers are the same in every
graph of one model, because the body comes before all heads.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vectord.checkpoints.checkpoint import Weight
from vectord.compute.calibration.fit import weight_scales
from vectord.compute.calibration.recipe import QuantizedPlace, Recipe
from vectord.compute.ops.openvino import OpenvinoOps, op, ov
from vectord.schema import Float32

LEVELS = 256


class _PlacedOps(OpenvinoOps):
    """Numbers the places."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers: dict[str, int] = {}  # by the name of the input's node

    def place_of(self, x: ov.Node) -> int | None:
        """The number of the input; None if its rows are not those of a batch, such as a table."""
        if x.get_output_partial_shape(0)[0].is_static:
            return None
        return self._numbers.setdefault(x.get_friendly_name(), len(self._numbers))

    def numbers_of(self, matrix: ov.Node) -> Float32:
        return self._weights[matrix.get_friendly_name()].as_float32()


class ObservingOps(_PlacedOps):
    """Computes in the usual type, and records the input and the matrices of each place."""

    def __init__(self) -> None:
        super().__init__()
        self.observed: dict[str, ov.Node] = {}  # (T, H) by the place's number
        self.matrices: dict[str, list[Weight]] = {}  # (O, H) each

    def linear(self, x: ov.Node, weight: ov.Node, bias: ov.Node | None) -> ov.Node:
        if (place := self.place_of(x)) is not None:
            self.observed[str(place)] = x
            self.matrices.setdefault(str(place), []).append(self._weights[weight.get_friendly_name()])
        return super().linear(x, weight, bias)


class Int8Ops(_PlacedOps):
    """Linear layers at the recipe's places multiply int8. The runtime recognizes exactly these nodes and fuses them."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self._recipe = recipe
        self._rounded: dict[int, ov.Node] = {}

    def linear(self, x: ov.Node, weight: ov.Node, bias: ov.Node | None) -> ov.Node:
        number = self.place_of(x)
        place = None if number is None else self._recipe.places.get(number)
        if number is None or place is None:
            return super().linear(x, weight, bias)
        if number not in self._rounded:
            self._rounded[number] = _rounded(x, place)
        matrix = _in_int8(self.numbers_of(weight) * place.smooth, self._recipe.weight_steps)
        product = op.matmul(self._rounded[number], matrix, False, True)
        return product if bias is None else op.add(product, bias)


def _rounded(x: ov.Node, place: QuantizedPlace) -> ov.Node:
    """x (T, H), smoothed and rounded. Each column has its own input range, and all share one output range."""
    input_range = [_row(place.low * place.smooth), _row(place.high * place.smooth)]
    output_range = [_row(np.array([place.low])), _row(np.array([place.high]))]
    return op.fake_quantize(x, *input_range, *output_range, LEVELS)


def _in_int8(weights: Float32, weight_steps: int) -> ov.Node:
    """(O, H) as whole numbers with one scale a row."""
    scales = weight_scales(weights, weight_steps)
    whole = np.round(weights / scales).astype(np.int8)
    return op.multiply(op.convert(op.constant(whole), "f32"), op.constant(scales))


def _row(numbers: npt.NDArray[np.floating]) -> ov.Node:
    return op.constant(numbers.astype(np.float32).reshape(1, -1))
