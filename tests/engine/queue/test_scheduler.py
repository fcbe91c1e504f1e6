"""Laws of the queue, tested on the pure scheduler."""

from __future__ import annotations

import gc
import math
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.engine.fakes import sequence_of

from vectord.engine.queue.batch import Batch, Item, Job
from vectord.engine.queue.scheduler import (
    BULK_SHARE,
    FILL_SHARE,
    INTERACTIVE_WEIGHT,
    LIGHT_CLIENT,
    LIGHT_SHARE,
    RECENT_S,
    BatchLimits,
    Flow,
    Scheduler,
)
from vectord.schema import Lane
from vectord.text.sequence import Texts

BUDGET = 64


def queue(*, max_age_s: float = 5.0, batch_window_s: float = 0.0, **limits: Any) -> Scheduler:
    """A scheduler for one device."""
    return Scheduler([BatchLimits(**limits)], max_age_s=max_age_s, batch_window_s=batch_window_s)


def item(tokens: int, client: str = "a", lane: Lane = "interactive") -> Item:
    return span([tokens], client, lane)


def span(tokens: Sequence[int], client: str = "a", lane: Lane = "interactive") -> Item:
    """Several texts of one request, with these numbers of tokens."""
    texts = Texts.of([sequence_of(np.ones(size, np.int32)) for size in tokens])
    return Item(texts, frozenset({"dense"}), client, lane)


def drain(scheduler: Scheduler, now_s: float = 0.0, idle_streams: int = 1) -> list[Batch]:
    batches = []
    while (batch := scheduler.next_batch(now_s, idle_streams=idle_streams)) is not None:
        batches.append(batch)
    return batches


def tokens_by_client(batches: list[Batch]) -> dict[str, int]:
    total: dict[str, int] = defaultdict(int)
    for batch in batches:
        for taken in batch.items:
            total[taken.client] += taken.tokens
    return total


items = st.builds(item, st.integers(1, 100), st.sampled_from("abc"), st.sampled_from(["interactive", "bulk"]))
# Operations on a queue, in any order: add a text, cancel one, take a batch, let time pass.
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), items),
        st.tuples(st.just("cancel"), st.integers(0, 50)),
        st.tuples(st.just("batch"), st.integers(1, 3)),
        st.tuples(st.just("pass"), st.floats(0, 3)),
    ),
    max_size=60,
)
schedulers = st.builds(
    queue,
    max_batch_tokens=st.just(BUDGET),
    cost=st.sampled_from(["packed", "padded"]),
    max_batch_texts=st.sampled_from([None, 1, 3]),
    max_age_s=st.sampled_from([2.0, 1000.0]),
)


@given(schedulers, steps)
def test_every_item_leaves_once_in_a_batch_or_by_cancellation(scheduler, steps):
    """No item is lost, runs twice, or runs after cancellation, and the counts of queued items are exact."""
    waiting: list[Item] = []
    now_s = 0.0
    for step, value in steps:
        if step == "add":
            scheduler.add(value, now_s)
            waiting.append(value)
        elif step == "cancel" and waiting:
            gone = waiting.pop(value % len(waiting))
            assert scheduler.cancel(gone)
            assert not scheduler.cancel(gone)
        elif step == "batch":
            batch = scheduler.next_batch(now_s, idle_streams=value)
            assert (batch is None) == (not waiting)
            for taken in batch.items if batch else ():
                waiting.remove(taken)
                assert not scheduler.cancel(taken)
        elif step == "pass":
            now_s += value
        assert scheduler.texts == len(waiting)
        assert scheduler.tokens == sum(one.tokens for one in waiting)
    left = [taken for batch in drain(scheduler, now_s) for taken in batch.items]
    assert sorted(map(id, left)) == sorted(map(id, waiting))
    assert scheduler.tokens == 0
    assert scheduler.tokens_ahead("bulk", "a", 1) == 0


