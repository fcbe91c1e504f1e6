"""te_*: text-embeddings-inference's families, which the server it was made from has too.

Per text where TEI's are per text: a request's texts count with the means of their times.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vectord.engine.observer import BatchReport, RequestReport
from vectord.observability.instruments import Counter, Gauge, Histogram
from vectord.products.common.operations import EMBEDS, PREDICTS
from vectord.schema import Timings

if TYPE_CHECKING:
    from prometheus_client.core import Metric

SECONDS = tuple(0.000015 * 1.5**power for power in range(35))  # 15 us to 14.6 s
LENGTHS = tuple(float(2**power) for power in range(20))  # 1 to 524,288
TEXTS = tuple(float(2**power) for power in range(13))  # 1 to 4,096
TOKENS = tuple(float(2**power) for power in range(21))  # 1 to 1,048,576

# An error's class name -> what TEI calls it in te_request_failure{err}. Others never reach TEI's counters.
FAILURES: Mapping[str, str] = {
    "Untokenizable": "tokenization",
    "Overloaded": "overloaded",
    "Unavailable": "overloaded",
    "ShuttingDown": "overloaded",
    "TimedOut": "overloaded",
    "ModelCannot": "model_type",
    "ModelNotFound": "validation",
    "FingerprintMismatch": "validation",
    "InvalidRequest": "validation",
    "InvalidField": "validation",
    "WrongType": "validation",
    "MissingField": "validation",
    "EmptyInput": "validation",
    "InputTooLong": "validation",
    "TooManyCharacters": "validation",
    "ForeignIds": "validation",
    "TooManyInputs": "batch_size",
    "InferenceFailed": "inference",
    "InferenceTimedOut": "inference",
    "OutOfMemory": "inference",
    "Cancelled": "dropped",
}
NEVER = ("missing_values", "queue_full")  # errors that only TEI's gRPC and seed 000 have


class TeiFamilies:
    def __init__(self) -> None:
        self.count = Counter("te_request_count", "Inference requests", ("method",))
        self.success = Counter("te_request_success", "Inference requests that succeeded", ("method",))
        self.failure = Counter("te_request_failure", "Inference requests that failed", ("err",))
        self.texts = Counter("te_embed_count", "Texts to embed")
        self.texts_success = Counter("te_embed_success", "Texts embedded")
        self.pairs = Counter("te_predict_count", "Texts or pairs to score")
        self.pairs_success = Counter("te_predict_success", "Texts or pairs scored")
        self.lengths = Histogram("te_request_input_length", "Tokens a text", LENGTHS)
        self.queue_texts = Gauge("te_queue_size", "Texts waiting")
        self.batch_texts = Histogram("te_batch_next_size", "Texts a batch", TEXTS)
        self.batch_tokens = Histogram("te_batch_next_tokens", "Tokens a batch", TOKENS)
        self._lengths = self.lengths.expect()
        self._request = _Durations("request", "a request")
        self._embed = _Durations("embed", "a text to embed")
        self._predict = _Durations("predict", "a text or pair to score")
        for method in ("single", "batch"):
            self.count.expect(method)
            self.success.expect(method)
        for failure in (*FAILURES.values(), *NEVER):
            self.failure.expect(failure)

    def request_answered(self, report: RequestReport) -> None:
        predicts = report.operation in PREDICTS
        if not predicts and report.operation not in EMBEDS:
            return
        method = "batch" if report.texts > 1 else "single"  # a failed request tells no number
        self.count.add(1, method)
        (self.pairs if predicts else self.texts).add(report.texts)
        if report.error is not None:
            self.failure.add(1, FAILURES.get(report.error, "inference"))
            return
        self.success.add(1, method)
        (self.pairs_success if predicts else self.texts_success).add(report.texts)
        self._request.observe(report.timings, self._predict if predicts else self._embed, report.texts)
        for length in report.lengths:
            self._lengths.observe(length.kept)

    def batch_ran(self, report: BatchReport) -> None:
        self.batch_texts.observe(report.texts)
        self.batch_tokens.observe(report.tokens)

    def histograms_and_gauges(self) -> Sequence[Histogram | Gauge]:
        plain = (self.lengths, self.queue_texts, self.batch_texts, self.batch_tokens)
        return (*self._request.histograms, *self._embed.histograms, *self._predict.histograms, *plain)

    def counters(self) -> Sequence[Counter]:
        """Apart, because the library would put _total behind their names, which TEI does not."""
        return [made for made in vars(self).values() if type(made) is Counter]

    def counters_text(self) -> bytes:
        """The counters in the text format. Label values are our own words and need no escaping."""
        lines = []
        for counter in self.counters():
            lines += [f"# HELP {counter.name} {counter.meaning}", f"# TYPE {counter.name} counter"]
            for values, value in list(counter.values.items()):
                labels = ",".join(f'{label}="{text}"' for label, text in zip(counter.labels, values, strict=True))
                lines.append(f"{counter.name}{f'{{{labels}}}' if labels else ''} {value}")
        return "".join(f"{line}\n" for line in lines).encode()

    def counters_of_no_type(self) -> list[Metric]:
        """The counters for OpenMetrics, where one must be called _total and what is of unknown type need not."""
        from prometheus_client.core import Metric  # noqa: PLC0415

        families = []
        for counter in self.counters():
            family = Metric(counter.name, counter.meaning, "unknown")
            for values, value in list(counter.values.items()):
                family.add_sample(counter.name, dict(zip(counter.labels, values, strict=True)), value)
            families.append(family)
        return families


class _Durations:
    """The four histograms of one thing: in all, tokenising, waiting, computing."""

    def __init__(self, name: str, of_what: str) -> None:
        self.histograms = [
            Histogram(f"te_{name}_{step}duration", f"Seconds {doing}, of {of_what}", SECONDS)
            for step, doing in (
                ("", "in all"),
                ("tokenization_", "tokenising"),
                ("queue_", "waiting"),
                ("inference_", "computing"),
            )
        ]
        self._all = [histogram.expect() for histogram in self.histograms]

    def observe(self, timings: Timings, texts: _Durations, count: int) -> None:
        """Of one request, and of its so many `texts`. By hand: the buckets are the same and need be found once."""
        seconds = (timings.total_s, timings.tokenize_s, timings.queue_s, timings.inference_s)
        for own, theirs, value in zip(self._all, texts._all, seconds, strict=True):
            place = bisect_left(SECONDS, value)
            own.counts[place] += 1
            own.total += value
            theirs.counts[place] += count
            theirs.total += value * count
