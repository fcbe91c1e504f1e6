"""How a client works, checked once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_args

import httpx

from vectord.client.options import Lane
from vectord.client.retrying import Retries
from vectord.client.splitting import Limits

CONNECT_S = 5.0
RETRY_WITHIN_S = 120.0
MAX_TIMEOUT_S = 86_400
MAX_ANSWER_BYTES = 2**30  # unless told otherwise
MAX_CONCURRENCY = 100  # connections that httpx opens to one host unless told otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Raises ValueError for what cannot be. client.py says what each is for."""

    base_url: str
    api_key: str | None = field(repr=False)
    timeout_s: float
    max_retries: int
    concurrency: int
    texts_per_request: int
    characters_per_request: int
    lane: Lane | None
    max_answer_bytes: int = MAX_ANSWER_BYTES

    def __post_init__(self) -> None:
        _check_url(self.base_url)
        if not isinstance(self.timeout_s, int | float) or not 0 < self.timeout_s <= MAX_TIMEOUT_S:  # NaN is not, either
            raise ValueError(f"timeout_s must be above 0, {MAX_TIMEOUT_S} at most, not {self.timeout_s!r}")
        _check_range("max_answer_bytes", self.max_answer_bytes, 1, None)
        _check_range("max_retries", self.max_retries, 0, None)
        _check_range("concurrency", self.concurrency, 1, MAX_CONCURRENCY)
        _check_range("texts_per_request", self.texts_per_request, 1, None)
        _check_range("characters_per_request", self.characters_per_request, 1, None)
        if self.lane is not None and self.lane not in get_args(Lane):
            raise ValueError(f"lane must be one of {', '.join(get_args(Lane))}")

    @property
    def limits(self) -> Limits:
        return Limits(texts=self.texts_per_request, characters=self.characters_per_request)

    @property
    def retries(self) -> Retries:
        return Retries(max_retries=self.max_retries, within_s=RETRY_WITHIN_S)

    @property
    def timeout(self) -> httpx.Timeout:
        return httpx.Timeout(self.timeout_s, connect=min(CONNECT_S, self.timeout_s))

    def url_of(self, path: str) -> str:
        return self.base_url.rstrip("/") + path


def _check_url(base_url: str) -> None:
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL as cause:
        raise ValueError(f"base_url is no URL: {cause}") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError("base_url must begin with http:// or https:// and name a host")


def _check_range(name: str, value: int, least: int, most: int | None) -> None:
    if not isinstance(value, int) or value < least or (most is not None and value > most):
        raise ValueError(f"{name} must be {least} {'or more' if most is None else f'to {most}'}, not {value!r}")
