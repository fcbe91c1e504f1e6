"""The cost of a request in the headers of TEI and its fork embedding_server."""

from __future__ import annotations

from vectord.schema import Usage


def compute_headers(usage: Usage, characters: int | None = None) -> dict[str, str]:
    """TEI's headers, with times in whole milliseconds. characters: a product's own count; None: those of the inputs.

    x-compute-type is the constant gpu+optimized in TEI. Here it names what computed; a handler class with the device
    `auto` selects that itself, and the header is absent.
    """
    timings = usage.timings
    total = _ms(timings.total_s)
    computed_on = {"cpu": "cpu", "cuda": "gpu", "mps": "gpu"}.get(usage.device.partition(":")[0])
    return ({} if computed_on is None else {"x-compute-type": f"{computed_on}+optimized"}) | {
        "x-compute-time": total,
        "x-compute-characters": str(usage.characters if characters is None else characters),
        "x-compute-tokens": str(usage.tokens),
        "x-total-time": total,
        "x-tokenization-time": _ms(tokenization_s(usage)),
        "x-queue-time": _ms(timings.waiting_s),
        "x-inference-time": _ms(timings.computing_s),
    }


def tokenization_s(usage: Usage) -> float:
    """TEI's mean over the texts."""
    return usage.timings.tokenizing_s / max(1, len(usage.lengths))


def _ms(seconds: float) -> str:
    return str(int(seconds * 1000))
