"""A process that reads and writes HTTP: `python -m vectord.cluster.processes.front_end`, started by supervisor.py.

It waits until the engine's process is there, of several the first one's, and then serves as one process does, on a port
that it inherits: whichever front-end is free takes the next connection. Without a parent it drains and ends.
"""

from __future__ import annotations

import socket
from pathlib import Path

from vectord import compose
from vectord.cluster.processes.orders import end, read_orders, when_alone
from vectord.cluster.remote.link import Link, first_state
from vectord.observability import logs
from vectord.server.http import run


def main() -> int:
    """The exit code. Raises StartError."""
    orders = read_orders()
    logs.configure(orders.config.telemetry, process=orders.name)
    first, *others = map(Path, orders.engine_sockets)
    links = [Link(first, first_state(first)), *map(Link, others)]
    app = compose.build_front_end(orders.config, links, when_alone)
    run.serve(app, orders.config.server, listener=socket.socket(fileno=orders.listener))
    return 0


if __name__ == "__main__":
    end(main)
