"""Who calls, from a request's headers or a call's metadata. Called by handler.py and by rpc/, once a request."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import cast

from vectord.errors import InvalidField
from vectord.products.common.inputs import read_fingerprint
from vectord.schema import Caller, Lane
from vectord.server.admission.keys import Key
from vectord.server.http.request_id import request_id

LANE = "x-vectord-lane"
EXPECT_FINGERPRINT = "x-vectord-expect-fingerprint"
TIMEOUT_MS = "x-vectord-timeout-ms"
ENVOY_TIMEOUT_MS = "x-envoy-expected-rq-timeout-ms"  # what that proxy adds: it will have given up by then

_MAX_TIMEOUT_DIGITS = 9


def caller_of(
    headers: Mapping[str, str], address: str, key: Key | None = None, name: str | None = None, route: str = ""
) -> Caller:
    """headers: names in lower case; key: the one that came with them; name: the request's id, if it has one already,
    else from the headers; route: the template of the path, or the call's name.

    Who has a key of their own is that key's name, else the address; a key's lane outranks the header.
    Raises InvalidField for a lane, fingerprint or timeout that is none.
    """
    lane = headers.get(LANE)
    if lane not in (None, "interactive", "bulk"):
        raise InvalidField(f"{LANE} must be interactive or bulk.", field=LANE)
    return Caller(
        client=address if key is None or key.shared else key.name,
        named=key is not None and not key.shared,
        lane=(key.lane if key is not None else None) or cast("Lane | None", lane),
        request_id=name or request_id(headers),
        route=route,
        models=None if key is None else key.models,
        deadline_s=_deadline_s(headers),
        expect_fingerprint=read_fingerprint(headers.get(EXPECT_FINGERPRINT), EXPECT_FINGERPRINT),
    )


def _deadline_s(headers: Mapping[str, str]) -> float | None:
    """When nobody waits for the answer any more; None: nobody says."""
    name = TIMEOUT_MS if TIMEOUT_MS in headers else ENVOY_TIMEOUT_MS
    text = headers.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_TIMEOUT_DIGITS):
        raise InvalidField(f"{name} must be a whole number of milliseconds.", field=name)
    return time.monotonic() + int(text) / 1000
