"""`python -m tests.attack URL`: run every attack against a server on this machine and print what held.

    vectord serve --cache-bytes 0 --grpc-port 8001 &
    python -m tests.attack http://127.0.0.1:8000 --grpc-port 8001 --seconds 20 --connections 200

Exits with 1 if the server did not hold in one of them. It loads the server heavily: use it on your own.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from tests.attack import bodies, connections, floods, framing, grpc_frames, heads, keys
from tests.attack.runner import HEADER, Limits, row, run
from tests.attack.target import Target

FAMILIES = (heads, framing, connections, bodies, keys, floods, grpc_frames)  # in the order of a run


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.attack", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url", help="of the server, such as http://127.0.0.1:8000")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each attack (default: %(default)s)")
    parser.add_argument("--connections", type=int, default=200, help="of each attack (default: %(default)s)")
    parser.add_argument("--key", action="append", default=[], help="an API key of the attacker")
    parser.add_argument("--witness-key", default="", help="the API key of the client that must not notice the attacks")
    parser.add_argument("--grpc-port", type=int, help="also attack this gRPC port")
    parser.add_argument("--only", default="", help="attacks whose name contains this")
    parser.add_argument("--probe-ms", type=float, default=100.0, help="limit of probes at p99 (default: %(default)s)")
    parser.add_argument("--memory-mb", type=int, default=400, help="limit of growth after each (default: %(default)s)")
    options = parser.parse_args()
    target = Target(options.url, tuple(options.key), options.witness_key, options.grpc_port)
    limits = Limits(options.memory_mb * 2**20, options.probe_ms, control_s=2.0)
    print(" | ".join(HEADER), flush=True)
    held = True
    attacks = [attack for family in FAMILIES for attack in family.ATTACKS]
    for attack in (each for each in attacks if options.only in each.__name__):
        result = asyncio.run(run(attack, target, options.seconds, options.connections, limits))
        print(" | ".join(row(result, limits)), flush=True)
        held = held and not result.failures(limits)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
