"""Download a model into the Hugging Face cache: only the needed files, verified by digest.

`vectord pull`, hub.py and pulls.py, in a thread of a running server, call it. huggingface_hub downloads the files, into
its own cache layout; this module chooses them from the listing of the repository, and compares every file, existing
ones too, with the digest that the listing or the lock file has. A file that differs is deleted.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from vectord.checkpoints import catalogue
from vectord.checkpoints.lock import LockedFile, LockedModel, file_sha256
from vectord.checkpoints.snapshot import needed_files
from vectord.config.sources import without_password
from vectord.errors import ModelUnavailable, plain_reason
from vectord.housekeeping import Housekeeping

Progress = Callable[[str, int, int], None]  # hub id, bytes on this machine, bytes of the model
COMMIT = re.compile(r"[0-9a-f]{40}")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?", re.ASCII)
_REVISION = re.compile(r"[A-Za-z0-9][\w./-]{0,127}", re.ASCII)
_DISK = frozenset({errno.EACCES, errno.EDQUOT, errno.EEXIST, errno.EIO, errno.ENOSPC, errno.ENOTDIR, errno.EROFS})
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class PullFailed(ModelUnavailable):
    """Raised if the network or the disk fails; `__cause__` is the original error."""

    def __init__(self, message: str, *, failure: str) -> None:
        """failure: the part of the message that says what failed, and the way out."""
        super().__init__(message)
        self.failure = failure


class _RemoteFile(msgspec.Struct, frozen=True):
    """One file of the repository's listing."""

    path: str
    size_bytes: int
    sha256: str | None  # of large files (LFS)
    blob: str | None  # git's id, of the others


class Pulled(msgspec.Struct, frozen=True):
    locked: LockedModel
    folder: Path
    fetched_bytes: int  # downloaded by this call


def check_names(name: str, revision: str | None) -> None:
    """Raises ModelUnavailable if `name` cannot be a hub id, or `revision` a revision."""
    if "://" in name:
        raise ModelUnavailable(f"model {name}: URLs are not fetched; give a hub id such as BAAI/bge-small-en-v1.5")
    if not _HUB_ID.fullmatch(name) or ".." in name or "--" in name:
        raise ModelUnavailable(f"model {name[:200]!r} is neither a folder nor a hub id such as BAAI/bge-small-en-v1.5")
    if revision is not None and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise ModelUnavailable(f"revision {revision[:200]!r} is not the name of a branch, tag or commit")


def repository_folder(hub_id: str, cache: Path) -> Path:
    """Return where the cache keeps all revisions of a repository."""
    return cache / f"models--{hub_id.replace('/', '--')}"


class Cached(msgspec.Struct, frozen=True):
    """All revisions of a repository in the cache."""

    hub_id: str
    folder: Path
    size_bytes: int

    def holds(self, files: Sequence[Path]) -> bool:
        return any(file.resolve().is_relative_to(self.folder.resolve()) for file in files)

    def remove(self) -> None:
        """Raises ModelUnavailable if the cache cannot be written."""
        try:
            shutil.rmtree(self.folder)
        except OSError as error:
            raise ModelUnavailable(f"{self.folder}: cannot be removed ({error.strerror})") from error
        shutil.rmtree(self.folder.parent / ".locks" / self.folder.name, ignore_errors=True)


def find_cached(hub_id: str, cache: Path) -> Cached | None:
    """Raises ModelUnavailable if `hub_id` cannot be one."""
    check_names(hub_id, None)
    folder = repository_folder(hub_id, cache)
    if not folder.is_dir() or folder.is_symlink():
        return None
    blobs = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return Cached(hub_id, folder, sum(path.stat().st_size for path in blobs))


