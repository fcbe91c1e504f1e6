"""The options of `vectord bulk`, and the BulkJob and the model's configuration that they make."""

from __future__ import annotations

import codecs
import dataclasses
import re
import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING

import click
import msgspec

from vectord.config.command_line import flag, value
from vectord.errors import ConfigError

if TYPE_CHECKING:
    from vectord.bulk.job import BulkJob
    from vectord.config import Config
    from vectord.config.sources import Loaded

MAX_CHUNKS = 200_000  # the largest value of the setting max_client_batch_size: a text of any length has fewer
MAX_QUEUE_WAIT_S = 86_400.0  # the largest value of the setting: nothing but this job waits


def parameters() -> list[click.Parameter]:
    choice = click.Choice
    return [
        click.Argument(["source"], metavar="IN"),
        click.Argument(["out"], metavar="OUT"),
        value(
            "--format",
            "",
            "Format of IN; default: by its name. lines: one text per line; files: one text per file.",
            kind=choice(("parquet", "arrow", "csv", "tsv", "jsonl", "lines", "files")),
        ),
        value("--column", "NAME", "Column of the texts.  [default: text, else the only text column]"),
        flag(
            "--images",
            help="The column, `image` by default, has images or PDFs: bytes, data URIs, paths from the folder of IN.",
        ),
        value(
            "--output-format",
            "",
            "Format of OUT; default: by its name.",
            kind=choice(("parquet", "arrow", "arrows", "jsonl", "npy")),
        ),
        value("--delimiter", "CHAR", "Between the fields of CSV.  [default: a comma, in .tsv a tab]"),
        value("--encoding", "NAME", "Encoding of CSV, lines and files.", default="utf-8"),
        value("--output-column", "PREFIX", "Prefix for the names of the added columns.", default=""),
        value("--id-column", "NAME", "Column of a row's id in a database.  [default: id, else a hash of the row]"),
        flag("--columns-as-text", help="From JSON Lines to a table: keep all other columns as text."),
        value(
            "--on-error",
            "",
            "A row without a valid text ends the job (fail), or gets null vectors and a reason in the column `error` "
            "(null).",
            kind=choice(("fail", "null")),
            default="fail",
        ),
        value(
            "--on-empty",
            "",
            "A row with an empty text is embedded, left out of OUT (skip), or has no valid text (fail). skip also "
            "applies to null. The summary counts such rows.",
            kind=choice(("embed", "skip", "fail")),
            default="embed",
        ),
        value(
            "--chunk",
            "TOKENS",
            "Split each text into chunks of at most so many tokens: a row for each chunk.",
            kind=click.IntRange(min=20),  # MIN_CHUNK_TOKENS of text/chunks.py, whose import would delay --help
        ),
        value(
            "--chunk-overlap",
            "TOKENS",
            "Tokens that a chunk shares with the one before.",
            kind=click.IntRange(min=0),
        ),
        value("--chunk-by", "", "Where chunks end.  [default: tokens]", kind=choice(("tokens", "sentences"))),
        value("--model", "NAME", "Model to use, of several.  [default: the first that can do the job]"),
        value("--outputs", "LIST", "dense, sparse, colbert, muvera, or several with commas.", default="dense"),
        value(
            "--numbers",
            "",
            "Number format of dense vectors; docs/api.md defines them.",
            kind=choice(("float32", "float16", "int8", "uint8", "ubinary")),
            default="float32",
        ),
        value(
            "--colbert-numbers",
            "",
            "Number format of ColBERT vectors in files; float32 is float16 with --numbers float16.",
            kind=choice(("float32", "int8", "uint8", "ubinary")),
            default="float32",
        ),
        value("--pool-factor", "N", "Keep 1/N of a text's ColBERT vectors.", kind=float, default=1.0),
        value("--muvera", "K,D,R", "Of muvera: k_sim, dim_proj and r_reps, as in docs/api.md.", default="5,16,20"),
        value("--dimensions", "N", "Keep the first N numbers of dense vectors.", kind=int),
        flag("--no-normalize", help="Do not normalize dense vectors."),
        flag("--no-truncate", help="A text that is too long is an error; else it is truncated and counted."),
        value("--truncate-side", "", "The end to cut off.", kind=choice(("right", "left")), default="right"),
        value("--kind", "", "Use the model's prompt for these texts.", kind=choice(("query", "document"))),
        value("--prompt", "WORDS", "Text before each text."),
        value("--prompt-name", "NAME", "Name of one of the model's prompts."),
        value("--url", "URL", "Use the server at this URL, in place of a model in this process."),
        value("--api-key", "KEY", "The server's key.", env=["VECTORD_API_KEY"]),
        value("--patience-s", "S", "Seconds to retry a server or database that refuses.", kind=float, default=3600.0),
        flag("--parts", "keep_parts", help="Keep the parts in OUT.parts/, and do not make OUT of them."),
        value(
            "--part-rows",
            "N",
            "Rows of a part; an interruption loses the unfinished part.",
            kind=click.IntRange(min=1),
            default=1024,
        ),
        value("--shard", "I/N", "Make every N-th part from the I-th on, for N machines; files require --parts."),
        flag("--restart", help="Discard earlier progress, and replace OUT; in a database, embed all rows again."),
        flag("--json", "as_json", help="Print the summary as JSON, and no progress bar."),
    ]


