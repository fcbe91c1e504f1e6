"""Positions of the patches of an image of any size, for networks that were trained with a square of them.

An architecture file (qwen_vl.py, clip.py) reads the tables; text/ makes the coordinates, or the ids and type_ids.
"""

from __future__ import annotations

from typing import Generic

import msgspec

from vectord.compute.ops.base import Ops, T, Tokens


class Plane(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A square table of positions. A row gets the mean of four of them, weighted by its distance to each (bilinear).

    The coordinates are those four rows (upper left, upper right, lower left, lower right), then the distances to the
    upper ones and to the left ones, each as the numerator and denominator of a fraction.
    """

    table: T  # (side ** 2, H)
    numbers: T  # (N, 1) 0, 1 ...
    inverses: T  # (N, 1) 1 / n

    def of(self, ops: Ops[T], tokens: Tokens[T]) -> T:
        """(T, H)"""
        *corners, down, height, right, width = tokens.coordinates
        upper_left, upper_right, lower_left, lower_right = (ops.embed(self.table, corner) for corner in corners)

        def between(a: T, b: T, part: T, whole: T) -> T:
            share = ops.multiply(ops.embed(self.numbers, part), ops.embed(self.inverses, whole))  # (T, 1)
            return ops.add(a, ops.multiply(ops.add(b, ops.scale(a, -1.0)), share))

        upper, lower = between(upper_left, upper_right, right, width), between(lower_left, lower_right, right, width)
        return between(upper, lower, down, height)


class ScaledGrid(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A square of positions, scaled to each image. ids and type_ids are a patch's places in its column and its line.

    A position is the mean of all those of the square, weighted by line and by column. Source: Siglip2VisionEmbeddings.
    """

    shares: T  # (V, G) of each line or column of the square, by place
    lines: T  # (G * G, G) repeats each number G times
    columns: T  # (G * G, G) repeats all numbers G times
    table: T  # (H, G * G)

    def of(self, ops: Ops[T], tokens: Tokens[T]) -> T:
        """(T, H)"""
        lines = ops.product(ops.embed(self.shares, tokens.ids), self.lines)
        columns = ops.product(ops.embed(self.shares, tokens.type_ids), self.columns)
        return ops.product(ops.multiply(lines, columns), self.table)
