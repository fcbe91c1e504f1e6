"""Describes the fields of a body as table rows. apis.py calls it.

integer, number, string, boolean, null and any are JSON types; [integer] is a list, {string: number} is an object with
any keys, and "float" is that string.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
from msgspec import inspect

DEFAULT_BOUNDS = (None, 2**31 - 1, -(2**31))  # bounds of every integer field, omitted from the page


@dataclass(frozen=True, slots=True)
class Row:
    """One field of a body. name: dotted for a nested field, such as `chunk.max_tokens` or `documents[].text`."""

    name: str
    kind: str
    default: str  # "required", JSON, or "" if absent equals null
    meaning: str


def rows(body: type[msgspec.Struct]) -> list[Row]:
    found = inspect.type_info(body)
    assert isinstance(found, inspect.StructType)
    return list(_rows(found, ""))


# --- rows -----------------------------------------------------------------------------------------------------


def _rows(body: inspect.StructType, prefix: str) -> Iterator[Row]:
    for field in body.fields:
        name = prefix + field.encode_name
        yield Row(name, _line(field.type), _default(field), "; ".join(dict.fromkeys(_descriptions(field.type))))
        objects = {struct.cls: (struct, suffix) for struct, suffix in _structs(field.type)}
        for inner, suffix in objects.values():  # one row group per object type
            yield from _rows(inner, f"{name}{suffix}.")


def _default(field: inspect.Field) -> str:
    if field.required:
        return "required"
    return "" if field.default is None else json.dumps(field.default)


def _descriptions(kind: inspect.Type) -> Iterator[str]:
    """The descriptions of a type and of its parts, except objects, whose fields have their own rows."""
    if isinstance(kind, inspect.Metadata):
        description = (kind.extra_json_schema or {}).get("description")
        yield from [description] if description else ()
    for part in _parts(kind):
        yield from _descriptions(part)


def _structs(kind: inspect.Type) -> Iterator[tuple[inspect.StructType, str]]:
    """The object types in a type, with the suffix of their field names: "" or "[]" for lists."""
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


# --- text -----------------------------------------------------------------------------------------------------


def _line(kind: inspect.Type) -> str:
    """The type, without the fields of objects, which have their own rows, and without null, which equals absent."""
    match kind:
        case inspect.Metadata():
            return _line(kind.type)
        case inspect.UnionType():
            shown = [each for each in kind.types if not isinstance(each, inspect.NoneType)]
            return " or ".join(dict.fromkeys(map(_line, shown)))
        case inspect.ListType():
            return f"[{_line(kind.item_type)}]"
        case inspect.DictType():
            return f"{{{_line(kind.key_type)}: {_line(kind.value_type)}}}"
        case inspect.StructType():
            return "object"
    return _word(kind)


def _word(kind: inspect.Type) -> str:
    match kind:
        case inspect.AnyType() | inspect.RawType():
            return "any"
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
    raise TypeError(f"{kind} has no description yet.")


def _bounds(kind: inspect.IntType | inspect.FloatType) -> str:
    least, most = (None if bound in DEFAULT_BOUNDS else bound for bound in (kind.ge, kind.le))
    if least is None:
        return "" if most is None else f" <= {most}"
    return f" >= {least}" if most is None else f" from {least} to {most}"
