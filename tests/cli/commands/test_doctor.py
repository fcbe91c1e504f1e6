"""`vectord doctor`: facts of this machine, conclusions from facts, and a comparison with another server."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands.stand_in import stand_in

from vectord.cli.main import run
from vectord.config import Config, DeviceConfig
from vectord.tools.doctor.advice import advice
from vectord.tools.doctor.installation import Cache, Port
from vectord.tools.doctor.machine import Gpu, Machine, read_machine
from vectord.tools.doctor.self_test import SelfTest

MACHINE = Machine(
    system="Linux",
    processor="a processor",
    features=("avx2",),
    bfloat16=False,
    int8=False,
    cores=4,
    affinity=4,
    threads=4,
    memory_bytes=64 * 10**9,
    memory_limit_bytes=None,
    memory_available_bytes=60 * 10**9,
    gpus=(),
)
CACHE = Cache(folder="/cache", exists=True, writable=True, free_bytes=10**12)
TESTED = SelfTest(
    model="m",
    state="ready",
    backend="openvino",
    device="cpu",
    dtype="float32",
    outputs=("dense",),
    dimensions=384,
    max_input_tokens=256,
    lone_ms=1.0,
    texts_per_s=100.0,
    problem=None,
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty working folder; what the command does to logging ends with the test."""
    monkeypatch.chdir(tmp_path)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_the_default_model_is_tested(capsys: pytest.CaptureFixture[str]) -> None:
    """Facts, and a model that answered its self-test, timed; settings with their sources."""
    assert run(["doctor", "--json", "--dtype", "float32", "--port", "0"]) == 0
    found = json.loads(capsys.readouterr().out)
    (model,) = found["models"]
    assert (model["state"], model["problem"], model["dtype"]) == ("ready", None, "float32")
    assert model["lone_ms"] > 0 and model["texts_per_s"] > 0
    assert {"setting": "device.dtype", "value": "float32", "source": "--dtype (command line)"} in found["settings"]
    assert found["libraries"]["openvino"] and found["machine"]["threads"] >= 1


def test_a_model_that_fails_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And the first line of advice."""
    class_file = tmp_path / "broken.py"
    class_file.write_text("class Broken:\n    def __init__(self, *args, **kwargs):\n        raise OSError('no')\n")
    catalogue = tmp_path / "models.yaml"
    catalogue.write_text(
        "models:\n  - name: all-MiniLM-L6-v2\n    hf_repo_id: all-MiniLM-L6-v2\n    handler: broken.Broken\n"
    )
    code = run(["doctor", "--json", "--port", "0", "--model-catalogue", str(catalogue), "all-MiniLM-L6-v2"])
    found = json.loads(capsys.readouterr().out)
    assert code == 1
    assert found["advice"][0]["level"] == "problem"
    assert "could not be loaded" in found["advice"][0]["reason"]


def test_secrets_are_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever the form of the report."""
    for form in ((), ("--json",)):
        run(["doctor", "--no-self-test", "--api-key", "sesame", "--port", "0", *form])
        printed = capsys.readouterr().out
        assert "sesame" not in printed
        assert "***" in printed


