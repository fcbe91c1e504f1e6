"""`vectord pull` from a local hub: fetching, resuming, checksums, the lock file, and serving from it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoints.folders import write_sentence_model
from tests.checkpoints.small_hub import COMMIT, MODEL, Hub, small_hub
from tests.config.start import load
from tests.real_server import running

from vectord.checkpoints.lock import LockedFile, LockedModel, check_folder, read_lock, write_lock
from vectord.checkpoints.spec import RequestedModel
from vectord.cli import main
from vectord.config import ModelConfig
from vectord.engine.models.opening import read_facts
from vectord.errors import ConfigError, ModelUnavailable

ROOT = Path(__file__).resolve().parents[3]
WEIGHTS = "model.safetensors"
VECTORD = [sys.executable, "-m", "vectord"]
DEFAULT = "sentence-transformers/all-MiniLM-L6-v2"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    folder = write_sentence_model(tmp_path / "repository")
    (folder / "pytorch_model.bin").write_bytes(b"the same weights once more")
    (folder / "tf_model.h5").write_bytes(b"and once more")
    (folder / "README.md").write_text("not needed")
    with small_hub(folder) as hub:
        yield hub


@pytest.fixture
def here(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of the hub's clients for this process, and an empty folder."""
    for name, text in environ_of(hub, tmp_path).items():
        monkeypatch.setenv(name, text)
    monkeypatch.chdir(tmp_path)


def environ_of(hub: Hub, tmp_path: Path) -> dict[str, str]:
    names = ("PATH", "HOME", "LANG")
    own = {name: os.environ[name] for name in names if name in os.environ}
    return own | {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "PYTHONPATH": str(ROOT / "src")}


def pull(hub: Hub, tmp_path: Path, *words: str, model: str = MODEL) -> subprocess.CompletedProcess[str]:
    return run([*VECTORD, "pull", model, *words], environ_of(hub, tmp_path), tmp_path)


