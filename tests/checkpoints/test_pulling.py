"""Downloads from a hostile hub: nothing is written outside the model's folder of the cache, and every size is checked.

tests/cli/commands/test_pull.py has the downloads from a proper hub.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import pytest
from huggingface_hub import constants
from tests.checkpoints.folders import write_sentence_model
from tests.checkpoints.small_hub import COMMIT, MODEL, Hub, small_hub

from vectord.checkpoints import pulling
from vectord.checkpoints.hub import resolve
from vectord.checkpoints.pulling import PullFailed, pull
from vectord.errors import ModelUnavailable

WEIGHTS = "model.safetensors"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setattr(pulling, "PAUSE_S", 0.0)
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


def test_response_headers_name_no_file(hub: Hub, tmp_path: Path) -> None:
    """`vectord serve` downloads a model although the ETag and the commit of each response are paths."""
    outside = str(tmp_path / "outside")
    hub.headers = {
        "etag": f'"{outside}"',
        "x-linked-etag": f'"../../../../{outside}"',
        "x-repo-commit": f"../../..{outside}",
        "content-disposition": f'attachment; filename="{outside}"',
    }
    located = resolve(MODEL, hf_home=str(tmp_path / "home"))
    assert (located.source, located.revision) == ("hub", COMMIT)
    fetch(tmp_path)
    assert not {path for path in written(tmp_path) if not path.startswith(str(tmp_path / "home" / "hub"))}


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


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (-1, "at most 1,099,511,627,776 bytes"),
        (2**62, "at most"),
        (3, "longer than"),
        (10**6, "no complete HTTP response"),
    ],
)
def test_a_false_size_is_refused(size: int, message: str, hub: Hub, tmp_path: Path) -> None:
    """A longer file ends at the announced size; a shorter one is not served."""
    hub.sizes["config.json"] = size
    assert message in refusal(tmp_path)
    blobs = tmp_path / "cache" / "models--some--model" / "blobs"
    assert sum(path.stat().st_size for path in blobs.rglob("*.part")) <= max(size, 0)


def test_a_response_longer_than_announced_is_cut(hub: Hub, tmp_path: Path) -> None:
    """Not a byte beyond the size of the listing is written, and another content than announced is deleted."""
    hub.announced[WEIGHTS] = bytes(10)
    assert "longer than" in refusal(tmp_path)
    blobs = tmp_path / "cache" / "models--some--model" / "blobs"
    assert all(path.stat().st_size <= 10 for path in blobs.rglob("*.part"))


def test_another_host_gets_no_token(hub: Hub, tmp_path: Path) -> None:
    """The hub's own redirects lead to a store of another host."""
    with small_hub(tmp_path / "repository") as store:
        path = f"/{MODEL}/resolve/{COMMIT}/{WEIGHTS}"
        hub.redirects[WEIGHTS] = store.url.replace("127.0.0.1", "localhost") + path
        assert (fetch(tmp_path) / WEIGHTS).read_bytes() == hub.files[WEIGHTS]
        assert hub.tokens == {"Bearer hf_secret"}
        assert store.tokens == {None}


@pytest.mark.parametrize("location", ["file:///etc/passwd", "gopher://127.0.0.1/x", "//", "http://127.0.0.1:1/x", None])
def test_other_redirects_end_in_one_line(location: str | None, hub: Hub, tmp_path: Path) -> None:
    """None: to itself, without end."""
    hub.redirects["config.json"] = location or f"{hub.url}/{MODEL}/resolve/{COMMIT}/config.json"
    with pytest.raises(
        PullFailed, match=r"the hub at \S+ could not be reached \(.+\); check the network, or set a mirror with "
    ) as caught:
        fetch(tmp_path)
    assert "\n" not in caught.value.message
    assert hub.asked.count(("config.json", None)) <= 21 * pulling.ATTEMPTS


def test_a_gated_file_is_named_so(hub: Hub, tmp_path: Path) -> None:
    """The listing of a gated model is public."""
    hub.statuses["config.json"] = 403
    hub.headers = {"x-error-code": "GatedRepo"}
    assert "is gated" in refusal(tmp_path)
    assert hub.asked.count(("config.json", None)) == 1


def test_a_hub_that_stalls_does_not_hold_the_start(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.05)
    hub.stalls = threading.Event()
    try:
        with pytest.raises(PullFailed):
            fetch(tmp_path)
    finally:
        hub.stalls.set()


@pytest.mark.parametrize(("status", "way"), [(503, "retry later"), (403, r"set a token \(HF_TOKEN\)")])
def test_a_refusal_of_the_hub_has_its_status(status: int, way: str, hub: Hub, tmp_path: Path) -> None:
    """And the way out."""
    hub.statuses["config.json"] = status
    with pytest.raises(PullFailed, match=f"answers with status {status}; {way}, or set a mirror with --hf-endpoint"):
        fetch(tmp_path)


def test_the_password_of_a_mirror_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages name the hub by its address."""
    monkeypatch.setattr(constants, "ENDPOINT", "http://me:sesame@127.0.0.1:1/hub")
    message = refusal(tmp_path)
    assert "the hub at http://***@127.0.0.1:1/hub could not be reached" in message
    assert "sesame" not in message


def test_a_full_disk_ends_in_one_line(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next pull continues with what is there."""

    def fail(puller: object, file: object, target: IO[bytes], chunks: Iterator[bytes], done: int) -> None:
        target.write(next(chunks)[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(pulling._Puller, "_write", fail)
        full.setattr(pulling, "PAUSE_S", 3600.0)  # a further attempt would not help
        with pytest.raises(
            PullFailed, match=r"cannot be written \(No space left on device\); make room there, or set another "
        ):
            fetch(tmp_path)
    assert (fetch(tmp_path) / WEIGHTS).read_bytes() == hub.files[WEIGHTS]


@pytest.mark.parametrize("number", [errno.EFBIG, errno.EIO], ids=errno.errorcode.get)
def test_a_broken_disk_has_no_advice(number: int, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither free space nor permissions would help."""

    def fail(*_arguments: object) -> None:
        raise OSError(number, "It failed")

    monkeypatch.setattr(pulling._Puller, "_write", fail)
    assert refusal(tmp_path).endswith("cannot be written (It failed); the same command resumes the download")


def test_an_error_of_the_progress_display_is_not_blamed_on_the_cache(hub: Hub, tmp_path: Path) -> None:
    """The output may be on another disk."""

    def fail(*_arguments: object) -> None:
        raise full

    full = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(OSError, match="No space left") as raised:
        pull(MODEL, revision=None, cache=tmp_path, token=None, progress=fail)
    assert raised.value is full


def test_two_processes_may_fetch_at_once(hub: Hub, tmp_path: Path) -> None:
    """Replicas with one cache: each file is fetched once, and both have all of it."""
    hub.files[WEIGHTS] += bytes(3_000_000)
    with ThreadPoolExecutor(2) as both:
        folders = list(both.map(fetch, [tmp_path] * 2))
    assert [(folder / WEIGHTS).read_bytes() == hub.files[WEIGHTS] for folder in folders] == [True, True]
    assert sum(name == WEIGHTS for name, _ in hub.asked) == 1
