"""The folder of `--batch-dir`: files, batches, and the results of unfinished batches. Survives kill -9 at any moment.

    LOCK                            held by the process that uses the folder
    OWNER/file-ID                   content of a file
    OWNER/file-ID.json              its record, written after the content; content without a record is deleted at start
    OWNER/batch_ID.json             the record of a batch, replaced as a whole
    OWNER/batch_ID.results/         results of a batch without output files: part files, in the order of its lines

OWNER is a key's name in hexadecimal digits, or "shared" for clients without a key of their own. Other folders, such as
lost+found, are left alone.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import time
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

import msgspec

from vectord.errors import ConfigError, InvalidField, InvalidRequest, NoSuchRoute, PayloadTooLarge
from vectord.parts import PartFolder
from vectord.products.common.batches import (
    MAX_LINES,
    NO_SUCH_FILE,
    CreateBatch,
    Ending,
    Fault,
    Purpose,
    StoredBatch,
    StoredContent,
    StoredFile,
    StoreFile,
    read_result_line,
    unanswered_line,
)

MAX_FILES = 1000  # of one owner
MAX_BATCHES = 1000  # of one owner, ended ones included
MAX_ACTIVE = 100  # unfinished batches of one owner
PART_LINES = 100  # of results, in memory until they are written; a kill loses at most these
PART_BYTES = 2**20  # of the same
SHARED = "shared"
RECORD, RESULTS, PART = ".json", ".results", ".part"
# Of files that are read or written line by line in a thread. With the default of 8 kB, the thread releases the GIL for
# each read and takes it again before the event loop awakes.
BUFFER_BYTES = 2**20

DISK_LIMIT = "The stored files would have {given} bytes; --batch-disk-limit leaves {limit}. Delete files first."
TOO_MANY_FILES = "A client may store {limit} files; delete some first."
TOO_MANY_RECORDS = "A client may have {limit} batches, which are deleted some time after their end; try again later."
ENDING_CODES: dict[Ending, tuple[str, str]] = {
    "expired": ("batch_expired", "The request was not answered before the end of the completion window."),
    "cancelled": ("batch_cancelled", "The batch was cancelled before the request was answered."),
    "failed": ("batch_failed", "The batch failed before the request was answered."),
}

Stored = TypeVar("Stored", StoredFile, StoredBatch)
_safe_id = re.compile(r"(file-|batch_)[0-9a-f]{32}")


class DiskFull(Exception):
    """The disk is full, or the results do not fit into what --batch-disk-limit leaves to their owner."""


@contextmanager
def full_disk_detected() -> Iterator[None]:
    """Raises DiskFull for the OSErrors of a full disk, an exhausted quota and a file of the largest size."""
    try:
        yield
    except OSError as problem:
        if problem.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise DiskFull from problem
        raise


class Shelf(msgspec.Struct):
    """One owner's records, the oldest first."""

    owner: str  # a key's name; "": clients without a key of their own
    folder: Path
    files: dict[str, StoredFile] = {}
    batches: dict[str, StoredBatch] = {}
    used_bytes: int = 0  # of files and results

    def path(self, name: str) -> Path:
        return self.folder / name


