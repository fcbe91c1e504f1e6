"""torch's variable-length attention: where it runs, and how it is told of a packed batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import TypeAlias

import torch
from torch import Tensor

from vectord.compute.ops.base import AttentionSpec

# torch.nn.attention.varlen.varlen_attn
Varlen: TypeAlias = Callable[..., Tensor | tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class Lengths:
    """What the kernel reads: N texts as queries, and the keys of each, end to end. A text may be empty."""

    query_ends: Tensor  # (N + 1,) from 0 to T, or less: rows behind the last text get any numbers
    key_ends: Tensor  # (N + 1,) from 0
    longest_query: int  # or more
    longest_key: int  # or more
    key_rows: Tensor | None = None  # row numbers of the keys; None: all rows as they are


def find_varlen(device: torch.device, dtype: torch.dtype) -> Varlen | None:
    """torch's variable-length kernel (FlashAttention), where it runs: on CUDA, 16 bits, Ampere or newer.

    None in a torch that has none, or whose kernel knows no windows yet (before 2.11).
    """
    if device.type != "cuda" or dtype not in {torch.float16, torch.bfloat16}:
        return None
    if torch.cuda.get_device_capability(device) < (8, 0):
        return None
    try:
        from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415
    except ImportError:
        return None
    known = signature(varlen_attn).parameters
    if "window_size" not in known:
        return None
    # 2.11 takes keys of fewer heads as they come, and later ones when told so.
    return partial(varlen_attn, enable_gqa=True) if "enable_gqa" in known else varlen_attn


def takes_heads(spec: AttentionSpec) -> bool:
    """Whether the kernel is compiled for heads of this size."""
    return spec.head_size <= 256 and spec.head_size % 8 == 0


def attend_varlen(varlen: Varlen, q: Tensor, k: Tensor, v: Tensor, lengths: Lengths, spec: AttentionSpec) -> Tensor:
    """Ops.attention by the kernel, which takes a text's last key to be at its last query's position."""
    if lengths.key_rows is not None:
        k, v = (x.index_select(0, lengths.key_rows) for x in (k, v))
    reach = -1 if spec.window is None else spec.window
    answer = varlen(
        *(x.view(len(x), -1, spec.head_size) for x in (q, k, v)),
        lengths.query_ends,
        lengths.key_ends,
        lengths.longest_query,
        lengths.longest_key,
        scale=spec.scale,
        window_size=(reach, 0 if spec.causal else reach),
    )
    assert isinstance(answer, Tensor), "a tuple comes only when return_aux is asked for"
    return answer.reshape(-1, spec.width)
