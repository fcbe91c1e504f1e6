"""Ports for servers that cannot choose one themselves, or whose port must be known before they start."""

from __future__ import annotations

import socket

_RESERVED: list[socket.socket] = []


def free_port() -> int:
    """A port of 127.0.0.1 that nothing else gets until this process ends.

    A socket stays bound to it and does not listen. Linux then gives the port to no connection and to no server that
    asks for any port, but to a server that names it and sets SO_REUSEADDR, as servers do.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    _RESERVED.append(reserved)
    port: int = reserved.getsockname()[1]
    return port
