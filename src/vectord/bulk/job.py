"""The description of a bulk job, and how a job can end early. options.py reads it from the command line."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np

from vectord.schema import ChunkOptions, InputKind, MultiVectorOptions, Muvera, Precision, Side, VectorKind

InputFormat: TypeAlias = Literal["parquet", "arrow", "csv", "tsv", "jsonl", "lines", "files"]
OutputFormat: TypeAlias = Literal["parquet", "arrow", "arrows", "jsonl", "npy", "postgres", "qdrant"]
Compression: TypeAlias = Literal["gz", "zst"]
NumberType: TypeAlias = Literal["float32", "float16", "int8", "uint8", "ubinary"]
ColbertNumbers: TypeAlias = Literal["float32", "int8", "uint8", "ubinary"]
Column: TypeAlias = VectorKind | Literal["muvera"]
OnError: TypeAlias = Literal["fail", "null"]
OnEmpty: TypeAlias = Literal["embed", "skip", "fail"]

STDIN = "-"
UTF8 = "utf-8-sig"  # with or without a byte order mark
KINDS: tuple[Column, ...] = ("dense", "sparse", "colbert", "muvera")  # in the order of their columns
CHUNK_COLUMNS = ("chunk", "chunks", "chunk_start", "chunk_stop")  # number from 0, count, and characters of the text
PAGE = "page"  # the column of a PDF's page, from 1, in jobs with PDFs; 1 in other rows
ERROR = "error"  # the column of --on-error null
FINGERPRINT = "vectord_fingerprint"  # a column in databases
DATABASES: Mapping[str, OutputFormat] = MappingProxyType(  # scheme of a URL -> format
    {"postgresql": "postgres", "postgres": "postgres", "qdrant": "qdrant", "qdrant+https": "qdrant"}
)

# Options that do not change the parts.
_IRRELEVANT = frozenset(
    {"source", "out", "out_url", "input_format", "model", "on_error", "outputs", "keep_parts", "shard", "restart"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkJob:
    source: str = field(repr=False)  # a file, a folder, STDIN, or a URL, which may contain a password
    out: Path  # if OUT is a URL: its last part
    part_rows: int
    out_url: str | None = field(default=None, repr=False)  # of OUT in a store or a database; also with a password
    input_format: InputFormat | None = None  # None: from the name
    output_format: OutputFormat = "parquet"
    output_compression: Compression | None = None
    column: str | None = None  # of the texts; None: `text`, else the only column of strings
    images: bool = False  # the column has images or PDFs, or names them
    has_pages: bool = False  # IN may have PDFs: there is a column of their pages
    prefix: str = ""  # of the names of the added columns
    columns_as_text: bool = False  # JSON Lines into a table: make every column one of strings
    delimiter: str | None = None  # of CSV; None: by the format
    encoding: str = UTF8  # of CSV, lines and files
    id_column: str | None = None  # of the rows in a database; None: `id`, else a hash of the row
    chunk: ChunkOptions | None = None  # None: each row is one text
    outputs: frozenset[Column] = frozenset({"dense"})
    numbers: NumberType = "float32"  # of dense vectors; float16 also applies to ColBERT vectors
    colbert_numbers: ColbertNumbers = "float32"
    pool_factor: float = 1.0  # of ColBERT vectors, and of those that are encoded
    muvera: str = "5,16,20"  # k_sim, dim_proj and r_reps
    dimensions: int | None = None
    normalize: bool = True
    truncate: bool = True
    truncate_side: Side = "right"
    kind: InputKind | None = None
    prompt: str | None = None
    prompt_name: str | None = None
    model: str | None = None  # a served name; None: the first suitable model
    on_error: OnError = "fail"
    on_empty: OnEmpty = "embed"
    restart: bool = False  # discard what earlier runs have written
    keep_parts: bool = False  # and do not make OUT of them
    shard: tuple[int, int] = (1, 1)  # (i, n): make only the parts i - 1, i - 1 + n, ...

    @property
    def folder(self) -> Path:
        """The folder of the parts."""
        return self.out.with_name(self.out.name + ".parts")

    @property
    def is_database(self) -> bool:
        return self.output_format in DATABASES.values()

    @property
    def is_shard(self) -> bool:
        return self.shard[1] > 1

    def has_part(self, index: int) -> bool:
        """Whether this shard makes the part."""
        number, shards = self.shard
        return index % shards == number - 1

    @property
    def kinds(self) -> tuple[Column, ...]:
        return tuple(kind for kind in KINDS if kind in self.outputs)

    @property
    def model_outputs(self) -> frozenset[VectorKind]:
        """What the model makes: encodings are made of ColBERT vectors."""
        return frozenset("colbert" if kind == "muvera" else kind for kind in self.outputs)

    @property
    def multivectors(self) -> MultiVectorOptions:
        """The form of ColBERT vectors. Raises msgspec.ValidationError for numbers that `muvera` cannot have."""
        muvera = None
        if "muvera" in self.outputs:
            names = ("k_sim", "dim_proj", "r_reps")
            muvera = msgspec.convert(dict(zip(names, map(int, self.muvera.split(",")), strict=True)), Muvera)
        precision: Precision = "float" if self.colbert_numbers == "float32" else self.colbert_numbers
        rows = muvera is None or "colbert" in self.outputs
        return MultiVectorOptions(pool_factor=self.pool_factor, precision=precision, muvera=muvera, rows=rows)

    @property
    def colbert_dtype(self) -> np.dtype[Any]:
        """Of the stored numbers."""
        if self.colbert_numbers != "float32":
            return np.dtype("uint8" if self.colbert_numbers == "ubinary" else self.colbert_numbers)
        return np.dtype("float16" if self.numbers == "float16" else "float32")

    @property
    def dense_dtype(self) -> np.dtype[Any]:
        """Of the stored numbers."""
        return np.dtype("uint8" if self.numbers == "ubinary" else self.numbers)

    def name_of(self, column: str) -> str:
        return self.prefix + column

    @property
    def chunk_columns(self) -> Sequence[str]:
        return () if self.chunk is None else CHUNK_COLUMNS

    def check_columns(self, names: Collection[str]) -> None:
        """Raises BulkFailed if IN has a column with the name of an added one."""
        added = (*self.chunk_columns, *self.kinds, ERROR, *([FINGERPRINT] if self.is_database else []))
        for name in map(self.name_of, added):
            if name in names:
                raise already_has(name)

    def options(self) -> Mapping[str, Any]:
        """The options that must not change when a job is resumed."""
        names = [name for name in self.__dataclass_fields__ if name not in _IRRELEVANT]
        own = {name: getattr(self, name) for name in names}
        return {**own, "chunk": msgspec.to_builtins(self.chunk), "outputs": list(self.kinds)}


class Manifest(msgspec.Struct):
    """Identifies a job: its parts belong to another one if any of these differs."""

    version: int
    source: str  # InputSource.identity
    options: dict[str, Any]  # BulkJob.options
    model: str
    space: str  # of the vectors; differs for other weights


@dataclass(slots=True, kw_only=True)
class Summary:
    """Counted while the job runs. tokens, chunks, cut, failed, empty, seconds and tokens_per_s are of this run."""

    out: str  # or the folder of the parts; without a password
    model: str
    space: str
    rows: int = 0  # of IN
    tokens: int = 0
    chunks: int = 0  # 0 without --chunk
    cut: int = 0
    failed: int = 0
    empty: int = 0  # rows without a text, in the parts of this run
    seconds: float = 0.0
    tokens_per_s: float = 0.0
    parts: int = 0  # of IN
    missing: int = 0  # parts that other shards have not finished yet
    resumed_from: int = 0  # rows that earlier runs had written: of finished parts, and those that a database has


class BulkFailed(Exception):
    """The job cannot continue. The message names the fault of the input, the output or the model in one sentence.

    Finished parts stay on disk; the same command resumes the job.
    """


def already_has(name: str) -> BulkFailed:
    return BulkFailed(f"IN already has a column {name!r}; set --output-column PREFIX.")


class TextsRefused(BulkFailed):
    """The model does not accept a request: an option, one of the texts, or so many of them."""


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
