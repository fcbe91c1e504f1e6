"""One real server for all clients in this folder, started as an operator starts it.

These tests run in an environment of the clients' packages (requirements.txt says which), the server in its own: by
VECTORD_COMMAND, or else by .venv-dev's interpreter.
"""

from __future__ import annotations

import base64
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import numpy.typing as npt
import pytest
from tests.clients.own_api import OwnApi
from tests.clients.quiet import QUIET
from tests.clients.texts import MODEL
from tests.real_server import wait_for
from tests.skips import pytest_make_collect_report, pytest_runtest_makereport  # noqa: F401 - hooks

# The main suite's environment has none of the packages. Those in apart/ have an environment of their own.
ENVIRONMENT = Path(sys.prefix).name
collect_ignore_glob = [] if ENVIRONMENT.startswith(".venv-clients") else ["*"]
collect_ignore = ["apart"] if ENVIRONMENT == ".venv-clients" else []

REPOSITORY = Path(__file__).parents[2]
SERVER_PYTHON = REPOSITORY / ".venv-dev" / "bin" / "python"
COMMAND = shlex.split(os.environ.get("VECTORD_COMMAND", f"{SERVER_PYTHON} -m vectord"))
TINY_MODELS = ("tiny-bge-m3", "tiny-classifier", "tiny-reranker")

os.environ |= QUIET

Serve = Callable[..., str]
PATIENCE_S = 300  # for the start and stop of a server on a busy machine


def _refuse_other_machines(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "socket.getaddrinfo" and arguments[0] not in (None, "", "127.0.0.1", "localhost", b"127.0.0.1"):
        raise AssertionError("a client looked for another machine than this one")


if ENVIRONMENT.startswith(".venv-clients"):  # a hook stays for good: not in the main suite's process
    sys.addaudithook(_refuse_other_machines)


@pytest.fixture(scope="session")
def token_table() -> Path:
    """OpenAI's table cl100k_base from litellm, in a folder where tiktoken finds it."""
    package = find_spec("litellm")
    assert package is not None and package.origin is not None
    folder = Path(package.origin).parent / "litellm_core_utils" / "tokenizers"
    return folder / "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that write_models.py filled."""
    folder = tmp_path_factory.mktemp("models")
    script = [str(SERVER_PYTHON), "-m", "tests.clients.write_models", str(folder)]
    done = subprocess.run(script, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="session")
def models(written: Path) -> list[str]:
    """The served models: the default one with real weights, and tiny random ones for the other operations."""
    return [MODEL, *(str(written / name) for name in TINY_MODELS)]


@pytest.fixture(scope="session")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """The base URL of a server with these options. Equal options share a server."""
    running: dict[tuple[str, ...], str] = {}
    with ExitStack() as stack:

        def start(*options: str) -> str:
            if options not in running:
                log = tmp_path_factory.mktemp("server") / "log"
                running[options] = stack.enter_context(_serving(log, *options))
            return running[options]

        yield start


@pytest.fixture(scope="session")
def server(serve: Serve, models: list[str]) -> str:
    """The base URL of the server for most clients: the default profile, without a key."""
    return serve(*models)


class Pictures(NamedTuple):
    """Files, the vectors that transformers makes of them and of `PICTURED`, and the URL of a server of that CLIP."""

    url: str
    files: list[Path]
    vectors: npt.NDArray[np.float32]
    of_text: npt.NDArray[np.float32]

    @property
    def uris(self) -> list[str]:
        return [f"data:image/png;base64,{base64.b64encode(file.read_bytes()).decode()}" for file in self.files]


@pytest.fixture(scope="session")
def pictures(serve: Serve, written: Path) -> Pictures:
    vectors = np.load(written / "pictures.npy")
    files = sorted((written / "pictures").iterdir())
    return Pictures(serve(str(written / "tiny-clip")), files, vectors[1:], vectors[:1])


@pytest.fixture(scope="session")
def key() -> str:
    """The key of guarded_server."""
    return "clients-key"


@pytest.fixture(scope="session")
def guarded_server(serve: Serve, key: str) -> str:
    """The base URL of a server that requires the key."""
    return serve(MODEL, "--api-key", key)


@pytest.fixture(scope="session")
def own(server: str) -> OwnApi:
    """vectord's own API of the same server."""
    return OwnApi(server)


@contextmanager
def _serving(log: Path, *options: str) -> Iterator[str]:
    """The URL of a ready server, which must also shut down cleanly. log: its output."""
    command = [*COMMAND, "serve", *options, "--host", "127.0.0.1", "--port", "0"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out, env=environment) as process:
        try:
            url = wait_for(lambda: re.search(r"http://127\.0\.0\.1:\d+", log.read_text()), process, PATIENCE_S)[0]
            wait_for(
                lambda: httpx.get(f"{url}/health/ready", timeout=PATIENCE_S).status_code == 200, process, PATIENCE_S
            )
            yield url
        finally:
            process.terminate()
        assert process.wait(timeout=PATIENCE_S) == 0, log.read_text()
