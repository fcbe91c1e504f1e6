"""What a front-end and the engine's process send each other: msgpack for plain values, arrays as raw memory.

    packed: msgpack; (dtype, shape, offset) stands for an array
    arrays: the memory of all arrays, each at a multiple of ALIGNMENT

Both sides are processes of one server. Nothing is imported or executed by name; whatever is not encoded here raises an
exception, which ends the connection. Called on the event loops of both sides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias, get_origin

import msgspec
import numpy as np
import numpy.typing as npt

from vectord import errors
from vectord.errors import InvalidField, Untokenizable, VectordError, restored
from vectord.observability.exchange import ConnectionsCounted, Exchange
from vectord.observability.metrics import FigurePart
from vectord.products.common.dialect import Rate
from vectord.schema import Caller, ModelList, Operation, Request
from vectord.server.admission.buckets import Draw
from vectord.text.sequence import TokenizedTexts

Buffer: TypeAlias = bytes | bytearray | memoryview
Array: TypeAlias = npt.NDArray[Any]

ALIGNMENT = 16  # bytes, enough for every dtype of a number

ERRORS: Mapping[str, type[VectordError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, VectordError)
}

HEARTBEAT_S = 0.3  # between two announcements of the engine's state
Report: TypeAlias = Exchange | ConnectionsCounted
# The methods of the engine's process, with the types of their arguments.
ARGUMENTS: Mapping[str, Any] = {
    "answer": tuple[Request, Caller, TokenizedTexts | None],  # the texts, if the front-end has tokenized them
    "check_busy": tuple[Operation, Caller],
    "draw": tuple[list[Draw]],
    "spend": tuple[Rate, str, int],
    "observe": tuple[list[Report]],
    "exposition": tuple[str],
    "figures": tuple[FigurePart],
}
METHODS = tuple(ARGUMENTS)


class EngineState(msgspec.Struct, frozen=True, kw_only=True):
    """Announced by the engine every HEARTBEAT_S, for calls that must not wait, and as a sign that it runs."""

    readiness: dict[str, str]
    models: ModelList
    names: Mapping[str, str]  # every name that clients may use -> the served name


def encode_call(method: str, *arguments: Any) -> list[Buffer]:
    """A byte for the method, and its arguments."""
    packed, *buffers = encode_value(arguments)
    return [b"".join((METHODS.index(method).to_bytes(), packed)), *buffers]


def decode_call(packed: Buffer, arrays: Buffer) -> tuple[str, tuple[Any, ...]]:
    method = METHODS[packed[0]]
    return method, decode_value(ARGUMENTS[method], packed[1:], arrays)


def encode_value(value: object) -> list[Buffer]:
    """Packed, then arrays. Raises Untokenizable for a text without UTF-8, InvalidField for an integer over 64 bits."""
    writer = _ArrayWriter()
    try:
        packed = msgspec.msgpack.encode(value, enc_hook=writer.hook)
    except UnicodeEncodeError:
        raise Untokenizable("A text contains half of a surrogate pair, which UTF-8 cannot encode.") from None
    except OverflowError:
        raise InvalidField("A number has more than 64 bits.") from None
    return [packed, *writer.buffers]


def decode_value(kind: Any, packed: Buffer, arrays: Buffer) -> Any:
    """kind: a type, or a union of types that msgspec can distinguish. Arrays in the value are views of `arrays`."""
    return _decoder(kind).decode(packed, arrays)


class _ArrayWriter:
    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self._bytes = 0

    def hook(self, value: object) -> object:
        if isinstance(value, np.ndarray):
            return self._array(value)
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, VectordError):
            known = next(kind.__name__ for kind in type(value).__mro__ if kind.__name__ in ERRORS)
            return known, value.template, vars(value)
        if isinstance(value, Mapping):
            return dict(value)
        if isinstance(value, Sequence):
            return list(value)
        raise NotImplementedError(f"{type(value).__name__} cannot be encoded")

    def _array(self, array: Array) -> tuple[str, tuple[int, ...], int]:
        contiguous = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        offset = self._bytes
        if contiguous.size:
            padding = -contiguous.nbytes % ALIGNMENT
            self.buffers += [contiguous.reshape(-1).data.cast("B"), bytes(padding)]
            self._bytes += contiguous.nbytes + padding
        return contiguous.dtype.str, array.shape, offset


class _Decoder:
    def __init__(self, kind: Any) -> None:
        self._arrays: Buffer = b""
        self._decoder = msgspec.msgpack.Decoder(kind, dec_hook=self._hook)

    def decode(self, packed: Buffer, arrays: Buffer) -> Any:
        self._arrays = arrays
        try:
            return self._decoder.decode(packed)
        finally:
            self._arrays = b""  # do not keep the memory until the next call

    def _hook(self, kind: Any, value: Any) -> Any:
        origin = get_origin(kind) or kind
        if origin is np.ndarray:
            return _array(self._arrays, *value)
        if origin is VectordError:
            name, template, attributes = value
            return restored(ERRORS[name], (template,), attributes)
        raise NotImplementedError(f"{kind} cannot be decoded")


@cache
def _decoder(kind: Any) -> _Decoder:
    return _Decoder(kind)


def _array(arrays: Buffer, dtype: str, shape: Sequence[int], offset: int) -> Array:
    count = math.prod(shape)
    if count == 0:
        return np.empty(tuple(shape), dtype)
    return np.frombuffer(arrays, dtype, count, offset).reshape(shape)