def run(command: Sequence[str], environ: Mapping[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """In a process of its own, since huggingface_hub reads its endpoint once."""
    return subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True, check=False, timeout=120)


def snapshot(tmp_path: Path, commit: str = COMMIT) -> Path:
    return tmp_path / "hf" / "hub" / "models--some--model" / "snapshots" / commit


def config_of(tmp_path: Path) -> ModelConfig:
    return ModelConfig(hf_home=str(tmp_path / "hf"), lock_file=str(tmp_path / "vectord.lock"), offline=True)


def test_needed_files_are_fetched_and_locked(hub: Hub, tmp_path: Path) -> None:
    """One copy of the weights, as safetensors. vectord.lock has the commit, and each file's size and sha256."""
    ended = pull(hub, tmp_path, "--json")
    assert ended.returncode == 0, ended.stderr
    (row,) = json.loads(ended.stdout)["models"]
    names = {file["path"] for file in row["files"]}
    assert WEIGHTS in names and "config.json" in names
    assert names.isdisjoint({"pytorch_model.bin", "tf_model.h5", "README.md"})
    (model,) = tomllib.loads((tmp_path / "vectord.lock").read_text())["models"]
    assert (model["model"], model["commit"]) == (MODEL, COMMIT)
    for file in model["files"]:
        content = hub.files[file["path"]]
        assert (file["size_bytes"], file["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
        assert (snapshot(tmp_path) / file["path"]).read_bytes() == content


def test_existing_files_are_not_fetched_again(hub: Hub, tmp_path: Path) -> None:
    """They are checked, and replaced if they differ."""
    assert pull(hub, tmp_path).returncode == 0
    hub.asked.clear()
    ended = pull(hub, tmp_path, "--json")
    assert json.loads(ended.stdout)["models"][0]["fetched_bytes"] == 0
    assert hub.asked == []
    (snapshot(tmp_path) / WEIGHTS).resolve().write_bytes(b"x" * len(hub.files[WEIGHTS]))
    assert pull(hub, tmp_path).returncode == 0
    assert (snapshot(tmp_path) / WEIGHTS).read_bytes() == hub.files[WEIGHTS]


def test_the_base_model_of_an_adapter_is_fetched_and_locked_too(hub: Hub, tmp_path: Path) -> None:
    """It is requested from the hub by its name, unless it is a folder here. The lock file must list both."""
    tensors = hub.files[WEIGHTS]
    for name in ("config.json", WEIGHTS, "tokenizer.json", "pytorch_model.bin"):
        del hub.files[name]
    hub.files |= {"adapter_model.safetensors": tensors, "adapter_model.bin": b""}
    hub.files["adapter_config.json"] = json.dumps({"base_model_name_or_path": "org/base"}).encode()
    ended = pull(hub, tmp_path)
    assert ended.returncode == 2 and "org/base" in ended.stderr
    base = write_sentence_model(tmp_path / "base")
    hub.files["adapter_config.json"] = json.dumps({"base_model_name_or_path": str(base)}).encode()
    assert pull(hub, tmp_path).returncode == 0
    assert not (snapshot(tmp_path) / "adapter_model.bin").exists()
    with pytest.raises(ModelUnavailable, match=f"base model .* is missing: model {base} is not in the lock file"):
        read_facts(RequestedModel(MODEL), config_of(tmp_path))


def test_a_killed_pull_keeps_its_files(hub: Hub, tmp_path: Path) -> None:
    """After kill -9 in the middle of the weights, the next pull requests only these."""
    hub.breaks_after[WEIGHTS] = 10  # then it waits a second before it continues
    with subprocess.Popen([*VECTORD, "pull", MODEL], env=environ_of(hub, tmp_path), cwd=tmp_path) as process:
        small = [name for name in hub.files if name.endswith(".json")]
        deadline_s = time.monotonic() + 60
        while not all((snapshot(tmp_path) / name).exists() for name in small) and time.monotonic() < deadline_s:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not (tmp_path / "vectord.lock").exists()
    hub.breaks_after.clear()
    hub.asked.clear()
    assert pull(hub, tmp_path).returncode == 0
    assert {name for name, _ in hub.asked} == {WEIGHTS}
    assert (snapshot(tmp_path) / WEIGHTS).read_bytes() == hub.files[WEIGHTS]


@pytest.mark.parametrize("name", [WEIGHTS, "config.json"])
def test_a_wrong_checksum_is_refused(hub: Hub, tmp_path: Path, name: str) -> None:
    """For files in LFS and in git: exit code 2, no file, and no lock file."""
    hub.announced[name] = bytes(len(hub.files[name]))
    ended = pull(hub, tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert f"{name} has another checksum" in ended.stderr.splitlines()[-1]
    assert not (snapshot(tmp_path) / name).exists()
    assert not (tmp_path / "vectord.lock").exists()


def test_locked_fetches_that_commit_and_refuses_other_bytes(hub: Hub, tmp_path: Path) -> None:
    """The lock file decides, not the branch, and is not changed."""
    assert pull(hub, tmp_path).returncode == 0
    before = (tmp_path / "vectord.lock").read_bytes()
    assert pull(hub, tmp_path, "--locked").returncode == 0
    hub.files[WEIGHTS] = bytes(len(hub.files[WEIGHTS]))  # another checksum, for the same commit
    ended = pull(hub, tmp_path, "--frozen")
    assert ended.returncode == 2
    assert f"{WEIGHTS} differs from the lock file" in ended.stderr
    assert (tmp_path / "vectord.lock").read_bytes() == before


def test_locked_requires_the_model_in_the_lock_file(hub: Hub, tmp_path: Path) -> None:
    """Else the command fails with one line and exit code 2, and fetches nothing."""
    assert "No such file" in pull(hub, tmp_path, "--locked").stderr
    write_lock(tmp_path / "vectord.lock", [LockedModel("other/model", COMMIT, ())])
    ended = pull(hub, tmp_path, "--locked")
    assert (ended.returncode, hub.asked) == (2, [])
    assert ended.stderr == f"vectord: --locked: {MODEL} is not in vectord.lock; vectord pull without --locked adds it\n"


def test_an_unknown_model_is_one_line(hub: Hub, tmp_path: Path) -> None:
    """And exit code 2."""
    ended = pull(hub, tmp_path, model="nobody/nothing")
    assert (ended.returncode, len(ended.stderr.splitlines())) == (2, 1)
    assert "nobody/nothing" in ended.stderr


def download(hub: Hub, repository: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """scripts/download_models.py of a copy of the repository, called from another folder. HF_HOME is set."""
    script = repository / "scripts/download_models.py"
    script.parent.mkdir()
    shutil.copy(ROOT / "scripts/download_models.py", script)
    (elsewhere := repository / "elsewhere").mkdir()
    return run([sys.executable, str(script), "--json"], environ_of(hub, repository) | environ, elsewhere)


def test_the_script_of_simple_inference_server_stores_models_where_its_profile_looks(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the repository's folder models, although the profile is offline and HF_HOME names another folder. `vectord
    serve` with the profile finds them there."""
    ended = download(hub, tmp_path, MODELS=MODEL)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["models"][0]["model"] == MODEL
    config = load(["--profile", "simple-inference-server"], {"MODELS": MODEL}, tmp_path).config.model
    assert (config.offline, config.hub_cache) == (True, "models")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", "models")
    assert read_facts(RequestedModel(MODEL), config).revision == COMMIT


def test_the_script_of_simple_inference_server_requires_models(hub: Hub, tmp_path: Path) -> None:
    ended = download(hub, tmp_path)
    assert ended.returncode == 2 and "MODELS is not set" in ended.stderr


# --- serve --lock-file ----------------------------------------------------------------------------------------


def test_serve_reads_the_locked_commit(hub: Hub, tmp_path: Path) -> None:
    """From the cache, without network, also if the branch has changed."""
    assert pull(hub, tmp_path).returncode == 0
    (snapshot(tmp_path).parent.parent / "refs" / "main").write_text("b" * 40)
    assert read_facts(RequestedModel(MODEL), config_of(tmp_path)).revision == COMMIT


@pytest.mark.parametrize("name", [WEIGHTS, "config.json"])
def test_serve_refuses_a_file_that_differs(hub: Hub, tmp_path: Path, name: str) -> None:
    """In a single byte."""
    assert pull(hub, tmp_path).returncode == 0
    path = (snapshot(tmp_path) / name).resolve()
    content = bytearray(path.read_bytes())
    content[-1 if name == WEIGHTS else content.index(b" ")] ^= 1 if name == WEIGHTS else 0x29
    path.write_bytes(content)
    with pytest.raises(ModelUnavailable, match="differs from the lock file"):
        read_facts(RequestedModel(MODEL), config_of(tmp_path))


def test_serve_refuses_a_file_that_is_not_locked(hub: Hub, tmp_path: Path) -> None:
    """It could change the model."""
    assert pull(hub, tmp_path).returncode == 0
    (snapshot(tmp_path) / "special_tokens_map.json").write_text("{}")
    with pytest.raises(ModelUnavailable, match=r"special_tokens_map\.json would be read and is not in the lock file"):
        read_facts(RequestedModel(MODEL), config_of(tmp_path))


# --- the lock file --------------------------------------------------------------------------------------------


def test_a_lock_file_is_read_back(tmp_path: Path) -> None:
    """With any file name."""
    models = [
        LockedModel("b/c", COMMIT, (LockedFile('a "quoted"\\name.json', 3, "0" * 64),)),
        LockedModel("a", COMMIT, ()),
    ]
    write_lock(tmp_path / "x.lock", models)
    assert read_lock(tmp_path / "x.lock") == {one.model: one for one in models}


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"version": 2}, "version"),
        ({"commit": "main"}, "commit"),
        ({"sha256": "short"}, "sha256"),
        ({"size_bytes": "3"}, "size_bytes"),
    ],
    ids=str,
)
def test_a_bad_lock_file_is_refused(tmp_path: Path, changed: Mapping[str, Any], reason: str) -> None:
    """The error names the wrong key."""
    lock = {"version": 1, "commit": COMMIT, "path": "config.json", "sha256": "0" * 64, "size_bytes": 3} | changed
    path = tmp_path / "vectord.lock"
    path.write_text(
        f"version = {lock['version']}\n[[models]]\nmodel = 'm'\ncommit = '{lock['commit']}'\n"
        f"files = [{{ path = '{lock['path']}', size_bytes = {lock['size_bytes']!r}, sha256 = '{lock['sha256']}' }}]\n"
    )
    with pytest.raises(ConfigError, match=reason):
        read_lock(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=r"config\.json is in the lock file and not in"):
        check_folder(tmp_path, LockedModel("m", COMMIT, (LockedFile("config.json", 3, "0" * 64),)))


def test_a_running_server_pulls_and_serves_a_model(
    here: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the admin key. An ordinary key is refused, and so is a model that is not on the hub."""
    with running(tmp_path / "log", "--backend", "fake", "--api-key", "reader", "--admin-key", "boss") as (url, _):
        assert main.run(["pull", MODEL, "--url", url, "--token", "reader"]) == 1
        refused = capsys.readouterr()
        assert "may not load, unload, pull or remove models" in refused.err
        assert refused.out == ""
        assert main.run(["pull", MODEL, "--url", url, "--token", "boss"]) == 0
        assert capsys.readouterr().out == f"{MODEL} is served\n"
        assert main.run(["ps", "--all", "--json", "--url", url, "--token", "reader"]) == 0
        assert [model["name"] for model in json.loads(capsys.readouterr().out)][1:] == [MODEL]
        assert main.run(["pull", "some/other", "--url", url, "--token", "boss"]) == 1
        assert "not on the hub" in capsys.readouterr().err


def test_a_running_server_lists_shows_and_removes_a_pulled_model(
    here: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With front-ends of their own processes. The model of the settings is refused; the files are deleted."""
    options = ("--backend", "fake", "--api-key", "reader", "--admin-key", "boss", "--front-ends", "2")
    with running(tmp_path / "log", *options) as (url, _):
        reader, boss = ["--url", url, "--token", "reader"], ["--url", url, "--token", "boss"]
        assert main.run(["pull", MODEL, *boss]) == 0
        assert main.run(["list", *reader]) == 0
        assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]] == [DEFAULT, MODEL]
        assert main.run(["show", f"{MODEL}:latest", "--json", *reader]) == 0
        assert [model["name"] for model in json.loads(capsys.readouterr().out)] == [MODEL]
        folder = tmp_path / "hf" / "hub" / f"models--{MODEL.replace('/', '--')}"
        assert main.run(["rm", MODEL, *reader]) == 1
        assert main.run(["rm", DEFAULT, *boss]) == 1
        assert "The settings of this server name the model" in capsys.readouterr().err
        assert folder.is_dir()
        assert main.run(["rm", MODEL, *boss]) == 0
        assert capsys.readouterr().out.startswith(f"removed {MODEL}, ")
        assert not folder.exists()
        assert main.run(["show", MODEL, *reader]) == 1
        assert "No such model is served here" in capsys.readouterr().err


def test_a_hub_that_cannot_be_reached_is_named_with_the_way_out(tmp_path: Path) -> None:
    """The network, and the setting of a mirror. `vectord serve` also offers a folder."""
    environ = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:1", "HF_HOME": str(tmp_path / "hf")}
    for words in (["pull", MODEL], ["serve", MODEL]):
        ended = run([*VECTORD, *words], environ, tmp_path)
        assert ended.returncode == 2
        assert (
            "the hub at http://127.0.0.1:1 could not be reached (Connection refused); check the network, or set a "
            "mirror with --hf-endpoint (HF_ENDPOINT)"
        ) in ended.stderr.splitlines()[-1]
    assert ended.stderr.endswith("; a folder may also be given by its path\n")
