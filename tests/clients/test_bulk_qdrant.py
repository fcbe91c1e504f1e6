"""`vectord bulk` to Qdrant. No package index has the real server: a small one checks requests with the models that
qdrant-client has from Qdrant's OpenAPI document, and answers by qdrant-client's local mode.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import Any
from urllib.parse import urlsplit
from uuid import NAMESPACE_OID, uuid5

import numpy as np
import pytest
from qdrant_client import QdrantClient, models
from tests.clients.conftest import COMMAND
from tests.clients.own_api import OwnApi
from tests.clients.texts import MODEL, TEXTS

KEY = "s3cret"
KINDS = ["dense", "sparse", "colbert"]
ROWS = [{"id": str(row), "text": text, "n": row} for row, text in enumerate(TEXTS)]


class Qdrant(ThreadingHTTPServer):
    """refuse: the number of writes that are answered with 503."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.client = QdrantClient(":memory:")
        self.lock = Lock()
        self.refuse = 0
        self.written = 0  # points


class Handler(BaseHTTPRequestHandler):
    server: Qdrant
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        with self.server.lock:
            try:
                status, result = self._answer(body)
            except ValueError as cause:  # of pydantic, too
                status, result = 400, {"error": f"Wrong input: {cause}"}
        answer = {"status": "ok", "result": result} if status == 200 else {"status": result}
        data = json.dumps({**answer, "time": 0.0}).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_PUT = do_POST = do_GET

    def _answer(self, body: bytes) -> tuple[int, Any]:
        if self.headers["api-key"] != KEY:
            return 401, {"error": "Must provide an API key"}
        client, (_, _, collection, *points) = self.server.client, urlsplit(self.path).path.split("/")
        if self.command == "PUT" and not points:
            if client.collection_exists(collection):
                return 409, {"error": "exists"}
            wanted = models.CreateCollection.model_validate_json(body)
            client.create_collection(collection, wanted.vectors, wanted.sparse_vectors)
            return 200, True
        if not client.collection_exists(collection):
            return 404, {"error": f"Not found: Collection `{collection}` doesn't exist!"}
        if self.command == "GET":
            return 200, client.get_collection(collection).model_dump(mode="json")
        if points == ["points", "delete"]:
            client.delete(collection, models.PointIdsList.model_validate_json(body))
            return 200, {"operation_id": 0, "status": "completed"}
        if points == ["points", "scroll"]:
            asked = models.ScrollRequest.model_validate_json(body)
            found, _ = client.scroll(collection, limit=asked.limit, with_payload=asked.with_payload)
            return 200, {"points": [record.model_dump(mode="json") for record in found]}
        if self.command == "POST":
            sought = models.PointRequest.model_validate_json(body)
            found = client.retrieve(collection, sought.ids, sought.with_payload, bool(sought.with_vector))
            return 200, [record.model_dump(mode="json") for record in found]
        if self.server.refuse:
            self.server.refuse -= 1
            return 503, {"error": "busy"}
        given = models.PointsList.model_validate_json(body)
        client.upsert(collection, given.points)
        self.server.written += len(given.points)
        return 200, {"operation_id": 0, "status": "completed"}


@pytest.fixture
def qdrant() -> Iterator[Qdrant]:
    with Qdrant() as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def bulk(qdrant: Qdrant, source: Path, *words: str, key: str = KEY) -> subprocess.CompletedProcess[str]:
    url = f"qdrant://127.0.0.1:{qdrant.server_port}/docs"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "QDRANT_API_KEY": key}
    command = [*COMMAND, "bulk", str(source), url, *words, "--json"]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=300)


