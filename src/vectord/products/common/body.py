"""Decodes request bodies: bytes -> a msgspec struct, or an error that names the field.

msgspec stops at the first fault and reports it as a sentence. `fault_of` translates the known sentences into data: the
path, the expected type and the received type, in the terms of JSON. Sentences that would quote the client's value are
replaced.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from msgspec import inspect

from vectord.errors import InvalidRequest, MalformedBody, MissingField, WrongType

T = TypeVar("T")
Content: TypeAlias = bytes | bytearray  # of a request

# Bounded: an error would otherwise repeat an integer of thousands of digits.
MAX_INTEGER = 2**31 - 1
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]
PositiveCount = Annotated[int, msgspec.Meta(ge=1, le=MAX_INTEGER)]
TokenId = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]

_FAULT = re.compile(r"^(?P<fault>.*?)(?: - at `\$\.?(?P<path>.*)`)?$", re.DOTALL)
_NOT_UTF8 = "Invalid UTF-8 encoded string"  # since msgspec 0.23; a UnicodeDecodeError before
_SYNTAX = re.compile(r"^JSON is malformed: (?P<fault>.+) \(byte (?P<byte>\d+)\)$")
_TYPE = re.compile(r"^Expected `(?P<expected>[\w |]+)`(?:, got `(?P<received>\w+)`| (?P<bound>[<>]= -?[\d.]+))$")
_LENGTH = re.compile(r"^Expected `(?:array|str)` of length (?P<bound>[<>]= )?(?P<length>\d+)$")
_MISSING = re.compile(r"^Object missing required field `(?P<name>\w+)`$")
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<name>\w{1,64})`$", re.ASCII)
_RANGE = re.compile(r"^(Number|Integer value) out of range$")
_BOUNDS = {None: "", ">= ": "at least ", "<= ": "at most "}
_JSON_TYPES = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "a boolean",
    "object": "an object",
    "array": "an array",
    "null": "null",
}


def is_object(value: msgspec.Raw) -> bool:
    """Whether JSON that has been checked is an object. Copies one byte, while bytes(value) would copy all of it."""
    return bytes(memoryview(value)[:1]) == b"{"


DECODE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)  # of msgspec's decoders


def decode(decoder: msgspec.json.Decoder[T], body: Content) -> T:
    """The struct that `decoder` reads from `body`. Raises as `fault_of` says."""
    try:
        return decoder.decode(body)
    except DECODE_ERRORS as error:
        raise fault_of(error, body, decoder.type) from None


def fault_of(error: Exception, body: Content, kind: Any) -> InvalidRequest:
    """What is wrong with the body, by one of DECODE_ERRORS, which may hold the whole body and must not be the cause.

    MalformedBody if the body is not JSON or is nested too deeply, MissingField for an absent field, and WrongType for a
    field of another type or out of range. kind: the type of the body.
    """
    if isinstance(error, msgspec.ValidationError):
        return _wrong_type(str(error), kind)
    if isinstance(error, UnicodeDecodeError) or str(error) == _NOT_UTF8:
        return MalformedBody("The request body is not valid UTF-8.")
    if not isinstance(error, msgspec.MsgspecError):
        return MalformedBody("The request body is nested too deeply.")
    if not body:
        return MalformedBody("The request body is not valid JSON: it is empty.")
    if str(error) == "Input data was truncated":  # also for "\ud800" near the end
        return MalformedBody("The request body is not valid JSON: it is cut off, or ends in half a surrogate pair.")
    if match := _SYNTAX.match(str(error)):
        template = "The request body is not valid JSON: {fault} at byte {byte}."
        return MalformedBody(template, fault=match["fault"], byte=match["byte"])
    return MalformedBody("The request body is not valid JSON.")


def _wrong_type(sentence: str, kind: Any) -> WrongType:
    found = _FAULT.match(sentence)
    assert found is not None  # it matches every sentence
    fault, path = found["fault"], found["path"] or ""
    missing, unknown = _MISSING.match(fault), _UNKNOWN.match(fault)
    if named := missing or unknown:
        path = f"{path}.{named['name']}" if path else named["name"]
    if unknown:
        return WrongType("There is no field `{path}`.", field=path, path=path)
    field, _, rest = path.partition("[")
    number = rest.partition("]")[0]
    index = int(number) if number.isdigit() else None
    if missing:
        return MissingField("`{path}` is required.", field=field or None, index=index, path=path)
    requirement = _requirement(fault)
    if fault.startswith("Invalid enum value") and (values := list(values_at(path, _type_info(kind)))):
        requirement = f"must be one of {', '.join(map(repr, values))}"
    template = "`{path}` {requirement}." if path else "The request body {requirement}."
    return WrongType(template, field=field or None, index=index, path=path, requirement=requirement)


_type_info = cache(inspect.type_info)  # a request with a wrong value must not cost more than its answer


def values_at(path: str, kind: inspect.Type) -> Iterator[object]:
    """The values that the type `kind` allows at `path`, a path of msgspec's errors such as `kinds[1].name`."""
    place, _, rest = path.replace("[", ".[").lstrip(".").partition(".")
    if isinstance(kind, inspect.Metadata):
        yield from values_at(path, kind.type)
    elif isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from values_at(path, one)
    elif isinstance(kind, inspect.LiteralType) and not path:
        yield from kind.values
    elif isinstance(kind, inspect.ListType) and place.startswith("["):
        yield from values_at(rest, kind.item_type)
    elif isinstance(kind, inspect.StructType):
        for field in kind.fields:
            if field.encode_name == place:
                yield from values_at(rest, field.type)


def _requirement(fault: str) -> str:
    if match := _TYPE.match(fault):
        expected = " or ".join(_JSON_TYPES.get(name, name) for name in match["expected"].split(" | "))
        received = match["received"]
        return f"must be {expected} {match['bound'] or ''}".rstrip() + (
            f", not {_JSON_TYPES.get(received, received)}" if received else ""
        )
    if match := _LENGTH.match(fault):
        return f"must have a length of {_BOUNDS[match['bound']]}{match['length']}"
    return "is out of range" if _RANGE.match(fault) else "has a wrong type or value"
