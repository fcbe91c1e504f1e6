"""`vectord serve --front-ends 2` as a user starts it: real processes, real sockets, real signals."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import trustme
from tests.real_server import running, wait_for

from vectord.cluster.processes import supervisor
from vectord.config import Config, ServerConfig
from vectord.errors import ConfigError

FAKE = ("--backend", "fake")
SEVERAL = ("--front-ends", "2", *FAKE)

OWN = re.compile(rb'"id":"[^"]*"|"created":\d+')  # these differ between two responses

# Of several dialects: answers, refusals, and what is no path.
ASKED = [
    ("/v1/embeddings", {"input": ["one", "two"], "encoding_format": "base64"}),
    ("/v1/embeddings", {"input": "cut", "dimensions": 10**6}),
    ("/v1/embeddings", {"inputt": "nothing"}),
    ("/embed", {"inputs": ["one", "two two"]}),
    ("/embed_all", {"inputs": ["one two three"]}),
    ("/tokenize", {"inputs": "one two"}),
    ("/rerank", {"query": "q", "texts": ["a", "b"]}),
    ("/v1/embed", {"texts": ["one"], "input_type": "search_query", "model": "nobody"}),
    ("/api/embed", {"model": "all-MiniLM-L6-v2", "input": 7}),
    ("/nowhere", {}),
]


def children(parent: int) -> dict[str, list[int]]:
    """The process ids of its children, by the last part of the module's name."""
    found: dict[str, list[int]] = {"engine": [], "front_end": []}
    for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        command = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        if len(command) > 3 and command[3].startswith("vectord.cluster.processes."):  # not so before exec
            found[command[3].rsplit(".")[-1]].append(int(pid))
    return found


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """With the log and the socket of the server. The path of a socket is short."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        with running(folder / "log", *SEVERAL, "--log-format", "json") as started:
            yield started


class Load:
    """Clients that send requests without a pause, each on its own connections. seen: the outcomes."""

    def __init__(self, url: str, clients: int = 6) -> None:
        self._url = url
        self._ends = threading.Event()
        self.seen: Counter[int | str] = Counter()
        self._threads = [threading.Thread(target=self._ask) for _ in range(clients)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()

    def _ask(self) -> None:
        number = 0
        while not self._ends.is_set():
            number += 1
            try:
                self.seen[httpx.post(f"{self._url}/embed", json={"inputs": f"{number}"}, timeout=20).status_code] += 1
            except httpx.HTTPError as problem:
                self.seen[type(problem).__name__] += 1


def ready(url: str) -> bool:
    return httpx.get(f"{url}/health/ready").status_code == 200


def test_each_line_of_the_log_names_its_process(server: tuple[str, subprocess.Popen[bytes]], folder: Path) -> None:
    """Also in JSON. The engine's process writes the line with the URL of the front-ends, when the models answer."""
    url, process = server
    log = folder / "log"
    wait_for(lambda: all(f'"front-end-{i}"' in log.read_text() for i in (1, 2)), process)
    wait_for(lambda: f"at {url} (console) and {url}/docs (API)" in log.read_text(), process)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {line.get("process") for line in lines} >= {"engine", "front-end-1", "front-end-2"}


@pytest.mark.usefixtures("server")
def test_only_the_user_can_reach_the_engines_socket(folder: Path) -> None:
    """Its folder has mode 0700."""
    (engine,) = folder.glob("vectord-*/engine")
    assert engine.is_socket()
    assert engine.parent.stat().st_mode & 0o777 == 0o700


# --- answers --------------------------------------------------------------------------------------------------


def test_answers_are_those_of_one_process(server: tuple[str, subprocess.Popen[bytes]], tmp_path: Path) -> None:
    """Byte for byte, including errors."""
    with running(tmp_path / "log", *FAKE) as (alone, _):
        for path, body in ASKED:
            one, several = (httpx.post(base + path, json=body) for base in (alone, server[0]))
            assert one.status_code == several.status_code, path
            assert OWN.sub(b"", one.content) == OWN.sub(b"", several.content), path
        assert httpx.get(f"{alone}/info").json().keys() == httpx.get(f"{server[0]}/info").json().keys()


