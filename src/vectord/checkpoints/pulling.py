"""Download a model into the Hugging Face cache: only the needed files, resumed, and verified by digest.

`vectord pull`, hub.py and pulls.py, in a thread of a running server, call it. huggingface_hub lists the repository
and defines the cache layout. Its own downloads restart after a killed process (2.4: a new temporary file for each
call) and name files after response headers, so the bytes are fetched here, into a `.part` file next to the blobs that
the next call resumes.

The hub is not trusted: names, sizes and digests of its listing are checked first, its response headers name no file,
its redirects stay out of the private network (redirects.py), and content that differs from the listing is deleted.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

from vectord.checkpoints.lock import LockedFile, LockedModel, file_sha256
from vectord.checkpoints.redirects import RefusedRedirect, refusing_redirects
from vectord.checkpoints.snapshot import DOWNLOADED, needed_graph_files, needed_torch_files
from vectord.config.sources import without_password
from vectord.errors import ModelUnavailable, plain_reason

MAX_FILES = 100_000  # of a repository
MAX_FILE_BYTES = 2**40
ATTEMPTS = 5
PAUSE_S = 1.0  # before the second attempt; doubled for each further one
CHUNK_BYTES = 2**20

Progress = Callable[[str, int, int | None], None]  # path, bytes fetched, total bytes
COMMIT = re.compile(r"[0-9a-f]{40}")
_OTHER_FOLDER = "set another folder with --hf-home (HF_HOME)"
_DISK_ADVICE: dict[int | None, str] = {
    **dict.fromkeys((errno.EDQUOT, errno.ENOSPC), f"; make room there, or {_OTHER_FOLDER}"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), f"; make it writable, or {_OTHER_FOLDER}"),
    **dict.fromkeys((errno.EEXIST, errno.ENOTDIR), f"; {_OTHER_FOLDER}"),
    **dict.fromkeys((errno.EFBIG, errno.EIO), ""),  # a limit of the process, or a broken disk
}
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class PullFailed(ModelUnavailable):
    """Raised if the network or the disk fails; `__cause__` is the original error."""

    def __init__(self, message: str, *, failure: str = "") -> None:
        """failure: the part of the message that says what failed, and the way out; empty: all of it."""
        super().__init__(message)
        self.failure = failure or message


class _WrongContent(Exception):
    """The response differs from what the hub announced."""


class _ProgressFailed(Exception):
    """The caller's callback raised `cause`."""

    def __init__(self, cause: Exception) -> None:
        self.cause = cause


@dataclass(frozen=True, slots=True)
class _RemoteFile:
    """One file of the repository's listing."""

    path: str
    size_bytes: int
    sha256: str | None  # of large files (LFS)
    blob: str | None  # git's id, of the others

    @property
    def digest(self) -> str:
        """The name of its content in the cache."""
        digest = self.sha256 or self.blob
        assert digest is not None
        return digest


@dataclass(frozen=True, slots=True)
class Pulled:
    locked: LockedModel
    folder: Path
    fetched_bytes: int  # downloaded by this call


def repository_folder(hub_id: str, cache: Path) -> Path:
    """Return where the cache keeps all revisions of a repository."""
    return cache / f"models--{hub_id.replace('/', '--')}"


