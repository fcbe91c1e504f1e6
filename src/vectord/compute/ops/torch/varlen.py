"""torch's variable-length attention: where it runs, and its arguments for a packed batch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any, TypeAlias

import msgspec
import torch
from torch import Tensor

from vectord.compute.ops.base import AttentionSpec

logger = logging.getLogger(__name__)

# q, k, v, query_ends, key_ends, longest_query, longest_key, scale=..., window_size=(left, right)
Varlen: TypeAlias = Callable[..., Any]


class Lengths(msgspec.Struct, frozen=True):
    """The kernel's input: N texts as queries, and the keys of each, end to end. A text may be empty."""

    query_ends: Tensor  # (N + 1,) from 0 to T, or less: rows after the last text have undefined results
    key_ends: Tensor  # (N + 1,) from 0
    longest_query: int  # or more
    longest_key: int  # or more
    key_rows: Tensor | None = None  # row numbers of the keys; None: all rows in order


def find_varlen(device: torch.device, dtype: torch.dtype) -> Varlen | None:
    """Return torch's variable-length kernel (FlashAttention) if it runs here: CUDA, 16 bits, Ampere or newer."""
    if device.type != "cuda" or dtype not in {torch.float16, torch.bfloat16}:
        return None
    if torch.cuda.get_device_capability(device) < (8, 0):
        return None
    if torch.cuda.get_device_capability(device) == (9, 0):
        _use_flash_attention_3()
    return _flash_attention


def _flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_ends: Tensor,
    key_ends: Tensor,
    longest_query: int,
    longest_key: int,
    *,
    scale: float | None,
    window_size: tuple[int, int],
) -> Tensor:
    """The operator that varlen_attn wraps. Its wrapper takes 30 us and a further kernel, its import seconds."""
    output: Tensor = torch.ops.aten._flash_attention_forward(
        q,
        k,
        v,
        query_ends,
        key_ends,
        longest_query,
        longest_key,
        0.0,  # dropout
        False,  # causal, which the window states
        False,  # debug mask
        scale=scale,
        window_size_left=window_size[0],
        window_size_right=window_size[1],
    )[0]
    return output


@cache
def _use_flash_attention_3() -> None:
    """Let the operator run FlashAttention 3, made for Hopper, where its package is installed."""
    if find_spec("flash_attn_interface") is None:
        return
    try:
        from torch.nn.attention import activate_flash_attention_impl  # noqa: PLC0415

        activate_flash_attention_impl("FA3")
    except Exception as error:  # torch raises what the package raises
        logger.warning("FlashAttention 3 is installed but cannot be used: %s", str(error).split("\n")[0][:200])


def takes_heads(spec: AttentionSpec) -> bool:
    """Whether the kernel is compiled for heads of this size."""
    return spec.head_size <= 256 and spec.head_size % 8 == 0


def attend_varlen(varlen: Varlen, q: Tensor, k: Tensor, v: Tensor, lengths: Lengths, spec: AttentionSpec) -> Tensor:
    """Ops.attention by the kernel, which assumes that a text's last key is at its last query's position."""
    if lengths.key_rows is not None:
        k, v = (x.index_select(0, lengths.key_rows) for x in (k, v))
    answer: Tensor = varlen(
        *(x.view(len(x), -1, spec.head_size) for x in (q, k, v)),
        lengths.query_ends,
        lengths.key_ends,
        lengths.longest_query,
        lengths.longest_key,
        scale=spec.scale,
        window_size=(-1 if spec.before is None else spec.before, -1 if spec.after is None else spec.after),
    )
    return answer.reshape(-1, spec.width)