# --- processes that die ---------------------------------------------------------------------------------------


def test_an_engine_that_dies_under_load_is_replaced(server: tuple[str, subprocess.Popen[bytes]]) -> None:
    """Meanwhile requests get 503."""
    url, process = server
    (engine,) = children(process.pid)["engine"]
    with Load(url) as load:
        wait_for(lambda: load.seen[200] > 20, process)
        os.kill(engine, signal.SIGKILL)
        wait_for(lambda: load.seen[503] > 0, process)
        wait_for(lambda: ready(url), process)
        before = load.seen[200]
        wait_for(lambda: load.seen[200] > before + 20, process)
    assert set(load.seen) == {200, 503}
    assert children(process.pid)["engine"] != [engine]


def test_a_stopped_engine_leaves_no_request_waiting(server: tuple[str, subprocess.Popen[bytes]]) -> None:
    """A request without a timeout gets 503, readiness says so within 2 s, and the server answers when it continues."""
    url, process = server
    (engine,) = children(process.pid)["engine"]
    os.kill(engine, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor() as threads:
            sent = threads.submit(httpx.post, f"{url}/embed", json={"inputs": "sent before it was noticed"}, timeout=60)
            wait_for(lambda: not ready(url), process, timeout_s=3)
            assert httpx.post(f"{url}/embed", json={"inputs": "sent after"}, timeout=60).status_code == 503
            assert sent.result().status_code == 503
    finally:
        os.kill(engine, signal.SIGCONT)
    wait_for(lambda: ready(url), process)
    assert httpx.post(f"{url}/embed", json={"inputs": "continued"}).status_code == 200


def test_a_front_end_that_dies_under_load_loses_only_its_connections(
    server: tuple[str, subprocess.Popen[bytes]],
) -> None:
    """Waiting connections go to another front-end, and it is replaced."""
    url, process = server
    dying = children(process.pid)["front_end"][0]
    with Load(url) as load:
        wait_for(lambda: load.seen[200] > 20, process)
        os.kill(dying, signal.SIGKILL)
        wait_for(lambda: len(set(children(process.pid)["front_end"]) - {dying}) == 2, process)
        before = load.seen[200]
        wait_for(lambda: load.seen[200] > before + 20, process)
    lost = sum(count for outcome, count in load.seen.items() if outcome not in (200, 503))
    assert lost <= 6  # at most one request of each client


@pytest.mark.parametrize(
    ("number", "receivers"),
    [(signal.SIGTERM, "supervisor"), (signal.SIGINT, "supervisor"), (signal.SIGTERM, "all")],
    ids=["SIGTERM", "SIGINT", "SIGTERM to all"],
)
def test_a_signal_drains_and_ends_all_processes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, receivers: str
) -> None:
    """With exit code 0; every accepted request is answered, and the socket's folder deleted. systemd sends SIGTERM to
    all processes of a service."""
    sockets, log = folder / "ended", tmp_path / "log"
    sockets.mkdir(exist_ok=True)
    monkeypatch.setenv("TMPDIR", str(sockets))
    command = [sys.executable, "-m", "vectord", "serve", "--port", "0", *SEVERAL]
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        url = wait_for(lambda: re.search(r"http://127\.0\.0\.1:\d+", log.read_text()), process)[0]
        wait_for(lambda: "listening" in log.read_text() and ready(url), process)
        process_ids = [pid for pids in children(process.pid).values() for pid in pids]
        with Load(url) as load:
            wait_for(lambda: load.seen[200] > 20, process)
            for pid in process_ids if receivers == "all" else []:
                os.kill(pid, number)
            process.send_signal(number)
            assert process.wait(timeout=30) == 0
    assert set(load.seen) <= {200, 503, "ConnectError", "ReadError", "RemoteProtocolError"}
    assert not any(Path(f"/proc/{pid}").exists() for pid in process_ids)
    assert not list(sockets.glob("vectord-*"))
    assert log.read_text().count("stopped") == 3
    assert "out of time" not in log.read_text()


