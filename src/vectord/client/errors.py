"""Every way a call can fail, in the caller's words.

    ClientError
    ├── BadRequest            what was asked cannot be answered, now or later
    │   └── NotAcceptable         a form of answer that this server does not have
    ├── Unauthorized          no key, a wrong one, or one that may not do this
    ├── NotFound              no such model is served, or no such route
    ├── FingerprintChanged    vectors of another space than expected, or than this call's first ones
    ├── TryLater              it was tried again, and the retries or the time for them ran out
    │   ├── Overloaded            the server refuses work; retry_after_s says when it would not
    │   ├── Unavailable           the model still loads, or the server shuts down
    │   └── ConnectionFailed      nobody listens there, or the connection broke before the answer was whole
    ├── Timeout               a connection, but no whole answer within timeout_s, or 408 or 504 for one
    └── ServerFailed          the server failed on this, or what it sent is no answer, or too large a one

What the caller's code got wrong, a text that is no string or a limit below 1, is a TypeError or a ValueError.
"""

from __future__ import annotations


class ClientError(Exception):
    """Base of every failed call."""

    def __init__(
        self, message: str, *, status: int | None = None, type: str | None = None, request_id: str | None = None
    ) -> None:
        """message: one sentence; status: of HTTP, None without an answer; type: docs/api.md lists them; request_id: the
        server's log has the request under it."""
        super().__init__(message)
        self.status = status
        self.type = type
        self.request_id = request_id


class BadRequest(ClientError):
    """field: of the body, as docs/api.md names it; index: which item of the list that the caller gave, from 0; limit
    and given: in the units that the message names."""

    field: str | None = None
    index: int | None = None
    limit: int | None = None
    given: int | None = None


class NotAcceptable(BadRequest):
    pass


class Unauthorized(ClientError):
    pass


class NotFound(ClientError):
    pass


class FingerprintChanged(ClientError):
    pass


class TryLater(ClientError):
    """retry_after_s: what the server said, if it did."""

    retry_after_s: float | None = None


class Overloaded(TryLater):
    pass


class Unavailable(TryLater):
    pass


class ConnectionFailed(TryLater):
    pass


class Timeout(ClientError):
    pass


class ServerFailed(ClientError):
    pass
