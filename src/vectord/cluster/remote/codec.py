"""Canonical requests, results and errors as bytes, and back: msgpack for what is said, arrays as they lie in memory.

    packed: the msgpack of plain values; in place of an array stands (dtype, shape, where it begins)
    arrays: their bytes, one after the other, each at a multiple of ALIGNMENT

Called by server.py and client.py on their event loops. Values are read as exactly the dataclasses of schema.py, errors
as exactly the classes of errors.py; nothing is imported or run by name. Whatever is otherwise raises BadFrame.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias, TypedDict, cast, get_args, get_origin

import msgspec
import numpy as np
import numpy.typing as npt

from vectord.errors import InvalidField, Untokenizable, VectordError, restored
from vectord.schema import Caller, Request, Result, Several, SeveralResults, Usage

Buffer: TypeAlias = bytes | bytearray | memoryview
Array: TypeAlias = npt.NDArray[Any]

ALIGNMENT = 16  # bytes; what numpy and the readers of its memory ask of any dtype below
MAX_DIMENSIONS = 8
DTYPES = frozenset(("<f2", "<f4", "<f8", "<i2", "<i4", "<i8", "<u2", "<u4", "<u8", "|i1", "|u1", "|b1"))

REQUESTS: Mapping[str, type] = {kind.__name__: kind for kind in get_args(Request)}
RESULTS: Mapping[str, type] = {kind.__name__: kind for kind in get_args(Result)}


class BadFrame(Exception):
    """What came is not what this side speaks: a fault of ours, or a stranger."""


# --- requests, results, errors --------------------------------------------------------------------------------


def encode_request(request: Request, caller: Caller) -> list[Buffer]:
    """Packed, then arrays. Raises Untokenizable for a text without UTF-8, InvalidField for a number beyond 64 bits."""
    return _encoded((caller, *_named(request)))


def decode_request(packed: Buffer, arrays: Buffer) -> tuple[Request, Caller]:
    reader = _Reader(arrays)
    caller, name, raw = reader.read(tuple[Caller, str, msgspec.Raw], packed)
    return _value(REQUESTS, name, raw, reader), caller


def encode_result(result: Result) -> list[Buffer]:
    return _encoded(_named(result))


def decode_result(packed: Buffer, arrays: Buffer) -> Result:
    """Its arrays are views of `arrays`."""
    reader = _Reader(arrays)
    name, raw = reader.read(tuple[str, msgspec.Raw], packed)
    return cast(Result, _value(RESULTS, name, raw, reader))


def encode_error(error: VectordError) -> list[Buffer]:
    return _encoded(_plain(error))


def decode_error(packed: Buffer, arrays: Buffer) -> VectordError:
    return cast(VectordError, _Reader(arrays).read(VectordError, packed))


def encode_value(value: object) -> list[Buffer]:
    """Anything else that msgspec and this module know: messages.py's."""
    return _encoded(value)


def decode_value(kind: Any, packed: Buffer, arrays: Buffer) -> Any:
    """kind: a type, or a union of those."""
    return _Reader(arrays).read(kind, packed)


def _named(value: Request | Result) -> tuple[str, Any]:
    """Its class beside it; the parts of several have theirs, too."""
    name = type(value).__name__
    if isinstance(value, Several):
        return name, [_named(part) for part in value.requests]
    if isinstance(value, SeveralResults):
        return name, ([_named(part) for part in value.results], value.usage)
    return name, value


def _value(kinds: Mapping[str, type], name: str, raw: msgspec.Raw, reader: _Reader) -> Any:
    kind = kinds.get(name)
    if kind is None:
        raise BadFrame(f"no class of ours: {name[:40]!r}")
    if kind is Several:
        parts = reader.read(list[tuple[str, msgspec.Raw]], raw)
        return Several(requests=[_value(_PARTS, part, raw_part, reader) for part, raw_part in parts])
    if kind is SeveralResults:
        found, usage = reader.read(tuple[list[tuple[str, msgspec.Raw]], Usage], raw)
        return SeveralResults(
            results=[_value(_PART_RESULTS, part, raw_part, reader) for part, raw_part in found], usage=usage
        )
    return reader.read(kind, raw)