@dataclass(frozen=True, slots=True)
class Cached:
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
    """hub_id: a valid one (hub.check_names)."""
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
    progress: Progress = lambda path, done, total: None,
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

    with _errors_of_hub_and_disk(hub_id, revision, cache):
        at = held_to.commit if held_to is not None else revision
        timeout_s = constants.HF_HUB_ETAG_TIMEOUT
        info = HfApi(token=token).model_info(hub_id, revision=at, files_metadata=True, timeout=timeout_s)
        if not COMMIT.fullmatch(str(info.sha)):
            raise ModelUnavailable(f"{hub_id}: the hub names a commit that is none")
        if held_to is not None and info.sha != held_to.commit:
            raise ModelUnavailable(f"{hub_id}: the hub returns commit {info.sha} for {held_to.commit}")
        remote = {file.path: file for file in _listed(hub_id, info.siblings or [])}
        puller = _Puller(cache, hub_id, str(info.sha), token, progress, held_to, limit_bytes)
        if held_to is not None:
            if missing := [file.path for file in held_to.files if file.path not in remote]:
                raise ModelUnavailable(f"{hub_id}: {missing[0]} is in the lock file and not on the hub")
            puller.fetch(remote[file.path] for file in held_to.files)
        else:
            puller.fetch(_matching(remote.values(), [*DOWNLOADED, *graphs]))
            for needed_files in (needed_torch_files, needed_graph_files):
                puller.fetch(_matching(remote.values(), needed_files(puller.snapshot)))
        puller.set_branch(revision or "main", move=held_to is None)
        locked = LockedModel(hub_id, puller.commit, tuple(puller.files.values()))
        return Pulled(locked=locked, folder=puller.snapshot, fetched_bytes=puller.fetched_bytes)


def _listed(hub_id: str, siblings: Sequence[Any]) -> Iterator[_RemoteFile]:
    """The files of the listing. Raises ModelUnavailable for too many files, or paths outside the folder."""
    if len(siblings) > MAX_FILES:
        raise ModelUnavailable(f"{hub_id}: a repository of over {MAX_FILES:,} files")
    for sibling in siblings:
        path = str(sibling.rfilename)
        if PurePosixPath(path).is_absolute() or {"", ".", ".."} & set(re.split(r"[/\\]", path)) or "\0" in path:
            raise ModelUnavailable(f"{hub_id}: a file's path lies outside the model's folder")
        sha256 = sibling.lfs.sha256 if sibling.lfs is not None else None
        size = sibling.size
        if not _DIGEST.fullmatch(str(sha256 or sibling.blob_id)) or not isinstance(size, int):
            continue
        if not 0 <= size <= MAX_FILE_BYTES:
            raise ModelUnavailable(
                f"{hub_id}: a file may have at most {MAX_FILE_BYTES:,} bytes, and the hub says {size:,}"
            )
        yield _RemoteFile(path, size, sha256, None if sha256 else sibling.blob_id)


def _matching(remote: Iterable[_RemoteFile], patterns: Sequence[str]) -> list[_RemoteFile]:
    """The files that match, by the hub's own rule: `*` crosses folders."""
    return [file for file in remote if any(fnmatchcase(file.path, pattern) for pattern in patterns)]


