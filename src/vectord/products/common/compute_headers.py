"""What a request cost, in the headers of text-embeddings-inference and of embedding_server, which is a fork of it."""

from __future__ import annotations

from vectord.schema import Usage


def compute_headers(usage: Usage, characters: int | None = None) -> dict[str, str]:
    """Times in whole milliseconds. characters: where a dialect counts others than those of the inputs as sent."""
    timings = usage.timings
    total = _ms(timings.total_s)
    return {
        "x-compute-type": "gpu+optimized",  # a constant of TEI's, whatever the device
        "x-compute-time": total,
        "x-compute-characters": str(usage.characters if characters is None else characters),
        "x-compute-tokens": str(usage.tokens),
        "x-total-time": total,
        "x-tokenization-time": _ms(timings.tokenize_s),
        "x-queue-time": _ms(timings.queue_s),
        "x-inference-time": _ms(timings.inference_s),
    }


def _ms(seconds: float) -> str:
    return str(int(seconds * 1000))
