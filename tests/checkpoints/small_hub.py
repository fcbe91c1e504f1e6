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
from typing import Any
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
    asked: list[tuple[str, str | None]] = field(default_factory=list)  # path and range of each download
    tokens: set[str | None] = field(default_factory=set)  # the Authorization of all requests
    sizes: dict[str, int] = field(default_factory=dict)  # announced instead of the content's
    headers: dict[str, str] = field(default_factory=dict)  # of each download
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

    def do_HEAD(self) -> None:
        """The headers of a download, by which huggingface_hub names files."""
        name = self._requested_file()
        if name is None:
            self._send(b"{}", 404, {"x-error-code": "EntryNotFound"})
        elif name in self._hub.statuses:
            self._send(b"", self._hub.statuses[name], self._hub.headers)
        else:
            entry = self._entry(name)
            digest = entry.get("lfs", {}).get("oid", entry["oid"])
            facts = {"etag": f'"{digest}"', "x-repo-commit": self._hub.commit, "x-linked-size": str(entry["size"])}
            headers = {**facts, "x-linked-etag": f'"{digest}"'}
            self._send(b"", 200, headers)

    def do_GET(self) -> None:
        self._hub.tokens.add(self.headers.get("authorization"))
        path = self._path()
        prefix = f"/api/models/{self._hub.model}"
        if path in (prefix, f"{prefix}/revision/main", f"{prefix}/revision/{self._hub.commit}"):
            return self._send(json.dumps(self._listing()).encode())
        if path == f"{prefix}/tree/{self._hub.commit}":
            return self._send(json.dumps([self._entry(name) for name in self._hub.files]).encode())
        name = self._requested_file()
        if name is None:
            return self._send(b"{}", 404, {"x-error-code": "RepoNotFound"})
        self._hub.asked.append((name, self.headers.get("range")))
        return self._file(name)

    def _path(self) -> str:
        return unquote(self.path.partition("?")[0])

    def _requested_file(self) -> str | None:
        prefix = f"/{self._hub.model}/resolve/{self._hub.commit}/"
        name = self._path().removeprefix(prefix)
        return name if self._path().startswith(prefix) and name in self._hub.files else None

    def _entry(self, name: str) -> dict[str, Any]:
        """The file as the listing of a commit's tree has it."""
        content = self._hub.announced.get(name, self._hub.files[name])
        size = self._hub.sizes.get(name, len(content))
        blob = hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
        lfs = {"oid": hashlib.sha256(content).hexdigest(), "size": size, "pointerSize": 130}
        return {"type": "file", "path": name, "size": size, "oid": blob} | (
            {"lfs": lfs} if name.endswith(LARGE) else {}
        )

    def _listing(self) -> Mapping[str, object]:
        siblings = []
        for name in self._hub.files:
            entry = self._entry(name)
            one = {"rfilename": name, "size": entry["size"], "blobId": entry["oid"]}
            if lfs := entry.get("lfs"):
                one["lfs"] = {"size": lfs["size"], "sha256": lfs["oid"], "pointerSize": 130}
            siblings.append(one)
        return {"id": self._hub.model, "modelId": self._hub.model, "sha": self._hub.commit, "siblings": siblings}

    def _file(self, name: str) -> None:
        if self._hub.stalls is not None:
            self._hub.stalls.wait(60)
        if name in self._hub.statuses:
            self._send(b"{}", self._hub.statuses[name], self._hub.headers)
            return
        content = self._hub.files[name]
        begins = 0
        if said := self.headers.get("range"):
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
        if self.command == "HEAD":
            body = b""
        with suppress(ConnectionError):  # a client that has read enough
            self.wfile.write(body[:most])
        self.close_connection = True
