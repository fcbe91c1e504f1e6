"""Qdrant, over its REST API: a point of a collection for each row of IN, its columns as payload.

Vectors have names: dense, sparse, and colbert as a multivector. A point's id is a number or a UUID: other ids of rows
become UUIDs by a hash.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any
from urllib.parse import quote, unquote
from uuid import NAMESPACE_OID, UUID, uuid5

import httpx
import msgspec
import numpy as np
import orjson

from vectord.bulk.database import DatabaseOutput, StoredRow
from vectord.bulk.job import BulkFailed, BulkJob, RetryLater
from vectord.errors import ConfigError

DATATYPES = ("float32", "float16", "uint8")
REQUEST_BYTES = 8 * 2**20  # the server accepts 32 MB
TIMEOUT_S = 60.0
UNAVAILABLE = frozenset({429, 500, 502, 503, 504})


class QdrantOutput(DatabaseOutput):
    form = "qdrant://HOST:6333/COLLECTION, or qdrant+https://"

    def __init__(self, job: BulkJob) -> None:
        """Raises ConfigError if the server cannot be reached."""
        if job.numbers not in DATATYPES:
            raise ConfigError(f"--numbers: Qdrant has {', '.join(DATATYPES)}; it makes binary vectors by itself")
        super().__init__(job)
        if not self._host:
            raise ConfigError(f"OUT: expected {self.form}")
        self._collection = f"/collections/{quote(self._entries, safe='')}"
        scheme = "https" if self.name.startswith("qdrant+https:") else "http"
        port = "" if re.search(r":\d+$", self._host) else ":6333"
        key = (self._secret or unquote(self._user) or os.environ.get("QDRANT_API_KEY", "")).strip()
        if not (key.isascii() and key.isprintable()):
            raise ConfigError("QDRANT_API_KEY, or the key in OUT: expected printable ASCII characters")
        headers = {"content-type": "application/json"} | ({"api-key": key} if key else {})
        self._http = httpx.Client(
            base_url=f"{scheme}://{self._host}{port}{self._path}", headers=headers, timeout=TIMEOUT_S
        )
        self._vectors: dict[str, Any] = {}  # of the collection, by their names
        self._new: dict[str, dict[str, Any]] = {"vectors": {}, "sparse_vectors": {}}  # if there is no collection
        found = self._before_start(lambda: self._call("GET", self._collection, accept=404))
        self._exists = found is not None
        if found is not None:
            params = found["config"]["params"]
            self._vectors = {**(params.get("vectors") or {}), **(params.get("sparse_vectors") or {})}

    def close(self) -> None:
        self._http.close()

    def _stored_columns(self) -> Iterable[str]:
        if not self._exists:
            return ()
        body = orjson.dumps({"limit": 1, "with_payload": True})
        found = self._before_start(lambda: self._call("POST", f"{self._collection}/points/scroll", body))
        return chain.from_iterable(_payloads(found["points"]))

    def _add_vector(self, kind: str, width: int) -> None:
        name = self._job.name_of(kind)
        datatype = self._job.numbers if kind == "dense" or self._job.numbers == "float16" else "float32"
        params: dict[str, Any] = {"size": width, "distance": "Cosine", "datatype": datatype}
        if kind == "colbert":  # they rank the candidates of other vectors, without an index
            params |= {"multivector_config": {"comparator": "max_sim"}, "hnsw_config": {"m": 0}}
        elif kind == "muvera" or not self._job.normalize:
            params["distance"] = "Dot"
        self._new["sparse_vectors" if kind == "sparse" else "vectors"][name] = {} if kind == "sparse" else params
        if not self._exists:
            return
        found = self._vectors.get(name)
        if not isinstance(found, dict):
            raise ConfigError(f"OUT: {self.name} has no vector named {name!r}; name a new collection")
        if found.get("size", width) != width:
            raise ConfigError(f"OUT: {name} of {self.name} has {found['size']} numbers, and the vectors have {width}")

    def _create(self) -> None:
        if not self._exists:
            self._call("PUT", self._collection, orjson.dumps(self._new), accept=409)  # another shard may have made it

    def _fingerprints(self, ids: Sequence[Any]) -> Iterable[str | None]:
        chunk = None if self._job.chunk is None else 0
        found = self._find([_point_id(id_, chunk) for id_ in ids], [self._fingerprint_name])
        return (payload.get(self._fingerprint_name) for payload in _payloads(found))

    def _find(self, points: Sequence[int | str], payload: Sequence[str] | bool, vectors: Sequence[str] = ()) -> Any:
        body = {"ids": points, "with_payload": payload, "with_vector": list(vectors) or False}
        return self._call("POST", f"{self._collection}/points", orjson.dumps(body))

    def _upsert(self, entries: Sequence[StoredRow]) -> None:
        counts = self._counts(entries)
        name = self._job.name_of("chunks")
        stored: dict[str, int] = {}
        # An interrupted write has stored chunk 1 first, with a new count.
        places = [_point_id(id_, chunk) for id_ in counts for chunk in (0, 1)]
        for payload in _payloads(self._find(places, [self._id, name]) if places else ()):
            id_ = str(payload.get(self._id))
            stored[id_] = max(stored.get(id_, 0), payload.get(name, 0))
        further = [
            _point_id(id_, chunk) for id_, count in counts.items() for chunk in range(count, stored.get(str(id_), 0))
        ]
        if further:  # chunks that rows no longer have
            self._call("POST", f"{self._collection}/points/delete?wait=true", orjson.dumps({"points": further}))
        # Stored points with vectors of other jobs, such as of another prefix: an upsert would remove those.
        others = sorted(self._vectors.keys() - {self._job.name_of(kind) for kind in self._job.kinds})
        found = self._find([_point_id(entry.id, entry.chunk) for entry in entries], True, others) if others else ()
        kept = {point["id"]: point for point in found}
        points: list[bytes] = []
        n_bytes = 0
        # Chunk 0 last: its fingerprint says that the row is complete.
        for entry in sorted(entries, key=lambda entry: entry.chunk == 0):
            point = _encoded_point(entry, kept)
            if points and n_bytes + len(point) > REQUEST_BYTES:
                self._send(points)
                points, n_bytes = [], 0
            points.append(point)
            n_bytes += len(point)
        self._send(points)

    def _send(self, points: Sequence[bytes]) -> None:
        self._call("PUT", f"{self._collection}/points?wait=true", b'{"points":[' + b",".join(points) + b"]}")

    def _call(self, method: str, path: str, body: bytes | None = None, accept: int | None = None) -> Any:
        """The result; None for the status `accept`."""
        try:
            response = self._http.request(method, path, content=body)
        except httpx.TransportError as lost:
            raise RetryLater(self._problem(str(lost) or type(lost).__name__), None) from None
        if response.status_code == accept:
            return None
        try:
            found = msgspec.json.decode(response.content)
            if response.status_code == 200:
                return found["result"]
            reason = str(found["status"]["error"])
        except (msgspec.DecodeError, KeyError, TypeError):
            reason = f"the response has the status {response.status_code}"
        if response.status_code in UNAVAILABLE:
            raise RetryLater(self._problem(reason), None)
        raise BulkFailed(self._problem(reason))


def _payloads(points: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
    return (point.get("payload") or {} for point in points)


def _point_id(id_: Any, chunk: int | None = None) -> int | str:
    """Ids 1 and "1" are one point: in CSV each id is a string, and the same rows as JSON may have numbers."""
    text = str(id_) if chunk is None else f"{id_}#{chunk}"
    if text.isdecimal() and str(int(text)) == text and int(text) < 2**64:
        return int(text)
    try:
        return str(UUID(text))
    except ValueError:
        return str(uuid5(NAMESPACE_OID, text))


def _encoded_point(entry: StoredRow, stored: Mapping[int | str, Any]) -> bytes:
    """stored: points by their id, whose other vectors and fields are kept."""
    id_ = _point_id(entry.id, entry.chunk)
    kept = stored.get(id_, {})
    vectors = {**(kept.get("vector") or {})}
    for name, vector in entry.vectors.items():
        if isinstance(vector, np.ndarray):
            dtype = vector.dtype if vector.dtype == np.uint8 else np.float32
            vectors[name] = np.ascontiguousarray(vector, dtype)
        elif vector is not None:
            vectors[name] = {"indices": vector.indices, "values": vector.values}
    encoded = orjson.dumps(vectors, option=orjson.OPT_SERIALIZE_NUMPY)
    payload = msgspec.json.encode((kept.get("payload") or {}) | entry.columns, enc_hook=str)
    return b'{"id":%b,"vector":%b,"payload":%b}' % (orjson.dumps(id_), encoded, payload)