@given(st.lists(items, min_size=1, max_size=40), st.sampled_from(["packed", "padded"]), st.integers(1, 4))
def test_no_batch_exceeds_a_limit(texts, cost, idle_streams):
    """The token budget, the texts per batch, and the share of idle streams: only a single text may exceed them."""
    scheduler = queue(max_batch_tokens=BUDGET, cost=cost, max_batch_texts=5)
    for text in texts:
        scheduler.add(text, 0.0)
    queued = sum(text.tokens for text in texts)
    for batch in drain(scheduler, idle_streams=idle_streams):
        sizes = [taken.tokens for taken in batch.items]
        assert batch.tokens == sum(sizes)
        if len(sizes) > 1:
            assert (max(sizes) * len(sizes) if cost == "padded" else sum(sizes)) <= BUDGET
            assert len(sizes) <= 5
            assert sum(sizes) <= math.ceil(queued / idle_streams)
        queued -= sum(sizes)


@given(st.lists(items, min_size=1, max_size=60))
def test_a_client_is_served_in_its_own_order(texts):
    """First come, first served within one client and lane."""
    scheduler = queue(max_batch_tokens=BUDGET)
    for text in texts:
        scheduler.add(text, 0.0)
    place = {id(text): n for n, text in enumerate(texts)}
    seen = defaultdict(list)
    for batch in drain(scheduler):
        for taken in batch.items:
            seen[taken.client, taken.lane].append(place[id(taken)])
    assert all(order == sorted(order) for order in seen.values())


def test_a_newcomer_does_not_wait_for_another_clients_long_job():
    """A newcomer in the same lane is in the next batch."""
    scheduler = queue(max_batch_tokens=BUDGET)
    for _ in range(1000):
        scheduler.add(item(16, "indexer", "bulk"), 0.0)
    for _ in range(20):
        scheduler.next_batch(0.0)
    newcomer = item(16, "newcomer", "bulk")
    scheduler.add(newcomer, 0.0)
    first, second = scheduler.next_batch(0.0), scheduler.next_batch(0.0)
    assert newcomer in [*first.items, *second.items]


@pytest.mark.parametrize("sizes", [{"a": 4, "b": 32}, {"a": 32, "b": 5, "c": 13}])
def test_clients_share_tokens_not_texts(sizes):
    """Waiting clients are served the same number of tokens, regardless of the size of their texts."""
    scheduler = queue(max_batch_tokens=BUDGET)
    for client, size in sizes.items():
        for _ in range(2000 // size):
            scheduler.add(item(size, client), 0.0)
    served = tokens_by_client([scheduler.next_batch(0.0) for _ in range(15)])
    assert max(served.values()) - min(served.values()) <= 2 * max(sizes.values())


def test_clients_that_have_left_are_forgotten():
    """A public server meets millions of addresses, most of them once, each with one short text."""
    scheduler = queue(max_batch_tokens=BUDGET)
    for number in range(100):
        scheduler.add(item(1, f"client {number}"), 0.0)
        scheduler.next_batch(0.0)
    gc.collect()
    flows = [one for one in gc.get_objects() if type(one) is Flow]  # isinstance would ask foreign objects
    assert sum(flow.client.startswith("client ") for flow in flows) < 3


def test_an_absent_client_saves_up_no_credit():
    """A client that returns after an hour shares from then on; the others keep being served."""
    scheduler = queue(max_batch_tokens=BUDGET)
    scheduler.add(item(8, "rare"), 0.0)
    for _ in range(2000):
        scheduler.add(item(8, "steady"), 0.0)
    for _ in range(100):
        scheduler.next_batch(0.0)
    for _ in range(200):
        scheduler.add(item(8, "rare"), 0.0)
    served = tokens_by_client([scheduler.next_batch(0.0) for _ in range(10)])
    assert abs(served["rare"] - served["steady"]) <= 16


def test_sending_one_text_at_a_time_wins_no_larger_share():
    """A client whose queue is empty between its long texts keeps its virtual time while others wait."""
    scheduler = queue(max_batch_tokens=1)  # one text per batch
    for _ in range(1000):
        scheduler.add(item(8, "backlog"), 0.0)
    batches = []
    for _ in range(200):
        if scheduler.tokens_ahead("interactive", "one by one", 0) == 0:
            scheduler.add(item(32, "one by one"), 0.0)
        batches.append(scheduler.next_batch(0.0))
    served = tokens_by_client(batches)
    assert served["one by one"] / served["backlog"] == pytest.approx(1, rel=0.1)


def test_lanes_share_tokens_by_weight():
    """While both lanes wait, interactive receives its weight in tokens per bulk token: both progress."""
    scheduler = queue(max_batch_tokens=BUDGET)
    for _ in range(2000):
        scheduler.add(item(8, "searcher", "interactive"), 0.0)
        scheduler.add(item(8, "indexer", "bulk"), 0.0)
    served = tokens_by_client([scheduler.next_batch(0.0) for _ in range(90)])
    assert served["searcher"] / served["indexer"] == pytest.approx(INTERACTIVE_WEIGHT, rel=0.05)


@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from(["interactive", "bulk"])), min_size=2, max_size=30)
)
def test_the_age_guard_serves_waiting_clients_first(arrivals):
    """After max_age_s, clients are served in the order of their last service."""
    scheduler = queue(max_batch_tokens=8, max_age_s=5.0)
    waiting_since: dict[tuple[str, str], float] = {}
    for now_s, (client, lane) in enumerate(arrivals):
        waiting_since.setdefault((client, lane), now_s)
        scheduler.add(item(8, client, lane), now_s)
    left = defaultdict(int)
    for arrival in arrivals:
        left[arrival] += 1
    now_s = len(arrivals) + 5.0
    while left:
        taken = scheduler.next_batch(now_s).items[0]
        client = (taken.client, taken.lane)
        longest = min(waiting_since, key=waiting_since.get)
        if now_s - waiting_since[longest] >= 5.0:
            assert client == longest
        left[client] -= 1
        waiting_since[client] = now_s
        if not left[client]:
            del left[client], waiting_since[client]
        now_s += 0.5


