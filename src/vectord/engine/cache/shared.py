"""Answers that replicas share through a store, after the cache in memory. Belongs to the event loop.

    misses in memory ──> find ──> RedisStore.read, one round trip ──> decode ── misses ──> the model
    the model's answers ──> keep ──> a bounded queue ──> encode ──> RedisStore.write, in the background

A store that is unreachable, slow or broken counts as a miss. Others may read the store: its names are digests of
tokens. Without a secret, anyone who can write to the store determines the vectors (SECURITY.md).
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections import deque
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import msgspec

from vectord.budget import Budget
from vectord.config import EngineConfig
from vectord.engine.cache.answer_codec import Shapes, decode, encode, key_of
from vectord.engine.cache.redis_store import RedisStore
from vectord.engine.queue.batch import Answer, CacheKey, answer_bytes
from vectord.errors import ConfigError, plain_reason
from vectord.housekeeping import Breaker

FORMAT = 2  # of names and values; raise it also if a model's numbers change their meaning
LOOKUP_TIMEOUT_S = 0.05  # the longest wait of a request for one look-up
WRITE_TIMEOUT_S = 1.0
MAX_LOOKUPS = 64  # at the same time; further ones are misses
TEXTS_PER_LOOKUP = 256  # in one round trip
TEXTS_PER_WRITE = 64
MAX_ANSWER_BYTES = 2**20  # a larger one is not shared
MAX_VALUE_BYTES = MAX_ANSWER_BYTES + 256  # with headers
MAX_WAITING_BYTES = 16 * 2**20  # of answers queued for writing; further ones are dropped
MIN_SECRET_BYTES = 16
MAX_SECRET_BYTES = 4096

logger = logging.getLogger("vectord.cache")


class StoredAnswers(msgspec.Struct, frozen=True):
    answers: Mapping[bytes, Answer]  # by name
    rejected: int  # stored values that were invalid or signed with another secret


def name_of(key: CacheKey, dtype: str) -> bytes:
    """The name of a text's answer; it does not reveal the text. dtype: replicas may compute in different ones."""
    fingerprint, partition, ids, types, layout, kinds = key
    digest = sha256()
    parts = (ids, types, layout, ",".join(sorted(kinds)).encode(), dtype.encode())
    for part in (*parts, partition) if partition else parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return b"vectord:answer:%d:%b:%b" % (FORMAT, fingerprint.encode(), digest.hexdigest().encode())


class SharedCache:
    """Its methods raise nothing but the caller's CancelledError, and wait no longer than the timeouts above."""

    def __init__(self, store: RedisStore, secret: bytes = b"") -> None:
        """secret: shared by all replicas; values signed with another one are rejected. Empty: values are not signed."""
        self._store = store
        self._key = key_of(secret) if secret else b""
        self._reading = Breaker("reading the shared cache", logger)
        self._writing = Breaker("writing to the shared cache", logger)
        self._lookups = 0
        self._waiting: deque[tuple[bytes, Answer]] = deque()
        self._waiting_bytes = Budget(MAX_WAITING_BYTES)
        self._writer: asyncio.Task[None] | None = None

    async def open(self) -> None:
        try:
            await self._store.open()
        except Exception as problem:  # a store may raise anything
            self._reading.failed(problem)

    async def find(self, requested: Mapping[bytes, Shapes]) -> StoredAnswers:
        """The stored answers of at most TEXTS_PER_LOOKUP names, if they have these shapes."""
        names = list(requested)
        values = await self._read(names) if names else []
        stored = {name: value for name, value in zip(names, values, strict=True) if value is not None}
        known: dict[bytes, Answer] = {}
        for name, value in stored.items():
            if isinstance(value, bytes) and len(value) <= MAX_VALUE_BYTES:
                answer = decode(name, value, requested[name], self._key)
                if answer is not None:
                    known[name] = answer
        return StoredAnswers(known, len(stored) - len(known))

    def keep(self, name: bytes, answer: Answer) -> None:
        """Queue the answer for writing, or drop it. answer: of KEPT_KINDS; must not change later."""
        size = answer_bytes(answer)
        if self._writing.blocks or size > MAX_ANSWER_BYTES or not self._waiting_bytes.hold(size):
            return
        self._waiting.append((name, answer))
        if self._writer is None:
            self._writer = asyncio.create_task(self._write())

    async def close(self) -> None:
        """Drops the answers queued for writing."""
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.wait([self._writer])
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await self._store.close()
        except Exception as problem:  # a store may raise anything
            self._writing.failed(problem)

    async def _read(self, names: Sequence[bytes]) -> Sequence[object]:
        nothing: Sequence[object] = [None] * len(names)
        if self._lookups >= MAX_LOOKUPS or not self._reading.lets_pass():
            return nothing
        self._lookups += 1
        try:
            async with asyncio.timeout(LOOKUP_TIMEOUT_S):
                values = await self._store.read(names)
        except Exception as problem:  # a store may raise anything
            self._reading.failed(problem)
            return nothing
        finally:
            self._lookups -= 1
        self._reading.worked()
        return values

    async def _write(self) -> None:
        try:
            while self._waiting and self._writing.lets_pass():
                values: dict[bytes, bytes] = {}
                while self._waiting and len(values) < TEXTS_PER_WRITE:
                    name, answer = self._waiting.popleft()
                    self._waiting_bytes.release(answer_bytes(answer))
                    values[name] = encode(name, answer, self._key)
                async with asyncio.timeout(WRITE_TIMEOUT_S):
                    await self._store.write(values)
                self._writing.worked()
        except Exception as problem:  # a store may raise anything
            self._writing.failed(problem)
        finally:
            self._waiting.clear()  # it is empty, unless the store fails
            self._waiting_bytes.release(self._waiting_bytes.held)
            self._writer = None


def shared_secret(config: EngineConfig) -> bytes:
    """The secret that signs answers: from the setting, or its file without blanks around it; b"" if neither is set."""
    path = config.shared_cache_secret_file
    if path is None:
        return (config.shared_cache_secret or "").encode()
    if config.shared_cache_secret is not None:
        raise ConfigError("shared_cache_secret and shared_cache_secret_file: set one of them")
    try:
        with Path(path).open("rb") as file:
            secret, mode = file.read(MAX_SECRET_BYTES + 2).strip(), os.fstat(file.fileno()).st_mode
    except (OSError, ValueError) as problem:  # ValueError: not a valid path
        raise _invalid_secret(path, f"cannot be read: {plain_reason(problem)}") from None
    if os.name == "posix" and mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise _invalid_secret(path, "is writable by others than its owner (fix: chmod go-w)")
    if not MIN_SECRET_BYTES <= len(secret) <= MAX_SECRET_BYTES:
        raise _invalid_secret(path, f"must hold {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} bytes")
    return secret


def _invalid_secret(path: str, what: str) -> ConfigError:
    return ConfigError(f"shared_cache_secret_file: {path!r} {what}")