def pull(
    hub_id: str,
    *,
    revision: str | None,
    cache: Path,
    token: str | None,
    progress: Progress = lambda hub_id, done, total: None,
    graphs: Sequence[str] = (),
    held_to: LockedModel | None = None,
    limit_bytes: int | None = None,
) -> Pulled:
    """Download the needed files of the model and return their folder, digests and size.

    revision: branch, tag or commit; graphs: patterns of ONNX files that are needed too; held_to: the required commit
    and files; limit_bytes: of all needed files. Raises ModelUnavailable: not on the hub, not the announced bytes, too
    large for the limit or the disk, or PullFailed.
    """
    from huggingface_hub import HfApi, constants  # noqa: PLC0415  0.15 s

    check_names(hub_id, revision)
    root = repository_folder(hub_id, cache)
    with _errors_of_hub_and_disk(hub_id, revision, cache):
        at = held_to.commit if held_to is not None else revision
        timeout_s = constants.HF_HUB_ETAG_TIMEOUT
        info = HfApi(token=token).model_info(hub_id, revision=at, files_metadata=True, timeout=timeout_s)
        commit = str(info.sha)
        if not COMMIT.fullmatch(commit) or (held_to is not None and commit != held_to.commit):
            raise ModelUnavailable(f"{hub_id}: the hub returns commit {commit} for {at or 'the main branch'}")
        remote = {file.path: file for file in _listed(hub_id, info.siblings or [])}
        known = {} if held_to is None else {file.path: file for file in held_to.files}
        if missing := [path for path in known if path not in remote]:
            raise ModelUnavailable(f"{hub_id}: {missing[0]} is in the lock file and not on the hub")
        files = [remote[path] for path in (known if held_to is not None else needed_files(remote, graphs))]
        snapshot = root / "snapshots" / commit
        snapshot.mkdir(parents=True, exist_ok=True)
        fetched = [file for file in files if not _verify(snapshot, file)]
        total_bytes, fetched_bytes = (sum(file.size_bytes for file in part) for part in (files, fetched))
        if limit_bytes is not None and total_bytes > limit_bytes:
            raise ModelUnavailable(
                f"{hub_id}: the files of the model have {total_bytes:,} bytes, and a server that runs pulls at most "
                f"{limit_bytes:,} bytes; use vectord pull"
            )
        if fetched_bytes > (free_bytes := shutil.disk_usage(root).free):
            raise ModelUnavailable(
                f"{hub_id}: {fetched_bytes:,} bytes to fetch, and {root} has {free_bytes:,} bytes free"
            )
        if fetched:
            housekeeping = Housekeeping("the progress of a download")

            def report(left_bytes: int) -> None:
                housekeeping.run(progress, hub_id, total_bytes - left_bytes, total_bytes)

            _download(hub_id, commit, cache, token, fetched, report)
        for file in fetched:
            if not _verify(snapshot, file):
                raise ModelUnavailable(
                    f"{hub_id}: {file.path} has another checksum than the hub announced, and was deleted"
                )
        locked = [
            LockedFile(file.path, file.size_bytes, file.sha256 or file_sha256(snapshot / file.path)) for file in files
        ]
        if differs := [file.path for file in locked if known.get(file.path, file) != file]:
            raise ModelUnavailable(f"{hub_id}: {differs[0]} differs from the lock file")
        branch = root / "refs" / (revision or "main")
        if revision != commit and (held_to is None or not branch.is_file()):
            branch.parent.mkdir(parents=True, exist_ok=True)
            branch.write_text(commit)
        return Pulled(locked=LockedModel(hub_id, commit, tuple(locked)), folder=snapshot, fetched_bytes=fetched_bytes)


def _listed(hub_id: str, siblings: Sequence[Any]) -> Iterator[_RemoteFile]:
    """The files of the listing."""
    for sibling in siblings:
        path = str(sibling.rfilename)
        if PurePosixPath(path).is_absolute() or {"", ".", ".."} & set(re.split(r"[/\\]", path)) or "\0" in path:
            raise ModelUnavailable(f"{hub_id}: a file's path lies outside the model's folder")
        sha256 = sibling.lfs.sha256 if sibling.lfs is not None else None
        if _DIGEST.fullmatch(str(sha256 or sibling.blob_id)) and isinstance(sibling.size, int):
            yield _RemoteFile(path, sibling.size, sha256, None if sha256 else sibling.blob_id)


