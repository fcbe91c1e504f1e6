"""Serves files of this package with an ETag, compressed for clients that accept gzip. For console.py and docs.py."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path

from vectord.products.common.dialect import Rendered
from vectord.server.http.negotiation import accepts_gzip

_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
SAFETY_HEADERS = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}


def policy(**sources: str) -> dict[str, str]:
    """Headers for a page that loads only the server's own files, nothing inline; `sources` override directives."""
    directives = {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self'",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        **{f"{name}-src": value for name, value in sources.items()},
    }
    return {"content-security-policy": "; ".join(f"{name} {value}" for name, value in directives.items())}


def serve_file(path: Path, request: Mapping[str, str], headers: Mapping[str, str]) -> Rendered:
    """The file `path` (or `path`.gz, which is stored compressed), or 304 for a client that has it.

    request: the request's headers. A strong ETag must differ by encoding.
    """
    packed = accepts_gzip(request.get("accept-encoding"))
    tag = f'"{_digest(path)}{"" if packed else "-plain"}"'
    shown = {**SAFETY_HEADERS, **headers, "etag": tag, "vary": "accept, accept-encoding"}
    if tag in request.get("if-none-match", ""):
        return Rendered(body=b"", status=304, headers=shown)
    content_type = f"{_TYPES[path.suffix]}; charset=utf-8"
    if packed:
        return Rendered(body=_packed(path), content_type=content_type, headers={**shown, "content-encoding": "gzip"})
    return Rendered(body=_plain(path), content_type=content_type, headers=shown)


@cache
def _packed(path: Path) -> bytes:
    stored = path.with_name(f"{path.name}.gz")
    return gzip.compress(path.read_bytes(), mtime=0) if path.exists() else stored.read_bytes()


@cache
def _plain(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else gzip.decompress(_packed(path))


@cache
def _digest(path: Path) -> str:
    return sha256(_packed(path)).hexdigest()[:32]
