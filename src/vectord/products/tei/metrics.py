"""te_*: the families of text-embeddings-inference and of embedding_server, its fork.

TEI observes the times of each text. Here each text of a request counts with the request's mean times.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vectord.engine.events import BatchRan, RequestEnded
from vectord.errors import InvalidRequest, Overloaded, Unavailable
from vectord.observability.instruments import Counter, Gauge, Histogram, MetricFamilies, Snapshot, error_names
from vectord.products.common.operations import EMBEDS, PREDICTS
from vectord.schema import Timings

SECONDS = tuple(0.000015 * 1.5**power for power in range(35))  # 15 us to 14.6 s
LENGTHS = tuple(float(2**power) for power in range(20))  # 1 to 524,288
TEXTS = tuple(float(2**power) for power in range(13))  # 1 to 4,096
TOKENS = tuple(float(2**power) for power in range(21))  # 1 to 1,048,576

# Class of an error -> its name in te_request_failure{err}; of all others, such as a failed model, "inference".
FAILURES: Mapping[str, str] = {
    **dict.fromkeys(("ModelNotFound", "FingerprintMismatch", *error_names(InvalidRequest)), "validation"),
    **dict.fromkeys(("TimedOut", *error_names(Overloaded), *error_names(Unavailable)), "overloaded"),
    "Untokenizable": "tokenization",
    "ModelCannot": "model_type",
    "TooManyInputs": "batch_size",
    "Cancelled": "dropped",
}
ALWAYS_ZERO = ("missing_values", "queue_full")  # names of TEI's errors that do not occur here


class TeiMetrics(MetricFamilies):
    def __init__(self) -> None:
        self.count = Counter("te_request_count", "Inference requests", ("method",), bare_name=True)
        self.success = Counter("te_request_success", "Inference requests that succeeded", ("method",), bare_name=True)
        self.failure = Counter("te_request_failure", "Inference requests that failed", ("err",), bare_name=True)
        self.texts = Counter("te_embed_count", "Texts to embed", bare_name=True)
        self.texts_success = Counter("te_embed_success", "Texts embedded", bare_name=True)
        self.pairs = Counter("te_predict_count", "Texts or pairs to score", bare_name=True)
        self.pairs_success = Counter("te_predict_success", "Texts or pairs scored", bare_name=True)
        self.lengths = Histogram("te_request_input_length", "Tokens per text", LENGTHS)
        self.queue_texts = Gauge("te_queue_size", "Queued texts")
        self.batch_texts = Histogram("te_batch_next_size", "Texts per batch", TEXTS)
        self.batch_tokens = Histogram("te_batch_next_tokens", "Tokens per batch", TOKENS)
        self._lengths = self.lengths.expect()
        self._request = _DurationHistograms("request", "a request")
        self._embed = _DurationHistograms("embed", "a text to embed")
        self._predict = _DurationHistograms("predict", "a text or pair to score")
        for method in ("single", "batch"):
            self.count.expect(method)
            self.success.expect(method)
        for failure in ("inference", *FAILURES.values(), *ALWAYS_ZERO):
            self.failure.expect(failure)

    def handlers(self) -> Mapping[type, Callable[[Any], None]]:
        return {
            RequestEnded: self.request_ended,
            BatchRan: self.batch_ran,
        }

    def look(self, snapshot: Snapshot) -> None:
        self.queue_texts.set(snapshot.gauges.queued_texts)

    def request_ended(self, event: RequestEnded) -> None:
        predicts = event.operation in PREDICTS
        if not predicts and event.operation not in EMBEDS:
            return
        method = "batch" if event.texts > 1 else "single"  # the number of a failed request's texts is not known
        self.count.add(1, method)
        (self.pairs if predicts else self.texts).add(event.texts)
        if event.error is not None:
            self.failure.add(1, FAILURES.get(event.error, "inference"))
            return
        self.success.add(1, method)
        (self.pairs_success if predicts else self.texts_success).add(event.texts)
        self._request.observe(event.timings, self._predict if predicts else self._embed, event.texts)
        for tokens in event.lengths.kept:
            self._lengths.observe(tokens)

    def batch_ran(self, event: BatchRan) -> None:
        self.batch_texts.observe(event.texts)
        self.batch_tokens.observe(event.tokens)

    def instruments(self) -> Sequence[Counter | Histogram]:
        durations = (self._request, self._embed, self._predict)
        return (*(each for one in durations for each in one.histograms), *super().instruments())


class _DurationHistograms:
    """The four histograms of requests or texts: total, tokenization, queue and inference."""

    def __init__(self, name: str, of_what: str) -> None:
        steps = {
            "": "in all",
            "tokenization_": "of tokenization",
            "queue_": "in the queue",
            "inference_": "of inference",
        }
        self.histograms = [
            Histogram(f"te_{name}_{step}duration", f"Seconds {meaning}, of {of_what}", SECONDS)
            for step, meaning in steps.items()
        ]
        self._all = [histogram.expect() for histogram in self.histograms]

    def observe(self, timings: Timings, texts: _DurationHistograms, count: int) -> None:
        """Counts one request here and its `count` texts in `texts`. The bucket is searched once for both."""
        tokenization_s = timings.tokenizing_s / max(1, count)
        seconds = (timings.total_s, tokenization_s, timings.waiting_s, timings.computing_s)
        for request, text, value in zip(self._all, texts._all, seconds, strict=True):
            bucket = bisect_left(SECONDS, value)
            request.counts[bucket] += 1
            request.total += value
            text.counts[bucket] += count
            text.total += value * count