def read_options(given: Mapping[str, object]) -> SimpleNamespace:
    """The values of `parameters`, checked."""
    options = SimpleNamespace(**given)
    if options.dimensions is not None and options.dimensions < 1:
        raise ConfigError("--dimensions: expected 1 or more")
    if not options.patience_s >= 0:
        raise ConfigError(f"--patience-s: expected 0 or more, got {options.patience_s}")
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", options.shard or "1/1", re.ASCII)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise ConfigError(f"--shard: expected 1/N to N/N, got {options.shard!r}")
    options.shard = int(found[1]), int(found[2])
    if not options.pool_factor >= 1:
        raise ConfigError(f"--pool-factor: expected 1 or more, got {options.pool_factor}")
    if not re.fullmatch(r"\d{1,3}(,\d{1,3}){2}", options.muvera, re.ASCII):
        raise ConfigError(f"--muvera: expected three numbers, such as 5,16,20, got {options.muvera!r}")
    for option, chosen in (("--chunk-overlap", options.chunk_overlap), ("--chunk-by", options.chunk_by)):
        if chosen is not None and options.chunk is None:
            raise ConfigError(f"{option}: requires --chunk")
    options.delimiter = "\t" if options.delimiter == r"\t" else options.delimiter
    if options.delimiter is not None and (len(options.delimiter) != 1 or options.delimiter in '"\r\n'):
        raise ConfigError("--delimiter: expected one character")
    try:
        is_utf8 = b"".decode(options.encoding) == "" and codecs.lookup(options.encoding).name == "utf-8"
    except LookupError:
        raise ConfigError(f"--encoding: {options.encoding!r} is unknown") from None
    options.encoding = "utf-8-sig" if is_utf8 else options.encoding
    return options


def job_of(options: SimpleNamespace) -> BulkJob:
    from pathlib import Path  # noqa: PLC0415
    from urllib.parse import urlsplit  # noqa: PLC0415

    from vectord.bulk.job import KINDS, BulkJob  # noqa: PLC0415
    from vectord.bulk.outputs import format_of_output  # noqa: PLC0415
    from vectord.schema import ChunkOptions  # noqa: PLC0415

    kinds = frozenset(word.strip() for word in options.outputs.split(","))
    if not kinds <= set(KINDS):
        raise ConfigError(f"--outputs: expected some of {', '.join(KINDS)}, got {options.outputs!r}")
    of_dense_vectors = {
        "--dimensions": options.dimensions is not None,
        "--no-normalize": options.no_normalize,
        "--numbers": options.numbers != "float32" and not (options.numbers == "float16" and "colbert" in kinds),
    }
    for option, is_given in of_dense_vectors.items():
        if is_given and "dense" not in kinds:
            raise ConfigError(f"{option}: is for dense vectors; --outputs has none")
    of_colbert_vectors = {
        "--colbert-numbers": options.colbert_numbers != "float32" and "colbert" not in kinds,
        "--pool-factor": options.pool_factor != 1 and kinds.isdisjoint({"colbert", "muvera"}),
        "--muvera": options.muvera != "5,16,20" and "muvera" not in kinds,
    }
    for option, is_given in of_colbert_vectors.items():
        if is_given:
            raise ConfigError(f"{option}: --outputs has no such vectors")
    chunk = None
    if options.chunk is not None:
        chunk = ChunkOptions(max_tokens=options.chunk, overlap_tokens=options.chunk_overlap or 0)
        chunk = msgspec.structs.replace(chunk, by=options.chunk_by or chunk.by)
    output_format, compression = format_of_output(options.out, options.output_format)
    out_url = options.out if "://" in options.out else None
    changed = {
        "out": Path(options.out) if out_url is None else Path(Path(urlsplit(out_url).path).name),
        "out_url": out_url,
        "input_format": options.format,
        "output_format": output_format,
        "output_compression": compression,
        "prefix": options.output_column,
        "outputs": kinds,
        "chunk": chunk,
        "normalize": not options.no_normalize,
        "truncate": not options.no_truncate,
    }
    equal = {name: value for name, value in vars(options).items() if name in BulkJob.__dataclass_fields__}
    job = BulkJob(**equal | changed)
    if job.is_database and job.colbert_numbers != "float32":
        raise ConfigError("--colbert-numbers: is for files; databases store ColBERT vectors as floats")
    try:
        _ = job.multivectors
    except msgspec.ValidationError as problem:
        raise ConfigError(f"--muvera: {problem}") from None
    return job


def config_of(loaded: Loaded) -> Config:
    """The configuration of the model in this process."""
    config = loaded.config
    engine = dataclasses.replace(config.engine, max_queue_wait_s=MAX_QUEUE_WAIT_S, request_timeout_s=0.0)
    if loaded.origins["max_client_batch_size"].source == "default":
        engine = dataclasses.replace(engine, max_client_batch_size=MAX_CHUNKS)
    if loaded.origins["cache_bytes"].source == "default":  # texts hardly repeat
        engine = dataclasses.replace(engine, cache_bytes=0)
    return dataclasses.replace(config, engine=engine)


def has_bar(options: SimpleNamespace) -> bool:
    """Show a progress bar, and log warnings only."""
    return sys.stderr.isatty() and not options.as_json
