"""The parent of several processes: engines, and the front-ends before them. Called by commands/serve.py.

There is one engine, or with device_processes one for each device; the first of them has the limits, figures and further
ports of all. The parent holds the port and the engines' sockets, so that none is lost with a process: what comes
meanwhile waits in the kernel for the next one. A process that ends unasked is replaced, after a pause that grows; one
that says it cannot start ends them all. An engine that can load no model ends them only if no other can: its device may
come back.
The end, on SIGTERM or SIGINT:

    the port is closed here -> the front-ends drain, answer and end -> the engines' processes drain and end

A second signal ends all of them at once. Each runs in a process group of its own: a Ctrl-C reaches this one alone.
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
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from vectord import compose
from vectord.cluster.processes.orders import Orders
from vectord.compute.processor import thread_budget
from vectord.config import Config
from vectord.engine.models.backend import settle_device
from vectord.errors import ConfigError, ExitCode
from vectord.server.http.run import BACKLOG, bind

FIRST_PAUSE_S = 0.1  # before a process that has ended is started again; twice as long each time
LONGEST_PAUSE_S = 30.0
STEADY_S = 60.0  # who has lived as long begins anew with the first pause
LAST_WORDS_S = 5.0  # beyond shutdown_timeout_secs, before a process is killed

_log = logging.getLogger("vectord.cluster.processes")


def supervise(config: Config) -> int:
    """Serve until told to stop. Returns the exit code. Raises ConfigError for a port that cannot be had."""
    if os.name != "posix":
        raise ConfigError("front_ends, device_processes: several processes need a POSIX system")
    listener = bind(config.server.host, config.server.port)
    folder = Path(tempfile.mkdtemp(prefix="vectord-"))  # 0700
    try:
        compose.warn_if_open(config.server)
        engines = [Engine(name, own, _engine_socket(folder / name)) for name, own in engine_configs(config)]
        return asyncio.run(Supervisor(config, listener, engines).run())
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def engine_configs(config: Config) -> list[tuple[str, Config]]:
    """The engines' names, and what each is to be: with device_processes, its own device and share of the processor."""
    if not config.server.device_processes:
        return [("engine", config)]
    given = config.device
    devices = settle_device(given).device.split(",")
    if len({device.partition(":")[0] for device in devices}) > 1:
        raise ConfigError(f"device_processes: {given.device} are of several kinds, which compute in other numbers")
    # A card's memory is planned by one process alone: named twice, it has the model twice there.
    times = Counter(devices).items() if devices[0].startswith("cuda") else [(device, 1) for device in devices]
    threads = max(1, (given.num_threads or thread_budget()) // len(times))
    server = replace(config.server, grpc_port=None, prometheus_port=None)
    found = []
    for place, (device, replicas) in enumerate(times, 1):
        own = replace(given, device=device, device_replicas=replicas * given.device_replicas, num_threads=threads)
        found.append((f"engine-{place}", replace(config, device=own, server=config.server if place == 1 else server)))
    return found


def _engine_socket(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(path))
        listener.listen(BACKLOG)
    except OSError as problem:  # a name that is too long, above all
        listener.close()
        raise ConfigError(f"front_ends: no socket can be made below TMPDIR ({problem.strerror or problem})") from None
    return listener


@dataclass(frozen=True, slots=True)
class Engine:
    """Of a process, which is made again and again."""

    name: str
    config: Config
    listener: socket.socket  # listening; closed at the end


class Supervisor:
    def __init__(self, config: Config, port: socket.socket, engines: Sequence[Engine]) -> None:
        """port: bound; closed at the end."""
        self._config = config
        self._port = port
        self._engines = engines
        self._stopping = asyncio.Event()
        self._code = 0
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._serving_nothing: set[str] = set()  # engines whose last process ended for that

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled, number)
        engines = [
            loop.create_task(self._keep(one.name, "vectord.cluster.processes.engine", one.config, one.listener))
            for one in self._engines
        ]
        names = [f"front-end-{place}" for place in range(1, max(1, self._config.server.front_ends) + 1)]
        front_ends = [
            loop.create_task(self._keep(name, "vectord.cluster.processes.front_end", self._config, self._port))
            for name in names
        ]
        _log.info("starting", extra={"fields": {"engines": len(engines), "front_ends": len(names)}})
        await self._stopping.wait()
        self._port.close()
        await self._end(names, front_ends)
        await self._end([one.name for one in self._engines], engines)
        for one in self._engines:
            one.listener.close()
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

    async def _keep(self, name: str, module: str, config: Config, listener: socket.socket) -> None:
        """This process, again and again, until all of them are to end."""
        pause_s = FIRST_PAUSE_S
        loop = asyncio.get_running_loop()
        while not self._stopping.is_set():
            began_s = loop.time()
            code = await self._one(name, module, config, listener)
            if self._stopping.is_set():
                return
            (self._serving_nothing.add if code == ExitCode.NOTHING_SERVED else self._serving_nothing.discard)(name)
            if code == ExitCode.BAD_START or self._serving_nothing.issuperset(one.name for one in self._engines):
                self._stop(code)
                return
            pause_s = FIRST_PAUSE_S if loop.time() - began_s >= STEADY_S else pause_s
            fields = {"process": name, "exit_code": code, "again_in_s": pause_s}
            _log.error("a process ended", extra={"fields": fields})
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _one(self, name: str, module: str, config: Config, listener: socket.socket) -> int:
        """Start it, wait for its end, and give its exit code: below 0, the signal that ended it."""
        sockets = tuple(one.listener.getsockname() for one in self._engines)
        orders = Orders(config=config, name=name, listener=listener.fileno(), engine_sockets=sockets)
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
            process.stdin.write(orders.encoded())
            await process.stdin.drain()
        try:
            return await process.wait()
        finally:
            del self._running[name]
            process.stdin.close()

    async def _end(self, names: Sequence[str], keeping: Sequence[asyncio.Task[None]]) -> None:
        """Tell these processes to end, and return when they have; who takes too long is killed."""
        self._tell(names, signal.SIGTERM)
        _, late = await asyncio.wait(keeping, timeout=self._config.server.shutdown_timeout_secs + LAST_WORDS_S)
        if late:
            self._tell(names, signal.SIGKILL)
            await asyncio.wait(late)

    def _tell(self, names: Sequence[str], number: signal.Signals) -> None:
        for name in names:
            if name in self._running:
                with suppress(ProcessLookupError):
                    self._running[name].send_signal(number)
