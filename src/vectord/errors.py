"""Every way in which a request or a start can fail, as data.

    VectordError
    ├── InvalidRequest            the request cannot be served, now or later
    │   ├── MalformedHead             headers that can be read in two ways, or an HTTP version that is not served
    │   ├── MalformedBody             not JSON, truncated, or not UTF-8
    │   ├── UnsupportedMediaType      a Content-Type or Content-Encoding that the server does not read
    │   ├── NotAcceptable             a response format that this route, or this installation, does not have
    │   ├── PayloadTooLarge           more bytes than the limit, before or after decompression
    │   ├── InvalidField              a field with an invalid value or combination
    │   │   └── WrongType                 a field not of its JSON type, or out of its type's range
    │   │       └── MissingField              a required field is absent
    │   ├── EmptyInput                no inputs
    │   ├── TooManyInputs             more inputs than one request may contain
    │   ├── InputTooLong              more tokens or characters than the model reads, and truncation is off
    │   │   ├── ImagesTooLong             images have more tokens than the model's context, and cannot be cut
    │   │   └── TooManyCharacters         more characters than this product accepts, for any model
    │   ├── ForeignIds                token ids outside the model's vocabulary
    │   └── Untokenizable             text or ids that the model's tokenizer rejects
    ├── ModelNotFound             no served model has that name
    ├── ModelCannot               the model exists but does not support the operation (embed, rerank, ...)
    ├── FingerprintMismatch       the caller expects vectors of another space than this model's
    ├── Forbidden                 the key lacks the permission, or the request comes from a foreign web page
    ├── Unauthorized              the key is absent or wrong
    ├── NoSuchRoute               no route has that path
    │   └── MethodNotAllowed          a route has that path, with another method
    ├── Overloaded                rejected early; retry_after_s predicts when a retry would be accepted
    │   ├── QueueTimedOut             no place became free in time
    │   └── RateLimited               the client exceeds its rate limit
    ├── Unavailable               not ready yet
    │   ├── ModelFailed               the model could not be loaded; a later request tries again
    │   └── ShuttingDown              the server accepts no new requests
    ├── TimedOut                  not finished by the deadline of the caller or of the server
    │   └── UploadTooSlow             the body arrives below the minimum rate
    ├── InferenceFailed           the forward pass raised, the worker died, or the result was not finite
    │   ├── OutOfMemory               the device has no room for even one text
    │   └── InferenceTimedOut         the forward pass did not finish in time
    └── StartError                the process cannot start as configured: one line, exit code 2
        ├── ConfigError               an invalid option, environment value or file
        └── ModelUnavailable          a model's files are missing, incomplete or of an unknown kind

An error holds a constant template, the place at fault, the limit and the given size. `message` makes the sentence,
with the field names of the product that renders it. A message contains our own words, field names and numbers, and
never a value that the client sent. No code reads a message: `products` render errors from one table each.
"""

from __future__ import annotations

import enum
import errno
import os
import re
import sys
from collections.abc import Iterable, Mapping
from copy import copy
from pathlib import Path
from typing import Any, Self

_UNCHANGED: Any = object()
NAME_CHARACTERS = 200  # of a name that is compared with known ones
_PLACEHOLDER = re.compile(r"\{([a-z_]+(?:\.[a-z_]+)*)\}")


class ExitCode(enum.IntEnum):
    """How a process ends. Each command's help lists the codes that it uses."""

    FAILED = 1  # the command ran and its result is negative
    NOTHING_SERVED = 1  # no model could be loaded
    BAD_START = 2  # a bad option, a missing file, no server at the URL
    CRASHED = 70  # an unexpected error in a child process
    SIGNALLED = 128  # plus the number of the signal
    INTERRUPTED = 130


class VectordError(Exception):
    """Base of every expected failure.

    The placeholders of `template`: `{field}` is the place at fault, quoted; `{limit}` and `{given}` are the numbers;
    `{body.NAME}` is another field of the request, quoted; `{NAME}` is one of `values`.
    """

    def __init__(
        self,
        template: str,
        *,
        field: str | None = None,
        index: int | None = None,
        limit: float | None = None,
        given: float | None = None,
        **values: float | str,
    ) -> None:
        """field: the canonical name (schema.py) of the field at fault, or a product's own; index: which input, from 0;
        limit, given: the number allowed and the number received."""
        super().__init__(template)
        self.field = field
        self.index = index
        self.limit = limit
        self.given = given
        self.values = values
        self.names: Mapping[str, str] = {}
        self.part: int | None = None  # which request of a MultiRequest, from 0

    @property
    def template(self) -> str:
        template: str = self.args[0]
        return template

    @property
    def message(self) -> str:
        """The sentence for the client, with its product's field names."""
        return _PLACEHOLDER.sub(self._value_of, self.template)

    @property
    def field_name(self) -> str | None:
        """The field at fault as the product names it."""
        return None if self.field is None else self.names.get(self.field, self.field)

    def named(self, names: Mapping[str, str]) -> Self:
        """A copy whose message uses a product's field names. names: canonical field -> the product's field."""
        named = copy(self)
        named.names = {**self.names, **names}
        named.__cause__ = self.__cause__
        return named

    def at(
        self, *, field: str | None = _UNCHANGED, index: int | None = _UNCHANGED, part: int | None = _UNCHANGED
    ) -> Self:
        """A copy with this place. Raise the copy without a variable: one in a frame of its traceback makes a cycle."""
        placed = copy(self)
        placed.field = self.field if field is _UNCHANGED else field
        placed.index = self.index if index is _UNCHANGED else index
        placed.part = self.part if part is _UNCHANGED else part
        placed.__cause__ = self.__cause__
        return placed

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and unpickled errors have the same attributes, regardless of the arguments of their class."""
        return restored, (type(self), self.args, self.__dict__)

    def _value_of(self, placeholder: re.Match[str]) -> str:
        name = placeholder[1]
        if name == "field":
            return self._place()
        if name.startswith("body."):
            canonical = name.removeprefix("body.")
            return f"`{self.names.get(canonical, canonical)}`"
        value = {"limit": self.limit, "given": self.given, "index": self.index, **self.values}.get(name)
        if value is None:
            return placeholder[0]
        return f"{value:g}" if isinstance(value, float) else str(value)

    def _place(self) -> str:
        if self.field_name is None:
            return "the input" if self.index is None else f"input {self.index}"
        return f"`{self.field_name}`" if self.index is None else f"`{self.field_name}[{self.index}]`"


UNFORESEEN = "The server failed on this request; its log has the cause under the request id."


def restored(kind: type[VectordError], args: tuple[Any, ...], attributes: Mapping[str, Any]) -> VectordError:
    """An error of this class with these attributes; does not call the class's constructor."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