def test_bulk_is_not_starved_by_newcomers():
    """With an endless stream of new interactive clients, each bulk client's next text runs within max_age_s."""
    scheduler = queue(max_batch_tokens=8, max_age_s=5.0)
    indexers = [f"indexer {n}" for n in range(20)]
    for indexer in indexers:
        scheduler.add(item(8, indexer, "bulk"), 0.0)
    served = set()
    for tick in range(70):
        now_s = tick / 10
        for stranger in range(3):
            scheduler.add(item(8, f"{tick} {stranger}"), now_s)
        served |= {taken.client for taken in scheduler.next_batch(now_s).items}
    assert served >= set(indexers)


# A request of another client: its name, lane, number of texts, tokens of each, and seconds before the next batch.
FLOOD_BUDGET = 64
SHORT = FLOOD_BUDGET // LIGHT_CLIENT
floods = st.lists(
    st.lists(
        st.one_of(
            st.tuples(
                st.integers(0, 40),
                st.sampled_from(["interactive", "bulk"]),
                st.integers(1, 40),
                st.integers(SHORT + 1, 2 * FLOOD_BUDGET),
            ),
            st.tuples(st.integers(0, 40), st.just("bulk"), st.integers(1, 40), st.integers(1, SHORT)),
            # A request whose texts share a batch with no other.
            st.tuples(
                st.integers(0, 40),
                st.sampled_from(["interactive", "bulk"]),
                st.integers(1, 40),
                st.integers(SHORT + 1, FLOOD_BUDGET),
                st.just("alone"),
            ),
            # Other light clients: with the reader's, their texts fill half a batch.
            st.tuples(st.sampled_from([f"light {n}" for n in range(LIGHT_CLIENT // LIGHT_SHARE - 1)])),
        ),
        max_size=6,
    ),
    min_size=1,
    max_size=60,
)


@given(
    floods,
    st.lists(st.sampled_from([0.01, 1.0, 7.0]), min_size=1, max_size=60),
    st.integers(1, SHORT),
    st.sampled_from(["packed", "padded"]),
    st.sampled_from([None, 16]),
)
# 200 clients that have waited for longer than max_age_s, then 40 with a queue each at the same virtual time.
@example([[(n, "bulk", 3, 40) for n in range(200)], *[[]] * 9], [1.0], SHORT, "packed", None)
@example([[(n, "interactive", 3, 40) for n in range(200)], *[[]] * 9], [0.01], SHORT, "packed", None)
def test_a_short_text_waits_for_two_batches_at_most_under_any_flood(flood, pauses, tokens, cost, max_batch_texts):
    """The running batch and one more, for a client with one short text at a time: regardless of the number of other
    clients, their texts and lanes, how long they have waited, and how often the reader was served before."""
    scheduler = queue(max_batch_tokens=FLOOD_BUDGET, cost=cost, max_batch_texts=max_batch_texts)
    now_s, mine, waited = 0.0, None, 0
    queued_light: set[str] = set()
    for step, arrivals in enumerate(flood):
        for client, *request in arrivals:
            if request:
                lane, texts, size, *alone = request
                job = cast(Job, object()) if alone else None  # only its identity counts
                for _ in range(texts):
                    text = item(size, f"flood {client}", lane)
                    text.request = job
                    scheduler.add(text, now_s)
            elif client not in queued_light:
                queued_light.add(client)
                scheduler.add(item(SHORT, client), now_s)
        if mine is None:
            mine, waited = item(tokens, "reader"), 1  # the batch that runs now
            scheduler.add(mine, now_s)
        now_s += pauses[step % len(pauses)]
        batch = scheduler.next_batch(now_s)
        queued_light -= {taken.client for taken in batch.items}
        if mine in batch.items:
            mine = None
        else:
            waited += 1
            assert waited <= 2


def test_light_clients_do_not_stop_a_text_that_needs_the_whole_batch():
    """With short texts of new clients before every batch, it starts the batch after the one that it does not fit."""
    scheduler = queue(max_batch_tokens=64)
    scheduler.add(item(60, "indexer"), 0.0)
    starts = []
    for tick in range(2):
        for n in range(8):
            scheduler.add(item(4, f"{tick} {n}"), 0.0)
        starts.append(scheduler.next_batch(0.0).items[0].client)
    assert starts == ["0 0", "indexer"]


def test_bulk_fills_an_eighth_of_an_interactive_batch():
    """A full batch would delay the interactive text."""
    scheduler = queue(max_batch_tokens=64)
    for _ in range(100):
        scheduler.add(item(2, "indexer", "bulk"), 0.0)
    scheduler.add(item(4, "searcher"), 0.0)
    batch = scheduler.next_batch(0.0)
    assert [each.lane for each in batch.items] == ["interactive", "bulk", "bulk"]
    assert batch.tokens == 64 // FILL_SHARE


def test_bulk_runs_in_short_batches_while_the_interactive_lane_is_in_use():
    """So the next query waits for a short batch. After RECENT_S without a query, bulk batches are full again."""
    scheduler = queue(max_batch_tokens=64)
    scheduler.add(item(4, "searcher"), 10.0)
    scheduler.next_batch(10.0)
    for _ in range(100):
        scheduler.add(item(2, "indexer", "bulk"), 10.0)
    assert scheduler.next_batch(10.0 + RECENT_S).tokens == 64 // BULK_SHARE // 2 * 2  # complete texts
    assert scheduler.next_batch(10.1 + RECENT_S).tokens == 64


def test_interactive_texts_fill_whole_batches():
    """The shares limit bulk only."""
    scheduler = queue(max_batch_tokens=64)
    for n in range(100):
        scheduler.add(item(2, f"searcher {n % 7}"), 0.0)
    assert scheduler.next_batch(0.0).tokens == 64


def test_the_age_guard_applies_to_clients_not_to_texts():
    """Every text of a long job grows old while its client is served; a newcomer still does not wait for the job."""
    scheduler = queue(max_batch_tokens=BUDGET, max_age_s=5.0)
    for _ in range(1000):
        scheduler.add(item(16, "indexer", "bulk"), 0.0)
    for tick in range(100):
        scheduler.next_batch(tick / 10)
    query = item(16, "searcher")
    scheduler.add(query, 10.0)
    assert query in scheduler.next_batch(10.0).items


def test_a_long_text_is_not_starved_by_short_ones():
    """A batch ends before the first text that does not fit; the next batch starts with it."""
    scheduler = queue(max_batch_tokens=BUDGET)
    long = item(60)
    scheduler.add(item(10), 0.0)
    scheduler.add(long, 0.0)
    scheduler.add(item(10), 0.0)
    assert len(scheduler.next_batch(0.0).items) == 1
    assert scheduler.next_batch(0.0).items == [long]


def test_each_idle_stream_receives_its_share():
    """Three idle streams receive four of twelve equal texts each."""
    scheduler = queue(max_batch_tokens=1000)
    for _ in range(12):
        scheduler.add(item(10), 0.0)
    taken = [len(scheduler.next_batch(0.0, idle_streams=idle, busy_streams=3 - idle).items) for idle in (3, 2, 1)]
    assert taken == [4, 4, 4]


def test_a_pipelined_device_receives_whole_batches():
    """It takes the next batch when that is as large as the running one."""
    scheduler = queue(max_batch_tokens=100, pipelined=True)
    for _ in range(4):
        scheduler.add(item(10), 0.0)
    assert len(scheduler.next_batch(0.0).items) == 4
    for _ in range(3):
        scheduler.add(item(10), 0.0)
    assert scheduler.next_batch(0.0, busy_streams=1, busy_tokens=40) is None
    assert scheduler.hold_s(0.0, busy_tokens=40) is None
    scheduler.add(item(10), 0.0)
    assert len(scheduler.next_batch(0.0, busy_streams=1, busy_tokens=40).items) == 4
    for _ in range(10):
        scheduler.add(item(10), 0.0)
    assert len(scheduler.next_batch(0.0, busy_streams=1, busy_tokens=5000).items) == 10, "a full batch never waits"
    scheduler.add(item(10), 0.0)
    assert len(scheduler.next_batch(0.0).items) == 1, "nothing runs"


@pytest.mark.parametrize(
    ("texts", "busy_streams", "alone"),
    [(1, 0, True), (1, 1, False), (2, 0, False)],
    ids=["one text on an idle device", "another stream at work", "two texts"],
)
def test_alone_means_no_other_text_runs_or_waits(texts, busy_streams, alone):
    """Only then may one batch use the whole device."""
    scheduler = queue(max_batch_tokens=1000)
    for _ in range(texts):
        scheduler.add(item(10), 0.0)
    assert scheduler.next_batch(0.0, busy_streams=busy_streams).alone is alone


def test_one_text_with_others_queued_is_not_alone():
    """Other idle streams will run the rest at the same time."""
    scheduler = queue(max_batch_tokens=1000)
    scheduler.add(item(10), 0.0)
    scheduler.add(item(10), 0.0)
    first = scheduler.next_batch(0.0, idle_streams=2)
    assert (len(first.items), first.alone, first.under_load) == (1, False, True)


def test_the_batch_window_ends_with_time_or_a_full_batch():
    """A single text waits for others until the window ends or a batch is full."""
    scheduler = queue(max_batch_tokens=BUDGET, batch_window_s=0.010)
    scheduler.add(item(10), 1.000)
    assert scheduler.next_batch(1.004) is None
    assert scheduler.hold_s(1.004) == pytest.approx(0.006)
    assert len(scheduler.next_batch(1.010).items) == 1
    scheduler.add(item(30), 2.000)
    scheduler.add(item(34), 2.000)
    assert len(scheduler.next_batch(2.000).items) == 2
    assert scheduler.hold_s(2.000) is None


def test_without_a_batch_window_no_text_waits():
    """A free stream takes the queued texts immediately."""
    scheduler = queue(max_batch_tokens=BUDGET)
    scheduler.add(item(10), 1.0)
    assert scheduler.hold_s(1.0) == 0.0
    assert scheduler.next_batch(1.0) is not None


def test_tokens_ahead_count_the_tokens_served_before():
    """Each other client counts with at most the same amount, the other lane with its share."""
    scheduler = queue(max_batch_tokens=BUDGET)
    for _ in range(100):
        scheduler.add(item(100, "indexer", "bulk"), 0.0)
        scheduler.add(item(1, "searcher"), 0.0)
    assert scheduler.tokens_ahead("interactive", "newcomer", 10) == 10 + 3  # (10 + 10) / 8 of bulk
    assert scheduler.tokens_ahead("interactive", "searcher", 10) == 100 + 14  # all of its own
    assert scheduler.tokens_ahead("bulk", "newcomer", 10) == 10 + 100  # interactive has no more than 100
    assert scheduler.tokens_ahead("bulk", "newcomer", 50_000) == 10_000 + 100


@given(st.lists(items, max_size=30), items)
def test_tokens_ahead_never_exceed_the_queue(texts, newcomer):
    """An empty queue has nothing ahead: the request's own size does not count."""
    scheduler = queue(max_batch_tokens=BUDGET)
    for text in texts:
        scheduler.add(text, 0.0)
    ahead = scheduler.tokens_ahead(newcomer.lane, newcomer.client, newcomer.tokens)
    assert 0 <= ahead <= scheduler.tokens


@given(st.lists(items, min_size=1, max_size=40), st.integers(1, 40))
def test_tokens_ahead_predict_the_service_order(texts, tokens):
    """Compared with the real order: predicted and served tokens are equal, up to a text per client."""
    scheduler = queue(max_batch_tokens=1, max_age_s=1000.0)  # one text per batch
    for text in texts:
        scheduler.add(text, 0.0)
    newcomer = item(tokens, "newcomer")
    foretold = scheduler.tokens_ahead("interactive", "newcomer", tokens)
    scheduler.add(newcomer, 0.0)
    before = 0
    while (taken := scheduler.next_batch(0.0).items[0]) is not newcomer:
        before += taken.tokens
    assert before <= foretold + 100 * 6  # three clients, two lanes, each at most one text early


def test_promotion_takes_a_bulk_text_to_the_front():
    """A bulk text that an interactive request needs as well does not wait for other bulk texts."""
    scheduler = queue(max_batch_tokens=BUDGET)
    job = [item(16, "indexer", "bulk") for _ in range(100)]
    for text in job:
        scheduler.add(text, 0.0)
    scheduler.promote(job[99], [0], "searcher", 0.0)
    assert scheduler.next_batch(0.0).items == [job[99]]
    assert scheduler.texts == 99
    scheduler.promote(job[99], [0], "searcher", 0.0)  # it runs already
    assert scheduler.texts == 99


@pytest.mark.parametrize("clients", [1, 5000])
def test_twenty_thousand_tiny_texts_are_queued_and_drained_quickly(clients):
    """Every operation is O(log clients); a slower one would take seconds."""
    scheduler = queue(max_batch_tokens=1024)
    texts = item(3).texts
    items = [Item(texts, frozenset({"dense"}), str(n % clients), "bulk") for n in range(20_000)]
    started_s = time.thread_time()
    for one in items:
        scheduler.add(one, 0.0)
    ran = sum(len(batch.items) for batch in drain(scheduler, idle_streams=2))
    assert ran == 20_000
    assert time.thread_time() - started_s < 3  # processor time; usually 0.1 s


def test_requests_that_run_alone_get_a_batch_each() -> None:
    """ENABLE_BATCHING=0: all texts of one request, also with a second idle stream, and none of another request."""
    scheduler = queue(max_batch_tokens=BUDGET)
    requests: list[Any] = [object(), object()]
    queued = []
    for request in requests:
        for _ in range(3):
            one = item(4)
            one.request = request
            queued.append(one)
            scheduler.add(one, 0.0)
    assert [batch.items for batch in drain(scheduler, idle_streams=2)] == [queued[:3], queued[3:]]


# Requests and what happens between them: a request's client, lane and the tokens of its texts; a batch; time.
requests = st.tuples(
    st.just("add"),
    st.tuples(
        st.sampled_from("abc"),
        st.sampled_from(["interactive", "bulk"]),
        st.lists(st.integers(1, 40), min_size=1, max_size=12),
    ),
)
events = st.lists(
    st.one_of(requests, st.tuples(st.just("batch"), st.integers(1, 3)), st.tuples(st.just("pass"), st.floats(0, 3))),
    max_size=40,
)


@given(events, st.sampled_from(["packed", "padded"]), st.sampled_from([None, 3]))
# The last text of the first request in bulk decides which virtual times the later requests begin with.
@example(
    [
        ("add", ("a", "interactive", [1])),
        ("add", ("a", "bulk", [1, 1])),
        ("batch", 1),
        ("add", ("a", "interactive", [1] * 5)),
        ("add", ("b", "interactive", [1, 4])),
    ],
    "packed",
    3,
)
def test_the_texts_of_a_request_are_served_as_if_each_came_alone(events, cost, max_batch_texts):
    """Every batch has the same texts and facts: a request of many texts has no other share than its texts."""
    limits = {"max_batch_tokens": BUDGET, "cost": cost, "max_batch_texts": max_batch_texts, "max_age_s": 2.0}
    joined, single = queue(**limits), queue(**limits)
    names: dict[int, list[int]] = {}  # of each request's texts, by its arrays
    kept: list[Item] = []
    now_s, count = 0.0, 0
    for event, value in [*events, *[("batch", 1)] * 200]:
        if event == "add":
            client, lane, sizes = value
            request = span(sizes, client, lane)
            ones = [item(size, client, lane) for size in sizes]
            names[id(request.texts)] = list(range(count, count + len(sizes)))
            names |= {id(one.texts): [count + n] for n, one in enumerate(ones)}
            kept += [request, *ones]
            joined.add(request, now_s)
            for one in ones:
                single.add(one, now_s)
            count += len(sizes)
        elif event == "batch":
            batches = [one.next_batch(now_s, idle_streams=value) for one in (joined, single)]
            assert len({batch is None for batch in batches}) == 1
            facts = [
                (
                    sorted(names[id(part.texts)][place] for part in batch.items for place in part.places.tolist()),
                    batch.tokens,
                    batch.alone,
                    batch.under_load,
                )
                for batch in batches
                if batch is not None
            ]
            assert facts[:1] == facts[1:]
        else:
            now_s += value
    assert joined.texts == single.texts == 0


def test_a_request_is_cut_where_the_batch_ends_and_its_rest_keeps_its_place() -> None:
    """Before later texts of its client. Its first texts are one item in the batch."""
    scheduler = queue(max_batch_tokens=BUDGET)
    request, later = span([10] * 10), item(4)
    scheduler.add(request, 0.0)
    scheduler.add(later, 0.0)
    (first,) = scheduler.next_batch(0.0).items
    assert first.places.tolist() == [0, 1, 2, 3, 4, 5]
    assert (scheduler.texts, scheduler.tokens) == (5, 44)
    rest, last = scheduler.next_batch(0.0).items
    assert rest.places.tolist() == [6, 7, 8, 9]
    assert last is later


def test_clients_take_turns_text_by_text_within_their_requests() -> None:
    """Half of a batch each, as one item of each request."""
    scheduler = queue(max_batch_tokens=80)
    scheduler.add(span([10] * 20, "a"), 0.0)
    scheduler.add(span([10] * 20, "b"), 0.0)
    batch = scheduler.next_batch(0.0)
    assert [(part.client, part.places.tolist()) for part in batch.items] == [("a", [0, 1, 2, 3]), ("b", [0, 1, 2, 3])]


def test_some_texts_of_a_request_can_be_promoted_or_cancelled() -> None:
    """The others keep their order and lane. Texts that run already are not moved."""
    scheduler = queue(max_batch_tokens=20)
    job = span([10] * 8, "indexer", "bulk")
    scheduler.add(job, 0.0)
    scheduler.next_batch(0.0)
    moved = scheduler.promote(job, [0, 1, 5], "searcher", 0.0)
    assert (moved.places.tolist(), moved.lane, moved.client) == ([5], "interactive", "searcher")
    assert scheduler.cancel(job, [3, 5]).places.tolist() == [3]
    assert scheduler.tokens_by_lane() == {"interactive": 10, "bulk": 40}
    batches = drain(scheduler)
    assert [place for batch in batches for part in batch.items for place in part.places.tolist()] == [5, 2, 4, 6, 7]
    assert batches[0].items[0] is moved
