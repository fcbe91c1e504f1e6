"""What the two clients have in common: how they are made."""

from __future__ import annotations

from typing import Generic, TypeVar

import httpx

from vectord.client.options import Lane
from vectord.client.settings import MAX_ANSWER_BYTES, Settings
from vectord.client.vectors import has_arrow

Http = TypeVar("Http", httpx.Client, httpx.AsyncClient)


class BaseClient(Generic[Http]):
    _http_of_its_own: type[Http]

    def __init__(
        self,
        base_url: str = "http://127.0.0.1:8000",
        *,
        api_key: str | None = None,
        timeout_s: float = 300.0,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
        max_retries: int = 8,
        concurrency: int = 4,
        texts_per_request: int = 64,
        characters_per_request: int = 100_000,
        lane: Lane | None = None,
        http: Http | None = None,
    ) -> None:
        """Opens no connection yet. Raises ValueError for what cannot be.

        base_url: of the server, with the prefix it is served under, if any. timeout_s: for each request, from its
        sending to the last byte of its answer, however that comes; a connection has 5 s of it at most.
        max_answer_bytes: of each answer; a larger one is an error. max_retries: of each request, the last of which
        begins within two minutes of the first. concurrency: requests under way at once, of each call.
        texts_per_request, characters_per_request: where long lists are split. lane: "interactive" or "bulk"; None:
        calls of more than 8 requests are bulk, and the server judges the others. http: a client of httpx for proxies
        and certificates; it is not closed with this one.
        """
        self._settings = Settings(
            base_url=base_url,
            api_key=api_key,
            timeout_s=timeout_s,
            max_answer_bytes=max_answer_bytes,
            max_retries=max_retries,
            concurrency=concurrency,
            texts_per_request=texts_per_request,
            characters_per_request=characters_per_request,
            lane=lane,
        )
        self._http: Http = self._http_of_its_own() if http is None else http
        self._owns_http = http is None
        self._arrow = has_arrow()  # until the server says that it has none

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._settings.base_url!r})"
