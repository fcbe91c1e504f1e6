"""Every way a request or a start can fail, in the caller's words. No HTTP in here.

    VectordError
    ├── InvalidRequest            what was sent cannot be served, now or later
    │   ├── MalformedBody             not JSON, cut off, or not UTF-8
    │   ├── UnsupportedMediaType      a Content-Type or Content-Encoding nobody here reads
    │   ├── NotAcceptable             a form of answer that this route, or this installation, does not have
    │   ├── PayloadTooLarge           more bytes than the limit, before or after decompression
    │   ├── InvalidField              a field of the wrong value or combination
    │   │   └── WrongType                 a field missing, not of its JSON type, or out of its type's range
    │   ├── EmptyInput                nothing to work on
    │   ├── TooManyInputs             more inputs than one request may carry
    │   ├── InputTooLong              more tokens (or characters) than the model reads, and truncation is off
    │   │   └── TooManyCharacters         more characters than this dialect takes, whatever the model reads
    │   ├── ForeignIds                token ids that are not of the model's vocabulary
    │   └── Untokenizable             text or ids that the model's tokenizer cannot turn into tokens
    ├── ModelNotFound             no served model has that name
    ├── ModelCannot               the model exists but does not do what was asked (embed, rerank ...)
    ├── FingerprintMismatch       the caller expects vectors of another space than this model's
    ├── Forbidden                 a key that may not do this
    ├── Unauthorized              no key, or a wrong one
    ├── NoSuchRoute               nothing is served at that path
    │   └── MethodNotAllowed          something is, under another method
    ├── Overloaded                refused early; retry_after_s says when it would be accepted
    │   └── RateLimited               not for want of room: this client asks more often than it may
    ├── Unavailable               not ready yet
    │   └── ShuttingDown              not any more: what was accepted is answered, and nothing new accepted
    ├── TimedOut                  not finished by its deadline: the caller's or the server's
    │   └── UploadTooSlow             a body that trickles, or that does while others wait for its place
    ├── InferenceFailed           the forward raised, the worker died, or the answer was not finite
    │   ├── OutOfMemory               the device had no room for even one text
    │   └── InferenceTimedOut         the forwards did not end in time and were given up
    └── StartError                the process cannot start as configured: one line, exit code 2
        ├── ConfigError               a bad option, environment value or file
        └── ModelUnavailable          a model's files are missing, incomplete or of an unknown kind

A message holds our own words, the caller's field names, and numbers; never a value the caller sent.
`dialects` render these (one table each, complete by test); the log gets the cause with the request id.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class VectordError(Exception):
    """Base of every expected failure. `message` may be shown to the client as it is."""

    def __init__(self, message: str, *, field: str | None = None, index: int | None = None) -> None:
        """message: one sentence, safe to show; field: the body key at fault; index: which input, from 0."""
        super().__init__(message)
        self.field = field
        self.index = index
        self.part: int | None = None  # which of several requests that came in one body, from 0

    @property
    def message(self) -> str:
        text: str = self.args[0]
        return text

    @message.setter
    def message(self, text: str) -> None:
        self.args = (text,)  # str() and tracebacks show the same

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, or what another process unpickles, has the same attributes, whatever its class takes to be made."""
        return restored, (type(self), self.args, self.__dict__)


UNFORESEEN = "The server failed on this request; its log has the cause under the request id."


def restored(kind: type[VectordError], args: tuple[Any, ...], attributes: Mapping[str, Any]) -> VectordError:
    """An error of this class as it was elsewhere, whatever its class takes to be made."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


class InvalidRequest(VectordError):
    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        index: int | None = None,
        limit: int | None = None,
        given: int | None = None,
    ) -> None:
        """limit, given: inputs, tokens or dimensions allowed and asked for; some dialects word these."""
        super().__init__(message, field=field, index=index)
        self.limit = limit
        self.given = given


class MalformedBody(InvalidRequest):
    pass


class UnsupportedMediaType(InvalidRequest):
    pass


class NotAcceptable(InvalidRequest):
    pass


class PayloadTooLarge(InvalidRequest):
    pass


class InvalidField(InvalidRequest):
    pass


class WrongType(InvalidField):
    pass


class EmptyInput(InvalidRequest):
    pass


class TooManyInputs(InvalidRequest):
    pass


class InputTooLong(InvalidRequest):
    pass


class TooManyCharacters(InputTooLong):
    pass


class ForeignIds(InvalidRequest):
    pass


class Untokenizable(InvalidRequest):
    pass


class ModelNotFound(VectordError):
    pass


class ModelCannot(VectordError):
    pass


class FingerprintMismatch(VectordError):
    pass


class Unauthorized(VectordError):
    pass


class Forbidden(VectordError):
    pass


class NoSuchRoute(VectordError):
    pass


class MethodNotAllowed(NoSuchRoute):
    def __init__(self, message: str, *, allowed: tuple[str, ...]) -> None:
        super().__init__(message)
        self.allowed = allowed


class Overloaded(VectordError):
    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RateLimited(Overloaded):
    pass


class Unavailable(VectordError):
    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ShuttingDown(Unavailable):
    def __init__(self, message: str = "The server is shutting down.") -> None:
        super().__init__(message)


class TimedOut(VectordError):
    pass


class UploadTooSlow(TimedOut):
    pass


class InferenceFailed(VectordError):
    pass


class OutOfMemory(InferenceFailed):
    pass


class InferenceTimedOut(InferenceFailed):
    pass


class StartError(VectordError):
    pass


class ConfigError(StartError):
    pass


class ModelUnavailable(StartError):
    pass
