"""The description of a bulk job, and how a job can end early. options.py reads it from the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from vectord.schema import InputKind, Side, VectorKind

InputFormat: TypeAlias = Literal["parquet", "arrow", "csv", "tsv", "jsonl", "lines", "files"]
OutputFormat: TypeAlias = Literal["parquet", "arrow", "arrows", "jsonl", "npy"]
Compression: TypeAlias = Literal["gz", "zst"]
NumberType: TypeAlias = Literal["float32", "float16", "int8", "uint8", "ubinary"]
OnError: TypeAlias = Literal["fail", "null"]

STDIN = "-"
KINDS: tuple[VectorKind, ...] = ("dense", "sparse", "colbert")  # in the order of their columns
ERROR = "error"  # the column of --on-error null

# Options that do not change the parts.
_IRRELEVANT = frozenset({"source", "out", "input_format", "model", "on_error", "outputs", "keep_parts", "shard"})


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkJob:
    source: str  # a file, a folder, or STDIN
    out: Path
    part_rows: int
    input_format: InputFormat | None = None  # None: from the name
    output_format: OutputFormat = "parquet"
    output_compression: Compression | None = None
    column: str | None = None  # of the texts; None: `text`, else the only column of strings
    prefix: str = ""  # of the names of the added columns
    columns_as_text: bool = False  # JSON Lines into a table: make every column one of strings
    outputs: frozenset[VectorKind] = frozenset({"dense"})
    numbers: NumberType = "float32"  # of dense vectors; float16 also applies to ColBERT vectors
    dimensions: int | None = None
    normalize: bool = True
    truncate: bool = True
    truncate_side: Side = "right"
    kind: InputKind | None = None
    prompt: str | None = None
    prompt_name: str | None = None
    model: str | None = None  # a served name; None: the first suitable model
    on_error: OnError = "fail"
    keep_parts: bool = False  # and do not make OUT of them
    shard: tuple[int, int] = (1, 1)  # (i, n): make only the parts i - 1, i - 1 + n, ...

    @property
    def folder(self) -> Path:
        """The folder of the parts."""
        return self.out.with_name(self.out.name + ".parts")

    @property
    def is_shard(self) -> bool:
        return self.shard[1] > 1

    def has_part(self, index: int) -> bool:
        """Whether this shard makes the part."""
        number, shards = self.shard
        return index % shards == number - 1

    @property
    def kinds(self) -> tuple[VectorKind, ...]:
        return tuple(kind for kind in KINDS if kind in self.outputs)

    def name_of(self, column: str) -> str:
        return self.prefix + column

    def options(self) -> Mapping[str, Any]:
        """The options that must not change when a job is resumed."""
        names = [name for name in self.__dataclass_fields__ if name not in _IRRELEVANT]
        return {**{name: getattr(self, name) for name in names}, "outputs": list(self.kinds)}


class BulkFailed(Exception):
    """The job cannot continue. The message names the fault of the input, the output or the model in one sentence.

    Finished parts stay on disk; the same command resumes the job.
    """


class Stopped(Exception):
    """A signal stopped the job. Finished parts stay on disk."""

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal


class RetryLater(Exception):
    """The model is busy or not ready. A retry after `retry_after_s` may succeed."""

    def __init__(self, message: str, retry_after_s: float | None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
