"""Downloads with errors of the hub, the network and the disk: wrong files are deleted, and each error has a way out.

tests/cli/commands/test_pull.py has the downloads from a proper hub.
"""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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


def test_a_file_inside_another_is_refused(hub: Hub, tmp_path: Path) -> None:
    hub.files["query_0_a/b"] = b"{}"
    hub.files["query_0_a/b/c"] = b"{}"
    assert MODEL in refusal(tmp_path)


@pytest.mark.parametrize("size", [3, 10**6])
def test_a_false_size_is_refused(size: int, hub: Hub, tmp_path: Path) -> None:
    """A file that is longer or shorter than announced is not kept."""
    hub.sizes["config.json"] = size
    assert f"file should be of size {size} but has size" in refusal(tmp_path)
    assert not (tmp_path / "cache" / "models--some--model" / "snapshots" / COMMIT / "config.json").exists()


def test_another_content_than_announced_is_deleted(hub: Hub, tmp_path: Path) -> None:
    """By sha256 for large files, by git's digest for others; the next pull fetches the file again."""
    for name in (WEIGHTS, "config.json"):
        hub.announced[name] = bytes(len(hub.files[name]))
        assert f"{name} has another checksum than the hub announced" in refusal(tmp_path)
        hub.announced.clear()
        assert (fetch(tmp_path) / name).read_bytes() == hub.files[name]
        shutil.rmtree(tmp_path / "cache")


def test_another_host_gets_no_token(hub: Hub, tmp_path: Path) -> None:
    """The hub's own redirects lead to a store of another host."""
    with small_hub(tmp_path / "repository") as store:
        path = f"/{MODEL}/resolve/{COMMIT}/{WEIGHTS}"
        hub.redirects[WEIGHTS] = store.url.replace("127.0.0.1", "localhost") + path
        assert (fetch(tmp_path) / WEIGHTS).read_bytes() == hub.files[WEIGHTS]
        assert hub.tokens == {"Bearer hf_secret"}
        assert store.tokens == {None}


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


@pytest.mark.parametrize(
    ("number", "way"),
    [
        (errno.ENOSPC, "; make room there, or set another folder with --hf-home (HF_HOME)"),
        (errno.EROFS, "; make it writable, or set another folder with --hf-home (HF_HOME)"),
        (errno.EIO, ""),
    ],
    ids=["full", "read-only", "broken"],
)
def test_an_error_of_the_disk_ends_in_one_line(
    number: int, way: str, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the way out, if there is one. The next pull fetches what is missing."""

    def fail(*_arguments: object, **_options: object) -> str:
        raise OSError(number, "It failed")

    with monkeypatch.context() as patched:
        patched.setattr(huggingface_hub, "snapshot_download", fail)
        message = refusal(tmp_path)
    assert message.endswith(f"cannot be written (It failed){way}; the same command fetches the missing files")
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


SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def cut(hub: Hub) -> None:
    """Cut the weights of the model into two files."""
    weights = hub.files.pop(WEIGHTS)
    hub.files |= {SHARDS[0]: weights[:100], SHARDS[1]: weights[100:]}


def test_the_shards_of_a_model_are_fetched_at_once(hub: Hub, tmp_path: Path) -> None:
    """The hub sends neither of them before both are requested."""
    cut(hub)
    hub.meeting = threading.Barrier(2)
    folder = fetch(tmp_path)
    assert [(folder / shard).read_bytes() for shard in SHARDS] == [hub.files[shard] for shard in SHARDS]


@pytest.mark.parametrize("shard", SHARDS)
def test_a_shard_that_fails_fails_the_download(shard: str, hub: Hub, tmp_path: Path) -> None:
    """With its own error; the next attempt fetches the missing files."""
    cut(hub)
    hub.statuses[shard] = 403
    assert "status 403" in refusal(tmp_path)
    hub.statuses.clear()
    assert (fetch(tmp_path) / shard).read_bytes() == hub.files[shard]
    assert sum(name == shard for name, _ in hub.asked) == 1


def test_another_revision_shares_the_files(hub: Hub, tmp_path: Path) -> None:
    """In huggingface_hub's own layout: a file with the same content is stored and fetched once."""
    fetch(tmp_path)
    hub.asked.clear()
    hub.commit = "b" * 40
    assert (fetch(tmp_path) / WEIGHTS).read_bytes() == hub.files[WEIGHTS]
    assert hub.asked == []


def test_two_processes_may_fetch_at_once(hub: Hub, tmp_path: Path) -> None:
    """Replicas with one cache: each file is fetched once, and both have all of it."""
    hub.files[WEIGHTS] += bytes(3_000_000)
    with ThreadPoolExecutor(2) as both:
        folders = list(both.map(fetch, [tmp_path] * 2))
    assert [(folder / WEIGHTS).read_bytes() == hub.files[WEIGHTS] for folder in folders] == [True, True]
    assert sum(name == WEIGHTS for name, _ in hub.asked) == 1
