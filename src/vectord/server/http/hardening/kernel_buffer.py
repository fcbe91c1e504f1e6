"""How much of what was written to a socket the other side has not acknowledged. Asked by http_protocol.py."""

from __future__ import annotations

import asyncio
import struct


def kernel_bytes(transport: asyncio.BaseTransport) -> int:
    """Bytes in the kernel's send buffer; 0 where the system does not tell."""
    try:
        import fcntl  # noqa: PLC0415 - not on Windows
        import termios  # noqa: PLC0415
    except ImportError:
        return 0
    try:
        told = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
    except (OSError, AttributeError):  # no socket any more, or one that is asked otherwise
        return 0
    return int(struct.unpack("i", told)[0])
