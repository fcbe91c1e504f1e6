"""A front-end's process alone: the test acts as its supervisor and its engine."""

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

from vectord.cluster.processes.start import StartMessage
from vectord.cluster.remote.codec import EngineState, encode_value
from vectord.cluster.remote.frames import FrameKind, frame
from vectord.config import Config
from vectord.server.http.run import bind


@contextmanager
def front_end(engine_socket: str) -> Iterator[subprocess.Popen[bytes]]:
    """Given its message. engine_socket: where it will look for its engine."""
    with bind("127.0.0.1", 0) as port:
        message = StartMessage(
            config=Config(), name="front-end-1", listener=port.fileno(), engine_socket=engine_socket, url="http://h"
        )
        command = [sys.executable, "-P", "-m", "vectord.cluster.processes.front_end"]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=[port.fileno()]
        ) as process:
            try:
                assert process.stdin is not None
                process.stdin.write(message.encoded())
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


def send_state(to: socket.socket) -> None:
    fake = FakeEngine()
    state = EngineState(readiness=fake.readiness(), models=fake.models(), names={MODEL: MODEL})
    to.sendall(b"".join(frame(FrameKind.STATE, 0, encode_value(state))))


def end(process: subprocess.Popen[bytes], by: str) -> tuple[int, str]:
    """Its exit code and its output."""
    if by == "SIGTERM":
        process.send_signal(signal.SIGTERM)
    else:
        process.stdin.close()
    code = process.wait(timeout=30)
    return code, process.stderr.read().decode()


@pytest.mark.parametrize("by", ["the end of the supervisor", "SIGTERM"])
def test_it_ends_while_its_engine_is_away(engine: socket.socket, by: str) -> None:
    """An engine that sends no state does not delay the shutdown."""
    with front_end(engine.getsockname()) as process:
        first, _ = engine.accept()
        send_state(first)
        joined, _ = engine.accept()  # the engine sends nothing
        with first, joined:
            code, written = end(process, by)
    assert code == 0
    assert "stopped" in written
    assert "Traceback" not in written


def test_it_ends_if_no_process_holds_the_engines_socket(engine: socket.socket) -> None:
    """Supervisor and engine have ended before: it ends without output."""
    path = engine.getsockname()
    engine.close()
    with front_end(path) as process:
        code, written = end(process, "the end of the supervisor")
    assert (code, written) == (0, "")
