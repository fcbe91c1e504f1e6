"""What the parent tells a process that it starts, on its standard input: once, and then never again.

The pipe stays open as long as the parent lives: its end is how the others know that they are alone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import msgspec

from vectord.config import Config
from vectord.errors import ExitCode, StartError

_LENGTH = struct.Struct("<I")


_log = logging.getLogger("vectord")


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    config: Config
    name: str  # of the process, in its log lines
    listener: int  # inherited: an engine's Unix socket, a front-end's port
    engine_socket: str  # its path

    def encoded(self) -> bytes:
        content = msgspec.msgpack.encode(self)
        return _LENGTH.pack(len(content)) + content


def read_orders() -> Orders:
    """Blocks until they are there. Raises EOFError if the parent ended before."""
    pipe = sys.stdin.fileno()
    (length,) = _LENGTH.unpack(_exactly(pipe, _LENGTH.size))
    return msgspec.msgpack.decode(_exactly(pipe, length), type=Orders)


def when_alone(tell: Callable[[], None]) -> None:
    """Call `tell` on the running loop once the parent has ended."""
    loop = asyncio.get_running_loop()

    def look() -> None:
        if not os.read(sys.stdin.fileno(), 1):
            loop.remove_reader(sys.stdin.fileno())
            tell()

    loop.add_reader(sys.stdin.fileno(), look)


def end(main: Callable[[], int]) -> NoReturn:
    """Run a process's `main`, and end with its exit code, whatever threads are still in somebody's native code."""
    try:
        code = main()
    except StartError as problem:
        sys.stderr.write(f"vectord: {problem.message}\n")
        code = ExitCode.BAD_START
    except EOFError:  # the parent is gone before anything began
        code = 0
    except Exception:
        _log.exception("this process failed")
        code = ExitCode.CRASHED
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _exactly(file: int, size_bytes: int) -> bytes:
    content = b""
    while len(content) < size_bytes:
        more = os.read(file, size_bytes - len(content))
        if not more:
            raise EOFError
        content += more
    return content
