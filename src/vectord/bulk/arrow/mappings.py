"""Rows of JSON Lines, CSV and lines as columns, of the types that the first part's rows have. Called by output.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from vectord.bulk.arrow.reading import Batch
from vectord.bulk.failures import BulkFailed


def fields_of(rows: Sequence[Mapping[str, Any]], *, as_text: bool) -> list[Any]:
    """What the first part's rows say. Lists, objects and mixed columns are kept as JSON in a string."""
    names = dict.fromkeys(name for row in rows for name in row)
    return [_field(name, {type(row.get(name)) for row in rows} - {type(None)}, rows, as_text) for name in names]


def _field(name: str, types: set[type], rows: Sequence[Mapping[str, Any]], as_text: bool) -> Any:
    if not as_text and types == {bool}:
        return pa.field(name, pa.bool_())
    if not as_text and types == {int} and all(-(2**63) <= (row.get(name) or 0) < 2**63 for row in rows):
        return pa.field(name, pa.int64())
    if not as_text and types in ({float}, {int, float}):
        return pa.field(name, pa.float64())
    return pa.field(name, pa.string())


def from_mappings(rows: Sequence[Mapping[str, Any]], schema: Any, first_row: int) -> Batch:
    known = set(schema.names)
    for place, row in enumerate(rows):
        if not row.keys() <= known:
            new = next(name for name in row if name not in known)
            raise BulkFailed(
                f"row {first_row + place}: the column {new!r} is none of the first rows', and a table's columns are "
                "those; JSON Lines (OUT.jsonl) holds any"
            )
    return pa.RecordBatch.from_arrays([_column(rows, field, first_row) for field in schema], schema=schema)


def _column(rows: Sequence[Mapping[str, Any]], field: Any, first_row: int) -> Any:
    """A column of strings takes anything, as JSON; one of numbers nothing else."""
    values = [row.get(field.name) for row in rows]
    if pa.types.is_string(field.type):
        values = [_json_text(value) for value in values]
    elif pa.types.is_floating(field.type):
        values = [float(str(value)) if _is_number(value) else value for value in values]
    for place, value in enumerate(values):
        if value is not None and not _fits(value, field.type):
            raise BulkFailed(
                f"Row {first_row + place}: `{field.name}` is {type(value).__name__}, in the first rows {field.type}; "
                "--columns-as-text keeps such columns as text"
            )
    return pa.array(values, field.type)


def _json_text(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else msgspec.json.encode(value).decode()


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53


def _fits(value: object, kind: Any) -> bool:
    if pa.types.is_boolean(kind):
        return isinstance(value, bool)
    if pa.types.is_integer(kind):
        return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    if pa.types.is_floating(kind):
        return isinstance(value, float)
    return True
