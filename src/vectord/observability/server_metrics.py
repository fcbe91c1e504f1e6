"""The vectord_* metrics, and the figures that the console draws from them. Belongs to the event loop."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping
from typing import Any

from vectord.engine.events import BatchRan, CacheLookedUp, ModelStateChanged, RequestEnded
from vectord.errors import Overloaded
from vectord.observability.exchange import ConnectionsCounted, Exchange
from vectord.observability.instruments import (
    BusyShare,
    Counter,
    Gauge,
    Histogram,
    MetricFamilies,
    Snapshot,
    error_names,
)
from vectord.observability.log_stream import take_dropped
from vectord.observability.process_metrics import memory_bytes
from vectord.schema import Gauges, ModelInfo

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
TEXTS = tuple(float(2**power) for power in range(13))  # 1 to 4,096
TOKENS = tuple(float(2**power) for power in range(21))  # 1 to 1,048,576
SHARES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
LANES = ("interactive", "bulk")
BACKPRESSURE = error_names(Overloaded)
REJECTIONS: Mapping[str, str] = {"RateLimited": "rate_limit", "Unauthorized": "auth"}  # by the server, per Exchange


class ServerMetrics(MetricFamilies):
    def __init__(self, version: str, *, names_keys: bool = True) -> None:
        self._names_keys = names_keys
        self.requests = Counter("vectord_requests", "HTTP requests answered", ("dialect", "route", "status"))
        self.request_seconds = Histogram(
            "vectord_request_duration_seconds", "From headers to answer", SECONDS, ("dialect",)
        )
        self.rejected = Counter("vectord_requests_rejected", "Requests refused for load, rate or key", ("reason",))
        self.connections = Gauge("vectord_connections", "Open HTTP connections")
        self.connections_limit = Gauge("vectord_connections_limit", "Most open HTTP connections, of all processes")
        self.connections_over = Counter(
            "vectord_connections_over_limit",
            "Connections, or requests of trusted proxies, beyond a limit: of all connections, of an address, of file "
            "descriptors",
            ("reason",),
        )
        self.log_lines_dropped = Counter(
            "vectord_log_lines_dropped", "Log lines that nothing read in time, or that a full disk refused"
        )
        self.failed = Counter("vectord_requests_failed", "Requests that ended in an error of the engine", ("error",))
        self.under_way = Gauge("vectord_requests_under_way", "Requests that the engine has accepted or lets wait")
        self.tokens = Counter("vectord_tokens", "Tokens of answered requests, special tokens included", ("model",))
        self.key_requests = Counter("vectord_key_requests", "Requests answered, by the name of their key", ("key",))
        self.key_tokens = Counter("vectord_key_tokens", "Tokens answered, by the name of the key", ("key",))
        self.key_answers = Counter(
            "vectord_key_answers", "Answers to a named key, refusals included, by HTTP status", ("key", "status")
        )
        self.queue_tokens = Gauge("vectord_queue_tokens", "Queued tokens")
        self.queue_texts = Gauge("vectord_queue_texts", "Queued texts")
        self.lane_queue_tokens = Gauge("vectord_lane_queue_tokens", "Queued tokens, by lane", ("lane",))
        self.queue_seconds = Histogram("vectord_queue_wait_seconds", "A request's wait for its first forward", SECONDS)
        self.wait_seconds = Gauge("vectord_queue_clearing_seconds", "Time until the present queue is empty")
        self.saturation = Gauge(
            "vectord_saturation",
            "0 idle, 1 full: the largest of the device's recent busy share, the queue's share of the longest wait "
            "allowed, and the share of request places taken",
        )
        self.batch_tokens = Histogram("vectord_batch_tokens", "Tokens per forward", TOKENS)
        self.batch_texts = Histogram("vectord_batch_texts", "Texts per forward", TEXTS)
        self.batch_fill = Histogram("vectord_batch_fill", "Tokens of a forward divided by the token budget", SHARES)
        self.forward_seconds = Histogram("vectord_forward_duration_seconds", "Duration of a forward", SECONDS)
        self.forward_tokens = Counter("vectord_forward_tokens", "Tokens computed, without padding", ("model", "lane"))
        self.device_tokens = Counter(
            "vectord_device_tokens", "Tokens computed, without padding, by device", ("model", "device")
        )
        self.device_ready = Gauge(
            "vectord_device_ready", "1 if all streams of the model's device work, else 0", ("model", "device")
        )
        self.padding_tokens = Counter("vectord_padding_tokens", "Padding tokens computed", ("model",))
        self.cache_hits = Counter("vectord_cache_hits", "Texts answered from the cache", ("model",))
        self.cache_misses = Counter("vectord_cache_misses", "Texts not in the cache", ("model",))
        self.shared_cache_hits = Counter(
            "vectord_shared_cache_hits", "Cache misses answered from the shared cache", ("model",)
        )
        self.shared_cache_misses = Counter(
            "vectord_shared_cache_misses", "Cache misses that the shared cache missed as well", ("model",)
        )
        self.shared_cache_refused = Counter(
            "vectord_shared_cache_refused",
            "Shared cache misses whose stored value was damaged or signed with another secret",
            ("model",),
        )
        self.cache_bytes = Gauge("vectord_cache_bytes", "Size of the cache")
        self.cache_limit_bytes = Gauge("vectord_cache_limit_bytes", "Largest size of the cache; 0: no cache")
        self.cache_texts = Gauge("vectord_cache_texts", "Texts in the cache")
        self.model_memory = Gauge("vectord_model_memory_bytes", "Size of the model's weights in memory", ("model",))
        self.device_memory = Gauge("vectord_device_memory_bytes", "Memory of a GPU", ("device", "state"))
        self.ready = Gauge("vectord_model_ready", "1 when the model answers, else 0", ("model",))
        self.model_failed = Gauge("vectord_model_failed", "1 when the model could not be loaded, else 0", ("model",))
        self.build = Gauge("vectord_build_info", "Always 1; the labels name the versions", ("version", "python"))
        self.build.set(1, version, platform.python_version())
        self._batch_tokens, self._batch_texts = self.batch_tokens.expect(), self.batch_texts.expect()
        self._batch_fill, self._forward_seconds = self.batch_fill.expect(), self.forward_seconds.expect()
        self._busy = BusyShare()
        self._connections: dict[int, ConnectionsCounted] = {}  # the last report of each process
        self.log_lines_dropped.expect()
        for reason in ("connections", "address", "descriptors"):
            self.connections_over.expect(reason)
        for reason in ("auth", "rate_limit", "backpressure"):
            self.rejected.expect(reason)
        for lane in LANES:
            self.lane_queue_tokens.expect(lane)

    def expect_model(self, model: ModelInfo) -> None:
        self._expect_name(model.name)

    def expect_key(self, name: str) -> None:
        if not self._names_keys:
            return
        self.key_requests.expect(name)
        self.key_tokens.expect(name)
        self.key_answers.expect(name, "200")
        self.key_answers.expect(name, "429")

    def _expect_name(self, model: str) -> None:
        shared = (self.shared_cache_hits, self.shared_cache_misses, self.shared_cache_refused)
        for counter in (self.tokens, self.cache_hits, self.cache_misses, self.padding_tokens, *shared):
            counter.expect(model)
        for lane in LANES:
            self.forward_tokens.expect(model, lane)

    def handlers(self) -> Mapping[type, Callable[[Any], None]]:
        return {
            Exchange: self.http_answered,
            ConnectionsCounted: self.connections_counted,
            RequestEnded: self.request_ended,
            BatchRan: self.batch_ran,
            CacheLookedUp: self.cache_looked_up,
            ModelStateChanged: self.model_changed,
        }

    def http_answered(self, exchange: Exchange) -> None:
        self.requests.values[exchange.dialect, exchange.route, str(exchange.status)] += 1
        if exchange.key is not None and self._names_keys:
            self.key_answers.add(1, exchange.key, str(exchange.status))
        if (reason := REJECTIONS.get(exchange.error or "")) is not None:
            self.rejected.add(1, reason)
        seconds = self.request_seconds.children.get((exchange.dialect,)) or self.request_seconds.expect(
            exchange.dialect
        )
        seconds.observe(exchange.ended_s - exchange.began_s, exchange.trace_id)

    def connections_counted(self, event: ConnectionsCounted) -> None:
        self._connections[event.process] = event
        if not event.limit:  # the process has ended
            del self._connections[event.process]
        self.connections.set(sum(each.open for each in self._connections.values()))
        self.connections_limit.set(sum(each.limit for each in self._connections.values()))
        self.log_lines_dropped.add(event.log_lines_dropped)
        for reason, count in event.over.items():
            self.connections_over.add(count, reason)

    def request_ended(self, event: RequestEnded) -> None:
        if event.caller.named and self._names_keys:
            self.key_requests.add(1, event.caller.client)
            self.key_tokens.add(event.tokens, event.caller.client)
        if event.error is not None:
            self.failed.add(1, event.error)
            if event.error in BACKPRESSURE:
                self.rejected.add(1, "backpressure")
            return
        self.queue_seconds.children[()].observe(event.timings.waiting_s)
        if event.model:
            self.tokens.values[event.model,] += event.tokens

    def batch_ran(self, event: BatchRan) -> None:
        self._batch_texts.observe(event.texts)
        self._batch_tokens.observe(event.tokens)
        self._batch_fill.observe((event.tokens + event.padding_tokens) / event.max_tokens)
        self._forward_seconds.observe(event.seconds)
        self.forward_tokens.values[event.model, "interactive"] += event.tokens - event.bulk_tokens
        self.forward_tokens.values[event.model, "bulk"] += event.bulk_tokens
        if event.device:
            self.device_tokens.values[event.model, event.device] += event.tokens
        if event.padding_tokens:
            self.padding_tokens.values[event.model,] += event.padding_tokens
        self._busy.add(event.seconds / event.streams)

    def cache_looked_up(self, event: CacheLookedUp) -> None:
        hits, misses = (
            (self.shared_cache_hits, self.shared_cache_misses) if event.shared else (self.cache_hits, self.cache_misses)
        )
        hits.values[event.model,] += event.hits
        misses.values[event.model,] += event.misses
        if event.rejected:
            self.shared_cache_refused.add(event.rejected, event.model)

    def model_changed(self, event: ModelStateChanged) -> None:
        self._expect_name(event.model)
        self.ready.set(1 if event.state == "ready" else 0, event.model)
        self.model_failed.set(1 if event.state == "failed" else 0, event.model)

    def look(self, snapshot: Snapshot) -> None:
        self.log_lines_dropped.add(take_dropped())
        self.look_at_gauges(snapshot.gauges)
        self.model_memory.values = {(model,): float(held) for model, held in snapshot.gauges.memory_bytes.items()}
        self.device_ready.values = {
            (model.name, device): float(state == "ready")
            for model in snapshot.models
            if not model.sources  # a composite has the devices of its members
            for device, state in model.devices.items()
        }

    def look_at_gauges(self, gauges: Gauges) -> None:
        self.queue_texts.set(gauges.queued_texts)
        self.queue_tokens.set(sum(gauges.queued_tokens.values()))
        for lane, tokens in gauges.queued_tokens.items():
            self.lane_queue_tokens.set(tokens, lane)
        self.wait_seconds.set(gauges.wait_s)
        self.under_way.set(gauges.under_way)
        self.cache_bytes.set(gauges.cache_bytes)
        self.cache_limit_bytes.set(gauges.cache_limit_bytes)
        self.cache_texts.set(gauges.cached_texts)
        for device, memory in gauges.devices.items():
            self.device_memory.set(memory.total - memory.free, device, "used")
            self.device_memory.set(memory.free, device, "free")
        waiting = gauges.wait_s / gauges.max_wait_s
        self.saturation.set(min(1.0, max(self._busy.share(), waiting, gauges.under_way / gauges.places)))

    def busy_share(self) -> float:
        return self._busy.share()

    def live_figures(self, gauges: Gauges) -> dict[str, Any]:
        """The server's load for the console: counts and seconds since the start, and present sizes and shares. Contains
        no name of a model or a client."""
        self.look_at_gauges(gauges)
        latency = [child for labels, child in self.request_seconds.children.items() if labels[0] != "server"]
        client_requests = [(labels, n) for labels, n in self.requests.values.items() if labels[0] != "server"]
        fill, queue = self.batch_fill.children[()], self.queue_seconds.children[()]
        return {
            "clock_s": time.monotonic(),
            "requests": sum(count for _, count in client_requests),
            "errors": sum(count for (_, _, status), count in client_requests if status >= "400"),
            "tokens": self.tokens.total(),
            "run_tokens": self.forward_tokens.total(),
            "forwards": sum(fill.counts),
            "forward_fill": fill.total,
            "waits": sum(queue.counts),
            "waited_s": queue.total,
            "latency": {
                "bounds_s": SECONDS,
                "counts": [sum(column) for column in zip(*(child.counts for child in latency), strict=True)]
                or [0] * (len(SECONDS) + 1),
            },
            "wait_s": gauges.wait_s,
            "saturation": self.saturation.values[()],
            "cache": {"hits": self.cache_hits.total(), "misses": self.cache_misses.total()},
            "memory": {
                "resident_bytes": (memory_bytes() or (None, None))[1],
                "models_bytes": sum(gauges.memory_bytes.values()),
            },
            "devices": {name: {"used_bytes": memory.total - memory.free} for name, memory in gauges.devices.items()},
        }
