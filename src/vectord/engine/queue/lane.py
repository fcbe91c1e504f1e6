"""One lane of the queue: every client receives a fair share of tokens.

Start-time fair queueing (Goyal, Vin and Cheng, 1996). Every client has a virtual time, the tokens it has been served;
the client with the least goes first. A newcomer starts at the present virtual time, so that no client saves up credit.
Only scheduler.py calls it, under the worker's lock.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from itertools import count

from vectord.engine.queue.batch import Item


class Flow:
    """One client's queued items in one lane, first come first served."""

    __slots__ = ("client", "items", "lane", "start", "waiting_since_s")

    def __init__(self, lane: LaneQueue, client: str) -> None:
        self.lane = lane
        self.client = client
        self.items: OrderedDict[Item, None] = OrderedDict()  # O(1) at the front and in the middle
        self.start = 0.0  # virtual time: tokens served, set to the present at entry
        self.waiting_since_s = 0.0  # when it was last served, or became non-empty

    @property
    def head(self) -> Item:
        return next(iter(self.items))


class LaneQueue:
    """All flows of one lane. `start` is the lane's virtual time, compared with the other lane's."""

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.start = 0.0
        self.tokens = 0
        self.tokens_by_client: dict[str, int] = {}
        self._clock = 0.0  # virtual time of the flow served last
        self._count = count()  # breaks ties in the heap: equal flows alternate
        self._flows: dict[str, Flow] = {}
        # One entry per flow. A flow's start only grows: an outdated entry is corrected when it reaches the top.
        # An empty flow stays, with its virtual time, until `first` finds it: by then the others have caught up.
        self._heap: list[tuple[float, int, Flow]] = []

    def add(self, item: Item) -> Flow:
        flow = self._flows.get(item.client)
        if flow is None:
            flow = self._flows[item.client] = Flow(self, item.client)
            flow.start = self._clock
            heapq.heappush(self._heap, (flow.start, next(self._count), flow))
        flow.items[item] = None
        self.tokens += item.tokens
        self.tokens_by_client[item.client] = self.tokens_by_client.get(item.client, 0) + item.tokens
        return flow

    def remove(self, flow: Flow, item: Item) -> None:
        del flow.items[item]
        self.tokens -= item.tokens
        left = self.tokens_by_client[item.client] - item.tokens
        if left:
            self.tokens_by_client[item.client] = left
        else:
            del self.tokens_by_client[item.client]

    def charge(self, flow: Flow, tokens: int) -> None:
        flow.start += tokens
        self.start += tokens / self.weight

    def first(self) -> Flow | None:
        """The least served flow that is not empty. Removes empty flows on the way."""
        heap = self._heap
        while heap:
            start, _, flow = heap[0]
            if start < flow.start:
                heapq.heapreplace(heap, (flow.start, next(self._count), flow))
            elif not flow.items:
                heapq.heappop(heap)
                del self._flows[flow.client]
            else:
                self._clock = max(self._clock, start)
                return flow
        return None
