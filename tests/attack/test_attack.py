"""Every attack, briefly, against real servers. Only `python -m tests.attack` judges times."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from tests.attack import bodies, framing, heads
from tests.attack.__main__ import FAMILIES
from tests.attack.runner import Attack, Limits, run
from tests.attack.target import Attempt, Target
from tests.keys import entry, keys_file
from tests.ports import free_port
from tests.real_server import running

SECONDS = 1.0
CONNECTIONS = 20
KEYS = ("a key of one tenant", "a key of another")
ENTRIES = [entry(f"tenant-{number}", key) for number, key in enumerate(KEYS)]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp("plain")
    port = free_port()
    options = ("--cache-bytes", "0", "--grpc-port", str(port), "--api-keys-file", keys_file(folder, *ENTRIES))
    with running(folder / "log", *options) as (url, _):
        yield Target(url, KEYS[:1], KEYS[1], grpc_port=port)


def all_at_once(family: ModuleType, attempts: dict[str, Attempt]) -> Attack:
    """One attack made of all attacks of the family; `attempts` receives what each did."""

    async def attack(target: Target, attempt: Attempt) -> None:
        attempts.update({each.__name__: Attempt(attempt.seconds, attempt.connections) for each in family.ATTACKS})
        await asyncio.gather(*(each(target, attempts[each.__name__]) for each in family.ATTACKS))

    return attack


async def check(family: ModuleType, target: Target) -> None:
    attempts: dict[str, Attempt] = {}
    result = await run(all_at_once(family, attempts), target, SECONDS, CONNECTIONS, Limits())
    assert not result.failures(Limits())
    assert {name: attempt.faults for name, attempt in attempts.items() if attempt.faults} == {}
    assert all(attempt.tried or attempt.skipped for attempt in attempts.values())
    assert result.witnessed.probes_ms
    skipped = {name: attempt.skipped for name, attempt in attempts.items()}
    assert not all(skipped.values()), skipped


@pytest.mark.parametrize("family", FAMILIES, ids=lambda each: each.__name__)
async def test_the_server_holds(family: ModuleType, plain: Target) -> None:
    """Probes are answered, vectors are right, memory is bounded, and no attack gets what it must not have."""
    await check(family, plain)


async def test_front_ends_hold(tmp_path: Path) -> None:
    """Several processes accept the connections; each refuses what is malformed."""
    with running(tmp_path / "log", "--cache-bytes", "0", "--front-ends", "2") as (url, _):
        await check(framing, Target(url))


async def test_a_server_that_accepts_everything_is_found() -> None:
    """The attacks can fail: this server answers 200 to any bytes."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65_536):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 15\r\n\r\n" + b'{"embedding":[1')
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        target = Target(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", ("key",))
        for attack in (heads.rejected_heads, framing.malformed_requests, bodies.decompression_bombs):
            attempt = Attempt(1.0, 4)
            await attack(target, attempt)
            assert attempt.tried and attempt.faults, attack.__name__
