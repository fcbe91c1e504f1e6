"""The layout of any batch: length groups (ops/groups.py), with sizes that differ from batch to batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vectord.compute.ops.base import AttentionSpec, PackedTexts, Tokens, Window
from vectord.compute.ops.groups import (
    Rectangle,
    attending_pieces,
    keys_end_to_end,
    length_groups,
    piece_order,
    pooled_pieces,
    positions,
    unpack_rows,
)
from vectord.compute.ops.torch.varlen import Lengths

MAX_GROUPS = 4  # more groups cost more calls than they save padding (measured on CPU)


class DeviceRectangle(msgspec.Struct, frozen=True):
    """n runs of rows, each padded to L places, on the device."""

    rows: Tensor  # (n * L,) row numbers into (T, H); a padded place repeats its text's first row
    valid: Tensor  # (n, L) False on padded places


class DeviceGroup(msgspec.Struct, frozen=True):
    """n pieces of Q query and K key places."""

    queries: DeviceRectangle
    keys: DeviceRectangle  # `queries` itself if every piece attends to itself


class Grouped(msgspec.Struct, frozen=True):
    """Texts, cut or whole, in groups."""

    groups: tuple[DeviceGroup, ...]
    unpack: Tensor  # (T,) place of each row among the groups' query places, laid end to end


class GroupedLayout:
    """Where one batch's texts and spans begin and end. Data goes to the device when an op first needs it."""

    def __init__(self, texts: PackedTexts, at: Tensor) -> None:
        """at (T,): positions, on the device."""
        self._texts = texts
        self._at = at
        self._grouped: dict[Window | None, Grouped] = {}
        self._ahead: dict[Window | None, list[Tensor]] = {}
        self._seen: dict[tuple[Window | None, int | None], list[Tensor]] = {}
        self._biased: dict[Tensor, list[Tensor]] = {}
        self._places: dict[Tensor, list[Tensor]] = {}

    @cached_property
    def row_lengths(self) -> Tensor:
        """(T,) length of each row's text"""
        lengths = np.diff(self._texts.cu_seqlens)
        return self._send(np.repeat(lengths, lengths))

    @cached_property
    def firsts(self) -> Tensor:
        """(M,) first row of each span"""
        return self._send(self._texts.pooled[:, 0])

    @cached_property
    def lasts(self) -> Tensor:
        """(M,) last row of each span"""
        return self._send(self._texts.pooled[:, 1] - 1)

    @cached_property
    def _spans(self) -> tuple[Sequence[DeviceRectangle], Tensor]:
        """The pooled spans in groups, and (M,) the place of each span among them, laid end to end."""
        groups = length_groups(pooled_pieces(self._texts), MAX_GROUPS, length_step=1)
        return [self._rectangle(group.queries) for group in groups], self._send(piece_order(groups))

    def mean(self, x: Tensor) -> Tensor:
        """In float32: sums of bfloat16 would lose the small terms of a long text."""

        def mean(x: Tensor, rectangle: DeviceRectangle) -> Tensor:
            total = gather(x, rectangle).float().masked_fill(~rectangle.valid[:, :, None], 0).sum(dim=1)
            means: Tensor = total / rectangle.valid.sum(dim=1, keepdim=True)
            return means

        return self._pool(x, mean)

    def max(self, x: Tensor) -> Tensor:
        return self._pool(x, lambda x, rectangle: gather(x, rectangle).amax(dim=1))  # padding repeats a row

    def _pool(self, x: Tensor, how: Callable[[Tensor, DeviceRectangle], Tensor]) -> Tensor:
        rectangles, order = self._spans
        return torch.cat([how(x, rectangle) for rectangle in rectangles]).index_select(0, order)

    def suits_varlen(self, spec: AttentionSpec) -> bool:
        """The kernel counts causal and windowed places from the last key, which must be at the last query. It takes
        whole texts."""
        return spec.window != "block" and (self._texts.keys is None or not (spec.causal or spec.window is not None))

    @cached_property
    def lengths(self) -> Lengths:
        ends, rows = self._texts.cu_seqlens, None
        if self._texts.keys is not None or self._texts.parents is not None:
            key_rows, ends = keys_end_to_end(self._texts)
            rows = self._send(key_rows)
        longest_query, longest_key = (int(np.diff(some).max()) for some in (self._texts.cu_seqlens, ends))
        return Lengths(self._send(self._texts.cu_seqlens), self._send(ends), longest_query, longest_key, rows)

    def grouped(self, window: Window | None) -> Grouped:
        """Texts as groups, cut into pieces if the window is narrow."""
        if window not in self._grouped:
            groups = length_groups(attending_pieces(self._texts, window), MAX_GROUPS, length_step=1)
            unpack = self._send(unpack_rows(groups, self._texts.ids.size))
            laid_out = []
            for group in groups:
                queries = self._rectangle(group.queries)
                keys = queries if group.keys is group.queries else self._rectangle(group.keys)
                laid_out.append(DeviceGroup(queries, keys))
            self._grouped[window] = Grouped(tuple(laid_out), unpack)
        return self._grouped[window]

    def key_offsets(self, window: Window | None) -> list[Tensor]:
        """For each group: (n, 1, Q, K) the key's position minus the query's."""
        if window not in self._ahead:
            self._ahead[window] = [
                gather(self._at, group.keys)[:, None, None, :] - gather(self._at, group.queries)[:, None, :, None]
                for group in self.grouped(window).groups
            ]
        return self._ahead[window]

    def seen(self, spec: AttentionSpec) -> list[Tensor]:
        """For each group: (n, 1, Q or 1, K) whether the query may see the key. All layers share it."""
        key, before, after = (spec.window, spec.after), spec.before, spec.after
        if key not in self._seen:
            masks = [group.keys.valid[:, None, None, :] for group in self.grouped(spec.reach).groups]
            if after is not None:
                masks = [mask & (at <= after) for mask, at in zip(masks, self.key_offsets(spec.reach), strict=True)]
            if before is not None:
                masks = [mask & (at >= -before) for mask, at in zip(masks, self.key_offsets(spec.reach), strict=True)]
            self._seen[key] = masks
        return self._seen[key]

    def biased(self, bias: Tensor, spec: AttentionSpec) -> list[Tensor]:
        """For each group: (n, heads, Q, K) what is added to scores, -inf where no key is seen. All layers share it."""
        if bias not in self._biased:
            masks, offsets = self.seen(spec), self.key_offsets(spec.reach)
            middle = bias.shape[1] // 2
            self._biased[bias] = [
                bias[:, offset[:, 0] + middle].transpose(0, 1).masked_fill(~mask, -torch.inf)
                for offset, mask in zip(offsets, masks, strict=True)
            ]
        return self._biased[bias]

    def places(self, buckets: Tensor, spec: AttentionSpec) -> list[Tensor]:
        """For each group: (n, 1, Q, K) int64 relative places. All layers of a model share one table of buckets."""
        if buckets not in self._places:
            middle = len(buckets) // 2
            self._places[buckets] = [buckets[middle - offset].long() for offset in self.key_offsets(spec.reach)]
        return self._places[buckets]

    def _rectangle(self, rectangle: Rectangle) -> DeviceRectangle:
        return DeviceRectangle(self._send(rectangle.rows.ravel()), self._send(rectangle.valid))

    def _send(self, array: npt.NDArray[np.generic]) -> Tensor:
        return _send(array, self._at.device)


def pack(texts: PackedTexts, device: torch.device) -> Tokens[Tensor]:
    """Return a packed batch for TorchOps, on `device`."""
    ids, type_ids, at = (_send(rows, device) for rows in (texts.ids, texts.type_ids, positions(texts)))
    adapters = None if texts.adapters is None else _send(texts.row_adapters, device)
    features = None if texts.features is None else _send(texts.features, device)
    coordinates = () if texts.coordinates is None else _send(texts.coordinates, device).unbind(1)
    return Tokens(ids, type_ids, at, GroupedLayout(texts, at), adapters, features, coordinates)


def gather(x: Tensor, rectangle: DeviceRectangle) -> Tensor:
    """(T, ...) to (n, L, ...)."""
    return x.index_select(0, rectangle.rows).view(*rectangle.valid.shape, *x.shape[1:])


def _send(array: npt.NDArray[np.generic], device: torch.device) -> Tensor:
    """Copy to the device. CUDA copies from pinned memory: other copies would wait for the stream's queued work."""
    if device.type != "cuda":
        return torch.tensor(array, device=device)
    return torch.tensor(array).pin_memory().to(device, non_blocking=True)
