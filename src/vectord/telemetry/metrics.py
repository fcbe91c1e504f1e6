"""What Prometheus is told: vectord's own families and text-embeddings-inference's.

The engine calls it as its Observer, the server calls `http_answered` after each answer and `exposition` for /metrics.
All of it runs on the event loop.
Nothing is global: two servers in one process count apart.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from vectord.schema import Timings
from vectord.telemetry.instruments import Counter, Gauge, Histogram

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.registry import CollectorRegistry

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
TEXTS = tuple(float(2**power) for power in range(13))  # 1 to 4,096
TOKENS = tuple(float(2**power) for power in range(21))  # 1 to 1,048,576
TEI_SECONDS = tuple(0.000015 * 1.5**power for power in range(35))  # TEI's own: 15 us to 14.6 s

# An error's class name -> what TEI calls it in te_request_failure{err}. Others never reach TEI's counters.
TEI_FAILURES: Mapping[str, str] = {
    "Untokenizable": "tokenization",
    "Overloaded": "overloaded",
    "Unavailable": "overloaded",
    "ShuttingDown": "overloaded",
    "ModelCannot": "model_type",
    "ModelNotFound": "validation",
    "FingerprintMismatch": "validation",
    "InvalidRequest": "validation",
    "InvalidField": "validation",
    "WrongType": "validation",
    "EmptyInput": "validation",
    "InputTooLong": "validation",
    "TooManyCharacters": "validation",
    "ForeignIds": "validation",
    "TooManyInputs": "batch_size",
    "InferenceFailed": "inference",
    "OutOfMemory": "inference",
    "Cancelled": "dropped",
}
TEI_EMBEDS = frozenset({"embed", "documents", "similarity"})
TEI_PREDICTS = frozenset({"classify", "rerank"})  # TEI counts neither tokenize nor decode


class Metrics:
    """An Observer of the engine and of HTTP. Every family exists from the start, at zero."""

    def __init__(self, version: str) -> None:
        self._own = _Own(version)
        self._tei = _Tei()
        self._models: set[str] = set()
        self._registry: CollectorRegistry | None = None

    # --- the server tells -------------------------------------------------------------------------------------

    def expect_routes(self, routes: Iterable[tuple[str, str]]) -> None:
        """(dialect, path) of what is served, to be shown at zero."""
        for dialect, route in routes:
            self._own.requests.expect(dialect, route, "200")

    def http_answered(self, dialect: str, route: str, status: int, seconds: float) -> None:
        """route: the path's template, never the path itself, so that clients cannot make series."""
        self._own.requests.add(1, dialect, route, str(status))
        self._own.request_seconds.observe(seconds, dialect, route)

    # --- the engine tells -------------------------------------------------------------------------------------

    def request_answered(
        self, model: str, operation: str, error: str | None, texts: int, tokens: int, timings: Timings
    ) -> None:
        if error is None and model in self._models:
            self._own.tokens.add(tokens, model)
        if operation in TEI_EMBEDS | TEI_PREDICTS:
            self._tei.answered(operation, error, texts, timings)

    def batch_ran(self, model: str, texts: int, tokens: int, seconds: float, failed: bool) -> None:
        self._own.batch_texts.observe(texts)
        self._own.batch_tokens.observe(tokens)
        self._own.forward_seconds.observe(seconds)
        self._tei.batch_texts.observe(texts)
        self._tei.batch_tokens.observe(tokens)

    def queue_changed(self, texts: int, tokens: int) -> None:
        self._own.queue_texts.set(texts)
        self._own.queue_tokens.set(tokens)
        self._tei.queue_texts.set(texts)

    def cache_looked_up(self, model: str, hits: int, misses: int) -> None:
        self._own.cache_hits.add(hits, model)
        self._own.cache_misses.add(misses, model)

    def model_changed(self, model: str, state: str, load_seconds: float | None) -> None:
        self._models.add(model)
        self._own.ready.set(1 if state == "ready" else 0, model)
        for counter in (self._own.tokens, self._own.cache_hits, self._own.cache_misses):
            counter.expect(model)

    # --- Prometheus asks --------------------------------------------------------------------------------------

    def exposition(self) -> bytes:
        """Every family in the text format, version 0.0.4."""
        from prometheus_client.exposition import generate_latest  # noqa: PLC0415

        if self._registry is None:
            self._registry = self._new_registry()
        return generate_latest(self._registry) + self._tei.counters_text()

    def collect(self) -> Iterator[Metric]:
        for instrument in (*self._own.all(), *self._tei.all()):
            yield instrument.family()

    def _new_registry(self) -> CollectorRegistry:
        from prometheus_client import CollectorRegistry, ProcessCollector  # noqa: PLC0415

        registry = CollectorRegistry()
        registry.register(self)
        ProcessCollector(registry=registry)
        return registry


