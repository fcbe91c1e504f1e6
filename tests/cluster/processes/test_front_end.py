"""A front-end's process by itself: the test is its parent, and its engine."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.server.fakes import MODEL, FakeEngine

from vectord.cluster.processes.orders import Orders
from vectord.cluster.remote.codec import encode_value
from vectord.cluster.remote.frames import Kind, frame
from vectord.cluster.remote.messages import State
from vectord.config import Config
from vectord.server.http.run import bind


@contextmanager
def front_end(engine_socket: str) -> Iterator[subprocess.Popen[bytes]]:
    """Given its orders. engine_socket: where it will look for its engine."""
    with bind("127.0.0.1", 0) as port:
        orders = Orders(config=Config(), name="front-end-1", listener=port.fileno(), engine_socket=engine_socket)
        command = [sys.executable, "-P", "-m", "vectord.cluster.processes.front_end"]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=[port.fileno()]
        ) as process:
            try:
                assert process.stdin is not None
                process.stdin.write(orders.encoded())
                process.stdin.flush()
                yield process
            finally:
                process.kill()


@pytest.fixture
def engine() -> Iterator[socket.socket]:
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/engine")
        listener.listen()
        listener.settimeout(60)
        yield listener


def say_what_is_served(to: socket.socket) -> None:
    fake = FakeEngine()
    state = State(readiness=fake.readiness(), models=fake.models(), names={MODEL: MODEL})
    to.sendall(b"".join(frame(Kind.STATE, 0, encode_value(state))))


def end(process: subprocess.Popen[bytes], by: str) -> tuple[int, str]:
    """Its exit code, and what it wrote."""
    if by == "SIGTERM":
        process.send_signal(signal.SIGTERM)
    else:
        process.stdin.close()
    code = process.wait(timeout=30)
    return code, process.stderr.read().decode()


@pytest.mark.parametrize("by", ["its parent's end", "SIGTERM"])
def test_it_ends_while_its_engine_is_away(engine: socket.socket, by: str) -> None:
    """An engine that had begun and is gone before this process joins it holds nobody up who wants to end."""
    with front_end(engine.getsockname()) as process:
        first, _ = engine.accept()
        say_what_is_served(first)
        joined, _ = engine.accept()  # and nothing is said
        with first, joined:
            code, written = end(process, by)
    assert code == 0
    assert "stopped" in written
    assert "Traceback" not in written


def test_nobody_behind_its_socket_is_the_end(engine: socket.socket) -> None:
    """Parent and engine are gone before it has asked: nothing to report, nobody to report to."""
    path = engine.getsockname()
    engine.close()
    with front_end(path) as process:
        code, written = end(process, "its parent's end")
    assert (code, written) == (0, "")
