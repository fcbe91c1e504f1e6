"""Which Content-Types a JSON body may come under. Called by handler.py before a body is read."""

from __future__ import annotations

from collections.abc import Mapping

from vectord.errors import UnsupportedMediaType

# None at all: many hand-written clients. Form: what `curl -d` says whatever it sends. Text: what fetch() says of a
# string. Octets: what libraries say of bytes. The body must be JSON all the same; the parser sees to that.
_accepted = frozenset(
    {"", "application/json", "text/json", "application/x-www-form-urlencoded", "text/plain", "application/octet-stream"}
)


def check_media_type(headers: Mapping[str, str]) -> None:
    """Raises UnsupportedMediaType for a body that says it is something else than JSON, such as multipart."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in _accepted and not kind.endswith("+json"):
        raise UnsupportedMediaType("Bodies are read as JSON only; send Content-Type: application/json.")
