"""Bytes of a request -> a wire struct, or the domain error that names the field. Called by every dialect's parse.

msgspec does the work and stops at the first fault. Its messages hold paths, type names and limits, but for a few
kinds that quote the value; so only the known harmless ones are passed on, in JSON's words instead of Python's.
"""

from __future__ import annotations

import re
from typing import Annotated, TypeVar

import msgspec

from vectord.errors import MalformedBody, WrongType

T = TypeVar("T")

# Bounded, or a client could send an integer of thousands of digits and have it shown back in an error.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]

_AT = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<path>.*)`)?$", re.DOTALL)
_SYNTAX = re.compile(r"^JSON is malformed: (?P<what>.+) \(byte (?P<byte>\d+)\)$")
_TYPE = re.compile(r"^Expected `(?P<want>[\w |]+)`(?:, got `(?P<got>\w+)`| (?P<bound>[<>]= -?[\d.]+))$")
_LENGTH = re.compile(r"^Expected `(?:array|str)` of length (?P<bound>[<>]= )?(?P<length>\d+)$")
_MISSING = re.compile(r"^Object missing required field `(?P<name>\w+)`$")
_RANGE = re.compile(r"^(Number|Integer value) out of range$")
_BOUNDS = {None: "", ">= ": "at least ", "<= ": "at most "}
_WORDS = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "a boolean",
    "object": "an object",
    "array": "an array",
    "null": "null",
}


def decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """The struct that `decoder` reads from `body`.

    Raises MalformedBody for what is not JSON or nested past the interpreter's recursion limit, and WrongType,
    with the field's path in the message, for a field that is missing, of another type or out of range.
    The causes are dropped: some of them hold the whole body.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _wrong_type(str(error)) from None
    except msgspec.DecodeError as error:
        raise MalformedBody(f"The request body is not valid JSON: {_syntax(str(error), body)}.") from None
    except UnicodeDecodeError:
        raise MalformedBody("The request body is not valid UTF-8.") from None
    except RecursionError:
        raise MalformedBody("The request body is nested too deeply.") from None


def _syntax(message: str, body: bytes) -> str:
    if not body:
        return "it is empty"
    if message == "Input data was truncated":  # what msgspec says of "\ud800" near the end, too
        return "it is cut off, or ends in half a surrogate pair"
    match = _SYNTAX.match(message)
    return f"{match['what']} at byte {match['byte']}" if match else "it cannot be read"


def _wrong_type(message: str) -> WrongType:
    at = _AT.match(message)
    what, path = (at["what"], at["path"] or "") if at else (message, "")
    if missing := _MISSING.match(what):
        path = f"{path}.{missing['name']}" if path else missing["name"]
        return WrongType(f"`{path}` is required.", field=_field(path), index=_index(path))
    subject = f"`{path}`" if path else "The request body"
    return WrongType(f"{subject} {_complaint(what)}.", field=_field(path), index=_index(path))


def _complaint(what: str) -> str:
    if match := _TYPE.match(what):
        want = " or ".join(_WORDS.get(word, word) for word in match["want"].split(" | "))
        return f"must be {want} {match['bound']}" if match["bound"] else f"must be {want}, not {_word(match['got'])}"
    if match := _LENGTH.match(what):
        return f"must have a length of {_BOUNDS[match['bound']]}{match['length']}"
    if what.startswith("Invalid enum value"):
        return "must be one of the words that /docs lists for it"
    return "is out of range" if _RANGE.match(what) else "has a wrong type or value"


def _word(name: str) -> str:
    return _WORDS.get(name, name)


def _field(path: str) -> str | None:
    return path.partition("[")[0] or None


def _index(path: str) -> int | None:
    number = path.partition("[")[2].partition("]")[0]
    return int(number) if number.isdigit() else None
