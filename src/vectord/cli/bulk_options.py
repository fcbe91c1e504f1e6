"""The options of `vectord bulk`, and what they make: its Job, and the configuration of a model in this process.

Read by commands/bulk.py and cluster/bulk.py.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vectord.cli.parsing import Parser
from vectord.errors import ConfigError

if TYPE_CHECKING:
    from vectord.bulk.job import Job
    from vectord.config import Config

LONGEST_WAIT_S = 86_400.0  # as long as the setting can say: the job is all there is to wait for

_USAGE = """\
vectord bulk IN OUT [options] [MODEL ...] [settings of vectord serve]
       vectord bulk IN OUT --url URL [options]"""

_DESCRIPTION = """\
Makes a vector of every text in IN and writes OUT: the same rows in the same order, all their columns, and the
vectors beside them. The model runs in this process, or, with --url, in a server that runs already.

IN and OUT come first. What follows are the options below; every other word is read as `vectord serve` reads it,
so --device, --dtype, --backend, environment names and vectord.toml mean the same here.

IN     .parquet  .arrow .feather .ipc .arrows  .csv .tsv  .jsonl .ndjson  .txt (a text a line), the last five
       also as .gz or .zst; a folder of such files, or of files that are a text each; - for standard input.
OUT    .parquet  .arrow .feather .ipc .arrows  .jsonl .ndjson (also .gz, .zst)  .npy (dense vectors alone).

The columns that are added are dense, sparse and colbert; see docs/bulk.md for their types."""

_EPILOG = """\
stopping and going on:
  What is done is kept in OUT.parts/, in parts of 4,096 rows or 30 s. After Ctrl-C, SIGTERM, kill -9 or a power
  cut the same command goes on behind the last part; no row is lost or doubled. It refuses where IN, the model or
  an option that shapes the vectors has changed. OUT appears when it is whole, and OUT.parts/ goes.

files:
  OUT.parts/data, OUT.parts/journal     what is done, and how much of it is whole

exit codes:
  0    OUT is whole
  1    a row, the model or the disk ended the job; what was done is kept
  2    the job cannot start: a bad option, no such file, another job's OUT.parts/
  130  Ctrl-C; 143 SIGTERM: what was answered is kept

examples:
  vectord bulk docs.parquet vectors.parquet
  vectord bulk docs.jsonl.zst out.parquet BAAI/bge-m3 --outputs dense,sparse --numbers float16
  vectord bulk notes/ notes.npy --kind document --device cpu
  zcat big.csv.gz | vectord bulk - out.jsonl --format csv --column body --on-error null
  vectord bulk docs.parquet out.parquet --url http://gpu-box:8000 --json"""


def read_words(words: Sequence[str]) -> tuple[Namespace, list[str]]:
    """The options of this command, and the words that are left for the settings."""
    own = parser()
    if len(words) < 2 or any(word.startswith("-") and word != "-" for word in words[:2]):
        own.error("IN and OUT come first")
    options, rest = own.parse_known_args(words[2:])
    options.source, options.out = words[0], Path(words[1])
    return options, rest


def parser() -> Parser:
    own = Parser("bulk", usage=_USAGE, description=_DESCRIPTION, epilog=_EPILOG)
    _add_reading(own)
    _add_vectors(own)
    _add_working(own)
    return own


def _add_reading(own: ArgumentParser) -> None:
    group = own.add_argument_group("reading and writing")
    add = group.add_argument
    formats = ("parquet", "arrow", "csv", "tsv", "jsonl", "lines", "files")
    add(
        "--format", choices=formats, help="of IN, where its name does not say; lines: a text a line; files: a text each"
    )
    add("--column", metavar="NAME", help="of the texts (default: text, else the only one of strings)")
    written = ("parquet", "arrow", "arrows", "jsonl", "npy")
    add("--output-format", choices=written, help="of OUT, where its name does not say")
    add("--output-column", metavar="PREFIX", default="", help="before the names of the columns that are added")
    add("--columns-as-text", action="store_true", help="JSON Lines into a table: keep every other column as text")
    add(
        "--on-error",
        choices=("fail", "null"),
        default="fail",
        help="a row without a text that can be embedded ends the job (fail, the default), or gets null for vectors "
        "and its reason in a column `error` (null)",
    )