class InvalidRequest(VectordError):
    pass


class MalformedHead(InvalidRequest):
    pass


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


class MissingField(WrongType):
    pass


class EmptyInput(InvalidRequest):
    pass


class TooManyInputs(InvalidRequest):
    pass


class InputTooLong(InvalidRequest):
    pass


class TooManyCharacters(InputTooLong):
    pass


class ImagesTooLong(InputTooLong):
    """Images are never cut."""


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
    def __init__(self, template: str, *, retry_after_s: float, **data: Any) -> None:
        super().__init__(template, **data)
        self.retry_after_s = retry_after_s


class QueueTimedOut(Overloaded):
    pass


class RateLimited(Overloaded):
    pass


class Unavailable(VectordError):
    def __init__(self, template: str, *, retry_after_s: float = 1.0, **data: Any) -> None:
        super().__init__(template, **data)
        self.retry_after_s = retry_after_s


class ModelFailed(Unavailable):
    def without_reason(self) -> ModelFailed:
        """For callers that may not know `reason`."""
        return ModelFailed("The model {model} could not be loaded.", model=self.values["model"])


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
    @property
    def message(self) -> str:
        """The sentence, on one line: a value of a model's file may contain any character."""
        return "".join(c if c.isprintable() else repr(c)[1:-1] for c in super().message)


class ConfigError(StartError):
    pass


class ModelUnavailable(StartError):
    pass


# --- memory ---------------------------------------------------------------------------------------------------


def drop_frames(error: BaseException) -> None:
    """Remove the tracebacks of an error and of those that led to it. Called once it has been logged.

    A variable of a frame often refers to the error that passed through it, such as a failed task. This cycle keeps all
    variables of these frames, such as a request of 32 MB, until a full garbage collection.
    """
    found = {id(error): error}
    waiting = [error]
    while waiting:
        each = waiting.pop()
        each.__traceback__ = None
        for cause in (each.__cause__, each.__context__):
            if cause is not None and id(cause) not in found:
                found[id(cause)] = cause
                waiting.append(cause)


# --- words for messages ---------------------------------------------------------------------------------------


def plain_reason(error: BaseException | None) -> str:
    """Why a file or a connection failed, without the names of Python's classes: "Name or service not known"."""
    while error is not None:
        if (untrusted := getattr(error, "verify_message", None)) is not None:  # ssl.SSLCertVerificationError
            return f"its certificate is not trusted: {untrusted}"
        if isinstance(error, BaseExceptionGroup):  # an attempt for each address of the host
            error = error.exceptions[0]
        if isinstance(error, ConnectionRefusedError):  # asyncio writes the address into the message
            return os.strerror(errno.ECONNREFUSED)
        if isinstance(error, OSError) and error.strerror:
            return error.strerror
        if isinstance(error, TimeoutError) or "Timeout" in type(error).__name__:
            return "timeout"
        if isinstance(error, EOFError) or "ProtocolError" in type(error).__name__:
            return "no complete HTTP response"
        if isinstance(error, UnicodeError):
            return "not UTF-8"
        error = error.__cause__ or error.__context__
    return "unexpected error"


def similar_name(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` nearly is, in upper or lower case; None if there is none."""
    from difflib import get_close_matches  # noqa: PLC0415 - few errors need it

    names = {each.lower(): each for each in known}
    found = get_close_matches(name[:NAME_CHARACTERS].lower(), names, n=1, cutoff=0.8)
    return names[found[0]] if found else None


def installing(extra: str) -> str:
    """The command that adds the packages of an extra to this installation."""
    checkout = Path(__file__).parents[2]
    # pip finds the installed vectord, and contacts no index for it.
    place = f"-e '{checkout}[{extra}]'" if (checkout / "pyproject.toml").is_file() else f"'vectord[{extra}]'"
    return f"{sys.executable} -m pip install {place}"
