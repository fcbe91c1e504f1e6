"""The parent of several processes: the engine's, and the front-ends before it. Called by cli/commands/serve.py.

The parent holds the port and the engine's socket, so that connections wait in the kernel while a process is replaced.
A process that ends unexpectedly is restarted, after a pause that grows. A process that cannot start, and an engine that
can load no model, end all of them. The shutdown, on SIGTERM or SIGINT:

    the port is closed here -> the front-ends drain, answer and end -> the engine's process drains and ends

A second signal ends all of them at once. SIGHUP goes to all of them. Each runs in a process group of its own: Ctrl-C
reaches only the parent. A SIGTERM to all processes, as by systemd, drains them in the same order.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from vectord import compose
from vectord.cluster.processes.start import StartMessage
from vectord.config import Config
from vectord.errors import ConfigError, ExitCode
from vectord.server.http.listener import bind, certificate_of, url_of
from vectord.server.http.port import BACKLOG

ENGINE = "engine"  # the name of its process
FIRST_PAUSE_S = 0.1  # before a restart; doubles each time
LONGEST_PAUSE_S = 30.0
STABLE_S = 60.0  # a process that ran this long is restarted after the first pause again
KILL_DELAY_S = 5.0  # after shutdown_timeout_secs
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - for mkdtemp
_log = logging.getLogger("vectord.cluster.processes")


def supervise(config: Config) -> int:
    """Serve until a signal. Returns the exit code. Raises ConfigError if the port is not available."""
    if os.name != "posix":
        raise ConfigError("front_ends: several processes need a POSIX system")
    if config.server.batch_dir is not None:
        raise ConfigError("batch_dir: files and batches need a single process; set front_ends to 1")
    folder = _private_folder()
    try:
        listener = bind(config.server.host, config.server.port)
        listener.listen(BACKLOG)  # the engine may be ready, and log the address, before a front-end accepts
        compose.warn_if_open(config.server)
        return asyncio.run(Supervisor(config, listener, _engine_socket(folder / ENGINE)).run())
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _private_folder() -> Path:
    """For the socket, of mode 0700. A read-only container can still write to SHARED_MEMORY."""
    for parent in (None, SHARED_MEMORY):
        with suppress(OSError):
            return Path(tempfile.mkdtemp(prefix="vectord-", dir=parent))
    raise ConfigError(f"front_ends: no folder for a socket can be made in TMPDIR, /tmp or {SHARED_MEMORY}; mount one")


def _engine_socket(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(path))
        listener.listen(BACKLOG)
    except OSError as problem:  # usually a path that is too long
        listener.close()
        raise ConfigError(f"front_ends: no socket can be made below TMPDIR ({problem.strerror or problem})") from None
    return listener


class Supervisor:
    def __init__(self, config: Config, port: socket.socket, engine_socket: socket.socket) -> None:
        """port: bound. engine_socket: listening. Both are closed at the end."""
        self._config = config
        self._port = port
        self._url = url_of(port, "http" if certificate_of(config.server) is None else "https")
        self._engine_socket = engine_socket
        self._stopping = asyncio.Event()
        self._code = 0
        self._running: dict[str, asyncio.subprocess.Process] = {}

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled, number)
        # All processes read their keys and certificates again.
        loop.add_signal_handler(signal.SIGHUP, lambda: self._send_signal(list(self._running), signal.SIGHUP))
        engine = loop.create_task(self._keep_running(ENGINE, "vectord.cluster.processes.engine", self._engine_socket))
        names = [f"front-end-{place}" for place in range(1, self._config.server.front_ends + 1)]
        front_ends = [
            loop.create_task(self._keep_running(name, "vectord.cluster.processes.front_end", self._port))
            for name in names
        ]
        _log.info("starting", extra={"fields": {"front_ends": len(names)}})
        await self._stopping.wait()
        self._port.close()
        await self._end(names, front_ends)
        await self._end([ENGINE], [engine])
        self._engine_socket.close()
        return self._code

    def _stop(self, code: int) -> None:
        if not self._stopping.is_set():
            self._code = code
            self._stopping.set()

    def _signalled(self, number: int) -> None:
        if not self._stopping.is_set():
            self._stop(0)
            return
        for process in self._running.values():
            with suppress(ProcessLookupError):
                process.kill()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    async def _keep_running(self, name: str, module: str, listener: socket.socket) -> None:
        pause_s = FIRST_PAUSE_S
        loop = asyncio.get_running_loop()
        while not self._stopping.is_set():
            started_s = loop.time()
            code = await self._run(name, module, listener)
            if self._stopping.is_set():
                return
            if code in (ExitCode.BAD_START, ExitCode.NOTHING_SERVED):
                self._stop(code)
                return
            pause_s = FIRST_PAUSE_S if loop.time() - started_s >= STABLE_S else pause_s
            fields = {"process": name, "exit_code": code, "restart_in_s": pause_s}
            _log.error("a process ended", extra={"fields": fields})
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _run(self, name: str, module: str, listener: socket.socket) -> int:
        """Run it to its end. Returns its exit code; a negative one is the signal that ended it."""
        path = self._engine_socket.getsockname()
        number = listener.fileno()
        message = StartMessage(config=self._config, name=name, listener=number, engine_socket=path, url=self._url)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            module,
            stdin=asyncio.subprocess.PIPE,
            pass_fds=[listener.fileno()],
            process_group=0,
        )
        self._running[name] = process
        assert process.stdin is not None, "it is a pipe"
        with suppress(BrokenPipeError, ConnectionResetError):
            process.stdin.write(message.encoded())
            await process.stdin.drain()
        try:
            return await process.wait()
        finally:
            del self._running[name]
            process.stdin.close()

    async def _end(self, names: Sequence[str], tasks: Sequence[asyncio.Task[None]]) -> None:
        """Returns when these processes have ended. Kills them after a timeout."""
        self._send_signal(names, signal.SIGTERM)
        _, late = await asyncio.wait(tasks, timeout=self._config.server.shutdown_timeout_secs + KILL_DELAY_S)
        if late:
            self._send_signal(names, signal.SIGKILL)
            await asyncio.wait(late)

    def _send_signal(self, names: Sequence[str], number: signal.Signals) -> None:
        for name in names:
            if name in self._running:
                with suppress(ProcessLookupError):
                    self._running[name].send_signal(number)