def _add_vectors(own: ArgumentParser) -> None:
    group = own.add_argument_group("vectors")
    add = group.add_argument
    add("--model", metavar="NAME", help="which one, where several are opened or served (default: the first that can)")
    add(
        "--outputs",
        metavar="LIST",
        default="dense",
        help="dense, sparse, colbert, several with commas (default: dense)",
    )
    numbers = ("float32", "float16", "int8", "uint8", "ubinary")
    add(
        "--numbers",
        choices=numbers,
        default="float32",
        help="of dense vectors; docs/api.md defines them (default: float32)",
    )
    add("--dimensions", metavar="N", type=int, help="keep so many leading numbers of dense vectors")
    add("--no-normalize", action="store_true", help="leave dense vectors as long as the model makes them")
    add(
        "--no-truncate",
        action="store_true",
        help="a text longer than the model reads is an error; else it is cut, and counted",
    )
    add("--truncate-side", choices=("right", "left"), default="right", help="the end that is cut off (default: right)")
    add("--kind", choices=("query", "document"), help="the model's own prompt for such texts")
    add("--prompt", metavar="WORDS", help="put before each text")
    add("--prompt-name", metavar="NAME", help="one of the model's prompts")


def _add_working(own: ArgumentParser) -> None:
    group = own.add_argument_group("working")
    add = group.add_argument
    add("--url", help="ask the server there instead of opening a model here")
    add("--api-key", metavar="KEY", help="of that server (default: the environment's VECTORD_API_KEY)")
    add(
        "--patience-s",
        metavar="S",
        type=float,
        default=3600.0,
        help="how long a server that refuses is waited for (default: 3600)",
    )
    add("--restart", action="store_true", help="forget what was done, and replace OUT once the new one is whole")
    add("--json", action="store_true", help="print the summary as JSON, and no bar")
    add("-h", "--help", action="store_true", help="print this text")


def job_of(options: Namespace) -> Job:
    from vectord.bulk.job import KINDS, Job  # noqa: PLC0415
    from vectord.bulk.outputs import format_of_output  # noqa: PLC0415

    words = frozenset(word.strip() for word in options.outputs.split(","))
    if not words <= set(KINDS):
        raise ConfigError(f"--outputs: expected some of {', '.join(KINDS)}, got {options.outputs!r}")
    if options.dimensions is not None and (options.dimensions < 1 or "dense" not in words):
        raise ConfigError("--dimensions: 1 or more, of dense vectors")
    if not options.patience_s >= 0:
        raise ConfigError(f"--patience-s: expected 0 or more, got {options.patience_s}")
    output_format, compression = format_of_output(options.out, options.output_format)
    return Job(
        source=options.source,
        out=options.out,
        input_format=options.format,
        output_format=output_format,
        output_compression=compression,
        column=options.column,
        prefix=options.output_column,
        columns_as_text=options.columns_as_text,
        outputs=frozenset(kind for kind in KINDS if kind in words),
        numbers=options.numbers,
        dimensions=options.dimensions,
        normalize=not options.no_normalize,
        truncate=not options.no_truncate,
        truncate_side=options.truncate_side,
        kind=options.kind,
        prompt=options.prompt,
        prompt_name=options.prompt_name,
        model=options.model,
        on_error=options.on_error,
    )


def config_of(options: Namespace, rest: Sequence[str]) -> Config | None:
    """Of the model in this process; None: a server has it."""
    from vectord.config import TelemetryConfig  # noqa: PLC0415
    from vectord.config.sources import load  # noqa: PLC0415
    from vectord.observability import logs  # noqa: PLC0415

    if options.url is not None:
        if rest:
            raise ConfigError(f"--url: the server has its own settings, and {rest[0]} is one of this process")
        logs.configure(TelemetryConfig())
        return None
    if options.api_key is not None:
        raise ConfigError("--api-key: goes with --url")
    loaded = load(rest, os.environ, Path.cwd())
    config = loaded.config
    quiet = loaded.origins["log_level"].source == "default" and has_bar(options)
    logs.configure(dataclasses.replace(config.telemetry, log_level="warning") if quiet else config.telemetry)
    loaded.tell()
    # Hardly any text comes twice, and whoever waits for all of them waits for each.
    engine = dataclasses.replace(config.engine, max_queue_wait_s=LONGEST_WAIT_S, request_timeout_s=0.0)
    if loaded.origins["cache_bytes"].source == "default":
        engine = dataclasses.replace(engine, cache_bytes=0)
    return dataclasses.replace(config, engine=engine)


def has_bar(options: Namespace) -> bool:
    return sys.stderr.isatty() and not options.json
