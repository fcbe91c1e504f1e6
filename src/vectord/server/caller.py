"""Who calls, from a request's headers or a call's metadata. Called by handler.py and by rpc/, once a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from vectord.errors import InvalidField
from vectord.schema import Caller, Lane
from vectord.server.request_id import request_id
from vectord.wire.fingerprint import read_fingerprint

LANE = "x-vectord-lane"
EXPECT_FINGERPRINT = "x-vectord-expect-fingerprint"


def caller_of(headers: Mapping[str, str], address: str, name: str | None = None) -> Caller:
    """headers: names in lower case; name: the request's id, if it has one already, else from the headers.

    Raises InvalidField for a lane or fingerprint that is none.
    """
    lane = headers.get(LANE)
    if lane not in (None, "interactive", "bulk"):
        raise InvalidField(f"{LANE} must be interactive or bulk.", field=LANE)
    return Caller(
        client=address,
        lane=cast("Lane | None", lane),
        request_id=name or request_id(headers),
        expect_fingerprint=read_fingerprint(headers.get(EXPECT_FINGERPRINT), EXPECT_FINGERPRINT),
    )
