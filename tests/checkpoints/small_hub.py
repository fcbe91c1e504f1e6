"""A local hub: the routes of listings and downloads, with ranges and broken connections."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

COMMIT = "a" * 40
MODEL = "some/model"
LARGE = (".safetensors", ".bin", ".onnx", ".h5")  # kept by LFS, so announced with their sha256


@dataclass(slots=True)
class Hub:
    url: str
    files: dict[str, bytes]
    model: str = MODEL
    commit: str = COMMIT
    announced: dict[str, bytes] = field(default_factory=dict)  # sent instead of the announced content
    breaks_after: dict[str, int] = field(default_factory=dict)  # bytes of one response, after which the connection ends
    knows_ranges: bool = True
    asked: list[tuple[str, str | None]] = field(default_factory=list)  # path and range of each download
    tokens: set[str | None] = field(default_factory=set)  # the Authorization of all requests
    sizes: dict[str, int] = field(default_factory=dict)  # announced instead of the content's
    headers: dict[str, str] = field(default_factory=dict)  # of each download
    redirects: dict[str, str] = field(default_factory=dict)  # where a download is found instead
    statuses: dict[str, int] = field(default_factory=dict)
    stalls: threading.Event | None = None  # until which downloads are not answered


@contextmanager
def small_hub(folder: Path, model: str = MODEL) -> Iterator[Hub]:
    """A hub with one model, which has the files of `folder`."""
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answers) as server:
        server.daemon_threads = True
        hub = Hub(f"http://127.0.0.1:{server.server_address[1]}", files, model)
        server.hub = hub  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()


class _Answers(BaseHTTPRequestHandler):
    @property
    def _hub(self) -> Hub:
        return self.server.hub  # type: ignore[attr-defined, no-any-return]

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self._hub.tokens.add(self.headers.get("authorization"))
        listings = {f"/api/models/{self._hub.model}", f"/api/models/{self._hub.model}/revision/main"}
        path = unquote(self.path.partition("?")[0])
        if path in listings | {f"/api/models/{self._hub.model}/revision/{self._hub.commit}"}:
            return self._send(json.dumps(self._listing()).encode())
        prefix = f"/{self._hub.model}/resolve/{self._hub.commit}/"
        name = path.removeprefix(prefix)
        if not path.startswith(prefix) or name not in self._hub.files:
            return self._send(b"{}", 404, {"x-error-code": "RepoNotFound"})
        self._hub.asked.append((name, self.headers.get("range")))
        return self._file(name)

    def _listing(self) -> Mapping[str, object]:
        siblings = []
        for name, sent in self._hub.files.items():
            content = self._hub.announced.get(name, sent)
            blob = hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
            size = self._hub.sizes.get(name, len(content))
            one: dict[str, object] = {"rfilename": name, "size": size, "blobId": blob}
            if name.endswith(LARGE):
                one["lfs"] = {"size": size, "sha256": hashlib.sha256(content).hexdigest(), "pointerSize": 130}
            siblings.append(one)
        return {"id": self._hub.model, "modelId": self._hub.model, "sha": self._hub.commit, "siblings": siblings}

    def _file(self, name: str) -> None:
        if self._hub.stalls is not None:
            self._hub.stalls.wait(60)
        if name in self._hub.redirects:
            self._send(b"", 302, {"location": self._hub.redirects[name]})
            return
        if name in self._hub.statuses:
            self._send(b"{}", self._hub.statuses[name], self._hub.headers)
            return
        content = self._hub.files[name]
        begins = 0
        if self._hub.knows_ranges and (said := self.headers.get("range")):
            begins = int(said.removeprefix("bytes=").rstrip("-"))
        ranges = {"content-range": f"bytes {begins}-{len(content) - 1}/{len(content)}"} if begins else {}
        headers = ranges | self._hub.headers
        most = self._hub.breaks_after.get(name)
        self._send(content[begins:], 206 if begins else 200, headers, most=most)

    def _send(
        self, body: bytes, status: int = 200, headers: Mapping[str, str] | None = None, *, most: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {"content-length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        with suppress(ConnectionError):  # a client that has read enough
            self.wfile.write(body[:most])
        self.close_connection = True
