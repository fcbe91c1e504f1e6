"""Positions of the patches of an image of any size, for networks that were trained with a square of them.

An architecture file (qwen3_vl.py) reads the table; text/planes.py makes the coordinates.
"""

from __future__ import annotations

from typing import Generic

import msgspec

from vectord.compute.ops.base import Ops, T, Tokens


class Plane(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A square table of positions. A row gets the mean of four of them, weighted by its distance to each (bilinear).

    By the coordinates from the third on: the four rows of the table (upper left, upper right, lower left, lower right),
    then the distances to the upper ones and to the left ones, each as the numerator and denominator of a fraction.
    """

    table: T  # (side ** 2, H)
    numbers: T  # (N, 1) 0, 1 ...
    inverses: T  # (N, 1) 1 / n

    def of(self, ops: Ops[T], tokens: Tokens[T]) -> T:
        """(T, H)"""
        *corners, down, height, right, width = tokens.coordinates[2:]
        upper_left, upper_right, lower_left, lower_right = (ops.embed(self.table, corner) for corner in corners)

        def between(a: T, b: T, part: T, whole: T) -> T:
            share = ops.multiply(ops.embed(self.numbers, part), ops.embed(self.inverses, whole))  # (T, 1)
            return ops.add(a, ops.multiply(ops.add(b, ops.scale(a, -1.0)), share))

        upper, lower = between(upper_left, upper_right, right, width), between(lower_left, lower_right, right, width)
        return between(upper, lower, down, height)