class BatchStore:
    """Records are in memory, too. Call every method on one thread at a time."""

    def __init__(self, folder: str, limit_bytes: int, retention_s: int) -> None:
        """Raises ConfigError if the folder cannot be used, or another server uses it."""
        import fcntl  # noqa: PLC0415 - not on Windows

        self._limit_bytes = limit_bytes
        self._retention_s = retention_s
        self._root = Path(folder)
        self._shelves: dict[str, Shelf] = {}
        try:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = (self._root / "LOCK").open("ab")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise ConfigError(f"--batch-dir: another server uses {folder!r}") from None
        except OSError as problem:
            raise ConfigError(f"--batch-dir: {folder!r} cannot be used: {problem.strerror}") from None
        try:
            for path in sorted(self._root.iterdir()):
                if path.is_dir():
                    self._load(path)
        except BaseException:
            self.close()
            raise
        self.sweep()

    def close(self) -> None:
        self._lock.close()

    def shelves(self) -> Sequence[Shelf]:
        return list(self._shelves.values())

    def shelf(self, owner: str) -> Shelf:
        name = owner.encode().hex() or SHARED
        if name not in self._shelves:
            self._shelves[name] = Shelf(owner, self._root / name)
        return self._shelves[name]

    @property
    def used_bytes(self) -> int:
        return sum(shelf.used_bytes for shelf in self.shelves())

    def _limit_of(self, shelf: Shelf) -> int:
        """Bytes that the owner may use: the rest of the limit; a named key half of that, so that no key takes all."""
        left_bytes = self._limit_bytes - (self.used_bytes - shelf.used_bytes)
        return left_bytes // 2 if shelf.owner else left_bytes

    # --- files ---

    def add_file(self, shelf: Shelf, request: StoreFile) -> StoredFile:
        """Raises PayloadTooLarge or InvalidRequest beyond the limits."""
        if len(shelf.files) >= MAX_FILES:
            raise InvalidRequest(TOO_MANY_FILES, limit=MAX_FILES, given=len(shelf.files) + 1)
        limit, given = self._limit_of(shelf), shelf.used_bytes + len(request.content)
        if given > limit:
            raise PayloadTooLarge(DISK_LIMIT, limit=limit, given=given)
        file = self._new_file(_new_id("file-"), request.name, "batch", len(request.content), request.expires_after_s)
        shelf.folder.mkdir(mode=0o700, exist_ok=True)
        _replace(shelf.path(file.id), request.content)
        try:
            self._record_file(shelf, file)
        except OSError:  # such as a full disk
            shelf.path(file.id).unlink()
            raise
        return file

    def file(self, shelf: Shelf, id: str, field: str = "file_id") -> StoredFile:
        """Raises NoSuchRoute, also for files of other owners."""
        return _found(shelf.files, id, NO_SUCH_FILE, field)

    def content(self, shelf: Shelf, id: str) -> StoredContent:
        file = self.file(shelf, id)
        return StoredContent(shelf.path(file.id), file.bytes)

    def delete_file(self, shelf: Shelf, id: str) -> None:
        """Raises NoSuchRoute, or InvalidRequest for the input of an unfinished batch."""
        file = self.file(shelf, id)
        if any(batch.input_file_id == id for batch in shelf.batches.values() if not batch.ended):
            raise InvalidRequest("The file is the input of an unfinished batch; cancel it first.")
        for batch in shelf.batches.values():
            if batch.input_file_id == id:
                self._delete_results(shelf, batch)
        del shelf.files[id]
        shelf.used_bytes -= file.bytes
        shelf.path(id + RECORD).unlink(missing_ok=True)  # first: content without a record is deleted at start
        shelf.path(id).unlink(missing_ok=True)

    def _new_file(
        self, id: str, name: str, purpose: Purpose, n_bytes: int, expires_after_s: int | None = None
    ) -> StoredFile:
        now = int(time.time())
        expires_at = now + min(expires_after_s or self._retention_s, self._retention_s)
        return StoredFile(id=id, bytes=n_bytes, created_at=now, expires_at=expires_at, filename=name, purpose=purpose)

    def _record_file(self, shelf: Shelf, file: StoredFile) -> None:
        _replace(shelf.path(file.id + RECORD), msgspec.json.encode(file))
        shelf.files[file.id] = file
        shelf.used_bytes += file.bytes

    # --- batches ---

    def add_batch(self, shelf: Shelf, request: CreateBatch) -> StoredBatch:
        """Continues a batch with the same input that failed for lack of space, if there is one.

        Raises NoSuchRoute, or InvalidRequest beyond the limits.
        """
        if self.file(shelf, request.input_file_id, "input_file_id").purpose != "batch":
            raise InvalidField("{field} must be a file with the purpose `batch`.", field="input_file_id")
        active = sum(not batch.ended for batch in shelf.batches.values())
        if active >= MAX_ACTIVE:
            raise InvalidRequest("A client may have {limit} unfinished batches.", limit=MAX_ACTIVE, given=active + 1)
        if len(shelf.batches) >= MAX_BATCHES:
            raise InvalidRequest(TOO_MANY_RECORDS, limit=MAX_BATCHES, given=len(shelf.batches) + 1)
        now = int(time.time())
        batch = StoredBatch(
            id=_new_id("batch_"),
            endpoint=request.endpoint,
            input_file_id=request.input_file_id,
            status="validating",
            created_at=now,
            expires_at=now + request.window_s,
            metadata=None if request.metadata is None else dict(request.metadata),
        )
        self.save(shelf, batch)
        for old in reversed(shelf.batches.values()):
            results = shelf.path(old.id + RESULTS)
            is_same = (old.input_file_id, old.endpoint) == (batch.input_file_id, batch.endpoint)
            if old.ended and is_same and results.exists():
                results.rename(shelf.path(batch.id + RESULTS))
                self.save(shelf, old)  # a full disk may have kept its end from the record
                break
        return batch

    def batch(self, shelf: Shelf, id: str) -> StoredBatch:
        """Raises NoSuchRoute, also for batches of other owners."""
        return _found(shelf.batches, id, "There is no batch with this id.", "batch_id")

    def save(self, shelf: Shelf, batch: StoredBatch) -> None:
        _replace(shelf.path(batch.id + RECORD), msgspec.json.encode(batch))
        shelf.batches[batch.id] = batch

    def input_lines(self, shelf: Shelf, batch: StoredBatch) -> Iterator[tuple[int, bytes]]:
        """(number from 1, line) of the input. Skips empty lines, but not those beyond MAX_LINES, for their refusal."""
        with shelf.path(batch.input_file_id).open("rb", BUFFER_BYTES) as file:
            for number, line in enumerate(file, 1):
                if not line.isspace() or number > MAX_LINES:
                    yield number, line.removeprefix(BOM_UTF8)

    def recover(self, shelf: Shelf, batch: StoredBatch) -> int:
        """How many lines have a result. Counts them in the batch."""
        batch.request_counts.completed = batch.request_counts.failed = 0
        for line in self._result_lines(shelf, batch):
            self.count(batch, read_result_line(line).succeeded)
        return batch.request_counts.completed + batch.request_counts.failed

    def check_space(self, shelf: Shelf, line: bytes) -> None:
        """Raises DiskFull if the owner may not store this result."""
        if shelf.used_bytes + 2 * len(line) > self._limit_of(shelf):  # the output file is written before the results go
            raise DiskFull

    def count(self, batch: StoredBatch, succeeded: bool) -> None:
        if succeeded:
            batch.request_counts.completed += 1
        else:
            batch.request_counts.failed += 1

    def results(self, shelf: Shelf, batch: StoredBatch) -> PartFolder:
        return PartFolder(shelf.path(batch.id + RESULTS), ".jsonl")

    def _result_lines(self, shelf: Shelf, batch: StoredBatch) -> Iterator[bytes]:
        results = self.results(shelf, batch)
        for index in results.finished():
            with results.part(index).open("rb", BUFFER_BYTES) as file:
                yield from file

    def finish(self, shelf: Shelf, batch: StoredBatch, custom_ids: Sequence[str]) -> None:
        """Write the output and the error file, and set the status to `batch.ending`. Can be repeated after a crash."""
        assert batch.ending is not None
        answered = self.recover(shelf, batch)
        output_id = _result_id(batch, "output")
        error_id = _result_id(batch, "errors")
        output, errors = shelf.path(output_id + PART), shelf.path(error_id + PART)
        with output.open("wb", BUFFER_BYTES) as succeeded, errors.open("wb", BUFFER_BYTES) as failed:
            for line in self._result_lines(shelf, batch):
                (succeeded if read_result_line(line).succeeded else failed).write(line)
            for index in range(answered, len(custom_ids)):
                code, message = ENDING_CODES[batch.ending]
                failed.write(unanswered_line(custom_ids[index], request_id(batch, index), code, message))
                self.count(batch, succeeded=False)
            for file in (succeeded, failed):
                file.flush()
                os.fsync(file.fileno())
        batch.output_file_id = self._deliver(shelf, output, f"{batch.id}_output.jsonl")
        batch.error_file_id = self._deliver(shelf, errors, f"{batch.id}_error.jsonl")
        setattr(batch, f"{batch.ending}_at", int(time.time()))
        batch.status = batch.ending
        self.save(shelf, batch)
        self._delete_results(shelf, batch)

    def fail(self, shelf: Shelf, batch: StoredBatch, faults: list[Fault]) -> None:
        """Set the status to "failed" without output files: there is no space for them. The results stay.

        If there is no space for the record either, a restart continues the batch.
        """
        batch.errors, batch.status, batch.ending = faults, "failed", None
        batch.failed_at = int(time.time())
        for kind in ("output", "errors"):
            id = _result_id(batch, kind)
            shelf.path(id + PART).unlink(missing_ok=True)
            if id not in shelf.files:
                shelf.path(id).unlink(missing_ok=True)
        with suppress(DiskFull), full_disk_detected():
            self.save(shelf, batch)

    def _delete_results(self, shelf: Shelf, batch: StoredBatch) -> None:
        results = shelf.path(batch.id + RESULTS)
        shelf.used_bytes -= 2 * _size_of(results)
        shutil.rmtree(results, ignore_errors=True)

    def _deliver(self, shelf: Shelf, part: Path, name: str) -> str | None:
        """The id of the new file; None for an empty one, which is deleted."""
        id, n_bytes = part.name.removesuffix(PART), part.stat().st_size
        if n_bytes == 0:
            part.unlink()
            return None
        part.replace(shelf.path(id))
        if (old := shelf.files.get(id)) is not None:  # a crash interrupted an earlier call
            shelf.used_bytes -= old.bytes
        self._record_file(shelf, self._new_file(id, name, "batch_output", n_bytes))
        return id

    # --- age ---

    def sweep(self) -> None:
        """Delete expired files, and batches some time after their end."""
        now = time.time()
        for shelf in self._shelves.values():
            needed = {batch.input_file_id for batch in shelf.batches.values() if not batch.ended}
            for file in [file for file in shelf.files.values() if file.expires_at <= now and file.id not in needed]:
                self.delete_file(shelf, file.id)
            for batch in list(shelf.batches.values()):
                if batch.ended and batch.expires_at + self._retention_s <= now:
                    del shelf.batches[batch.id]
                    self._delete_results(shelf, batch)
                    shelf.path(batch.id + RECORD).unlink(missing_ok=True)

    def _load(self, folder: Path) -> None:
        try:
            owner = "" if folder.name == SHARED else bytes.fromhex(folder.name).decode()
        except ValueError:
            return
        shelf = self._shelves[folder.name] = Shelf(owner, folder)
        files, batches = [], []
        try:
            for path in folder.glob("*" + RECORD):
                if path.name.startswith("file-"):
                    file = msgspec.json.decode(path.read_bytes(), type=StoredFile)
                    files.append((path.stat().st_mtime_ns, file))
                else:
                    batches.append(msgspec.json.decode(path.read_bytes(), type=StoredBatch))
        except (msgspec.MsgspecError, OSError, UnicodeDecodeError):
            raise ConfigError(f"--batch-dir: {str(path)!r} is damaged; delete it to start") from None
        shelf.files = {file.id: file for _, file in sorted(files, key=lambda one: (one[1].created_at, one[0]))}
        shelf.batches = {batch.id: batch for batch in sorted(batches, key=lambda batch: (batch.created_at, batch.id))}
        for path in folder.iterdir():
            if path.is_dir():
                PartFolder(path, "").delete_unfinished()
                shelf.used_bytes += 2 * _size_of(path)
            elif path.suffix == PART or (path.suffix != RECORD and path.name not in shelf.files):
                path.unlink()  # unfinished when the server was killed
        shelf.used_bytes += sum(file.bytes for file in shelf.files.values())


