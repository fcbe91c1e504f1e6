"""Which texts run next. A pure object: no clock, no thread, no tensor; the worker calls it under its lock.

    two lanes (interactive 8 : bulk 1, in virtual time)
      └── a flow per client, equal shares of tokens (lane.py)
            └── items, first come first served

On top of that the age guard: a client that nothing has been taken from for `max_age_s` goes first, longest wait first,
whatever its lane. The guard is on the client and not on each text, because every text of a long job grows old: judged
alone they would make one queue of it all, with strangers at the end.

One queue for all devices of a model, so that lanes and shares are the same whatever runs a text: the device that asks
says which one it is, and its batch keeps to its own limits.

A batch cannot be interrupted, so a question waits for the one that runs: while somebody asks in the interactive lane,
batches of bulk are a third as long, and those with a question in them are filled up with bulk to an eighth only.
Adding, cancelling and taking a text are O(log clients); `tokens_ahead` looks at each client once.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vectord.engine.queue.batch import Batch, Item
from vectord.engine.queue.lane import Flow, LaneQueue
from vectord.schema import Lane

# `make bench-fairness`, MiniLM on 2 cores (AVX2): single questions beside a job take 61 ms at the median and 151 at p99
# (alone 15 and 55); the job keeps 0.89 of its speed. With whole batches, and questions 0.02 s apart instead of 0.2,
# it was 432 and 593.
RECENT_S = 1.0  # how long after a text in the interactive lane the next one is expected
BULK_SHARE, FILL_SHARE = 3, 8  # parts of max_batch_tokens until then: of a batch of bulk, of one with a question in it
INTERACTIVE_WEIGHT = 8.0  # tokens the interactive lane gets for each one of bulk, while both wait


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """What one device says of its batches.

    pipelined: it runs one batch at a time, whatever its streams: while one runs, the next is taken only when it is as
    large as that. A smaller one would go ahead with too few texts.
    """

    max_batch_tokens: int
    cost: Literal["packed", "padded"] = "packed"  # what counts against it: the tokens, or longest text x texts
    max_batch_texts: int | None = None
    pipelined: bool = False

    def fit(self, texts: int, tokens: int, longest: int) -> bool:
        cost = longest * texts if self.cost == "padded" else tokens
        return cost <= self.max_batch_tokens and texts <= (self.max_batch_texts or math.inf)


class Scheduler:
    """The queue of one model. Times are seconds of one monotonic clock, passed in and never going back."""

    def __init__(self, devices: Sequence[BatchLimits], *, max_age_s: float = 5.0, batch_window_s: float = 0.0) -> None:
        """devices: of each, its batches' limits. Whoever asks for a batch says by its place there which one it is."""
        self._devices = devices
        self._max_age_s = max_age_s
        self._batch_window_s = batch_window_s
        self._lanes: dict[Lane, LaneQueue] = {"interactive": LaneQueue(INTERACTIVE_WEIGHT), "bulk": LaneQueue(1.0)}
        self._clock = 0.0  # virtual time of the lane served last
        self._flow_of: dict[Item, Flow] = {}
        self.tokens = 0  # that wait
        self._waiting: OrderedDict[Flow, None] = OrderedDict()  # the flow that has stood still longest first
        self._opened_s = 0.0  # when the queue was last empty until
        self._asked_s = -math.inf  # when a text last came to the interactive lane

    def __len__(self) -> int:
        return len(self._flow_of)

    def add(self, item: Item, now_s: float) -> None:
        if not self._flow_of:
            self._opened_s = now_s
        if item.lane == "interactive":
            self._asked_s = now_s
        lane = self._lanes[item.lane]
        if not lane.tokens:
            lane.start = max(lane.start, self._clock)
        flow = lane.add(item)
        if len(flow.items) == 1:
            flow.waiting_since_s = now_s
            self._waiting[flow] = None
        self._flow_of[item] = flow
        self.tokens += item.tokens

    def cancel(self, item: Item) -> bool:
        """Take a waiting item out of the queue; False if it is not there (any more)."""
        flow = self._flow_of.get(item)
        if flow is None:
            return False
        self._remove(item, flow)
        return True

    def promote(self, item: Item, client: str, now_s: float) -> None:
        """Move a waiting item into the interactive lane, on `client`'s account: someone who asks there needs it too."""
        if self.cancel(item):
            item.lane, item.client = "interactive", client
            self.add(item, now_s)

    def clear(self) -> None:
        self.take_all()

    def take_all(self) -> list[Item]:
        """All that waits, which does not any more."""
        items = list(self._flow_of)
        for item in items:
            self.cancel(item)
        return items

    def tokens_ahead(self, lane: Lane, client: str, tokens: int) -> float:
        """How many tokens of others, and of the client's own, are served before `tokens` more of this client are.

        Of each other client at most as much as this one's own, and of the other lane at most its share beside that.
        """
        own_lane = self._lanes[lane]
        mine = own_lane.tokens_by_client.get(client, 0)
        share = mine + tokens
        others = sum(min(theirs, share) for name, theirs in own_lane.tokens_by_client.items() if name != client)
        ahead = mine + others
        for other_lane in self._lanes.values():
            if other_lane is not own_lane:
                beside = (ahead + tokens) * other_lane.weight / own_lane.weight
                ahead += min(other_lane.tokens, math.ceil(beside))
        return ahead

    def tokens_by_lane(self) -> dict[Lane, int]:
        return {name: lane.tokens for name, lane in self._lanes.items()}

    def hold_s(self, now_s: float, device: int = 0, *, busy_tokens: int = 0) -> float | None:
        """How long until the batch window lets a batch go; 0: now; None: nothing waits, or too little yet.

        busy_tokens: of the batches that run on the device.
        """
        if not self._flow_of:
            return None
        limits = self._devices[device]
        if self.tokens >= limits.max_batch_tokens or len(self) >= (limits.max_batch_texts or math.inf):
            return 0.0
        if limits.pipelined and self.tokens < busy_tokens:
            return None
        return max(0.0, self._opened_s + self._batch_window_s - now_s)

    def next_batch(
        self, now_s: float, device: int = 0, *, idle_streams: int = 1, busy_streams: int = 0, busy_tokens: int = 0
    ) -> Batch | None:
        """Take the best batch for a device out of the queue; None if nothing waits or hold_s holds it back.

        idle_streams: how many could run a batch now, on any device, the asking one included; each leaves the others
        their share. busy_streams, busy_tokens: of the device. Only a text that alone is larger than the budget exceeds
        it, and it goes alone.
        """
        if self.hold_s(now_s, device, busy_tokens=busy_tokens) != 0.0:
            return None
        limits = self._devices[device]
        flow = self._next_flow(now_s)
        assert flow is not None
        share = math.ceil(self.tokens / idle_streams)
        items: list[Item] = []
        tokens = longest = 0
        while flow is not None:
            item = flow.head
            longest = max(longest, item.tokens)
            # Stop at the first item that does not fit: skipping it would starve long texts.
            room = min(share, self._room(limits, items[0] if items else item, item, now_s))
            more = tokens + item.tokens
            if items and (more > room or not limits.fit(len(items) + 1, more, longest)):
                break
            self._take(item, flow, now_s)
            items.append(item)
            tokens += item.tokens
            flow = self._next_flow(now_s)
        alone = len(items) == 1 and not busy_streams and not self._flow_of
        return Batch(items, tokens, alone, pressed=bool(self._flow_of))

    def _room(self, limits: BatchLimits, first: Item, item: Item, now_s: float) -> int:
        """Tokens of a batch that begins with `first`, if `item` is to be in it."""
        if item.lane == "interactive" or now_s - self._asked_s > RECENT_S:
            return limits.max_batch_tokens
        return limits.max_batch_tokens // (BULK_SHARE if first.lane == "bulk" else FILL_SHARE)

    def _next_flow(self, now_s: float) -> Flow | None:
        return self._aged_flow(now_s) or self._fair_flow()

    def _aged_flow(self, now_s: float) -> Flow | None:
        flow = next(iter(self._waiting), None)
        if flow is None or now_s - flow.waiting_since_s < self._max_age_s:
            return None
        return flow

    def _fair_flow(self) -> Flow | None:
        for lane in sorted(self._lanes.values(), key=lambda lane: lane.start):
            flow = lane.first()
            if flow is not None:
                self._clock = max(self._clock, lane.start)
                return flow
        return None

    def _take(self, item: Item, flow: Flow, now_s: float) -> None:
        self._remove(item, flow)
        flow.lane.charge(flow, item.tokens)
        flow.waiting_since_s = now_s
        if flow.items:
            self._waiting.move_to_end(flow)

    def _remove(self, item: Item, flow: Flow) -> None:
        del self._flow_of[item]
        self.tokens -= item.tokens
        flow.lane.remove(flow, item)
        if not flow.items:
            del self._waiting[flow]
