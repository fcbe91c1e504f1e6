"""One server by its URL: requests until they are answered, refused or given up, and nothing raised. Any thread."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx

from vectord.errors import ConfigError

MOST_ANSWER_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Reply:
    """status 0: there was no answer, and `problem` says why."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)  # names in lower case
    elapsed_s: float = 0.0
    problem: str | None = None

    def json(self) -> Any:
        """None where the body is no JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    def said(self) -> str:
        """For a table: the status, and the beginning of what came with it."""
        if self.status == 0:
            return self.problem or "no answer"
        text = " ".join(self.body[:160].decode(errors="replace").split())
        return f"{self.status} {text}" if self.status != 200 else "200"


def check_url(url: str, option: str) -> str:
    """`url` without its last slash. Raises ConfigError for one that no request can be sent to."""
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_good = False
    if not is_good or parts.query or parts.fragment or parts.username is not None:
        raise ConfigError(f"{option}: expected http://HOST:PORT or https://HOST:PORT")
    return url.rstrip("/")


class Server:
    """To be used in `with`."""

    def __init__(self, url: str, token: str | None = None, timeout_s: float = 60.0) -> None:
        """url: of check_url."""
        self.url = url
        self.token = token
        self._timeout_s = timeout_s
        limits = httpx.Limits(max_connections=512)
        # The environment's proxies are for the world; whoever checks a server names the server itself.
        self._http = httpx.Client(timeout=timeout_s, limits=limits, trust_env=False, follow_redirects=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def check_reachable(self, option: str) -> None:
        """Raises ConfigError if no server answers. option: the command's option with the URL."""
        reply = self.get("/health")
        if reply.status == 0:
            raise ConfigError(f"{option}: no server answers at {self.url} ({reply.problem})")

    def find_model(self) -> str | None:
        """The first model that the server lists."""
        for path in ("/v1/models", "/models"):
            answer = self.get(path).json()
            rows = answer.get("data") if isinstance(answer, dict) else None
            if isinstance(rows, list) and rows and isinstance(rows[0], dict) and isinstance(rows[0].get("id"), str):
                return str(rows[0]["id"])
        answer = self.get("/info").json()
        name = answer.get("model_id") if isinstance(answer, dict) else None
        return name if isinstance(name, str) else None

    def get(self, path: str) -> Reply:
        return self.send("GET", path, None)

    def post(self, path: str, body: object) -> Reply:
        return self.send("POST", path, json.dumps(body).encode())

    def send(self, method: str, path: str, body: bytes | None, *, with_token: bool = True) -> Reply:
        headers = {} if body is None else {"content-type": "application/json"}
        if self.token is not None and with_token:
            headers["authorization"] = f"Bearer {self.token}"
        began_s = time.perf_counter()
        try:
            with self._http.stream(method, self.url + path, content=body, headers=headers) as answer:
                content = self._read(answer, began_s)
        except httpx.HTTPError as cause:
            return Reply(0, problem=f"{type(cause).__name__}: {cause}"[:200], elapsed_s=time.perf_counter() - began_s)
        except _TooMuch as cause:
            return Reply(0, problem=str(cause), elapsed_s=time.perf_counter() - began_s)
        names = {name.lower(): value for name, value in answer.headers.items()}
        return Reply(answer.status_code, content, names, time.perf_counter() - began_s)

    def _read(self, answer: httpx.Response, began_s: float) -> bytes:
        content = bytearray()
        for chunk in answer.iter_bytes():
            content += chunk
            if len(content) > MOST_ANSWER_BYTES:
                raise _TooMuch(f"an answer of over {MOST_ANSWER_BYTES // 2**20} MiB")
            if time.perf_counter() - began_s > self._timeout_s:
                raise _TooMuch(f"no whole answer within {self._timeout_s:g} s")
        return bytes(content)


class _TooMuch(Exception):
    pass