class ResultWriter:
    """Writes the results of a batch in parts: of PART_LINES, or fewer if they are long or the batch or server ended."""

    def __init__(self, store: BatchStore, shelf: Shelf, batch: StoredBatch) -> None:
        self._store, self._shelf, self._batch = store, shelf, batch
        self._folder = store.results(shelf, batch)
        self._index = len(self._folder.finished())
        self._lines: list[bytes] = []  # of the next part
        self._bytes = 0

    def add(self, line: bytes, *, succeeded: bool) -> bool:
        """Whether `finish` is due. Raises DiskFull if the owner may not store the line."""
        self._store.check_space(self._shelf, line)
        self._lines.append(line)
        self._bytes += len(line)
        self._shelf.used_bytes += 2 * len(line)
        self._store.count(self._batch, succeeded)
        return len(self._lines) >= PART_LINES or self._bytes >= PART_BYTES

    def finish(self) -> None:
        """Write the lines as a part, if there are any. Raises OSError; then they have no result."""
        lines, n_bytes = self._lines, self._bytes
        self._lines, self._bytes = [], 0
        if not lines:
            return
        path = self._folder.temporary()
        try:
            self._folder.path.mkdir(mode=0o700, exist_ok=True)
            with path.open("wb") as file:
                file.writelines(lines)
            self._folder.add(path, self._index)
        except BaseException:
            path.unlink(missing_ok=True)
            self._shelf.used_bytes -= 2 * n_bytes
            raise
        self._index += 1