class _Puller:
    """Downloads files of one commit into its folder of the cache, in the layout of huggingface_hub."""

    def __init__(
        self,
        cache: Path,
        hub_id: str,
        commit: str,
        token: str | None,
        progress: Progress,
        held_to: LockedModel | None,
        limit_bytes: int | None,
    ) -> None:
        self.commit = commit
        self.files: dict[str, LockedFile] = {}  # verified
        self.fetched_bytes = 0
        self._hub_id = hub_id
        self._token = token
        self._progress = progress
        self._held_to = {} if held_to is None else {file.path: file for file in held_to.files}
        self._limit_bytes = limit_bytes
        self._root = repository_folder(hub_id, cache)
        self.snapshot = self._root / "snapshots" / commit
        for folder in (self._root / "blobs", self._root / "refs", self.snapshot):
            folder.mkdir(parents=True, exist_ok=True)

    def set_branch(self, revision: str, *, move: bool) -> None:
        ref = self._root / "refs" / revision
        known = ref.read_text() if ref.is_file() else None
        if revision != self.commit and (known is None or (move and known != self.commit)):
            ref.parent.mkdir(parents=True, exist_ok=True)
            ref.write_text(self.commit)

    def fetch(self, remote: Iterable[_RemoteFile]) -> None:
        """Raises ModelUnavailable for a file that differs from the listing or from the lock file, and before the first
        byte if the files are too large."""
        files = [file for file in remote if file.path not in self.files]
        self._check_size(files)
        for file in files:
            blob = self._root / "blobs" / file.digest
            if not _matches(blob, file):
                with self._lock_of(blob):
                    if not _matches(blob, file):  # another process may have fetched it
                        self._download(file, blob)
            sha256 = file.sha256 or file_sha256(blob)
            locked = self._held_to.get(file.path)
            if locked is not None and (locked.sha256, locked.size_bytes) != (sha256, file.size_bytes):
                raise ModelUnavailable(f"{self._hub_id}: {file.path} differs from the lock file")
            self._link(file.path, blob)
            self.files[file.path] = LockedFile(file.path, file.size_bytes, sha256)

    def _check_size(self, files: Sequence[_RemoteFile]) -> None:
        model_bytes = sum(file.size_bytes for file in files) + sum(file.size_bytes for file in self.files.values())
        if self._limit_bytes is not None and model_bytes > self._limit_bytes:
            raise ModelUnavailable(
                f"{self._hub_id}: the files of the model have {model_bytes:,} bytes, and pull_limit is "
                f"{self._limit_bytes:,} bytes"
            )
        blobs = self._root / "blobs"
        missing_bytes = sum(file.size_bytes for file in files if not (blobs / file.digest).is_file())
        missing_bytes -= sum(map(_size, (_part(blobs / file.digest) for file in files)))
        free_bytes = _free_bytes(self._root)
        if missing_bytes > free_bytes:
            raise ModelUnavailable(
                f"{self._hub_id}: {missing_bytes:,} bytes to fetch, and {self._root} has {free_bytes:,} bytes free"
            )

    def _link(self, path: str, blob: Path) -> None:
        link = self.snapshot / path
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists() or link.resolve() != blob.resolve():
            link.unlink(missing_ok=True)
            link.symlink_to(os.path.relpath(blob, link.parent))

    @contextmanager
    def _lock_of(self, blob: Path) -> Iterator[None]:
        """Only one process at a time writes a blob: huggingface_hub's own lock."""
        from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined] # noqa: PLC0415

        folder = self._root.parent / ".locks" / self._root.name
        folder.mkdir(parents=True, exist_ok=True)
        with WeakFileLock(folder / f"{blob.name}.lock"):
            yield

    def _download(self, file: _RemoteFile, blob: Path) -> None:
        """Over several connections if necessary; the digest decides at the end."""
        part = _part(blob)
        for attempt in range(ATTEMPTS):
            try:
                self._resume(file, part)
                break
            except Exception as error:  # the exceptions of whatever HTTP client huggingface_hub uses
                is_final = isinstance(error, (_ProgressFailed, _WrongContent, RefusedRedirect))
                is_final = is_final or _is_refusal(error) or _disk_advice(error) is not None
                if attempt == ATTEMPTS - 1 or is_final:
                    raise
                time.sleep(PAUSE_S * 2**attempt)
        if not _matches(part, file):
            part.unlink()
            raise ModelUnavailable(
                f"{self._hub_id}: {file.path} has another checksum than the hub announced; nothing is kept"
            )
        part.replace(blob)

    def _resume(self, file: _RemoteFile, part: Path) -> None:
        """Download from the end of `part` to the end of the file."""
        from huggingface_hub import constants, get_session, get_token, hf_hub_url  # noqa: PLC0415
        from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined] # noqa: PLC0415

        start = _size(part)
        if start > file.size_bytes:
            part.unlink()
            start = 0
        if start == file.size_bytes and start:
            return
        # identity: a compressed response would have another size, and ranges of other bytes
        headers = {"accept-encoding": "identity"}
        if token := self._token or get_token():
            headers["authorization"] = f"Bearer {token}"
        if start:
            headers["range"] = f"bytes={start}-"
        url = hf_hub_url(self._hub_id, file.path, revision=self.commit)
        timeout_s = constants.HF_HUB_DOWNLOAD_TIMEOUT
        with get_session().stream("GET", url, headers=headers, follow_redirects=True, timeout=timeout_s) as response:
            hf_raise_for_status(response)
            start = start if response.status_code == 206 else 0  # a server without ranges sends the whole file
            if start and not str(response.headers.get("content-range", "")).startswith(f"bytes {start}-"):
                raise _WrongContent(f"{file.path}: the response has another range than requested")
            with part.open("r+b" if start else "wb") as target:
                target.seek(start)
                self._write(file, target, response.iter_bytes(), start)

    def _write(self, file: _RemoteFile, target: Any, chunks: Iterable[bytes], done: int) -> None:
        self._show(file, done)
        for chunk in chunks:
            done += len(chunk)
            if done > file.size_bytes:
                raise _WrongContent(f"{file.path}: longer than the hub announced")
            target.write(chunk)
            self.fetched_bytes += len(chunk)
            self._show(file, done)
        if done < file.size_bytes:
            raise EOFError(file.path)

    def _show(self, file: _RemoteFile, done: int) -> None:
        try:
            self._progress(file.path, done, file.size_bytes)
        except Exception as error:  # such as a full disk of the output: not an error of the cache
            raise _ProgressFailed(error) from error


