"""What a product's body says about its fields, for /docs and docs/apis: their meaning, and which are not applied.

    dimensions: Annotated[Count | None, about("leading numbers to keep")] = None
    padding: Annotated[Any, refused("texts are not padded; leave it out", "do_not_pad")] = None
    user: Annotated[Any, no_effect("names the end user")] = None

`Routes.post` refuses a body in which a refused field has a value that would change the response. tests/products and
tests/clients compare the fields of all bodies with the products' own types.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Final

import msgspec
from msgspec import inspect

from vectord.errors import InvalidField

_REFUSAL: Final = "refusal"
_NO_EFFECT: Final = "no effect"


class RefusedField(msgspec.Struct, frozen=True):
    """path: attributes from the body to the value; field: the same names, joined, as the client writes them."""

    path: tuple[str, ...]
    field: str
    reason: str
    harmless: tuple[object, ...]

    @property
    def error(self) -> InvalidField:
        """For a value that is not harmless."""
        return InvalidField("{field} is not supported: {reason}.", field=self.field, reason=self.reason)


def about(description: str) -> msgspec.Meta:
    """Describes a field where its name does not."""
    return msgspec.Meta(description=description)


def refused(reason: str, *harmless: object) -> msgspec.Meta:
    """Marks a field that this server refuses.

    reason: why, and the way out. harmless: values that request what this server does anyway; null is one, too.
    """
    unless = f" unless {' or '.join(map(json.dumps, harmless))}" if harmless else ""
    return msgspec.Meta(description=f"refused{unless}: {reason}", extra={_REFUSAL: (reason, harmless)})


def no_effect(reason: str) -> msgspec.Meta:
    """Marks a field whose value cannot change the response. reason: why."""
    return msgspec.Meta(description=f"no effect: {reason}", extra={_NO_EFFECT: True})


@cache
def described(body: type[msgspec.Struct]) -> inspect.StructType:
    """The body as msgspec describes it, which takes a millisecond."""
    found = inspect.type_info(body)
    assert isinstance(found, inspect.StructType)
    return found


def marked(body: type[msgspec.Struct], mark: str) -> list[inspect.Field]:
    """The own fields of a body with this key in the `extra` of their types."""
    own = described(body).fields
    return [one for one in own if isinstance(one.type, inspect.Metadata) and mark in (one.type.extra or {})]


def fields_without_effect(body: type[msgspec.Struct]) -> frozenset[str]:
    """The names of a body's own fields whose values cannot change the response."""
    return frozenset(field.encode_name for field in marked(body, _NO_EFFECT))


def refusals_of(body: type[msgspec.Struct]) -> tuple[RefusedField, ...]:
    """The refused fields of a body and of the objects in it, without those of lists."""
    return tuple(_refusals(described(body), (), ()))


def _refusals(body: inspect.StructType, path: tuple[str, ...], names: tuple[str, ...]) -> Iterator[RefusedField]:
    for field in body.fields:
        own_path, own_names = (*path, field.name), (*names, field.encode_name)
        kind = field.type
        if isinstance(kind, inspect.Metadata):
            if kind.extra is not None and _REFUSAL in kind.extra:
                reason, harmless = kind.extra[_REFUSAL]
                yield RefusedField(own_path, ".".join(own_names), reason, harmless)
            kind = kind.type
        for one in kind.types if isinstance(kind, inspect.UnionType) else (kind,):
            if isinstance(one, inspect.StructType):
                yield from _refusals(one, own_path, own_names)
