"""`python -m bench.limits [REDIS_URL]`: CPU time of keys, limits, ids and metrics for a request.

This covers every step of a request with a named key, except engine and API: looking up the key, checking three buckets
(the address's, and the key's for tokens and requests), charging the tokens, and counting metrics. No HTTP and no model.
The CPU time of Redis is not counted.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from bench.wire import embedded
from vectord.config import ServerConfig
from vectord.engine.events import RequestEnded
from vectord.observability.exchange import Exchange
from vectord.observability.metrics import Metrics
from vectord.products.common.dialect import load_dialects
from vectord.products.common.errors import render_any
from vectord.server.admission.gate import Gate, caller_of, request_id
from vectord.server.admission.keys import new_key
from vectord.server.http.routing import Table

REQUESTS = 6000
ROUNDS = 3
AT_ONCE = (1, 32)
PATH = "/v1/embeddings"
PLENTY = 10**9


async def measure(config: ServerConfig, key: str) -> dict[int, float]:
    """Microseconds of CPU for a request, by the number of concurrent requests; the best round."""
    dialects = load_dialects(["openai"])
    table = Table(dialects, (), render_any)
    endpoint = table.find("POST", PATH).endpoint
    gate, metrics = Gate(config, dialects), Metrics("0")
    result = embedded(np.zeros((1, 8), np.float32))

    async def ask() -> None:
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        began_s = time.perf_counter()
        known = gate.keys.lookup(headers)
        name = request_id(headers)
        await gate.admit("10.0.0.1", known, headers, endpoint.dialect, admin=endpoint.admin)
        caller = caller_of(headers, "10.0.0.1", known, name, PATH)
        await gate.limits.spend(known, result)
        assert result.usage.timings is not None
        metrics.observe(
            RequestEnded(
                operation="embed",
                caller=caller,
                model="m",
                texts=1,
                tokens=12,
                lengths=result.usage.lengths,
                timings=result.usage.timings,
            )
        )
        metrics.observe(
            Exchange(
                method="POST",
                dialect="openai",
                route=PATH,
                status=200,
                request_id=name,
                began_s=began_s,
                ended_s=time.perf_counter(),
            )
        )

    try:
        await ask()  # opens connections
        return {at_once: min([await _cpu_us(ask, at_once) for _ in range(ROUNDS)]) for at_once in AT_ONCE}
    finally:
        await gate.limits.aclose()


async def _cpu_us(ask: Callable[[], Awaitable[None]], at_once: int) -> float:
    async def several() -> None:
        for _ in range(REQUESTS // at_once):
            await ask()

    began_s = time.process_time()
    await asyncio.gather(*(several() for _ in range(at_once)))
    return (time.process_time() - began_s) / (REQUESTS // at_once * at_once) * 1e6


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        key, stanza = new_key("bench")
        path = Path(folder) / "keys.toml"
        path.write_text(f"{stanza}requests_per_minute = {PLENTY}\ntokens_per_minute = {PLENTY}\n")
        path.chmod(0o600)
        free = Path(folder) / "free.toml"
        free.write_text(stanza)
        free.chmod(0o600)
        limited: dict[str, Any] = {
            "rate_limit_requests_per_minute": PLENTY,
            "rate_limit_burst_size": PLENTY,
            "api_keys_file": str(path),
        }
        configs = {
            "no limits": ServerConfig(rate_limit_requests_per_minute=0, api_keys_file=str(free)),
            "limits of this process": ServerConfig(**limited),
        }
        if len(sys.argv) > 1:
            configs["limits through Redis"] = ServerConfig(**limited, redis_url=sys.argv[1])
        for name, config in configs.items():
            for at_once, cpu_us in uvloop.run(measure(config, key)).items():
                print(f"{name}, {at_once} at once: {cpu_us:.0f} us")


if __name__ == "__main__":
    main()
