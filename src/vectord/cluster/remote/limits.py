"""The buckets of limits, which the engine's process keeps: one count, however many front-ends draw on it.

server/rate_limit.py asks, on a front-end's event loop, where something is limited. Raises Unavailable while there is no
engine, which is what the request would meet anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import cast

from vectord.cluster.remote.codec import decode_value, encode_value
from vectord.cluster.remote.frames import Kind
from vectord.cluster.remote.link import Link
from vectord.cluster.remote.messages import DrawAll, Spend
from vectord.products.common.dialect import Rate
from vectord.server.admission.buckets import Draw, Refusal


class RemoteBuckets:
    """Implements rate_limit.py's TokenBuckets."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def open(self) -> None:
        """They are, since the engine's process was started."""

    async def draw(self, draws: Sequence[Draw]) -> Refusal | None:
        decode = partial(decode_value, Refusal | None)
        return cast(Refusal | None, await self._link.ask(Kind.CALL, encode_value(DrawAll(list(draws))), decode))

    async def spend(self, rate: Rate, bucket: str, amount: int) -> None:
        await self._link.ask(Kind.CALL, encode_value(Spend(rate, bucket, amount)), partial(decode_value, None))

    async def close(self) -> None:
        """The link is its owner's."""