def _part(blob: Path) -> Path:
    return blob.with_name(f"{blob.name}.vectord.part")


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _matches(path: Path, file: _RemoteFile) -> bool:
    """Whether the content is the listed one: by sha256, or by git's digest for files that git keeps itself."""
    if not path.is_file() or path.stat().st_size != file.size_bytes:
        return False
    if file.sha256 is not None:
        return file_sha256(path) == file.sha256
    digest = hashlib.sha1(f"blob {file.size_bytes}\0".encode(), usedforsecurity=False)
    with path.open("rb") as content:
        while chunk := content.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest() == file.blob


def _is_refusal(error: Exception) -> bool:
    """Whether the response has a status that a further attempt would not change."""
    status = _status_of(error)
    return status is not None and 400 <= status < 500 and status not in (408, 429)


def _status_of(error: Exception) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)


def _disk_advice(error: Exception) -> str | None:
    """The way out, after a semicolon. None if the disk is not at fault."""
    return _DISK_ADVICE.get(error.errno) if isinstance(error, OSError) else None


@contextmanager
def _errors_of_hub_and_disk(hub_id: str, revision: str | None, cache: Path) -> Iterator[None]:
    """Raise the hub's refusals, and the errors of network and disk, as ModelUnavailable."""
    from huggingface_hub import constants, errors, get_session  # noqa: PLC0415

    try:
        with refusing_redirects(get_session(), constants.ENDPOINT):
            yield
    except ModelUnavailable:
        raise
    except _ProgressFailed as error:
        raise error.cause from None
    except (_WrongContent, RefusedRedirect) as error:
        raise ModelUnavailable(f"{hub_id}: {error}") from error
    except errors.GatedRepoError as error:
        why = f"model {hub_id} is gated: accept its terms on the hub and set a token (HF_TOKEN)"
        raise ModelUnavailable(why) from error
    except errors.RepositoryNotFoundError as error:
        why = f"model {hub_id} is not a folder and not on the hub, or it is private and needs a token (HF_TOKEN)"
        raise ModelUnavailable(why) from error
    except errors.RevisionNotFoundError as error:
        raise ModelUnavailable(f"model {hub_id} has no revision {revision} on the hub") from error
    except Exception as error:  # the library's exceptions differ between versions
        failure = _failure(error, cache, constants.ENDPOINT)
        message = f"model {hub_id}: {failure}; the same command resumes the download"
        raise PullFailed(message, failure=failure) from error


def _failure(error: Exception, cache: Path, endpoint: str) -> str:
    """What failed, and the way out."""
    reason, status = plain_reason(error), _status_of(error)
    endpoint = without_password(endpoint)
    if (advice := _disk_advice(error)) is not None:
        return f"{cache} cannot be written ({reason}){advice}"
    if status is not None:
        way = "set a token (HF_TOKEN)" if status in (401, 403) else "retry later"
        return f"the hub at {endpoint} answers with status {status}; {way}, or set a mirror with --hf-endpoint"
    return (
        f"the hub at {endpoint} could not be reached ({reason}); check the network, or set a mirror with --hf-endpoint "
        "(HF_ENDPOINT)"
    )