@pytest.mark.parametrize("front_ends", ["1", "2"])
def test_sighup_reloads_the_certificate(tmp_path: Path, front_ends: str) -> None:
    """It ended the process without draining. An invalid file changes nothing."""
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    authority = trustme.CA()

    def write_certificate() -> str:
        issued = authority.issue_cert("localhost")
        issued.private_key_pem.write_to_path(key)
        issued.cert_chain_pems[0].write_to_path(chain)
        return chain.read_text()

    first, log = write_certificate(), tmp_path / "log"
    command = [sys.executable, "-m", "vectord", "serve", "--port", "0", "--front-ends", front_ends, *FAKE]
    command += ["--tls-cert-file", str(chain), "--tls-key-file", str(key)]
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            port = int(wait_for(lambda: re.search(r"https://127\.0\.0\.1:(\d+)", log.read_text()), process)[1])
            wait_for(lambda: log.read_text().count("listening") == int(front_ends), process)

            def served() -> str:
                return ssl.get_server_certificate(("127.0.0.1", port))

            assert served() == first
            second = write_certificate()
            process.send_signal(signal.SIGHUP)
            wait_for(lambda: all(served() == second for _ in range(16)), process)  # by each of the processes
            chain.write_text("no certificate")
            process.send_signal(signal.SIGHUP)
            wait_for(lambda: log.read_text().count("stays in force") >= int(front_ends), process)
            assert served() == second
        finally:
            process.terminate()
        assert process.wait(timeout=30) == 0


def test_the_processes_end_without_their_supervisor(tmp_path: Path) -> None:
    """A killed supervisor leaves no process running."""
    log = tmp_path / "log"
    command = [sys.executable, "-m", "vectord", "serve", "--port", "0", *SEVERAL]
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        wait_for(lambda: "listening" in log.read_text(), process)
        process_ids = [pid for pids in children(process.pid).values() for pid in pids]
        assert len(process_ids) == 3
        process.kill()
    deadline_s = time.monotonic() + 60
    while any(alive(pid) for pid in process_ids):
        assert time.monotonic() < deadline_s, log.read_text()


def alive(pid: int) -> bool:
    """Whether the process exists and is not a zombie: a killed supervisor does not reap its children."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it ended before the file was opened or read
        return False


# --- invalid configurations ------------------------------------------------------------------------------------


def started(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vectord", "serve", "--port", "0", "--front-ends", "3", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_an_invalid_configuration_is_one_line_and_exit_code_2() -> None:
    """Regardless of the number of processes."""
    ended = started("/no/such/model")
    lines = [line for line in ended.stderr.splitlines() if line.startswith("vectord:")]
    assert (ended.returncode, len(lines)) == (2, 1), ended.stderr


def test_without_a_folder_for_the_socket_the_start_ends_with_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On a read-only file system without shared memory."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    monkeypatch.setattr(supervisor, "SHARED_MEMORY", str(tmp_path / "neither"))
    with pytest.raises(ConfigError, match=r"no folder for a socket .* mount one"):
        supervisor.supervise(Config(server=ServerConfig(port=0)))


def test_a_port_in_use_is_an_error_before_the_start() -> None:
    """With exit code 2."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ended = started("--port", str(taken.getsockname()[1]))
    assert ended.returncode == 2
    assert "in use" in ended.stderr


def test_stored_batches_need_a_single_process(tmp_path: Path) -> None:
    """Several front-ends would each run them."""
    with pytest.raises(ConfigError, match="front_ends"):
        supervisor.supervise(Config(server=ServerConfig(port=0, batch_dir=str(tmp_path), front_ends=2)))
