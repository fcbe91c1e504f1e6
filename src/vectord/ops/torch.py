"""The op set that runs eagerly on torch: CUDA, MPS, and the CPU for comparison.

Called by backends/torch.py on that device's worker thread. Attention is a variable-length kernel where the GPU has
one, and runs by length groups (ops/groups.py) everywhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from vectord.artifacts.checkpoint import Weight
from vectord.ops.base import Activation, AttentionSpec, Tokens
from vectord.ops.groups import length_groups, text_order, unpack_rows

Int32: TypeAlias = npt.NDArray[np.int32]

MAX_GROUPS = 4  # more cost more calls than the padding they save (measured on CPU)

_ACTIVATIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
    "identity": lambda x: x,
}


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """n texts of like length, padded to L places, on the device."""

    rows: Tensor  # (n * L,) row numbers into (T, H); a padded place repeats its text's first row
    valid: Tensor  # (n, L) False on padded places


@dataclass(frozen=True, slots=True)
class Layout:
    """Where texts begin and end, on the device."""

    cu_seqlens: Tensor  # (N + 1,) from 0 to T
    max_length: int  # of the longest text
    groups: tuple[DeviceGroup, ...]
    unpack: Tensor  # (T,) place of each row among the groups' places, laid end to end
    order: Tensor  # (N,) place of each text among the groups' texts, laid end to end


def pack(ids: Int32, type_ids: Int32, cu_seqlens: Int32, device: torch.device) -> Tokens[Tensor]:
    """A packed batch for TorchOps, on `device`. ids, type_ids (T,); cu_seqlens (N + 1,) from 0 to T."""

    def send(array: npt.NDArray[np.generic]) -> Tensor:
        return torch.tensor(array, device=device)

    lengths = np.diff(cu_seqlens)
    positions = np.arange(ids.size, dtype=np.int32) - np.repeat(cu_seqlens[:-1], lengths)
    groups = length_groups(cu_seqlens, MAX_GROUPS, length_step=1)
    layout = Layout(
        cu_seqlens=send(cu_seqlens),
        max_length=int(lengths.max()),
        groups=tuple(DeviceGroup(send(group.rows.ravel()), send(group.valid)) for group in groups),
        unpack=send(unpack_rows(groups, cu_seqlens, ids.size)),
        order=send(text_order(groups)),
    )
    return Tokens(send(ids), send(type_ids), send(positions), layout)


class TorchOps:
    """Ops[Tensor] on one device in one dtype. Shapes: ops/base.py."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device = device
        self._dtype = dtype
        self._varlen = _has_varlen(device, dtype)

    def constant(self, weight: Weight) -> Tensor:
        """On the CPU and in the checkpoint's own dtype this is its map, not a copy."""
        tensor = torch.from_numpy(weight.array)
        if weight.dtype == "BF16":
            tensor = tensor.view(torch.bfloat16)
        return tensor.to(self._device, self._dtype)

    def embed(self, table: Tensor, ids: Tensor) -> Tensor:
        return F.embedding(ids, table)

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight, bias)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        return F.layer_norm(x, weight.shape, weight, bias, eps)

    def activation(self, x: Tensor, kind: Activation) -> Tensor:
        return _ACTIVATIONS[kind](x)

    def attention(self, q: Tensor, k: Tensor, v: Tensor, tokens: Tokens[Tensor], spec: AttentionSpec) -> Tensor:
        q, k, v = (x.view(-1, spec.heads, spec.head_size) for x in (q, k, v))  # (T, heads, head_size)
        fits = spec.head_size <= 256 and spec.head_size % 8 == 0  # what FlashAttention's kernels are compiled for
        attend = _attend_varlen if self._varlen and fits else _attend_groups
        return attend(q, k, v, tokens.layout, spec.scale).reshape(-1, spec.heads * spec.head_size)

    def first(self, x: Tensor, tokens: Tokens[Tensor]) -> Tensor:
        return x.index_select(0, tokens.layout.cu_seqlens[:-1])

    def last(self, x: Tensor, tokens: Tokens[Tensor]) -> Tensor:
        return x.index_select(0, tokens.layout.cu_seqlens[1:] - 1)

    def mean(self, x: Tensor, tokens: Tokens[Tensor]) -> Tensor:
        layout: Layout = tokens.layout
        means = torch.cat([_mean_of_group(x, group) for group in layout.groups])
        return means.index_select(0, layout.order)


def _attend_groups(q: Tensor, k: Tensor, v: Tensor, layout: Layout, scale: float | None) -> Tensor:
    """(T, heads, head_size) three times, and back, in one rectangle a group."""
    answers = []
    for group in layout.groups:
        mask = group.valid[:, None, None, :]  # (n, 1, 1, L)
        qg, kg, vg = (_gather(x, group).transpose(1, 2) for x in (q, k, v))  # (n, heads, L, head_size)
        answer = F.scaled_dot_product_attention(qg, kg, vg, attn_mask=mask, scale=scale)
        answers.append(answer.transpose(1, 2).flatten(0, 1))  # (n * L, heads, head_size)
    return torch.cat(answers).index_select(0, layout.unpack)


def _has_varlen(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether torch's variable-length kernel (FlashAttention) runs here: 16 bits, Ampere or newer."""
    return (
        device.type == "cuda"
        and dtype in {torch.float16, torch.bfloat16}
        and torch.cuda.get_device_capability(device) >= (8, 0)
        and find_spec("torch.nn.attention.varlen") is not None  # not in every torch that pyproject.toml allows
    )


def _attend_varlen(q: Tensor, k: Tensor, v: Tensor, layout: Layout, scale: float | None) -> Tensor:
    """As _attend_groups, in one kernel. Needs what _has_varlen and `attention` ask."""
    from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415

    if scale is not None:  # its first version took no scale but its own, head_size ** -0.5, which this turns into ours
        q = q * (scale * q.shape[-1] ** 0.5)
    ends, longest = layout.cu_seqlens, layout.max_length
    answer = varlen_attn(q, k, v, ends, ends, longest, longest)
    assert isinstance(answer, Tensor), "a tuple comes only when return_aux is asked for"
    return answer


def _mean_of_group(x: Tensor, group: DeviceGroup) -> Tensor:
    """(T, H) to (n, H). Sums in float32: bfloat16 would lose the small terms of a long text."""
    total = _gather(x, group).float().masked_fill(~group.valid[:, :, None], 0).sum(dim=1)
    means: Tensor = total / group.valid.sum(dim=1, keepdim=True)
    return means.to(x.dtype)


def _gather(x: Tensor, group: DeviceGroup) -> Tensor:
    """(T, ...) to (n, L, ...)."""
    return x.index_select(0, group.rows).view(*group.valid.shape, *x.shape[1:])