# Several within Several is nobody's request: depth is bounded by the types.
_PARTS = {name: kind for name, kind in REQUESTS.items() if kind is not Several}
_PART_RESULTS = {name: kind for name, kind in RESULTS.items() if kind is not SeveralResults}


# --- writing --------------------------------------------------------------------------------------------------


def _encoded(value: object) -> list[Buffer]:
    writer = _Writer()
    try:
        packed = msgspec.msgpack.encode(value, enc_hook=writer.hook)
    except UnicodeEncodeError:
        raise Untokenizable("A text holds half of a surrogate pair, which no encoding of Unicode has.") from None
    except OverflowError:
        raise InvalidField("A number has more than 64 bits.") from None
    return [packed, *writer.buffers]


class _Writer:
    """Puts aside what msgpack does not know: arrays, as they lie in memory."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self._bytes = 0

    def hook(self, value: object) -> object:
        if isinstance(value, np.ndarray):
            return self._array(value)
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, VectordError):
            return _plain(value)
        if isinstance(value, Mapping):
            return dict(value)
        if isinstance(value, Sequence):
            return list(value)
        raise NotImplementedError(f"{type(value).__name__} does not cross the socket")

    def _array(self, array: Array) -> tuple[str, tuple[int, ...], int]:
        lying = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        at = self._bytes
        if lying.size:
            padding = -lying.nbytes % ALIGNMENT
            self.buffers.append(lying.reshape(-1).data.cast("B"))
            self.buffers.append(bytes(padding))
            self._bytes += lying.nbytes + padding
        return lying.dtype.str, array.shape, at


def _plain(error: VectordError) -> tuple[str, str, dict[str, Any]]:
    return type(error).__name__, error.template, vars(error)


# --- reading --------------------------------------------------------------------------------------------------


class _Reader:
    def __init__(self, arrays: Buffer) -> None:
        self._arrays = arrays

    def read(self, kind: Any, packed: Buffer | msgspec.Raw) -> Any:
        decoding = _decoding(kind)
        decoding.reader = self
        try:
            return decoding.decoder.decode(packed)
        except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError) as problem:
            raise BadFrame(f"{type(problem).__name__}: {problem}") from None
        finally:
            decoding.reader = None  # or it would hold these arrays until the next

    def hook(self, kind: Any, value: Any) -> Any:
        origin = get_origin(kind) or kind
        if origin is np.ndarray:
            return self._array(*value)
        if origin is VectordError:
            return _error(value)
        raise NotImplementedError(f"{kind} does not cross the socket")

    def _array(self, dtype: str, shape: Sequence[int], at: int) -> Array:
        if dtype not in DTYPES or len(shape) > MAX_DIMENSIONS or min(shape, default=0) < 0 or at < 0 or at % ALIGNMENT:
            raise ValueError("no array of ours")
        count = math.prod(shape)
        if count == 0:
            return np.empty(tuple(shape), dtype)
        return np.frombuffer(self._arrays, dtype, count, at).reshape(shape)  # raises ValueError beyond the end


class _Decoding:
    """A decoder of one type; its hook is told whose arrays are meant. Making one takes longer than using it."""

    def __init__(self, kind: Any) -> None:
        self.reader: _Reader | None = None
        self.decoder = msgspec.msgpack.Decoder(kind, dec_hook=self._hook)

    def _hook(self, kind: Any, value: Any) -> Any:
        assert self.reader is not None, "read() names the reader"
        return self.reader.hook(kind, value)


@cache
def _decoding(kind: Any) -> _Decoding:
    return _Decoding(kind)


def _tree(kind: type[VectordError]) -> Iterator[type[VectordError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _tree(each)


ERRORS: Mapping[str, type[VectordError]] = {kind.__name__: kind for kind in _tree(VectordError)}


class _Attributes(TypedDict, total=False):
    """What errors say beside their message; an attribute that is not here does not come back (tests/remote)."""

    field: str | None
    index: int | None
    part: int | None
    limit: int | float | None
    given: int | float | None
    values: dict[str, int | float | str]
    names: dict[str, str]
    retry_after_s: float
    allowed: tuple[str, ...]


def _error(value: Any) -> VectordError:
    name, message, attributes = msgspec.convert(value, tuple[str, str, _Attributes])
    if name not in ERRORS:
        raise BadFrame(f"no error of ours: {name[:40]!r}")
    return restored(ERRORS[name], (message,), attributes)
