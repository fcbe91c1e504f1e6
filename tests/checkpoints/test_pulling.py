"""Downloads with errors of the hub, the network and the disk: wrong files are deleted, and each error has a way out.

tests/cli/commands/test_pull.py has the downloads from a proper hub.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants
from tests.checkpoints.folders import write_sentence_model
from tests.checkpoints.small_hub import COMMIT, MODEL, Hub, small_hub

from vectord.checkpoints.pulling import PullFailed, pull
from vectord.errors import ModelUnavailable

WEIGHTS = "model.safetensors"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with small_hub(write_sentence_model(tmp_path / "repository")) as hub:
        point_at(hub, monkeypatch)
        yield hub


def point_at(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    template = "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + template)


def fetch(tmp_path: Path) -> Path:
    return pull(MODEL, revision=None, cache=tmp_path / "cache", token="hf_secret").folder


def refusal(tmp_path: Path) -> str:
    with pytest.raises(ModelUnavailable) as caught:
        fetch(tmp_path)
    return caught.value.message


def written(tmp_path: Path) -> set[str]:
    """The files outside the blobs and snapshots of the model, and outside the repository."""
    own = tmp_path / "cache" / f"models--{MODEL.replace('/', '--')}"
    kept = (own / "blobs", own / "snapshots" / COMMIT, own / "refs" / "main", tmp_path / "repository")
    kept += (tmp_path / "cache" / ".locks",)
    files = (path for path in tmp_path.rglob("*") if not path.is_dir())
    return {str(path) for path in files if not any(path.is_relative_to(each) for each in kept)}


@pytest.mark.parametrize("commit", ["../../../../outside", "/outside", "main", "", "A" * 40, "a" * 40 + "/.."])
def test_a_commit_that_is_a_path_is_refused(commit: str, hub: Hub, tmp_path: Path) -> None:
    hub.commit = commit
    assert "commit" in refusal(tmp_path)
    assert written(tmp_path) == set()


@pytest.mark.parametrize(
    "path",
    ["../config.json", "/model.safetensors", "1_Pooling/../../config.json", "query_0_a\\..\\..\\x", "a//x", "\0"],
)
def test_a_path_outside_the_folder_is_refused(path: str, hub: Hub, tmp_path: Path) -> None:
    """Before any file is fetched."""
    hub.files[path] = b"{}"
    assert "outside the model's folder" in refusal(tmp_path)
    assert hub.asked == []


def test_another_content_than_announced_is_deleted(hub: Hub, tmp_path: Path) -> None:
    """By sha256 for large files, by git's digest for others; the next pull fetches the file again."""
    for name in (WEIGHTS, "config.json"):
        hub.announced[name] = bytes(len(hub.files[name]))
        assert f"{name} has another checksum than the hub announced" in refusal(tmp_path)
        hub.announced.clear()
        assert (fetch(tmp_path) / name).read_bytes() == hub.files[name]
        shutil.rmtree(tmp_path / "cache")


def test_a_gated_file_is_named_so(hub: Hub, tmp_path: Path) -> None:
    """The listing of a gated model is public."""
    hub.statuses["config.json"] = 403
    hub.headers = {"x-error-code": "GatedRepo"}
    assert "is gated" in refusal(tmp_path)


def test_a_refusal_of_the_hub_has_its_status(hub: Hub, tmp_path: Path) -> None:
    """And the way out."""
    hub.statuses["config.json"] = 403
    with pytest.raises(PullFailed, match=r"status 403; set a token \(HF_TOKEN\), or set a mirror with --hf-endpoint"):
        fetch(tmp_path)


def test_the_password_of_a_mirror_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages name the hub by its address."""
    monkeypatch.setattr(constants, "ENDPOINT", "http://me:sesame@127.0.0.1:1/hub")
    message = refusal(tmp_path)
    assert "the hub at http://***@127.0.0.1:1/hub could not be reached" in message
    assert "sesame" not in message


def test_an_error_of_the_disk_ends_in_one_line(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the way out. The next pull fetches what is missing."""

    def fail(*_arguments: object, **_options: object) -> str:
        raise OSError(errno.ENOSPC, "It failed")

    with monkeypatch.context() as patched:
        patched.setattr(huggingface_hub, "snapshot_download", fail)
        message = refusal(tmp_path)
    assert "cannot be written (It failed); set another folder with --hf-home (HF_HOME); the same command" in message
    assert (fetch(tmp_path) / WEIGHTS).read_bytes() == hub.files[WEIGHTS]


def test_the_progress_counts_the_bytes_of_the_model(hub: Hub, tmp_path: Path) -> None:
    """From 0 to the size of all needed files, without steps back."""
    seen: list[tuple[str, int, int]] = []
    pulled = pull(MODEL, revision=None, cache=tmp_path, token=None, progress=lambda *report: seen.append(report))
    total = sum(file.size_bytes for file in pulled.locked.files)
    assert {(name, whole) for name, _, whole in seen} == {(MODEL, total)}
    done = [report[1] for report in seen]
    assert (done[0], done[-1]) == (0, total)
    assert done == sorted(done)
    assert len(set(done)) > 2


def test_an_error_of_the_progress_display_fails_no_download(hub: Hub, tmp_path: Path) -> None:
    """Such as a full disk of the output."""

    def fail(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    assert (pull(MODEL, revision=None, cache=tmp_path, token=None, progress=fail).folder / WEIGHTS).is_file()
