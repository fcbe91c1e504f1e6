"""Python imports this file at start in tests/safety/test_nothing_leaves.py. It records every resolved name and every
address outside loopback in the file WALL_LOG."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

_LOOKUPS = ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "socket.getnameinfo")
_SENDS = ("socket.connect", "socket.sendto", "socket.sendmsg")
_NEAR = ("127.", "::1", "localhost")


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _LOOKUPS:
        host = arguments[0]
    elif event in _SENDS and isinstance(arguments[-1], tuple):  # addresses of other families are local paths
        host = arguments[-1][0]
    else:
        return
    if host is not None and not str(host).startswith(_NEAR):
        with Path(os.environ["WALL_LOG"]).open("a") as log:
            log.write(f"{event} {host}\n")


if "WALL_LOG" in os.environ:
    sys.addaudithook(_watch)
