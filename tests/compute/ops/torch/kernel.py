"""The variable-length attention kernel in plain torch, for tests on the processor: the real one needs a GPU."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor


def written_out(
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
    """As torch.nn.attention.varlen documents: (left, right) places are visible, counted from the end of the keys.

    Rows after the last text get NaN, the worst undefined result.
    """
    assert longest_query >= query_ends.diff().max()
    assert longest_key >= key_ends.diff().max()
    left, right = (float("inf") if reach < 0 else reach for reach in window_size)
    answers = []
    pairs = zip(pairwise(query_ends.tolist()), pairwise(key_ends.tolist()), strict=True)
    for (first, last), (first_key, last_key) in pairs:
        at = torch.arange(last - first)[:, None] + (last_key - first_key) - (last - first)
        ahead = torch.arange(last_key - first_key)[None] - at
        rows = (q[first:last], k[first_key:last_key], v[first_key:last_key])
        answer = torch.nn.functional.scaled_dot_product_attention(
            *(x.transpose(0, 1) for x in rows),
            attn_mask=(ahead <= right) & (ahead >= -left),
            scale=scale,
            enable_gqa=True,
        )
        answers.append(answer.transpose(0, 1))
    untouched = q.new_full((len(q) - int(query_ends[-1]), *q.shape[1:]), torch.nan)  # the former content
    return torch.cat([*answers, untouched])
