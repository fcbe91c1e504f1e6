"""Which texts run next. Pure: no clock, no thread, no tensor. The worker calls it under its lock.

    two lanes (interactive 8 : bulk 1, in virtual time)
      └── a flow per client, equal shares of tokens
            └── items, first come first served; a batch may end within one, whose rest keeps its place

A lane uses start-time fair queueing (Goyal, Vin and Cheng, 1996). Every client has a virtual time, the tokens it has
been served; the client with the least goes first. A newcomer starts at the present virtual time, so that no client
saves up credit.

In addition there is an age guard: a client that has not been served for `max_age_s` goes first, longest wait first,
in either lane. The guard applies to clients and not to texts, because every text of a long job grows old: applied to
texts, it would merge everything into one queue with newcomers at its end.

Before both orders come light clients: those with at most a sixteenth of a batch in the interactive lane. Their texts
start each batch and take up to half of it. If no other text found room, the next batch starts with the text that is
next in order. So a light client's text waits for the running batch and at most one more, whatever other clients have
queued, as long as the texts of all light clients together fit into half a batch.

All devices of a model share one queue, so that lanes and shares do not depend on the device. Each device has its own
batch limits.

A running batch cannot be interrupted, so an interactive text waits for it. While the interactive lane is in use, bulk
batches have a third of the budget, and bulk texts fill up at most an eighth of a batch with interactive texts.
Adding, cancelling and taking an item are O(log clients); `tokens_ahead` looks at each client once.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Literal

import msgspec

from vectord.engine.queue.batch import Batch, Item
from vectord.schema import Lane


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
        # An empty flow stays, with its virtual time, until `first` finds it, because by then the others have caught up,
        # or until a new client comes to an empty lane, where no other client has to catch up.
        self._heap: list[tuple[float, int, Flow]] = []

    def add(self, item: Item) -> Flow:
        flow = self._flows.get(item.client)
        if flow is None:
            if not self.tokens:
                self._flows.clear()
                self._heap.clear()
            flow = self._flows[item.client] = Flow(self, item.client)
            flow.start = self._clock
            heapq.heappush(self._heap, (flow.start, next(self._count), flow))
        flow.items[item] = None
        self.tokens += item.tokens
        self.tokens_by_client[item.client] = self.tokens_by_client.get(item.client, 0) + item.tokens
        return flow

    def remove(self, client: str, tokens: int) -> None:
        self.tokens -= tokens
        left = self.tokens_by_client[client] - tokens
        if left:
            self.tokens_by_client[client] = left
        else:
            del self.tokens_by_client[client]

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


RECENT_S = 1.0  # the interactive lane counts as in use for this long after its last text
BULK_SHARE, FILL_SHARE = 3, 8  # fractions of max_batch_tokens then: a bulk batch, bulk texts in an interactive batch
BULK_TOKENS = 16_384  # a larger request goes to the bulk lane, unless its key or header names a lane
INTERACTIVE_WEIGHT = 8.0  # interactive tokens served per bulk token while both lanes wait
LIGHT_CLIENT, LIGHT_SHARE = 16, 2  # fractions of max_batch_tokens: a light client's queue, all light texts of a batch


class BatchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one device's batches.

    pipelined: the device computes one batch at a time, regardless of its streams. While one runs, the next is taken
    only when it is as large, because a smaller one would run with too few texts.
    """

    max_batch_tokens: int
    cost: Literal["packed", "padded"] = "packed"  # what counts: the tokens, or longest text x texts
    max_batch_texts: int | None = None
    pipelined: bool = False

    def fit(self, texts: int, tokens: int, longest: int) -> bool:
        cost = longest * texts if self.cost == "padded" else tokens
        return cost <= self.max_batch_tokens and texts <= (self.max_batch_texts or math.inf)

    def first_that_fit(self, sizes: Sequence[int], room: int, texts: int, tokens: int, longest: int) -> int:
        """How many of the first `sizes` fit into a batch with `texts` texts, and `room` for tokens. The first text of a
        batch always does."""
        total, most = tokens + sum(sizes), max(longest, *sizes)
        if total <= room and self.fit(texts + len(sizes), total, most):
            return len(sizes)
        count = 0
        for size in sizes:
            tokens, longest = tokens + size, max(longest, size)
            if texts + count and not (tokens <= room and self.fit(texts + count + 1, tokens, longest)):
                break
            count += 1
        return count


