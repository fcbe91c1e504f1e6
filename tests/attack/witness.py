"""A client that behaves, in a process of its own: probes and embeddings during an attack, each answer compared.

    python -m tests.attack.witness URL KEY (empty: none)

Prints a line when it knows the right answers, and its counts as JSON when its input closes.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field

import httpx
import numpy as np

TEXTS = [f"witness {number}: {'a sentence about rivers, ' * (number % 7)}end" for number in range(24)]
LEAST_COSINE = 0.999  # another text's vector is much lower
PATIENCE_S = 15.0  # until a request counts as lost
PROBE_EVERY_S = 0.05
ASK_EVERY_S = 0.05


@dataclass(slots=True)
class Witnessed:
    probes_ms: list[float] = field(default_factory=list)
    probes_began_s: list[float] = field(default_factory=list)  # by the clock of all processes
    answers_ms: list[float] = field(default_factory=list)
    refused: int = 0  # 429 and 503
    wrong: int = 0
    lost: list[str] = field(default_factory=list)  # probes and requests without an answer, or with a wrong status

    def take_probes_before(self, attack_s: float) -> tuple[float, ...]:
        """Removes the probes that ended before the attack, and returns their times."""
        ends_s = [began_s + ms / 1e3 for began_s, ms in zip(self.probes_began_s, self.probes_ms, strict=True)]
        count = sum(end_s <= attack_s for end_s in ends_s)
        before, self.probes_ms = tuple(self.probes_ms[:count]), self.probes_ms[count:]
        del self.probes_began_s[:count]
        return before


class Witness:
    def __init__(self, url: str, key: str) -> None:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._client = httpx.AsyncClient(
            base_url=url, headers=headers, timeout=PATIENCE_S, verify=False, trust_env=False
        )
        self._vectors: list[np.ndarray] = []
        self.found = Witnessed()

    async def learn(self) -> None:
        answer = (await self._embed(TEXTS)).raise_for_status().json()
        self._vectors = [_decoded(item["embedding"]) for item in answer["data"]]

    async def watch(self) -> None:
        await asyncio.gather(self._repeat(self._probe, PROBE_EVERY_S), self._repeat(self._ask, ASK_EVERY_S))

    async def _repeat(self, one: Callable[[int], Awaitable[None]], every_s: float) -> None:
        number = 0
        while True:
            began_s = time.perf_counter()
            try:
                await one(number)
            except httpx.HTTPError as error:
                self.found.lost.append(f"{one.__name__.strip('_')}: {type(error).__name__}")
            number += 1
            await asyncio.sleep(max(0.0, every_s - (time.perf_counter() - began_s)))

    async def _probe(self, number: int) -> None:
        """On a connection of its own, as an orchestrator does."""
        began_s = time.perf_counter()
        begins_s = time.monotonic()
        status = (await self._client.get("/health/live", headers={"connection": "close"})).status_code
        self.found.probes_ms.append((time.perf_counter() - began_s) * 1e3)
        self.found.probes_began_s.append(begins_s)
        if status != 200:
            self.found.lost.append(f"probe: {status}")

    async def _ask(self, number: int) -> None:
        began_s = time.perf_counter()
        answer = await self._embed(TEXTS[number % len(TEXTS)])
        if answer.status_code in (429, 503):
            self.found.refused += 1
        elif answer.status_code != 200:
            self.found.lost.append(f"ask: {answer.status_code}")
        else:
            self.found.answers_ms.append((time.perf_counter() - began_s) * 1e3)
            cosine = float(_vector(answer) @ self._vectors[number % len(TEXTS)])
            self.found.wrong += not cosine >= LEAST_COSINE  # NaN is wrong too

    async def _embed(self, text: str | list[str]) -> httpx.Response:
        return await self._client.post("/v1/embeddings", json={"input": text, "encoding_format": "base64"})


def _vector(answer: httpx.Response) -> np.ndarray:
    return _decoded(answer.raise_for_status().json()["data"][0]["embedding"])


def _decoded(encoded: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(encoded), np.float32)


async def main(url: str, key: str) -> None:
    witness = Witness(url, key)
    await witness.learn()
    print("ready", flush=True)
    watching = asyncio.create_task(witness.watch())
    await asyncio.to_thread(sys.stdin.read)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    print(json.dumps(asdict(witness.found)), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
