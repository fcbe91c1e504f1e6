"""Which other web pages may call this server from a browser. app.py puts it around the handler where it is wanted."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

# What a page may read beside the body.
SHOWN = (
    "retry-after",
    "retry-after-ms",
    "server-timing",
    "x-request-id",
    "x-vectord-dtype",
    "x-vectord-fingerprint",
    "x-vectord-model",
    "x-vectord-query-truncated",
    "x-vectord-rows",
    "x-vectord-score-kind",
    "x-vectord-shape",
    "x-vectord-tokens-kept",
    "x-vectord-tokens-seen",
    "x-vectord-truncated",
    "x-vectord-truncated-inputs",
)
MAX_AGE_S = 600  # for which a browser may remember what it was allowed


def with_cors(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """`app`, whose answers pages of these origins may read; "*": of any. Preflights are answered without a key."""
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=("GET", "HEAD", "POST"),
        allow_headers=("*",),
        expose_headers=SHOWN,
        max_age=MAX_AGE_S,
    )
