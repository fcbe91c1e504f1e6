"""Who may ask. handler.py calls `check` for every endpoint that is not public, before anything is read or parsed."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from hashlib import sha256

from vectord.errors import Unauthorized


class Keys:
    """The keys that open the server; with none, everyone may ask. Only their digests are kept."""

    def __init__(self, *keys: str | None) -> None:
        self._digests = [sha256(key.encode()).digest() for key in keys if key]

    def check(self, headers: Mapping[str, str]) -> None:
        """Raises Unauthorized unless a header carries a key. headers: names in lower case, values as latin-1."""
        if not self._digests:
            return
        presented = _presented(headers)
        if presented is None:
            raise Unauthorized("A key is required: send it as Authorization: Bearer KEY or as x-api-key.")
        # Digests have one length, so that the comparison tells nothing about the key; every key is always compared.
        digest = sha256(presented.encode("latin-1")).digest()
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        if not any(matches):
            raise Unauthorized("The key is not one of this server's.")


def _presented(headers: Mapping[str, str]) -> str | None:
    """The key as sent: Bearer, the bare value that llama-index's TEI client sends, or x-api-key."""
    authorization = headers.get("authorization")
    if authorization is None:
        return headers.get("x-api-key")
    scheme, _, value = authorization.partition(" ")
    return value.strip() if scheme.lower() == "bearer" and value else authorization.strip()