class _Own:
    """vectord_*: what this server says of itself in its own words."""

    def __init__(self, version: str) -> None:
        self.requests = Counter("vectord_requests", "HTTP requests answered", ("dialect", "route", "status"))
        self.request_seconds = Histogram(
            "vectord_request_duration_seconds", "From headers to answer", SECONDS, ("dialect", "route")
        )
        self.tokens = Counter("vectord_tokens", "Tokens of answered requests, specials included", ("model",))
        self.queue_tokens = Gauge("vectord_queue_tokens", "Tokens waiting for a forward")
        self.queue_texts = Gauge("vectord_queue_texts", "Texts waiting for a forward")
        self.batch_tokens = Histogram("vectord_batch_tokens", "Tokens a forward", TOKENS)
        self.batch_texts = Histogram("vectord_batch_texts", "Texts a forward", TEXTS)
        self.forward_seconds = Histogram("vectord_forward_duration_seconds", "Time a forward takes", SECONDS)
        self.cache_hits = Counter("vectord_cache_hits", "Texts answered from the cache", ("model",))
        self.cache_misses = Counter("vectord_cache_misses", "Texts not in the cache", ("model",))
        self.ready = Gauge("vectord_model_ready", "1 when the model answers, else 0", ("model",))
        self.build = Gauge("vectord_build_info", "Always 1; the labels tell what runs", ("version", "python"))
        self.build.set(1, version, platform.python_version())

    def all(self) -> Iterable[Counter | Histogram]:
        return tuple(vars(self).values())


class _Tei:
    """te_*: text-embeddings-inference's families, as far as they can be told truly.

    Not told: te_request_input_length, te_embed_*_duration and te_predict_*_duration, which are per text where the
    engine speaks of requests.
    """

    def __init__(self) -> None:
        self.count = Counter("te_request_count", "Inference requests", ("method",))
        self.success = Counter("te_request_success", "Inference requests that succeeded", ("method",))
        self.failure = Counter("te_request_failure", "Inference requests that failed", ("err",))
        self.texts = Counter("te_embed_count", "Texts to embed")
        self.texts_success = Counter("te_embed_success", "Texts embedded")
        self.pairs = Counter("te_predict_count", "Texts or pairs to score")
        self.pairs_success = Counter("te_predict_success", "Texts or pairs scored")
        self.seconds = Histogram("te_request_duration", "Seconds in all", TEI_SECONDS)
        self.tokenize_seconds = Histogram("te_request_tokenization_duration", "Seconds tokenising", TEI_SECONDS)
        self.queue_seconds = Histogram("te_request_queue_duration", "Seconds waiting", TEI_SECONDS)
        self.inference_seconds = Histogram("te_request_inference_duration", "Seconds computing", TEI_SECONDS)
        self.queue_texts = Gauge("te_queue_size", "Texts waiting")
        self.batch_texts = Histogram("te_batch_next_size", "Texts a batch", TEXTS)
        self.batch_tokens = Histogram("te_batch_next_tokens", "Tokens a batch", TOKENS)
        for method in ("single", "batch"):
            self.count.expect(method)
            self.success.expect(method)
        for failure in TEI_FAILURES.values():
            self.failure.expect(failure)

    def answered(self, operation: str, error: str | None, texts: int, timings: Timings) -> None:
        method = "batch" if texts > 1 else "single"  # a failed request tells no number
        predicts = operation in TEI_PREDICTS
        self.count.add(1, method)
        (self.pairs if predicts else self.texts).add(texts)
        if error is not None:
            self.failure.add(1, TEI_FAILURES.get(error, "inference"))
            return
        self.success.add(1, method)
        (self.pairs_success if predicts else self.texts_success).add(texts)
        self.seconds.observe(timings.total_s)
        self.tokenize_seconds.observe(timings.tokenize_s)
        self.queue_seconds.observe(timings.queue_s)
        self.inference_seconds.observe(timings.inference_s)

    def all(self) -> Iterable[Counter | Histogram]:
        """Without the counters: the library would put _total behind their names, which TEI does not."""
        return tuple(instrument for instrument in vars(self).values() if type(instrument) is not Counter)

    def counters_text(self) -> bytes:
        """The counters in the text format. Label values are our own words and need no escaping."""
        lines = []
        counters = [instrument for instrument in vars(self).values() if type(instrument) is Counter]
        for counter in counters:
            lines += [f"# HELP {counter.name} {counter.meaning}", f"# TYPE {counter.name} counter"]
            for values, value in counter.values.items():
                labels = ",".join(f'{label}="{text}"' for label, text in zip(counter.labels, values, strict=True))
                lines.append(f"{counter.name}{f'{{{labels}}}' if labels else ''} {value}")
        return "".join(f"{line}\n" for line in lines).encode()
