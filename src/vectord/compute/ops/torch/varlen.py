"""torch's variable-length attention: where it runs, and its arguments for a packed batch."""

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
    """The kernel's input: N texts as queries, and the keys of each, end to end. A text may be empty."""

    query_ends: Tensor  # (N + 1,) from 0 to T, or less: rows after the last text have undefined results
    key_ends: Tensor  # (N + 1,) from 0
    longest_query: int  # or more
    longest_key: int  # or more
    key_rows: Tensor | None = None  # row numbers of the keys; None: all rows in order


def find_varlen(device: torch.device, dtype: torch.dtype) -> Varlen | None:
    """Return torch's variable-length kernel (FlashAttention) if it runs here: CUDA, 16 bits, Ampere or newer.

    None if torch has none, or one without windows (before 2.11).
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
    # 2.11 accepts keys of fewer heads; later versions need the option.
    return partial(varlen_attn, enable_gqa=True) if "enable_gqa" in known else varlen_attn


def takes_heads(spec: AttentionSpec) -> bool:
    """Whether the kernel is compiled for heads of this size."""
    return spec.head_size <= 256 and spec.head_size % 8 == 0


def attend_varlen(varlen: Varlen, q: Tensor, k: Tensor, v: Tensor, lengths: Lengths, spec: AttentionSpec) -> Tensor:
    """Ops.attention by the kernel, which assumes that a text's last key is at its last query's position."""
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
    assert isinstance(answer, Tensor), "a tuple comes only with return_aux"
    return answer.reshape(-1, spec.width)
