"""The findings of a run, printed as a table or as JSON."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.http_load import Round

PIPE_COLUMNS = 150  # a pipe has no width


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line. `value` is a figure without a column; `met`: whether the target is met."""

    what: str
    value: str = ""
    requests_per_s: float | None = None
    tokens_per_s: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    target: str = ""
    met: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    title: str
    conditions: Mapping[str, str]
    rows: Sequence[Row]
    rounds: Mapping[str, Sequence[Any] | Mapping[str, Sequence[Any]]]  # every round, besides the best ones in the rows


def load_name(connections: int, texts: int) -> str:
    return f"{connections} connection{'s'[: connections > 1]} x {texts} text{'s'[: texts > 1]}"


def load_row(what: str, measured: Round, **others: Any) -> Row:
    return Row(
        what=what,
        requests_per_s=measured.requests_per_s,
        tokens_per_s=measured.tokens_per_s,
        p50_ms=measured.percentile_ms(50),
        p99_ms=measured.percentile_ms(99),
        **others,
    )


def at_least(figure: float, target: float, unit: str) -> dict[str, Any]:
    """A Row's target, and whether it is met."""
    return {"target": f"at least {target:g}{unit}", "met": figure >= target}


def at_most(figure: float, target: float, unit: str) -> dict[str, Any]:
    return {"target": f"at most {target:g}{unit}", "met": figure <= target}


def show(report: Report, as_json: bool) -> None:
    if as_json:
        print(json.dumps(plain(report), indent=1))
    else:
        _print_table(report)


def plain(value: Any) -> Any:
    """`value` in JSON's types. A Round's latencies become percentiles."""
    if isinstance(value, Round):
        figures = {name: getattr(value, name) for name in ("requests", "texts", "tokens", "elapsed_s", "client_us")}
        return figures | {f"p{percent}_ms": value.percentile_ms(percent) for percent in (50, 90, 99, 100)}
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def _print_table(report: Report) -> None:
    console = Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_COLUMNS)
    for name, value in report.conditions.items():
        console.print(f"{name:>12}  {value}", markup=False)
    if not report.rows:
        return
    table = Table(title=report.title, title_justify="left", pad_edge=False)
    table.add_column("", overflow="fold")
    for heading in ("", "requests/s", "tokens/s", "p50 ms", "p99 ms"):
        table.add_column(heading, justify="right", overflow="fold")
    table.add_column("target", overflow="fold")
    for row in report.rows:
        table.add_row(
            row.what,
            row.value,
            _figure(row.requests_per_s, 1),
            _figure(row.tokens_per_s, 0),
            _figure(row.p50_ms, 2),
            _figure(row.p99_ms, 2),
            row.target + {None: "", True: ": yes", False: ": NO"}[row.met],
        )
    console.print(table)


def _figure(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"
