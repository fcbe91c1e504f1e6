"""Who may ask. gate.py calls this for every endpoint that is not public, before anything is read or parsed."""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping, Sequence
from hashlib import blake2b, sha256

from vectord.errors import Forbidden, NoSuchRoute, Unauthorized
from vectord.server.admission.keys import Key, KeysFile


class Keys:
    """Each of `accepted`, and each key of the file, opens the server; without any of them everyone may ask.

    `admin_key`, and the file's keys with that right, open that and the operator's routes, which do not exist without
    one. Only digests are kept.
    """

    def __init__(self, accepted: Sequence[str], admin_key: str | None = None, file: KeysFile | None = None) -> None:
        self._is_open = not accepted and file is None
        self._file = file
        self._own = [Key(name="api_key", digest=_digest(key), shared=True) for key in accepted]
        if admin_key:
            self._own.append(Key(name="admin_key", digest=_digest(admin_key), admin=True, shared=True))
        self._blinding = os.urandom(32)
        self._filed: Sequence[Key] = ()
        self._index = self._indexed()

    def known(self, headers: Mapping[str, str]) -> Key | None:
        """The key that was sent, if it is one of this server's. headers: names in lower case, values as latin-1.

        In the same time for every key that is sent: what is looked up is its digest under a secret of this process, of
        which nobody outside can choose or guess a part.
        """
        presented = _presented(headers)
        if presented is None:
            return None
        digest = sha256(presented.encode("latin-1")).digest()
        if self._file is not None and (filed := self._file.current()) is not self._filed:
            self._filed = filed
            self._index = self._indexed()
        key = self._index.get(self._blinded(digest))
        return key if key is not None and hmac.compare_digest(key.digest, digest) else None

    def names(self) -> Sequence[str]:
        """Those of the keys of the file, as it is now."""
        return [] if self._file is None else [key.name for key in self._file.current()]

    def check(self, headers: Mapping[str, str]) -> Key | None:
        """The key that was sent. Raises Unauthorized if one is demanded and none of this server's was."""
        key = self.known(headers)
        self.demand(key, headers)
        return key

    def demand(self, key: Key | None, headers: Mapping[str, str]) -> None:
        """key: what is `known` of the headers. Raises Unauthorized if that does not open the server."""
        if key is not None or self._is_open:
            return
        if _presented(headers) is None:
            raise Unauthorized("A key is required: send it as Authorization: Bearer KEY or as x-api-key.")
        raise Unauthorized("The key is not one of this server's.")

    def check_admin(self, headers: Mapping[str, str]) -> Key | None:
        """As `check`, for the operator's routes."""
        key = self.known(headers)
        self.demand_admin(key, headers)
        return key

    def demand_admin(self, key: Key | None, headers: Mapping[str, str]) -> None:
        """Raises Unauthorized without a key or for a wrong one, Forbidden for an ordinary one, and NoSuchRoute where
        no key has that right: to those who may ask at all."""
        if key is not None and key.admin:
            return
        if not any(known.admin for known in self._index.values()):
            self.demand(key, headers)
            raise NoSuchRoute("Nothing is served at this path; /docs lists what is.")
        if key is not None:
            raise Forbidden("This key may not load or unload models; that takes the admin key.")
        if _presented(headers) is None:
            raise Unauthorized("A key is required: send it as Authorization: Bearer KEY or as x-api-key.")
        raise Unauthorized("The key is not this server's admin key.")

    def _indexed(self) -> dict[bytes, Key]:
        """By blinded digest. Of a key that is there twice its right to be the operator's counts: that comes last."""
        return {self._blinded(key.digest): key for key in (*self._filed, *self._own)}

    def _blinded(self, digest: bytes) -> bytes:
        return blake2b(digest, key=self._blinding, digest_size=32).digest()


def _digest(key: str) -> bytes:
    return sha256(key.encode()).digest()


def _presented(headers: Mapping[str, str]) -> str | None:
    """The key as sent: Bearer, the bare value that llama-index's TEI client sends, or x-api-key."""
    authorization = headers.get("authorization")
    if authorization is None:
        return headers.get("x-api-key")
    scheme, _, value = authorization.partition(" ")
    return value.strip() if scheme.lower() == "bearer" and value else authorization.strip()