def test_a_taken_port_is_a_problem(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1; serve would not start."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert run(["doctor", "--no-self-test", "--port", str(port)]) == 1
    assert f"127.0.0.1 port {port} cannot be listened on" in capsys.readouterr().out


def test_a_machine_is_read_from_its_files(tmp_path: Path) -> None:
    """Processor, instructions, quota and memory limit of a container."""
    for name, text in {
        "proc/cpuinfo": "model name : Some CPU\nflags : avx2 avx512f avx512_vnni sse\n",
        "proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 500 kB\n",
        "proc/self/cgroup": "0::/box\n",
        "sys/fs/cgroup/box/memory.max": "4096\n",
        "sys/fs/cgroup/memory.max": "max\n",
        "sys/fs/cgroup/box/cpu.max": "100000 100000\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = read_machine(tmp_path)
    assert (found.processor, found.features) == ("Some CPU", ("avx2", "avx512f", "avx512_vnni"))
    assert (found.bfloat16, found.int8, found.threads) == (False, True, 1)
    assert (found.memory_bytes, found.memory_limit_bytes, found.memory_available_bytes) == (1024000, 4096, 512000)


# --- advice ---------------------------------------------------------------------------------------------------


def advised(**changed: Any) -> list[str]:
    said: dict[str, Any] = {
        "machine": MACHINE,
        "cache": CACHE,
        "ports": [],
        "tested": [TESTED],
        "config": Config(),
        "installed": ["torch"],
    }
    return [f"{one.level}: {one.setting}" for one in advice(**(said | changed))]


GPU = Gpu(name="a GPU", driver="1", memory_mib=80_000)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"machine": replace(MACHINE, threads=2)}, "hint: raise the container's CPU limit"),
        ({"machine": replace(MACHINE, int8=True)}, "hint: --dtype int8"),
        ({"machine": replace(MACHINE, threads=32, affinity=32)}, "hint: --front-ends 2"),
        ({"machine": replace(MACHINE, gpus=(GPU,)), "installed": []}, "hint: pip install 'vectord[torch]'"),
        ({"config": Config(device=DeviceConfig(device="cuda"))}, "problem: --device auto"),
        ({"config": Config(device=DeviceConfig(dtype="bfloat16"))}, "problem: --dtype auto"),
        ({"config": Config(device=DeviceConfig(num_threads=2))}, "hint: leave out --num-threads"),
        ({"machine": replace(MACHINE, memory_limit_bytes=10**8)}, "hint: --cache-bytes 10000000"),
        ({"cache": replace(CACHE, writable=False)}, "hint: --hub-cache, or --offline"),
        ({"cache": replace(CACHE, free_bytes=10**9)}, "hint: --hub-cache elsewhere"),
        ({"ports": [Port(setting="port", host="h", port=1, problem="taken")]}, "problem: --port with another one"),
        ({"tested": [replace(TESTED, problem="no")]}, "problem: vectord serve --log-level debug"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_advice_follows_from_a_fact(changed: dict[str, Any], told: str) -> None:
    """With the setting it is about; where all is well there is none."""
    assert advised() == []
    (found,) = advised(**changed)
    assert found.startswith(told)


# --- against another server -----------------------------------------------------------------------------------


def compared(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = run(["doctor", "--json", *words])
    return code, json.loads(capsys.readouterr().out)


def test_a_server_like_itself_is_interchangeable(vectord_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The model of this machine, started for the time under another product's profile, and a vectord that runs."""
    code, found = compared(capsys, "--against", vectord_url, "--profile", "tei")
    assert code == 0
    assert found["interchangeable"] and found["least_cosine"] > 0.999
    lines = {line["what"]: line for line in found["lines"]}
    assert lines["dimensions"] == {"what": "dimensions", "here": "384", "there": "384", "verdict": "same"}
    assert lines["33 texts in a request"]["verdict"] == "differs"  # TEI takes 32, the default profile 2,048


def test_vectors_of_another_space_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1, with the least and the mean cosine; limits and statuses that differ are there too."""
    with stand_in() as here, stand_in(turned=2.0, most_texts=40) as there:
        code, found = compared(capsys, "--against", there.url, "--url", here.url)
    assert (code, found["interchangeable"]) == (1, False)
    assert found["least_cosine"] < found["mean_cosine"] < 0.99
    verdicts = {line["what"]: line["verdict"] for line in found["lines"]}
    assert verdicts["64 texts in a request"] == "differs"
    assert verdicts["ranking of 'What is machine learning?'"] == "same"


def test_the_same_stand_in_is_interchangeable(capsys: pytest.CaptureFixture[str]) -> None:
    """For people: a table and a last line."""
    with stand_in() as here, stand_in() as there:
        assert run(["doctor", "--against", there.url, "--url", here.url]) == 0
    printed = capsys.readouterr().out
    assert printed.strip().splitlines()[-1].startswith("Interchangeable: least cosine 1.000000")
    assert "\x1b" not in printed


def test_a_server_that_gives_nothing_is_not_interchangeable(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing compared is nothing shown, whatever else is the same."""
    with stand_in() as here, stand_in(status=500) as there:
        code, found = compared(capsys, "--against", there.url, "--url", here.url)
    assert (code, found["interchangeable"], found["least_cosine"]) == (1, False, None)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--url", "http://h"], "--url: requires --against"),
        (["--against", "h"], "--against: expected http://HOST:PORT"),
        (["--against", "http://127.0.0.1:1"], "--against: no server answers"),
        (["--sparkle"], "unknown option '--sparkle'"),
        (["nobody/nothing", "--offline"], "model nobody/nothing is not on this machine"),
    ],
    ids=str,
)
def test_a_bad_start_is_one_line(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    """And exit code 2."""
    assert run(["doctor", *words]) == 2
    assert told in capsys.readouterr().err.splitlines()[-1]
