"""Qdrant, over its REST API: a point of a collection for each row of IN, its columns as payload.

Vectors have names: dense, sparse, and colbert as a multivector. A point's id is a number or a UUID: other ids of rows
become UUIDs by a hash.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote, unquote, urlsplit
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
    def __init__(self, job: BulkJob) -> None:
        """Raises ConfigError if the server cannot be reached."""
        if job.numbers not in DATATYPES:
            raise ConfigError(f"--numbers: Qdrant has {', '.join(DATATYPES)}; it makes binary vectors by itself")
        url = urlsplit(job.out_url or "")
        super().__init__(job, url)
        prefix, _, collection = url.path.rpartition("/")
        secret, _, host = url.netloc.rpartition("@")
        if not host or not collection:
            raise ConfigError("OUT: expected qdrant://HOST:6333/COLLECTION, or qdrant+https://")
        self._path = f"/collections/{quote(unquote(collection), safe='')}"
        scheme = "https" if url.scheme.endswith("https") else "http"
        port = "" if re.search(r":\d+$", host) else ":6333"
        key = (unquote(secret.rpartition(":")[2]) or os.environ.get("QDRANT_API_KEY", "")).strip()
        if not (key.isascii() and key.isprintable()):
            raise ConfigError("QDRANT_API_KEY, or the key in OUT: expected printable ASCII characters")
        headers = {"content-type": "application/json"} | ({"api-key": key} if key else {})
        self._http = httpx.Client(base_url=f"{scheme}://{host}{port}{prefix}", headers=headers, timeout=TIMEOUT_S)
        self._vectors: dict[str, Any] = {}  # of the collection, by their names
        self._new: dict[str, dict[str, Any]] = {"vectors": {}, "sparse_vectors": {}}  # if there is no collection
        self._exists = self._before_start(self._inspect)

    def close(self) -> None:
        self._http.close()

    def _inspect(self) -> bool:
        """Whether the collection exists."""
        if (found := self._call("GET", self._path, accept=404)) is None:
            return False
        params = found["config"]["params"]
        self._vectors = {**(params.get("vectors") or {}), **(params.get("sparse_vectors") or {})}
        return True

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
            self._call("PUT", self._path, orjson.dumps(self._new), accept=409)  # another shard may have made it

    def _fingerprints(self, ids: Sequence[Any]) -> Iterable[str | None]:
        body = {"ids": list(map(_point_id, ids)), "with_payload": [self._fingerprint_name], "with_vector": False}
        found = self._call("POST", f"{self._path}/points", orjson.dumps(body))
        return ((point.get("payload") or {}).get(self._fingerprint_name) for point in found)

    def _upsert(self, entries: Sequence[StoredRow]) -> None:
        points: list[bytes] = []
        n_bytes = 0
        for entry in entries:
            point = _encoded_point(entry)
            if points and n_bytes + len(point) > REQUEST_BYTES:
                self._send(points)
                points, n_bytes = [], 0
            points.append(point)
            n_bytes += len(point)
        self._send(points)

    def _send(self, points: Sequence[bytes]) -> None:
        self._call("PUT", f"{self._path}/points?wait=true", b'{"points":[' + b",".join(points) + b"]}")

    def _call(self, method: str, path: str, body: bytes | None = None, accept: int | None = None) -> Any:
        """The result; None for the status `accept`. Raises RetryLater, BulkFailed."""
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


def _point_id(id_: Any) -> int | str:
    """Ids 1 and "1" are one point: in CSV each id is a string, and the same rows as JSON may have numbers."""
    text = str(id_)
    if text.isdecimal() and str(int(text)) == text and int(text) < 2**64:
        return int(text)
    try:
        return str(UUID(text))
    except ValueError:
        return str(uuid5(NAMESPACE_OID, text))


def _encoded_point(entry: StoredRow) -> bytes:
    vectors = {name: _vector(one) for name, one in entry.vectors.items() if one is not None}
    encoded = orjson.dumps(vectors, option=orjson.OPT_SERIALIZE_NUMPY)
    payload = msgspec.json.encode(entry.columns, enc_hook=str)
    return b'{"id":%b,"vector":%b,"payload":%b}' % (orjson.dumps(_point_id(entry.id)), encoded, payload)


def _vector(vector: Any) -> Any:
    if isinstance(vector, np.ndarray):
        return np.ascontiguousarray(vector, vector.dtype if vector.dtype == np.uint8 else np.float32)
    return {"indices": vector.indices, "values": vector.values}
