"""A model from the hub into the Hugging Face cache: only the files that are read, resumed, and checked byte by byte.

`vectord pull` calls it, on the main thread. huggingface_hub says what there is and keeps a cache that serve reads; its
own downloads begin anew after a process that was killed, so the bytes are fetched here, into a `.part` file beside the
blobs that the next call goes on with.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

from vectord.checkpoints.lock import LockedFile, LockedModel, file_sha256
from vectord.checkpoints.snapshot import DOWNLOADED, needed_graph_files, needed_torch_files
from vectord.errors import ModelUnavailable

MOST_FILES = 100_000  # of a repository, so that a listing cannot grow without end
ATTEMPTS = 5
PAUSE_S = 1.0  # before the second attempt; doubled for each further one
CHUNK_BYTES = 2**20

Progress = Callable[[str, int, int | None], None]  # path, bytes here, bytes in all


class _Wrong(Exception):
    """What came is not what the hub announced."""


@dataclass(frozen=True, slots=True)
class _Remote:
    """One file of the repository, as its listing has it."""

    path: str
    size_bytes: int
    sha256: str | None  # of large files (LFS)
    blob: str | None  # git's id, of the others

    @property
    def name(self) -> str:
        """What the cache calls its content."""
        name = self.sha256 or self.blob
        assert name is not None
        return name


@dataclass(frozen=True, slots=True)
class Pulled:
    locked: LockedModel
    folder: Path
    fetched_bytes: int  # that were not here before


def pull(
    hub_id: str,
    *,
    revision: str | None,
    cache: Path,
    token: str | None,
    progress: Progress,
    graphs: Sequence[str] = (),
    held_to: LockedModel | None = None,
) -> Pulled:
    """Fetch what is read of the model, and say what came.

    revision: branch, tag or commit; graphs: patterns of ONNX files that are wanted too; held_to: the commit and the
    files it must be. Raises ModelUnavailable: not on the hub, not reachable, or not the bytes that were announced.
    """
    from huggingface_hub import HfApi  # noqa: PLC0415  0.15 s

    wanted_revision = held_to.commit if held_to is not None else revision
    with _told(hub_id, wanted_revision):
        info = HfApi(token=token).model_info(hub_id, revision=wanted_revision, files_metadata=True)
    if held_to is not None and info.sha != held_to.commit:
        raise ModelUnavailable(f"{hub_id}: the hub gives commit {info.sha} for {held_to.commit}")
    remote = {one.path: one for one in _listed(hub_id, info.siblings or [])}
    place = _Place(cache, hub_id, str(info.sha), token)
    fetched = _Fetched(place, progress, {} if held_to is None else {one.path: one for one in held_to.files})
    if held_to is not None:
        fetched.take(_only(hub_id, remote, held_to))
    else:
        fetched.take(_matching(remote.values(), [*DOWNLOADED, *graphs]))
        for needed_files in (needed_torch_files, needed_graph_files):
            fetched.take(_matching(remote.values(), needed_files(place.snapshot)))
    place.name_branch(revision or "main", moved=held_to is None)
    found = LockedModel(hub_id, place.commit, tuple(fetched.files.values()))
    return Pulled(locked=found, folder=place.snapshot, fetched_bytes=fetched.bytes)


class _Place:
    """A commit's folder in the cache, in the layout of huggingface_hub."""

    def __init__(self, cache: Path, hub_id: str, commit: str, token: str | None) -> None:
        self.hub_id = hub_id
        self.commit = commit
        self.token = token
        self.root = cache / f"models--{hub_id.replace('/', '--')}"
        self.snapshot = self.root / "snapshots" / commit
        try:
            for folder in (self.root / "blobs", self.root / "refs", self.snapshot):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ModelUnavailable(f"{self.root}: cannot be written ({error.strerror})") from error

    def name_branch(self, revision: str, *, moved: bool) -> None:
        ref = self.root / "refs" / revision
        if revision != self.commit and (moved or not ref.exists()):
            ref.parent.mkdir(parents=True, exist_ok=True)
            ref.write_text(self.commit)

    def link(self, path: str, blob: Path) -> Path:
        file = self.snapshot / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists() or file.resolve() != blob.resolve():
            file.unlink(missing_ok=True)
            file.symlink_to(os.path.relpath(blob, file.parent))
        return file


