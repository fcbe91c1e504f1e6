"""Who may ask. handler.py calls this for every endpoint that is not public, before anything is read or parsed."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from hashlib import sha256

from vectord.errors import Forbidden, NoSuchRoute, Unauthorized


class Keys:
    """Each of `accepted` opens the server; without one everyone may ask. `admin_key` opens that and the operator's
    routes, which do not exist without it. Only digests are kept."""

    def __init__(self, accepted: Sequence[str], admin_key: str | None = None) -> None:
        self._accepted = [_digest(key) for key in accepted]
        self._admin = _digest(admin_key) if admin_key else None

    def check(self, headers: Mapping[str, str]) -> None:
        """Raises Unauthorized unless a header carries a key. headers: names in lower case, values as latin-1."""
        if not self._accepted:
            return
        presented = _presented_digest(headers)
        # Digests have one length, so that a comparison tells nothing about the key; every key is always compared.
        matches = [_is_same(presented, known) for known in (*self._accepted, self._admin)]
        if not any(matches):
            raise Unauthorized("The key is not one of this server's.")

    def check_admin(self, headers: Mapping[str, str]) -> None:
        """Raises Unauthorized without a key or for a wrong one, Forbidden for the ordinary one, and NoSuchRoute where
        there is no admin key: to those who may ask at all."""
        if self._admin is None:
            self.check(headers)
            raise NoSuchRoute("Nothing is served at this path; /docs lists what is.")
        presented = _presented_digest(headers)
        is_admin, *are_client = [_is_same(presented, known) for known in (self._admin, *self._accepted)]
        if is_admin:
            return
        if any(are_client):
            raise Forbidden("This key may not load or unload models; that takes the admin key.")
        raise Unauthorized("The key is not this server's admin key.")


def _is_same(presented: bytes, known: bytes | None) -> bool:
    return known is not None and hmac.compare_digest(presented, known)


def _presented_digest(headers: Mapping[str, str]) -> bytes:
    """Raises Unauthorized if no key was sent."""
    presented = _presented(headers)
    if presented is None:
        raise Unauthorized("A key is required: send it as Authorization: Bearer KEY or as x-api-key.")
    return sha256(presented.encode("latin-1")).digest()


def _digest(key: str) -> bytes:
    return sha256(key.encode()).digest()


def _presented(headers: Mapping[str, str]) -> str | None:
    """The key as sent: Bearer, the bare value that llama-index's TEI client sends, or x-api-key."""
    authorization = headers.get("authorization")
    if authorization is None:
        return headers.get("x-api-key")
    scheme, _, value = authorization.partition(" ")
    return value.strip() if scheme.lower() == "bearer" and value else authorization.strip()
