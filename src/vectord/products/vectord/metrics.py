"""vectord_*: what this server says of itself in its own words."""

from __future__ import annotations

import platform
from collections.abc import Sequence

from vectord.engine.observer import BatchReport, RequestReport
from vectord.observability.busy import Busy
from vectord.observability.exchange import Exchange
from vectord.observability.instruments import Counter, Gauge, Histogram
from vectord.products.common.operations import BACKPRESSURE
from vectord.schema import Gauges, ModelInfo

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
TEXTS = tuple(float(2**power) for power in range(13))  # 1 to 4,096
TOKENS = tuple(float(2**power) for power in range(21))  # 1 to 1,048,576
SHARES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
REASONS = ("auth", "rate_limit", "backpressure")


class OwnFamilies:
    def __init__(self, version: str) -> None:
        self.requests = Counter("vectord_requests", "HTTP requests answered", ("dialect", "route", "status"))
        self.request_seconds = Histogram(
            "vectord_request_duration_seconds", "From headers to answer", SECONDS, ("dialect", "route")
        )
        self.rejected = Counter("vectord_requests_rejected", "Requests refused for load, rate or key", ("reason",))
        self.failed = Counter("vectord_requests_failed", "Requests that ended in an error of the engine", ("error",))
        self.under_way = Gauge("vectord_requests_under_way", "Requests the engine is at, waiting ones among them")
        self.tokens = Counter("vectord_tokens", "Tokens of answered requests, specials included", ("model",))
        self.key_requests = Counter("vectord_key_requests", "Requests answered, by the name of their key", ("key",))
        self.key_tokens = Counter("vectord_key_tokens", "Tokens of those", ("key",))
        self.key_answers = Counter(
            "vectord_key_answers", "Answers to a named key, refusals among them, by HTTP's status", ("key", "status")
        )
        self.queue_tokens = Gauge("vectord_queue_tokens", "Tokens waiting for a forward")
        self.queue_texts = Gauge("vectord_queue_texts", "Texts waiting for a forward")
        self.lane_queue_tokens = Gauge("vectord_lane_queue_tokens", "Tokens waiting for a forward, by lane", ("lane",))
        self.queue_seconds = Histogram("vectord_queue_wait_seconds", "A request's wait for its first forward", SECONDS)
        self.wait_seconds = Gauge("vectord_queue_clearing_seconds", "How long what waits now will take")
        self.saturation = Gauge(
            "vectord_saturation",
            "0 idle, 1 full: the largest of the device's busy share of late, the queue's share of the longest wait "
            "allowed, and the share of places taken",
        )
        self.batch_tokens = Histogram("vectord_batch_tokens", "Tokens a forward", TOKENS)
        self.batch_texts = Histogram("vectord_batch_texts", "Texts a forward", TEXTS)
        self.batch_fill = Histogram("vectord_batch_fill", "Tokens a forward, as a share of what it may have", SHARES)
        self.forward_seconds = Histogram("vectord_forward_duration_seconds", "Time a forward takes", SECONDS)
        self.forward_tokens = Counter("vectord_forward_tokens", "Tokens run, without padding", ("model", "lane"))
        self.device_tokens = Counter(
            "vectord_device_tokens", "Tokens run, without padding, by the device that ran them", ("model", "device")
        )
        self.device_ready = Gauge(
            "vectord_device_ready",
            "1 while a device of the model is whole; 0: in part or wholly away",
            ("model", "device"),
        )
        self.padding_tokens = Counter("vectord_padding_tokens", "Padding run beside them", ("model",))
        self.cache_hits = Counter("vectord_cache_hits", "Texts answered from the cache", ("model",))
        self.cache_misses = Counter("vectord_cache_misses", "Texts not in the cache", ("model",))
        self.shared_cache_hits = Counter(
            "vectord_shared_cache_hits", "Of those, texts answered from the shared cache", ("model",)
        )
        self.shared_cache_misses = Counter("vectord_shared_cache_misses", "Texts run all the same", ("model",))
        self.shared_cache_refused = Counter(
            "vectord_shared_cache_refused",
            "Of those, texts whose value there was damaged or written with another secret",
            ("model",),
        )
        self.cache_bytes = Gauge("vectord_cache_bytes", "What the cache holds")
        self.cache_texts = Gauge("vectord_cache_texts", "Texts whose answers it holds")
        self.ready = Gauge("vectord_model_ready", "1 when the model answers, else 0", ("model",))
        self.model_failed = Gauge("vectord_model_failed", "1 when the model could not be loaded, else 0", ("model",))
        self.build = Gauge("vectord_build_info", "Always 1; the labels tell what runs", ("version", "python"))
        self.build.set(1, version, platform.python_version())
        self._busy = Busy()
        for reason in REASONS:
            self.rejected.expect(reason)
        for lane in ("interactive", "bulk"):
            self.lane_queue_tokens.expect(lane)

    def expect_model(self, name: str) -> None:
        for counter in (self.tokens, self.cache_hits, self.cache_misses, self.padding_tokens):
            counter.expect(name)
        for counter in (self.shared_cache_hits, self.shared_cache_misses, self.shared_cache_refused):
            counter.expect(name)
        for lane in ("interactive", "bulk"):
            self.forward_tokens.expect(name, lane)

    def expect_key(self, name: str) -> None:
        self.key_requests.expect(name)
        self.key_tokens.expect(name)
        self.key_answers.expect(name, "200")
        self.key_answers.expect(name, "429")

    def model_changed(self, model: str, state: str) -> None:
        self.expect_model(model)
        self.ready.set(1 if state == "ready" else 0, model)
        self.model_failed.set(1 if state == "failed" else 0, model)

    def http_answered(self, exchange: Exchange) -> None:
        self.requests.add(1, exchange.dialect, exchange.route, str(exchange.status))
        if exchange.key is not None:
            self.key_answers.add(1, exchange.key, str(exchange.status))
        if exchange.trace_id is None:
            self.request_seconds.observe(exchange.seconds, exchange.dialect, exchange.route)
        else:
            seconds = self.request_seconds.expect(exchange.dialect, exchange.route)
            seconds.observe_traced(exchange.seconds, exchange.trace_id)

    def request_answered(self, report: RequestReport) -> None:
        if report.caller.named:
            self.key_requests.add(1, report.caller.client)
            self.key_tokens.add(report.tokens, report.caller.client)
        if report.error is not None:
            self.failed.add(1, report.error)
            if report.error in BACKPRESSURE:
                self.rejected.add(1, "backpressure")
            return
        self.queue_seconds.observe(report.timings.waiting_s)
        if report.model:
            self.tokens.add(report.tokens, report.model)

    def batch_ran(self, report: BatchReport) -> None:
        self.batch_texts.observe(report.texts)
        self.batch_tokens.observe(report.tokens)
        self.batch_fill.observe((report.tokens + report.padding_tokens) / report.max_tokens)
        self.forward_seconds.observe(report.seconds)
        self.forward_tokens.add(report.tokens - report.bulk_tokens, report.model, "interactive")
        if report.bulk_tokens:
            self.forward_tokens.add(report.bulk_tokens, report.model, "bulk")
        if report.device:
            self.device_tokens.add(report.tokens, report.model, report.device)
        if report.padding_tokens:
            self.padding_tokens.add(report.padding_tokens, report.model)
        self._busy.ran(report.seconds / report.streams)

    def look_at_devices(self, models: Sequence[ModelInfo]) -> None:
        self.device_ready.values = {
            (model.name, device): float(state == "ready")
            for model in models
            if not model.sources  # a composite's are its members'
            for device, state in model.devices.items()
        }

    def look(self, gauges: Gauges) -> None:
        for lane, tokens in gauges.queued_tokens.items():
            self.lane_queue_tokens.set(tokens, lane)
        self.wait_seconds.set(gauges.wait_s)
        self.under_way.set(gauges.under_way)
        self.cache_bytes.set(gauges.cache_bytes)
        self.cache_texts.set(gauges.cached_texts)
        waiting = gauges.wait_s / gauges.max_wait_s
        self.saturation.set(min(1.0, max(self._busy.share(), waiting, gauges.under_way / gauges.places)))

    def busy_share(self) -> float:
        return self._busy.share()
