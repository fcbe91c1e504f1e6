"""The cost of a request in the headers of TEI and its fork embedding_server."""

from __future__ import annotations

from collections.abc import Sequence

from vectord.schema import Usage


def compute_headers(usage: Usage, characters: int | None = None) -> dict[str, str]:
    """TEI's headers, with times in whole milliseconds. characters: a product's own count; None: those of the inputs.

    x-compute-type is the constant gpu+optimized in TEI. Here it names what computed; a handler class with the device
    `auto` selects that itself, and the header is absent.
    """
    total = _ms(usage.timings.total_s)
    tokenization, queue, inference = map(_ms, mean_times([usage]))
    computed_on = {"cpu": "cpu", "cuda": "gpu", "mps": "gpu"}.get(usage.device.partition(":")[0])
    return ({} if computed_on is None else {"x-compute-type": f"{computed_on}+optimized"}) | {
        "x-compute-time": total,
        "x-compute-characters": str(usage.characters if characters is None else characters),
        "x-compute-tokens": str(usage.tokens),
        "x-total-time": total,
        "x-tokenization-time": tokenization,
        "x-queue-time": queue,
        "x-inference-time": inference,
    }


def mean_times(usages: Sequence[Usage]) -> tuple[float, float, float]:
    """Mean seconds: of tokenization for a text, in the queue and of inference for a request."""
    times = [usage.timings for usage in usages]
    texts = max(1, sum(len(usage.lengths) for usage in usages))
    return (
        sum(each.tokenizing_s for each in times) / texts,
        sum(each.waiting_s for each in times) / len(times),
        sum(each.computing_s for each in times) / len(times),
    )


def _ms(seconds: float) -> str:
    return str(int(seconds * 1000))
