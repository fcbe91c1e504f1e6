"""How the supervisor starts a process: a message on its standard input, and the exit code.

The pipe stays open as long as the supervisor lives: the end of the input means that the supervisor has ended.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import struct
import sys
from collections.abc import Callable
from typing import NoReturn

import msgspec

from vectord import GC_THRESHOLDS
from vectord.cluster.remote.frames import read_exactly
from vectord.config import Config
from vectord.errors import ExitCode, StartError
from vectord.observability.log_stream import drain_logs

_LENGTH = struct.Struct("<I")

_log = logging.getLogger("vectord")


class StartMessage(msgspec.Struct, frozen=True, kw_only=True):
    config: Config
    name: str  # of the process, for its log lines
    listener: int  # inherited file descriptor: the engine's Unix socket, or the front-ends' port
    engine_socket: str  # its path
    url: str  # of the front-ends

    def encoded(self) -> bytes:
        content = msgspec.msgpack.encode(self)
        return _LENGTH.pack(len(content)) + content


def read_start_message() -> StartMessage:
    """Blocks. Raises EOFError if the supervisor has ended."""
    pipe = sys.stdin.fileno()
    (length,) = _LENGTH.unpack(read_exactly(pipe, _LENGTH.size))
    return msgspec.msgpack.decode(read_exactly(pipe, length), type=StartMessage)


def on_supervisor_end(callback: Callable[[], None]) -> None:
    """Call `callback` on the running loop when the supervisor has ended."""
    loop = asyncio.get_running_loop()

    def check() -> None:
        if not os.read(sys.stdin.fileno(), 1):
            loop.remove_reader(sys.stdin.fileno())
            callback()

    loop.add_reader(sys.stdin.fileno(), check)


def on_signals(shut_down: Callable[[], object], reload: Callable[[], object]) -> None:
    """Call `shut_down` at SIGINT and SIGTERM, and `reload` at SIGHUP, on the running loop. systemd signals every
    process of a service, so that a process may get SIGTERM twice."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, shut_down)
    loop.add_signal_handler(signal.SIGHUP, reload)


def run_and_exit(main: Callable[[], int]) -> NoReturn:
    """Run `main` and exit with its code, even if threads are still in native code."""
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        code = main()
    except StartError as problem:
        drain_logs()
        sys.stderr.write(f"vectord: {problem.message}\n")
        code = ExitCode.BAD_START
    except EOFError:  # the supervisor ended before the start
        code = 0
    except Exception:
        _log.exception("this process failed")
        code = ExitCode.CRASHED
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
