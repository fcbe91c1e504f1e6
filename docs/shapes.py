"""Describes wire types as text: the fields of a body as table rows, and the shape of a response. apis.py calls it.

integer, number, string, boolean, null and any are JSON types; [integer] is a list, {string: number} is an object with
any keys, and "float" is that string.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import inspect

OBJECT = inspect.StructType | inspect.DataclassType
WIDTH = 116
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


def shape(answer: Any) -> str:
    """The shape of a response of this type. A field `name?` may be absent."""
    return _lines(inspect.type_info(answer), "", 0)


# --- rows -----------------------------------------------------------------------------------------------------


def _rows(body: inspect.StructType, prefix: str) -> Iterator[Row]:
    for field in body.fields:
        name = prefix + field.encode_name
        yield Row(
            name, _line(field.type, briefly=True), _default(field), "; ".join(dict.fromkeys(_descriptions(field.type)))
        )
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


def _lines(kind: inspect.Type, indent: str, column: int) -> str:
    """The type as one line, or with one field per line if it is too long. column: the start of the first line."""
    line = _line(kind)
    if column + len(line) <= WIDTH:
        return line
    if isinstance(kind, inspect.Metadata):
        return _lines(kind.type, indent, column)
    if isinstance(kind, inspect.UnionType):
        return f"\n{indent}or ".join(_lines(each, indent, column) for each in kind.types)
    if isinstance(kind, inspect.ListType):
        return f"[{_lines(kind.item_type, indent, column + 1)}]"
    if isinstance(kind, OBJECT):
        deeper = indent + "  "
        members = [f"{deeper}{name}{_lines(each, deeper, len(deeper + name))},\n" for name, each in _members(kind)]
        return "{\n" + "".join(members) + indent + "}"
    return line


def _line(kind: inspect.Type, *, briefly: bool = False) -> str:
    """The type as one line. briefly: for bodies, whose objects have their own rows and where null equals absent."""
    match kind:
        case inspect.Metadata():
            return _line(kind.type, briefly=briefly)
        case inspect.UnionType():
            shown = [each for each in kind.types if not (briefly and isinstance(each, inspect.NoneType))]
            return " or ".join(dict.fromkeys(_line(each, briefly=briefly) for each in shown))
        case inspect.ListType():
            return f"[{_line(kind.item_type, briefly=briefly)}]"
        case inspect.TupleType():
            return f"[{', '.join(_line(each, briefly=briefly) for each in kind.item_types)}]"
        case inspect.DictType():
            return f"{{{_line(kind.key_type)}: {_line(kind.value_type, briefly=briefly)}}}"
        case inspect.StructType() | inspect.DataclassType():
            return "object" if briefly else f"{{{', '.join(name + _line(each) for name, each in _members(kind))}}}"
    return _word(kind)


def _members(struct: inspect.StructType | inspect.DataclassType) -> Iterator[tuple[str, inspect.Type]]:
    """The fields of a response as "index: " or "text?: ", each with its type."""
    if isinstance(struct, inspect.StructType) and struct.tag is not None:
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
    raise TypeError(f"{kind} has no description yet.")


def _bounds(kind: inspect.IntType | inspect.FloatType) -> str:
    least, most = (None if bound in DEFAULT_BOUNDS else bound for bound in (kind.ge, kind.le))
    if least is None:
        return "" if most is None else f" <= {most}"
    return f" >= {least}" if most is None else f" from {least} to {most}"
