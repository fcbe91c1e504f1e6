"""Which parts the input has, what each is called, and which of them are whole already. Runs in the driver.

    OUT/_vectord.json                    what was begun; a later start must mean the same
    OUT/00002-000000016384.parquet       rows of the third file from the 16,384th on, made by nobody or whole
    OUT/_SUCCESS                         all parts are there

Names sort in the order of the input: files by name, then rows. A reader of a folder of Parquet passes over the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from vectord.bulk.job import BulkJob
from vectord.cluster.ray.storage import TEMPORARY, Storage, StoredFile
from vectord.errors import ConfigError

VERSION = 1
BEGUN, SUCCESS = "_vectord.json", "_SUCCESS"
FACTS = b"vectord"  # of the model, in the metadata of a part's Parquet


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    path: str
    start: int
    stop: int


class Begun(msgspec.Struct):
    version: int
    source: str
    part_rows: int
    asked: dict[str, Any]  # BulkJob.asked


def parts_of(files: Sequence[StoredFile], part_rows: int) -> Iterator[Part]:
    for index, file in enumerate(files):
        for start in range(0, file.rows, part_rows):
            stop = min(start + part_rows, file.rows)
            yield Part(f"{index:05}-{start:012}.parquet", file.path, start, stop)


def begin(out: Storage, job: BulkJob, files: Sequence[StoredFile], part_rows: int, *, restart: bool) -> None:
    """OUT as this job's. Raises ConfigError where it is another's, or holds what nobody here has written."""
    begun = Begun(VERSION, _source(files), part_rows, dict(job.options()))
    out.make()
    names = out.names()
    if restart:
        _clear(out, names)
    elif BEGUN in names:
        _check_same(out, begun)
        return
    elif names:
        raise ConfigError(f"OUT: {out.root} holds files that are no job of ours; name another folder")
    out.write(BEGUN, msgspec.json.encode(begun))


def whole(out: Storage, parts: Iterable[Part]) -> dict[str, Mapping[str, Any]]:
    """The parts that are there with all their rows, and the facts of the model that made each."""
    names = out.names()
    found: dict[str, Mapping[str, Any]] = {}
    for part in parts:
        footer = out.metadata(part.name) if part.name in names else None
        if footer is not None and footer.num_rows == part.stop - part.start:
            found[part.name] = msgspec.json.decode((footer.metadata or {}).get(FACTS, b"{}"))
    return found


def finish(out: Storage, summary: Mapping[str, Any]) -> None:
    out.write(SUCCESS, msgspec.json.encode(summary))
    for name in out.names():
        if name.startswith(TEMPORARY):  # of a node that died while it wrote
            out.remove(name)


def _source(files: Sequence[StoredFile]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        digest.update(file.identity.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _clear(out: Storage, names: Iterable[str]) -> None:
    """What a job of ours may have left. Raises ConfigError for a folder that is none."""
    known = set(names)
    if known and BEGUN not in known:
        raise ConfigError(f"OUT: {out.root} holds files that are no job of ours; name another folder")
    for name in sorted(known, key=lambda name: name == BEGUN):  # last: until then it is a job of ours
        out.remove(name)


def _check_same(out: Storage, begun: Begun) -> None:
    try:
        before = msgspec.json.decode(out.read(BEGUN), type=Begun)
    except msgspec.DecodeError:
        raise ConfigError(f"OUT: {out.root}/{BEGUN} is damaged; --restart starts anew") from None
    differs = [name for name in ("version", "part_rows") if getattr(before, name) != getattr(begun, name)]
    if before.source != begun.source:
        differs.append("another input, or it was changed")
    differs += [name for name, value in begun.asked.items() if before.asked.get(name) != value]
    if differs:
        raise ConfigError(
            f"OUT: {out.root} holds the begin of another job ({', '.join(differs)}); --restart starts anew"
        )
