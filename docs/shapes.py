"""Wire types in words: the fields of a body, row by row, and the form of an answer. Called by apis.py.

integer, number, string, boolean, null and any are JSON's; [integer] is a list of them, {string: number} an object with
any keys, "float" that very string.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import inspect

WIDTH = 116
UNSPOKEN = (None, 2**31 - 1, -(2**31))  # the bounds of any integer here: they say nothing about a field


@dataclass(frozen=True, slots=True)
class Row:
    """One field of a body. name: dotted where it is part of another, `chunk.max_tokens`, `documents[].text`."""

    name: str
    kind: str
    default: str  # "required", JSON, or "" where absent means null
    meaning: str


def rows(body: type[msgspec.Struct]) -> list[Row]:
    found = inspect.type_info(body)
    assert isinstance(found, inspect.StructType)
    return list(_rows(found, ""))


def shape(answer: Any) -> str:
    """What an answer of this type looks like. `name?:` is left out where there is nothing to say."""
    return _lines(inspect.type_info(answer), "", 0)


# --- rows -----------------------------------------------------------------------------------------------------


def _rows(body: inspect.StructType, prefix: str) -> Iterator[Row]:
    for field in body.fields:
        name = prefix + field.encode_name
        yield Row(name, _line(field.type, briefly=True), _default(field), "; ".join(dict.fromkeys(_told(field.type))))
        objects = {struct.cls: (struct, suffix) for struct, suffix in _structs(field.type)}
        for inner, suffix in objects.values():  # one each: what a list may hold may often stand alone, too
            yield from _rows(inner, f"{name}{suffix}.")


def _default(field: inspect.Field) -> str:
    if field.required:
        return "required"
    return "" if field.default is None else json.dumps(field.default)


def _told(kind: inspect.Type) -> Iterator[str]:
    """The descriptions on a type and on those in it, objects aside: their fields have rows of their own."""
    if isinstance(kind, inspect.Metadata):
        told = (kind.extra_json_schema or {}).get("description")
        yield from [told] if told else ()
    for part in _parts(kind):
        yield from _told(part)


def _structs(kind: inspect.Type) -> Iterator[tuple[inspect.StructType, str]]:
    """The objects in a type, and what leads from its name to theirs: "" or "[]"."""
    if isinstance(kind, inspect.StructType):
        yield kind, ""
    for part in _parts(kind):
        for inner, suffix in _structs(part):
            yield inner, "[]" + suffix if isinstance(kind, inspect.ListType) else suffix


def _parts(kind: inspect.Type) -> tuple[inspect.Type, ...]:
    if isinstance(kind, inspect.UnionType):
        return kind.types
    if isinstance(kind, inspect.Metadata):
        return (kind.type,)
    return (kind.item_type,) if isinstance(kind, inspect.ListType) else ()


# --- words ----------------------------------------------------------------------------------------------------


def _lines(kind: inspect.Type, indent: str, column: int) -> str:
    """Over several lines where one is not enough, the fields of an object below each other. column: where it begins."""
    line = _line(kind)
    if column + len(line) <= WIDTH:
        return line
    if isinstance(kind, inspect.Metadata):
        return _lines(kind.type, indent, column)
    if isinstance(kind, inspect.UnionType):
        return f"\n{indent}or ".join(_lines(each, indent, column) for each in kind.types)
    if isinstance(kind, inspect.ListType):
        return f"[{_lines(kind.item_type, indent, column + 1)}]"
    if isinstance(kind, inspect.StructType):
        deeper = indent + "  "
        members = [f"{deeper}{name}{_lines(each, deeper, len(deeper + name))},\n" for name, each in _members(kind)]
        return "{\n" + "".join(members) + indent + "}"
    return line


def _line(kind: inspect.Type, *, briefly: bool = False) -> str:
    """briefly: for bodies, whose objects have rows of their own, and where null is the same as absent."""
    match kind:
        case inspect.Metadata():
            return _line(kind.type, briefly=briefly)
        case inspect.UnionType():
            said = [each for each in kind.types if not (briefly and isinstance(each, inspect.NoneType))]
            return " or ".join(dict.fromkeys(_line(each, briefly=briefly) for each in said))
        case inspect.ListType():
            return f"[{_line(kind.item_type, briefly=briefly)}]"
        case inspect.TupleType():
            return f"[{', '.join(_line(each, briefly=briefly) for each in kind.item_types)}]"
        case inspect.DictType():
            return f"{{{_line(kind.key_type)}: {_line(kind.value_type, briefly=briefly)}}}"
        case inspect.StructType():
            return "object" if briefly else f"{{{', '.join(name + _line(each) for name, each in _members(kind))}}}"
    return _word(kind)


def _members(struct: inspect.StructType) -> Iterator[tuple[str, inspect.Type]]:
    """Names as an answer shows them, "index: " or "text?: ", and what stands behind each."""
    if struct.tag is not None:
        yield f"{struct.tag_field}: ", inspect.LiteralType((struct.tag,))
    for field in struct.fields:
        yield f"{field.encode_name}{'' if field.required else '?'}: ", field.type


def _word(kind: inspect.Type) -> str:
    match kind:
        case inspect.AnyType() | inspect.RawType():
            return "any"
        case inspect.NoneType():
            return "null"
        case inspect.BoolType():
            return "boolean"
        case inspect.LiteralType():
            return " or ".join(json.dumps(value) for value in kind.values)
        case inspect.StrType():
            return "string" if kind.max_length is None else f"string of at most {kind.max_length} characters"
        case inspect.IntType():
            return "integer" + _bounds(kind)
        case inspect.FloatType():
            return "number" + _bounds(kind)
    raise TypeError(f"There is no word yet for {kind}.")


def _bounds(kind: inspect.IntType | inspect.FloatType) -> str:
    least, most = (None if bound in UNSPOKEN else bound for bound in (kind.ge, kind.le))
    if least is None:
        return "" if most is None else f" <= {most}"
    return f" >= {least}" if most is None else f" from {least} to {most}"
