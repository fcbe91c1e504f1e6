"""A small server of another make, with OpenAI's route, a reranker over words, and faults on request."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WIDTH = 256
STOP_WORDS = frozenset({"a", "an", "and", "by", "i", "in", "is", "my", "of", "on", "that", "the", "what"})


@dataclass(slots=True)
class StandIn:
    url: str
    token: str | None = None
    status: int = 200  # of responses with vectors
    fault: str = ""  # swapped: vectors in reverse order; html: errors as HTML; nan, slow, unhealthy, chunked;
    # plain: errors as plain text
    most_texts: int = 100
    model: str = "bag-of-words"  # as it lists it
    embeds_at: str = "/v1/embeddings"  # or embedding-server's /api/v1/embed
    reranks_at: str = "/rerank"
    turned: float = 0.0  # distance of the vectors from those of another stand-in
    bodies: list[dict[str, Any]] = field(default_factory=list)
    release: threading.Event = field(default_factory=threading.Event)


@contextmanager
def stand_in(**options: Any) -> Iterator[StandIn]:
    with _Server(("127.0.0.1", 0), _Answers) as server:
        server.stand_in = StandIn(f"http://127.0.0.1:{server.server_address[1]}", **options)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server.stand_in
        finally:
            server.stand_in.release.set()
            server.shutdown()
            thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256
    stand_in: StandIn


def vector(text: str, turned: float = 0.0) -> list[float]:
    """Counts of word prefixes, so that texts with common words are closer."""
    found = [0.0] * WIDTH
    for word in text.lower().split():
        if word not in STOP_WORDS:
            found[hashlib.sha256(word[:3].encode()).digest()[0] % WIDTH] += 1.0
    found[0] += turned * sum(found) + 1e-3
    return found


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and content are two writes, and the second would wait 40 ms
    server: _Server

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/health":
            self._send({"status": "ok"}, 500 if self.server.stand_in.fault == "unhealthy" else 200)
        elif self.path == "/v1/models":
            self._send({"object": "list", "data": [{"id": self.server.stand_in.model}]})
        else:
            self._send({"error": "not found"}, 404)

    def do_POST(self) -> None:
        options = self.server.stand_in
        content = self.rfile.read(int(self.headers["content-length"]))
        if self.path not in (options.embeds_at, options.reranks_at):
            return self._send({"error": "not found"}, 404)
        if options.token is not None and self.headers.get("authorization") != f"Bearer {options.token}":
            return self._send({"error": "no key"}, 401)
        try:
            body = json.loads(content)
            field = {"/v1/embeddings": "input", "/api/v1/embed": "inputs"}.get(self.path, "documents")
            texts = body[field]
            texts = [texts] if isinstance(texts, str) else list(texts)
        except (ValueError, KeyError, TypeError):
            return self._refuse()
        if len(texts) > options.most_texts:
            return self._send({"error": "too many"}, 413)
        options.bodies.append(body)
        if options.fault == "slow":
            options.release.wait()
        if self.path == options.reranks_at:
            return self._rank(body["query"], texts)
        rows = [vector(text, options.turned) for text in texts]
        if options.fault == "nan" and rows:
            rows[0][0] = float("nan")
        if options.fault == "swapped":
            rows.reverse()
        data = [{"index": i, "embedding": row} for i, row in enumerate(rows)]
        return self._send({"data": data, "model": "bag-of-words"}, options.status)

    def _rank(self, query: str, passages: Sequence[str]) -> None:
        wanted = vector(query)
        scores = [sum(a * b for a, b in zip(wanted, vector(passage), strict=True)) for passage in passages]
        order = sorted(range(len(passages)), key=lambda place: -scores[place])
        self._send({"results": [{"index": place, "relevance_score": scores[place]} for place in order]})

    def _refuse(self) -> None:
        if self.server.stand_in.fault == "html":
            self._bytes(b"<h1>Internal error</h1>", 500)
        elif self.server.stand_in.fault == "plain":
            self._bytes(b"Failed to parse the request body as JSON", 400, "text/plain; charset=utf-8")
        else:
            self._send({"error": "bad request"}, 400)

    def _send(self, body: object, status: int = 200) -> None:
        self._bytes(json.dumps(body).encode(), status)

    def _bytes(self, content: bytes, status: int, content_type: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("content-type", content_type)
        if self.server.stand_in.fault == "chunked":
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            half = len(content) // 2
            for piece in (content[:half], content[half:]):
                self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            self.wfile.write(b"0\r\n\r\n")
            return
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