def request_id(batch: StoredBatch, index: int) -> str:
    """The id of the request in a line; index: from 0."""
    return f"{batch.id.replace('batch_', 'batch_req_')}-{index}"


def _new_id(prefix: str) -> str:
    """In the order of creation, and not to be guessed."""
    return f"{prefix}{time.time_ns():016x}{os.urandom(8).hex()}"


def _result_id(batch: StoredBatch, kind: str) -> str:
    """The id of a result file: the same after a crash, so that a repeated `finish` replaces its files."""
    return f"file-{blake2b(f'{batch.id} {kind}'.encode(), digest_size=16).hexdigest()}"


def _size_of(folder: Path) -> int:
    """Bytes of the files in a folder; 0 if it does not exist."""
    return sum(path.stat().st_size for path in folder.iterdir()) if folder.is_dir() else 0


def _found(items: dict[str, Stored], id: str, message: str, field: str) -> Stored:
    found = items.get(id) if _safe_id.fullmatch(id) else None
    if found is None:
        raise NoSuchRoute(message, field=field)
    return found


def _replace(path: Path, content: bytes) -> None:
    """Write a file as a whole: after a crash it has the old content or the new."""
    part = path.with_name(path.name + PART)
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError:  # such as a full disk
        part.unlink(missing_ok=True)
        raise
    part.replace(path)
