"""`python -m tests.attack.soak --minutes 30`: the attacks, in rounds, on a server that the soak test loads meanwhile.

Starts the server, with keys, gRPC and no cache; prints one table at the end; exits with 1 if something did not hold:
an attack succeeded, an answer was lost or wrong, a probe was late, or memory grew. Progress goes to stderr. The attacks
on TLS and on the cache need a second server, without other load; they run once, before the others.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import trustme
from bench.server_process import Server, free_port
from bench.soak import Soaked, load
from bench.soak_texts import Pool, make_long_pool, make_pool
from bench.subject import make_subject
from tests.attack import tls
from tests.attack.catalogue import ATTACKS
from tests.attack.keys import cache_oracle
from tests.attack.runner import HEADER, Attack, Limits, Result, row, run
from tests.attack.target import Target

SERVE = [sys.executable, "-m", "vectord", "serve"]
KEYS = {name: f"key of {name}" for name in ("attacker", "second-attacker", "soak", "witness")}
ATTACKERS = (KEYS["attacker"], KEYS["second-attacker"])
ON_TLS_AND_CACHE = (*tls.ATTACKS, cache_oracle)
FLAT = 1.1  # memory after the last round, relative to the second: buffers reach their largest size before
STATUSES_UNDER_LOAD = frozenset({200, 429, 503})
OVERHEAD_S = 4.0  # of an attack: starting the witness, probes before it, and settling after it
CONTROL_S = 1.0


@dataclass(slots=True)
class Rounds:
    """The results of each attack over all rounds, and the memory after each round."""

    results: dict[str, Result] = field(default_factory=dict)
    failures: dict[str, list[str]] = field(default_factory=dict)
    resident_bytes: list[int] = field(default_factory=list)

    def add(self, result: Result, limits: Limits) -> None:
        failures = self.failures.setdefault(result.name, [])
        failures += [each for each in result.failures(limits) if each not in failures]
        known = self.results.setdefault(result.name, result)
        if known is not result:
            merge(known, result)

    def grown(self) -> float:
        """The last size relative to the one after the second round; to the first if there are fewer than three."""
        sizes = self.resident_bytes
        return sizes[-1] / sizes[1 if len(sizes) > 2 else 0] if sizes else 1.0


def merge(known: Result, other: Result) -> None:
    """Add the counts and times of `other`. Memory: before the first, the most, after the last."""
    known.attempt.tried += other.attempt.tried
    known.attempt.outcomes += other.attempt.outcomes
    for fault in other.attempt.faults:
        known.attempt.fault(fault)
    known.control_ms += other.control_ms
    first, second = known.witnessed, other.witnessed
    first.probes_ms += second.probes_ms
    first.idle_ms += second.idle_ms
    first.answers_ms += second.answers_ms
    first.refused += second.refused
    first.wrong += second.wrong
    first.lost += second.lost
    before, most, _ = known.memory_bytes
    known.memory_bytes = before, max(most, other.memory_bytes[1]), other.memory_bytes[2]


def soak_failures(soaked: Soaked) -> list[str]:
    failures = []
    others = sum(count for status, count in soaked.statuses.items() if status not in STATUSES_UNDER_LOAD)
    for count, what in ((soaked.unanswered, "unanswered"), (soaked.wrong, "wrong vectors"), (others, "other statuses")):
        if count:
            failures.append(f"{count} {what}")
    return failures if soaked.texts else [*failures, "no answer"]


def soak_row(soaked: Soaked) -> tuple[str, ...]:
    latencies = "/".join(f"{np.percentile(soaked.latencies_ms or [0.0], percentile):.0f}" for percentile in (50, 99))
    sizes = [size for _, size in soaked.resident]
    memory = "/".join(f"{size / 2**20:.0f}" for size in (sizes[0], max(sizes), sizes[-1]))
    statuses = ", ".join(f"{status}: {count:,}" for status, count in soaked.statuses.most_common())
    failures = soak_failures(soaked)
    held = "no: " + "; ".join(failures) if failures else "yes"
    refused = str(soaked.refused)
    return (
        f"soak, {soaked.texts:,} vectors compared",
        f"{soaked.answered:,}",
        statuses,
        "",
        "",
        "",
        latencies,
        refused,
        memory,
        held,
    )


async def attack_tls_and_cache(folder: Path, seconds: float, connections: int, limits: Limits, rounds: Rounds) -> None:
    certificate = trustme.CA().issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(str(folder / "key.pem"))
    for pem in certificate.cert_chain_pems:
        pem.write_to_path(str(folder / "chain.pem"), append=True)
    port = free_port()
    files = "--tls-cert-file", str(folder / "chain.pem"), "--tls-key-file", str(folder / "key.pem")
    options = "--api-keys-file", str(write_keys(folder))
    with Server([*SERVE, "--port", str(port), *files, *options], port, folder / "tls.log") as server:
        target = Target(f"https://127.0.0.1:{port}", ATTACKERS, KEYS["witness"])
        await until_listening(server, target)
        for attack in ON_TLS_AND_CACHE:
            await attack_once(attack, target, seconds, connections, limits, rounds)


async def attack_loaded(
    folder: Path,
    pools: tuple[Pool, Pool],
    minutes: float,
    seconds: float,
    connections: int,
    limits: Limits,
    rounds: Rounds,
) -> Soaked:
    """Rounds of all other attacks until the time is over; at least one, in which the last may be cut off."""
    port, grpc_port = free_port(), free_port()
    options = *(pool.model for pool in pools), "--cache-bytes", "0", "--grpc-port", str(grpc_port), "--auto-truncate"
    options = *options, "--batch-dir", str(folder / "batches"), "--api-keys-file", str(write_keys(folder))
    with Server([*SERVE, "--port", str(port), *options], port, folder / "vectord.log") as server:
        names = tuple(KEYS)
        target = Target(f"http://127.0.0.1:{port}", ATTACKERS, KEYS["witness"], names, grpc_port)
        await until_listening(server, target)
        ends_s = time.monotonic() + minutes * 60
        soaking = asyncio.create_task(asyncio.to_thread(load, server, *pools, minutes * 60, KEYS["soak"]))
        while time.monotonic() < ends_s:
            for attack in (each for each in ATTACKS if each not in ON_TLS_AND_CACHE):
                if rounds.resident_bytes and time.monotonic() + seconds + OVERHEAD_S > ends_s:
                    break
                await attack_once(attack, target, seconds, connections, limits, rounds)
            else:
                rounds.resident_bytes.append(server.resident_bytes())
                continue
            break
        return await soaking


def write_keys(folder: Path) -> Path:
    path = folder / "keys.toml"
    path.touch(mode=0o600)
    path.write_text("".join(f'[[keys]]\nname = "{name}"\nsha256 = "{sha256(key)}"\n' for name, key in KEYS.items()))
    return path


def sha256(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


async def attack_once(
    attack: Attack, target: Target, seconds: float, connections: int, limits: Limits, rounds: Rounds
) -> None:
    result = await run(attack, target, seconds, connections, limits)
    rounds.add(result, limits)
    print(" | ".join(row(result, limits)), file=sys.stderr, flush=True)


async def until_listening(server: Server, target: Target) -> None:
    while True:
        try:
            if (await target.ask(target.get("/health/ready"))).status == 200:
                return
        except (OSError, EOFError):
            if server.process.poll() is not None:
                raise RuntimeError(server.log.read_text()[-2000:]) from None
        await asyncio.sleep(0.1)


def table(rounds: Rounds, soaked: Soaked, limits: Limits) -> tuple[list[tuple[str, ...]], bool]:
    """The rows under HEADER, and whether everything held."""
    shown = []
    for name, result in rounds.results.items():
        *cells, held = row(result, limits)
        failures = rounds.failures[name]
        shown.append((*cells, held if held == "-" else "no: " + "; ".join(failures) if failures else "yes"))
    shown.append(soak_row(soaked))
    sizes = "/".join(f"{size / 2**20:.0f}" for size in rounds.resident_bytes)
    is_flat = rounds.grown() <= FLAT
    judged = ("yes" if is_flat else f"no: {rounds.grown():.2f} times") if len(rounds.resident_bytes) > 1 else "-"
    shown.append(("memory after each round", f"{len(rounds.resident_bytes)}", "", "", "", "", "", "", sizes, judged))
    return shown, is_flat and not soak_failures(soaked) and not any(rounds.failures.values())


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.attack.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=6.0, help="for each attack (default: %(default)s)")
    parser.add_argument("--connections", type=int, default=200, help="of each attack (default: %(default)s)")
    parser.add_argument("--probe-ms", type=float, default=100.0, help="limit of probes at p99 (default: %(default)s)")
    parser.add_argument("--memory-mb", type=int, default=400, help="limit of growth after each (default: %(default)s)")
    options = parser.parse_args()
    limits = Limits(options.memory_mb * 2**20, options.probe_ms, CONTROL_S)
    rounds = Rounds()
    with tempfile.TemporaryDirectory(prefix="vectord-attack-") as name:
        folder = Path(name)
        subject = make_subject(Path(sys.executable), "openvino", "auto", folder)
        pools = make_pool(subject), make_long_pool(subject)
        asyncio.run(attack_tls_and_cache(folder, options.seconds, options.connections, limits, rounds))
        soaked = asyncio.run(
            attack_loaded(folder, pools, options.minutes, options.seconds, options.connections, limits, rounds)
        )
    rows, held = table(rounds, soaked, limits)
    for cells in (HEADER, *rows):
        print(" | ".join(cells))
    print("held" if held else "did not hold")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
