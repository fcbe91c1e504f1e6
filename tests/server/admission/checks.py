"""The steps of the gate for one key."""

from __future__ import annotations

from collections.abc import Mapping

from vectord.server.admission.keys import Key, Keys


def check(keys: Keys, headers: Mapping[str, str]) -> Key | None:
    """The key in `headers`. Raises the error that a request with it gets."""
    key = keys.lookup(headers)
    keys.require(key, headers)
    return key


def check_admin(keys: Keys, headers: Mapping[str, str]) -> Key | None:
    key = keys.lookup(headers)
    keys.require_admin(key, headers)
    return key