def _download(
    hub_id: str,
    commit: str,
    cache: Path,
    token: str | None,
    files: Sequence[_RemoteFile],
    report: Callable[[int], object],
) -> None:
    """report: called with the bytes that are left."""
    from huggingface_hub import snapshot_download  # noqa: PLC0415
    from huggingface_hub.utils import tqdm  # type: ignore[attr-defined] # noqa: PLC0415

    size_bytes = sum(file.size_bytes for file in files)

    class ByteCounter(tqdm):
        """A progress bar that draws nothing and reports the bytes of all files."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            self._counts_bytes = options.get("name") == "huggingface_hub.snapshot_download"
            super().__init__(*arguments, **{**options, "disable": True})  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> None:
            self.n += n or 0  # a disabled bar does not count
            if self._counts_bytes:
                report(max(0, size_bytes - int(self.n)))

    report(size_bytes)
    snapshot_download(
        hub_id,
        revision=commit,
        cache_dir=cache,
        token=token,
        allow_patterns=[glob.escape(file.path) for file in files],
        tqdm_class=ByteCounter,
    )
    report(0)


def _verify(snapshot: Path, file: _RemoteFile) -> bool:
    """Whether the cache has the listed content: by sha256, or by git's digest for files that git keeps itself.

    Deletes any other content."""
    path = snapshot / file.path
    if path.is_file() and path.stat().st_size == file.size_bytes:
        head = f"blob {file.size_bytes}\0".encode()
        with path.open("rb") as content:
            digest = hashlib.file_digest(
                content, "sha256" if file.sha256 else lambda: hashlib.sha1(head, usedforsecurity=False)
            )
        if digest.hexdigest() == (file.sha256 or file.blob):
            return True
    if path.is_symlink():
        (snapshot.parents[1] / "blobs" / path.readlink().name).unlink(missing_ok=True)
    path.unlink(missing_ok=True)
    return False


@contextmanager
def _errors_of_hub_and_disk(hub_id: str, revision: str | None, cache: Path) -> Iterator[None]:
    """Raise the hub's refusals, and the errors of network and disk, as ModelUnavailable."""
    from huggingface_hub import constants, errors  # noqa: PLC0415

    try:
        yield
    except ModelUnavailable:
        raise
    except errors.GatedRepoError as error:
        why = f"model {hub_id} is gated: accept its terms on the hub and set a token (HF_TOKEN)"
        raise ModelUnavailable(why) from error
    except errors.RepositoryNotFoundError as error:
        why = f"model {hub_id} is not a folder and not on the hub, or it is private and needs a token (HF_TOKEN)"
        why += catalogue.hint(hub_id)
        raise ModelUnavailable(why) from error
    except errors.RevisionNotFoundError as error:
        raise ModelUnavailable(f"model {hub_id} has no revision {revision} on the hub") from error
    except Exception as error:  # the library's exceptions differ between versions
        cause = error.__cause__ if isinstance(error, errors.LocalEntryNotFoundError) else None
        failure = _failure(cause or error, cache, constants.ENDPOINT)
        message = f"model {hub_id}: {failure}; the same command fetches the missing files"
        raise PullFailed(message, failure=failure) from error


def _failure(error: BaseException, cache: Path, endpoint: str) -> str:
    """What failed, and the way out."""
    reason, shown = plain_reason(error), without_password(endpoint)
    if isinstance(error, OSError) and error.errno in _DISK:
        return f"{cache} cannot be written ({reason}); set another folder with --hf-home (HF_HOME)"
    if (status := getattr(getattr(error, "response", None), "status_code", None)) is not None:
        way = "set a token (HF_TOKEN)" if status in (401, 403) else "retry later"
        return f"the hub at {shown} answers with status {status}; {way}, or set a mirror with --hf-endpoint"
    failure = f"the hub at {shown} could not be reached ({reason})"
    if reason == "unexpected error":
        why = str(error).partition("\n")[0][:200].rstrip(".").replace(endpoint, shown)
        failure = f"the download from the hub at {shown} failed ({why})"
    return f"{failure}; check the network, or set a mirror with --hf-endpoint (HF_ENDPOINT)"