def summary(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_point_has_the_columns_and_is_found_by_its_vector(qdrant: Qdrant, source: Path) -> None:
    """A refused write is repeated. A second run writes only the changed row."""
    qdrant.refuse = 1
    assert summary(bulk(qdrant, source, MODEL))["rows"] == len(ROWS)
    (stored, _) = qdrant.client.scroll("docs", with_vectors=True, limit=100)
    assert {point.id for point in stored} == set(range(len(ROWS)))
    for point in stored:
        payload = {name: value for name, value in point.payload.items() if name != "vectord_fingerprint"}
        assert payload == ROWS[point.id]
        (nearest,) = qdrant.client.query_points("docs", query=point.vector["dense"], using="dense", limit=1).points
        assert nearest.id == point.id
    source.write_text(source.read_text().replace('"n": 1}', '"n": 77}'))
    qdrant.written = 0
    assert summary(bulk(qdrant, source, MODEL))["resumed_from"] == len(ROWS) - 1
    assert qdrant.written == 1


def test_all_kinds_of_vectors_are_stored(qdrant: Qdrant, source: Path, written: Path, own: OwnApi) -> None:
    """As the API returns them; ColBERT as a multivector. Ids that are neither numbers nor UUIDs become UUIDs."""
    source.write_text("".join(json.dumps({**row, "id": f"doc/{row['id']}"}) + "\n" for row in ROWS))
    words = ("--outputs", ",".join(KINDS), "--numbers", "float16", str(written / "tiny-bge-m3"))
    summary(bulk(qdrant, source, *words))
    params = qdrant.client.get_collection("docs").config.params
    assert params.vectors["colbert"].multivector_config.comparator == "max_sim"
    (stored, _) = qdrant.client.scroll("docs", with_vectors=True, limit=100)
    assert len(stored) == len(ROWS)
    expected = own.kinds(TEXTS, KINDS, model="tiny-bge-m3")
    for point in stored:
        one = expected[point.payload["n"]]
        np.testing.assert_allclose(point.vector["dense"], one["dense"], atol=2e-2)
        np.testing.assert_allclose(point.vector["colbert"], one["colbert"], atol=2e-2)
        found = point.vector["sparse"]
        given = dict(zip(found.indices, found.values, strict=True))
        assert given == pytest.approx(dict(zip(*one["sparse"].values(), strict=True)), abs=2e-2)
    done = bulk(qdrant, source, MODEL)
    assert (done.returncode, done.stdout) == (2, "")
    assert "dense of qdrant://127.0.0.1" in done.stderr
    assert "has 32 numbers, and the vectors have 384" in done.stderr
    assert "is ready" not in done.stderr  # the log of a loaded model


def test_a_shorter_text_leaves_no_old_chunks(qdrant: Qdrant, source: Path) -> None:
    """A point has the id `id#chunk` as a UUID. Chunks of a write that was interrupted are deleted, too."""
    words = ("--chunk", "20", "--part-rows", "1", MODEL)
    long = " ".join(f"word {number}" for number in range(60))
    source.write_text("".join(json.dumps({"id": row, "text": f"row {row}: {long}"}) + "\n" for row in range(3)))
    assert summary(bulk(qdrant, source, *words))["chunks"] > 12
    other, last = (str(uuid5(NAMESPACE_OID, f"1#{chunk}")) for chunk in (1, 9))
    qdrant.client.set_payload("docs", {"chunks": 10}, [other])  # the first chunk is stored last
    left = {"id": 1, "chunk": 9, "chunks": 10, "text": "left"}
    qdrant.client.upsert("docs", [models.PointStruct(id=last, vector={}, payload=left)])
    rows = [{"id": 0, "text": f"row 0: {long}"}, {"id": 1, "text": "short"}, {"id": "2", "text": long}]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    qdrant.refuse = 1
    assert summary(bulk(qdrant, source, *words))["resumed_from"] == 1
    (stored, _) = qdrant.client.scroll("docs", limit=100)
    texts: dict[str, dict[int, str]] = {}
    for point in stored:
        texts.setdefault(str(point.payload["id"]), {})[point.payload["chunk"]] = point.payload["text"]
        assert point.id == str(uuid5(NAMESPACE_OID, f"{point.payload['id']}#{point.payload['chunk']}"))
    found = {id_: "".join(chunks[number] for number in sorted(chunks)) for id_, chunks in texts.items()}
    assert found == {str(row["id"]): row["text"] for row in rows}


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (["--chunk", "20"], [], "has chunks; set --chunk, or name a new one"),
        ([], ["--chunk", "20"], "has whole texts; leave out --chunk, or name a new one"),
    ],
    ids=["whole texts after chunks", "chunks after whole texts"],
)
def test_chunks_and_whole_texts_do_not_mix(
    qdrant: Qdrant, source: Path, first: list[str], second: list[str], message: str
) -> None:
    """Their points have different ids, so neither would replace the other."""
    summary(bulk(qdrant, source, MODEL, *first))
    done = bulk(qdrant, source, MODEL, *second)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


def test_vectors_of_two_prefixes_share_a_point(qdrant: Qdrant, source: Path) -> None:
    """In a collection that has both: neither job removes the vectors and fields of the other."""
    params = models.VectorParams(size=384, distance=models.Distance.COSINE)
    qdrant.client.create_collection("docs", {"dense": params, "n_dense": params})
    for words in ((), ("--output-column", "n_")):
        assert summary(bulk(qdrant, source, MODEL, *words))["resumed_from"] == 0
    (stored, _) = qdrant.client.scroll("docs", with_vectors=True, limit=100)
    assert len(stored) == len(ROWS)
    for point in stored:
        np.testing.assert_allclose(point.vector["dense"], point.vector["n_dense"], atol=1e-5)
    for words in ((), ("--output-column", "n_")):
        assert summary(bulk(qdrant, source, MODEL, *words))["resumed_from"] == len(ROWS)


def test_a_wrong_key_is_an_error_without_the_key(qdrant: Qdrant, source: Path) -> None:
    """Before the model is loaded."""
    done = bulk(qdrant, source, MODEL, key="another")
    assert done.returncode == 2
    assert "Must provide an API key" in done.stderr
    assert "another" not in done.stderr
