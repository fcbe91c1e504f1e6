"""What one job is: from where, to where, and what is made of each text. Frozen; terminal/bulk_options.py makes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from vectord.schema import InputKind, Side, VectorKind

InputFormat: TypeAlias = Literal["parquet", "arrow", "csv", "tsv", "jsonl", "lines", "files"]
OutputFormat: TypeAlias = Literal["parquet", "arrow", "arrows", "jsonl", "npy"]
Compression: TypeAlias = Literal["gz", "zst"]
Numbers: TypeAlias = Literal["float32", "float16", "int8", "uint8", "ubinary"]
OnError: TypeAlias = Literal["fail", "null"]

STDIN = "-"
KINDS: tuple[VectorKind, ...] = ("dense", "sparse", "colbert")  # in the order of their columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    source: str  # a file, a folder, or STDIN
    out: Path
    input_format: InputFormat | None = None  # None: by the name
    output_format: OutputFormat = "parquet"
    output_compression: Compression | None = None
    column: str | None = None  # of the texts; None: `text`, else the only one of strings
    prefix: str = ""  # before the names of the columns that are added
    columns_as_text: bool = False  # JSON Lines into a table: every column one of strings
    outputs: frozenset[VectorKind] = frozenset({"dense"})
    numbers: Numbers = "float32"  # of dense vectors; float16 of ColBERT's, too
    dimensions: int | None = None
    normalize: bool = True
    truncate: bool = True
    truncate_side: Side = "right"
    kind: InputKind | None = None
    prompt: str | None = None
    prompt_name: str | None = None
    model: str | None = None  # a served name; None: the first that can
    on_error: OnError = "fail"

    @property
    def kinds(self) -> tuple[VectorKind, ...]:
        return tuple(kind for kind in KINDS if kind in self.outputs)

    def name_of(self, column: str) -> str:
        return self.prefix + column

    def asked(self) -> Mapping[str, Any]:
        """What must be the same for a job to be continued. on_error may change: it says nothing of rows that are
        written."""
        return {
            "column": self.column,
            "prefix": self.prefix,
            "columns_as_text": self.columns_as_text,
            "outputs": list(self.kinds),
            "numbers": self.numbers,
            "dimensions": self.dimensions,
            "normalize": self.normalize,
            "truncate": self.truncate,
            "truncate_side": self.truncate_side,
            "kind": self.kind,
            "prompt": self.prompt,
            "prompt_name": self.prompt_name,
            "output_format": self.output_format,
            "output_compression": self.output_compression,
        }
