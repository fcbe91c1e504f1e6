"""One lane of the queue: clients side by side, each served its fair share of tokens.

Start-time fair queueing (Goyal, Vin and Cheng, 1996). Every client has a virtual time, the tokens it has been served;
the least served goes first, and a newcomer starts level with whoever is being served, so nobody saves up credit.
scheduler.py is the only caller, under the worker's lock.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from itertools import count

from vectord.engine.queue.batch import Item


class Flow:
    """What one client has waiting in one lane, first come first served."""

    __slots__ = ("client", "items", "lane", "start", "waiting_since_s")

    def __init__(self, lane: LaneQueue, client: str) -> None:
        self.lane = lane
        self.client = client
        self.items: OrderedDict[Item, None] = OrderedDict()  # O(1) at the front and in the middle
        self.start = 0.0  # virtual time: tokens served, level with the others at entry
        self.waiting_since_s = 0.0  # last served, or begun to wait

    @property
    def head(self) -> Item:
        return next(iter(self.items))


class LaneQueue:
    """All flows of one lane; `start` is the lane's own virtual time against the other lane."""

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.start = 0.0
        self.tokens = 0
        self.tokens_by_client: dict[str, int] = {}
        self._clock = 0.0  # virtual time of the flow served last
        self._count = count()  # breaks ties in the heap: equals take turns
        self._flows: dict[str, Flow] = {}
        # One entry a flow. A flow's start only grows, so an entry may lag behind its flow and is put right on top.
        # A flow that runs empty stays, with its debt, until `first` meets it: that is when the others have caught up.
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
        """The least served flow that has something waiting. Forgets the empty flows it meets."""
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