class _Fetched:
    """The files that are here by now, each seen byte by byte."""

    def __init__(self, place: _Place, progress: Progress, held_to: dict[str, LockedFile]) -> None:
        self._place = place
        self._progress = progress
        self._held_to = held_to
        self.files: dict[str, LockedFile] = {}
        self.bytes = 0

    def take(self, remote: Iterable[_Remote]) -> None:
        for one in remote:
            if one.path not in self.files:
                self.files[one.path] = self._fetch(one)

    def _fetch(self, one: _Remote) -> LockedFile:
        """Raises ModelUnavailable for a file that is not what the listing, or the lock file, says."""
        blob = self._place.root / "blobs" / one.name
        if not (blob.is_file() and _is(blob, one)):
            with _told(self._place.hub_id, self._place.commit):
                self._download(one, blob)
        sha256 = file_sha256(blob)
        held_to = self._held_to.get(one.path)
        if held_to is not None and (held_to.sha256, held_to.size_bytes) != (sha256, one.size_bytes):
            raise ModelUnavailable(f"{self._place.hub_id}: {one.path} is not the file that the lock file has")
        self._place.link(one.path, blob)
        return LockedFile(one.path, one.size_bytes, sha256)

    def _download(self, one: _Remote, blob: Path) -> None:
        """Over several connections if need be; the last word is the digest."""
        part = blob.with_name(f"{blob.name}.vectord.part")
        for attempt in range(ATTEMPTS):
            try:
                self._go_on(one, part)
                break
            except ModelUnavailable:
                raise
            except Exception as error:  # the network, in the words of whatever HTTP client the hub's library uses
                if attempt == ATTEMPTS - 1 or isinstance(error, _Wrong) or _is_refusal(error):
                    raise
                time.sleep(PAUSE_S * 2**attempt)
        if not _is(part, one):
            part.unlink()
            raise ModelUnavailable(
                f"{self._place.hub_id}: {one.path} came with another checksum than the hub announced; nothing is kept"
            )
        part.replace(blob)

    def _go_on(self, one: _Remote, part: Path) -> None:
        """From where `part` ends to the file's end."""
        from huggingface_hub import get_session, get_token, hf_hub_url  # noqa: PLC0415

        here = part.stat().st_size if part.exists() else 0
        if here > one.size_bytes:
            part.unlink()
            here = 0
        if here == one.size_bytes and here:
            return
        # identity: a compressed answer would have neither the size nor the places that are asked for
        headers = {"accept-encoding": "identity"}
        if token := self._place.token or get_token():
            headers["authorization"] = f"Bearer {token}"
        if here:
            headers["range"] = f"bytes={here}-"
        url = hf_hub_url(self._place.hub_id, one.path, revision=self._place.commit)
        with get_session().stream("GET", url, headers=headers, follow_redirects=True) as answer:
            answer.raise_for_status()
            begins = here if answer.status_code == 206 else 0  # a server that knows no ranges begins anew
            if begins and not str(answer.headers.get("content-range", "")).startswith(f"bytes {begins}-"):
                raise _Wrong(f"{one.path}: another range than the one asked for")
            with part.open("r+b" if begins else "wb") as file:
                file.seek(begins)
                self._write(one, file, answer.iter_bytes(), begins)

    def _write(self, one: _Remote, file: Any, chunks: Iterable[bytes], begins: int) -> None:
        done = begins
        self._progress(one.path, done, one.size_bytes)
        for chunk in chunks:
            done += len(chunk)
            if done > one.size_bytes:
                raise _Wrong(f"{one.path}: longer than the hub announced")
            file.write(chunk)
            self.bytes += len(chunk)
            self._progress(one.path, done, one.size_bytes)
        if done < one.size_bytes:
            raise OSError(f"{one.path}: the connection ended before the file did")


def _listed(hub_id: str, siblings: Sequence[Any]) -> Iterator[_Remote]:
    """Raises ModelUnavailable for a listing that nobody could have meant."""
    if len(siblings) > MOST_FILES:
        raise ModelUnavailable(f"{hub_id}: a repository of over {MOST_FILES:,} files")
    for one in siblings:
        path = PurePosixPath(one.rfilename)
        if path.is_absolute() or ".." in path.parts or "\0" in one.rfilename:
            raise ModelUnavailable(f"{hub_id}: a file's path lies outside the model's folder")
        sha256 = one.lfs.sha256 if one.lfs is not None else None
        name = sha256 or one.blob_id or ""
        if len(name) in (40, 64) and all(digit in "0123456789abcdef" for digit in name) and one.size is not None:
            yield _Remote(one.rfilename, int(one.size), sha256, None if sha256 else one.blob_id)


def _matching(remote: Iterable[_Remote], patterns: Sequence[str]) -> list[_Remote]:
    """By the hub's own rule, by which `*` crosses folders."""
    return [one for one in remote if any(fnmatchcase(one.path, pattern) for pattern in patterns)]


def _only(hub_id: str, remote: dict[str, _Remote], held_to: LockedModel) -> list[_Remote]:
    missing = [one.path for one in held_to.files if one.path not in remote]
    if missing:
        raise ModelUnavailable(f"{hub_id}: {missing[0]} is in the lock file and not on the hub")
    return [remote[one.path] for one in held_to.files]


def _is(path: Path, one: _Remote) -> bool:
    """By sha256, or, of what git keeps itself, by git's digest of it."""
    if path.stat().st_size != one.size_bytes:
        return False
    if one.sha256 is not None:
        return file_sha256(path) == one.sha256
    digest = hashlib.sha1(f"blob {one.size_bytes}\0".encode(), usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest() == one.blob


def _is_refusal(error: Exception) -> bool:
    """A status that no further attempt changes."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status is not None and 400 <= status < 500 and status not in (408, 429)


@contextmanager
def _told(hub_id: str, revision: str | None) -> Iterator[None]:
    """The hub's refusals, and the network's, as ModelUnavailable."""
    from huggingface_hub import errors  # noqa: PLC0415

    try:
        yield
    except ModelUnavailable:
        raise
    except errors.GatedRepoError as error:
        why = f"model {hub_id} is gated: accept its terms on the hub and set a token (HF_TOKEN)"
        raise ModelUnavailable(why) from error
    except errors.RepositoryNotFoundError as error:
        why = f"model {hub_id} is not on the hub, or private and in need of a token (HF_TOKEN)"
        raise ModelUnavailable(why) from error
    except errors.RevisionNotFoundError as error:
        raise ModelUnavailable(f"model {hub_id} has no revision {revision} on the hub") from error
    except _Wrong as error:
        raise ModelUnavailable(f"{hub_id}: {error}") from error
    except Exception as error:  # network and disk: what the library lets through differs between its versions
        why = f"model {hub_id}: the hub could not be read ({type(error).__name__}); the same command goes on from there"
        raise ModelUnavailable(why) from error