class Scheduler:
    """The queue of one model. Times are seconds of one monotonic clock, passed in and never going back."""

    def __init__(self, devices: Sequence[BatchLimits], *, max_age_s: float = 5.0, batch_window_s: float = 0.0) -> None:
        """devices: the batch limits of each. Later calls name a device by its index."""
        self._devices = devices
        self._max_age_s = max_age_s
        self._batch_window_s = batch_window_s
        self._lanes: dict[Lane, LaneQueue] = {"interactive": LaneQueue(INTERACTIVE_WEIGHT), "bulk": LaneQueue(1.0)}
        self._clock = 0.0  # virtual time of the lane served last
        self._flow_of: dict[Item, Flow] = {}
        self.texts = self.tokens = 0  # queued
        self._waiting: OrderedDict[Flow, None] = OrderedDict()  # in order of the last service, oldest first
        self._opened_s = 0.0  # when the queue last became non-empty
        self._interactive_s = -math.inf  # when the interactive lane last received a text
        self._light_tokens = min(limits.max_batch_tokens for limits in devices) // LIGHT_CLIENT
        self._light: OrderedDict[Flow, None] = OrderedDict()  # flows of light clients, first come first served
        self._passed_over = False  # the last batch had light texts only, and others were queued

    def add(self, item: Item, now_s: float) -> None:
        if not self._flow_of:
            self._opened_s = now_s
        if item.lane == "interactive":
            self._interactive_s = now_s
        lane = self._lanes[item.lane]
        if not lane.tokens:
            lane.start = max(lane.start, self._clock)
        flow = lane.add(item)
        if len(flow.items) == 1:
            flow.waiting_since_s = now_s
            self._waiting[flow] = None
        if item.lane == "interactive":
            if lane.tokens_by_client[item.client] > self._light_tokens:
                self._light.pop(flow, None)
            elif len(flow.items) == 1:
                self._light[flow] = None
        self._flow_of[item] = flow
        self.texts += len(item.places)
        self.tokens += item.tokens

    def __contains__(self, item: Item) -> bool:
        return item in self._flow_of

    def cancel(self, item: Item, places: Sequence[int] | None = None) -> Item | None:
        """Remove an item's texts at these places, None: all; returns those that were still queued."""
        flow = self._flow_of.get(item)
        taken = None if flow is None else item.take_out(places)
        if flow is not None and taken is not None:
            self._remove(item, len(taken), taken.tokens, flow, is_whole=taken is item)
        return taken

    def promote(self, item: Item, places: Sequence[int], client: str, now_s: float) -> Item | None:
        """Move an item's queued texts at these places to the interactive lane and to `client`: an interactive request
        needs them as well. Returns them."""
        taken = self.cancel(item, places)
        if taken is not None:
            taken.lane, taken.client = "interactive", client
            self.add(taken, now_s)
        return taken

    def take_all(self) -> list[Item]:
        """Remove and return all items."""
        items = list(self._flow_of)
        for item in items:
            self.cancel(item)
        return items

    def tokens_ahead(self, lane: Lane, client: str, tokens: int) -> float:
        """How many tokens are served before `tokens` more of this client, its own queued ones included.

        Each other client counts with at most this client's share, and the other lane with at most its own share.
        """
        own_lane = self._lanes[lane]
        mine = own_lane.tokens_by_client.get(client, 0)
        share = mine + tokens
        others = sum(min(theirs, share) for name, theirs in own_lane.tokens_by_client.items() if name != client)
        ahead = mine + others
        for other_lane in self._lanes.values():
            if other_lane is not own_lane:
                lane_share = (ahead + tokens) * other_lane.weight / own_lane.weight
                ahead += min(other_lane.tokens, math.ceil(lane_share))
        return ahead

    def tokens_by_lane(self) -> dict[Lane, int]:
        return {name: lane.tokens for name, lane in self._lanes.items()}

    def hold_s(self, now_s: float, device: int = 0, *, busy_tokens: int = 0) -> float | None:
        """Seconds until the batch window ends; 0: a batch may start; None: the queue is empty or too short.

        busy_tokens: tokens that the device runs now.
        """
        if not self._flow_of:
            return None
        limits = self._devices[device]
        if self.tokens >= limits.max_batch_tokens or self.texts >= (limits.max_batch_texts or math.inf):
            return 0.0
        if limits.pipelined and self.tokens < busy_tokens:
            return None
        return max(0.0, self._opened_s + self._batch_window_s - now_s)

    def next_batch(
        self, now_s: float, device: int = 0, *, idle_streams: int = 1, busy_streams: int = 0, busy_tokens: int = 0
    ) -> Batch | None:
        """Remove and return the next batch for a device; None if hold_s is not 0.

        idle_streams: how many streams of all devices could run a batch now, this one included; each takes its share.
        busy_streams, busy_tokens: of the device. A single text larger than the budget runs alone; no other batch
        exceeds the budget.
        """
        if self.hold_s(now_s, device, busy_tokens=busy_tokens) != 0.0:
            return None
        limits = self._devices[device]
        light_room = 0 if self._passed_over else limits.max_batch_tokens // LIGHT_SHARE
        only_light = True
        share = math.ceil(self.tokens / idle_streams)
        begun: dict[Item, int] = {}  # how many texts of each item are taken; it is cut once, at the end
        sizes_of: dict[Item, list[int]] = {}
        first: Item | None = None
        texts = tokens = longest = 0
        while self._flow_of:
            flow, is_light = self._next_flow(now_s, light_room, begun)
            item = flow.head
            if first is not None and item.request is not first.request:
                break
            # Stop at the first text that does not fit: skipping it would starve long texts.
            room = self._room(limits, item if first is None else first, item, now_s)
            if item.request is None:  # a request that runs alone is not divided among streams
                room = min(share, room)
            done = begun.get(item, 0)
            sizes = sizes_of[item] = sizes_of.get(item) or item.sizes.tolist()
            in_turn = len(sizes) - done if len(self._waiting) == 1 else 1  # clients take turns text by text
            count = limits.first_that_fit(sizes[done : done + in_turn], room, texts, tokens, longest)
            if not count:
                break
            # The last of several is taken by itself, so that the virtual times are those of its turn.
            in_part = sizes[done : done + max(1, count - 1)]
            begun[item] = done + len(in_part)
            part_tokens = sum(in_part)
            self._take(item, len(in_part), part_tokens, flow, now_s, is_last=begun[item] == len(sizes))
            texts, tokens, longest = texts + len(in_part), tokens + part_tokens, max(longest, *in_part)
            first = item if first is None else first
            if is_light:
                light_room -= part_tokens
            elif only_light:
                only_light = False
                light_room = limits.max_batch_tokens // LIGHT_SHARE if self._passed_over else light_room
        self._passed_over = only_light and bool(self._flow_of)
        alone = texts == 1 and not busy_streams and not self._flow_of
        parts = [item if count == len(sizes_of[item]) else item.take_first(count) for item, count in begun.items()]
        return Batch(parts, texts, tokens, alone, under_load=bool(self._flow_of))

    def _room(self, limits: BatchLimits, first: Item, item: Item, now_s: float) -> int:
        """The token budget of a batch that starts with `first`, if it includes `item`."""
        if item.lane == "interactive" or now_s - self._interactive_s > RECENT_S:
            return limits.max_batch_tokens
        return limits.max_batch_tokens // (BULK_SHARE if first.lane == "bulk" else FILL_SHARE)

    def _next_flow(self, now_s: float, light_room: int, begun: Mapping[Item, int]) -> tuple[Flow, bool]:
        """The next in order, and whether it is a light one: a light one that fits, else the longest wait above
        max_age_s, else the least served. The queue is not empty."""
        light = next(iter(self._light), None)
        if light is not None and light.head.sizes[begun.get(light.head, 0)] <= light_room:
            return light, True
        oldest = next(iter(self._waiting), None)
        if oldest is not None and now_s - oldest.waiting_since_s >= self._max_age_s:
            return oldest, False
        for lane in sorted(self._lanes.values(), key=lambda lane: lane.start):
            flow = lane.first()
            if flow is not None:
                self._clock = max(self._clock, lane.start)
                return flow, False
        raise AssertionError("the queue is empty")

    def _take(self, item: Item, texts: int, tokens: int, flow: Flow, now_s: float, *, is_last: bool) -> None:
        """Count the next texts of the flow's first item as served. is_last: it has no others."""
        self._remove(item, texts, tokens, flow, is_whole=is_last)
        flow.lane.charge(flow, tokens)
        flow.waiting_since_s = now_s
        if flow.items:
            self._waiting.move_to_end(flow)

    def _remove(self, item: Item, texts: int, tokens: int, flow: Flow, *, is_whole: bool) -> None:
        """is_whole: no text of the item is left."""
        self.texts -= texts
        self.tokens -= tokens
        flow.lane.remove(item.client, tokens)
        if not is_whole:
            return
        del self._flow_of[item]
        del flow.items[item]
        if not flow.items:
            del self._waiting[flow]
            self._light.pop(flow, None)
