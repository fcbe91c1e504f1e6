"""`vectord bulk`: embed the texts of a file into a file of vectors, or a table of a database."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import signal
import sys
from contextlib import AsyncExitStack, closing
from importlib.util import find_spec
from types import SimpleNamespace
from typing import TYPE_CHECKING

import click

from vectord.bulk.options import config_of, has_bar, job_of, parameters, read_options
from vectord.cli.commands import CACERT, cacert, command_with_settings, configure_log, load_settings, require_url
from vectord.cli.printing import print_table, print_text
from vectord.config import Config, TelemetryConfig
from vectord.config.command_line import pass_command_line
from vectord.config.sources import CommandLine
from vectord.errors import ConfigError, ExitCode, installing

if TYPE_CHECKING:
    from vectord.bulk.inputs import InputSource
    from vectord.bulk.job import Summary
    from vectord.bulk.pipeline import Pipeline
    from vectord.bulk.progress import JobProgress
    from vectord.engine.engine import Engine

HELP = """\
Embed every text in IN and write OUT: the same rows in the same order, with all their columns and the vectors. The model
runs in this process, or in a server with --url. Accepts MODELs and the options of `vectord serve`, such as --device
and --dtype, and their environment variables.

\b
IN   .csv .tsv  .jsonl .ndjson  .txt (one text per line), also as .gz or .zst;  .parquet  .arrow .feather .ipc
     .arrows; a folder of such files, or of files with one text each, of images and of PDFs, which have a row for
     each page; an image; a PDF; s3://, gs:// or hf://; - for standard input
OUT  .jsonl .ndjson (also .gz, .zst)  .npy (dense vectors only)  .parquet  .arrow .feather .ipc .arrows; s3://,
     gs:// or hf://; postgresql://HOST/DATABASE/TABLE (pgvector); qdrant://HOST:6333/COLLECTION

The added columns are dense, sparse and colbert; see docs/bulk.md for their types.

In a database, rows are upserted by their id, the column `id` or --id-column. The same command, after an interruption
or later, embeds only rows that are new or changed.

Rows are written in parts of --part-rows to OUT.parts/. After Ctrl-C, SIGTERM, kill -9 or a power failure the same
command makes the missing parts; no row is lost or duplicated. It refuses to continue if IN, the model or an option that
changes the parts is different. At the end OUT is made of the parts, and OUT.parts/ is removed, unless --parts is set.

With --parts --shard 1/N to N/N, N machines that share a disk make a part of the work each. Then the same command
without both options makes OUT of the parts.

\b
Files:
  OUT.parts/part-000000.*   finished parts, each a complete file in the format of OUT
  OUT.parts/_SUCCESS        all parts are finished
  OUT.parts/_vectord.json   the input, the model and the options of the parts

\b
Exit codes:
  0    OUT is complete, or with --parts the parts
  1    a row, the model, the disk or the database ended the job; finished parts are kept
  2    the job cannot start: a bad option, a missing file, another job's OUT.parts/
  130  Ctrl-C, and 143 SIGTERM: finished parts are kept

\b
Examples:
  vectord bulk docs.csv vectors.jsonl
  vectord bulk docs.csv postgresql://me@localhost/mydb/docs
  vectord bulk docs.jsonl qdrant://localhost:6333/docs BAAI/bge-m3 --outputs dense,sparse
  vectord bulk hf://datasets/me/mine/docs.parquet s3://bucket/vectors.parquet
  vectord bulk docs.jsonl.zst out.parquet BAAI/bge-m3 --outputs dense,sparse --numbers float16
  vectord bulk notes/ notes.npy --kind document --device cpu
  vectord bulk pictures/ pictures.jsonl openai/clip-vit-base-patch32
  zcat big.csv.gz | vectord bulk - out.jsonl --format csv --column body --on-error null
  vectord bulk docs.parquet out.parquet --url http://gpu-box:8000 --json
  vectord bulk docs.parquet out.parquet --parts --shard 2/3"""


@command_with_settings(help=HELP, short_help="Embed a file of texts.", params=[*parameters(), CACERT])
@pass_command_line
def command(line: CommandLine, /, **given: object) -> int:
    options = read_options(given)
    job = job_of(options)
    from vectord.bulk.inputs import TABLES, find_source  # noqa: PLC0415
    from vectord.bulk.job import BulkFailed, Stopped  # noqa: PLC0415
    from vectord.bulk.outputs import check_output  # noqa: PLC0415
    from vectord.bulk.pipeline import Pipeline  # noqa: PLC0415

    source = find_source(job)
    check_output(job)
    if source.format in TABLES and find_spec("pyarrow") is None:
        raise ConfigError(f"IN: {source.format} needs pyarrow; run {installing('arrow')}")
    config = _engine_config(line, options)
    try:
        summary = asyncio.run(_embed(Pipeline(source), source, options, config))
    except BulkFailed as failed:
        sys.stderr.write(f"vectord: {failed}\n")
        return ExitCode.FAILED
    except Stopped as stopped:
        change = " without --restart" if options.restart else ""
        sys.stderr.write(f"vectord: stopped; continue with the same command{change}\n")
        return ExitCode.SIGNALLED + stopped.signal
    if options.as_json:
        return print_text(json.dumps(dataclasses.asdict(summary)))
    return _print_summary(summary)


def _engine_config(line: CommandLine, options: SimpleNamespace) -> Config | None:
    """The configuration of the engine in this process; None with --url, which uses no engine."""
    if options.url is None:
        source = click.get_current_context().get_parameter_source("api_key")
        if source is click.core.ParameterSource.COMMANDLINE:
            raise ConfigError("--api-key: requires --url")
        require_url()
        loaded = load_settings(line)
        configure_log(loaded, quiet=has_bar(options))
        loaded.log_notes()
        return config_of(loaded)
    if line.words:
        raise ConfigError(f"--url: the server has its own settings; leave out {line.words[0]}")
    from vectord.observability import logs  # noqa: PLC0415

    logs.configure(TelemetryConfig())
    return None


async def _embed(pipeline: Pipeline, source: InputSource, options: SimpleNamespace, config: Config | None) -> Summary:
    from vectord.bulk.embedder import BulkEmbedder  # noqa: PLC0415

    job = source.job
    async with AsyncExitStack() as stack:
        progress = stack.enter_context(closing(_progress(source, options)))
        embedder: BulkEmbedder
        if config is None:
            from vectord.bulk.remote import RemoteEmbedder  # noqa: PLC0415 - httpx

            remote = RemoteEmbedder(options.url, options.api_key or None, job, cacert())
            embedder = await stack.enter_async_context(remote)
        else:
            from vectord.bulk.embedder import EngineEmbedder  # noqa: PLC0415
            from vectord.compose import running_engine  # noqa: PLC0415

            def check(engine: Engine) -> None:
                pipeline.check(EngineEmbedder(engine, job).model())

            engine = await stack.enter_async_context(running_engine(config, before_loading=check))
            embedder = EngineEmbedder(engine, job)
        loop = asyncio.get_running_loop()

        def stop(number: signal.Signals) -> None:
            loop.remove_signal_handler(number)  # so that the second one terminates the process
            pipeline.stop(number)

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop, number)
        return await pipeline.run(embedder, progress, options.patience_s)


def _progress(source: InputSource, options: SimpleNamespace) -> JobProgress:
    from vectord.bulk.progress import JobProgress  # noqa: PLC0415

    rows = None
    if source.format == "parquet":
        from vectord.bulk.arrow_input import count_rows  # noqa: PLC0415 - pyarrow, an extra

        rows = count_rows(source)
    total = rows if source.format in {"parquet", "arrow"} else source.size_bytes
    return JobProgress(total, has_bar=has_bar(options))


def _print_summary(summary: Summary) -> int:
    before = f", {summary.resumed_from:,} of them earlier" if summary.resumed_from else ""
    missing = f", {summary.missing:,} of them not finished by other shards" if summary.missing else ""
    rows = [
        ("written", summary.out),
        ("model", f"{summary.model}, vector space {summary.space}"),
        ("rows", f"{summary.rows:,}{before}"),
        ("parts", f"{summary.parts:,}{missing}"),
        ("tokens", f"{summary.tokens:,}, {summary.tokens_per_s:,.0f}/s over {summary.seconds:,.1f} s"),
        *([("chunks", f"{summary.chunks:,}")] if summary.chunks else []),
        ("truncated", f"{summary.cut:,} texts were longer than the model's limit"),
    ]
    if summary.empty:
        rows.append(("empty", f"{summary.empty:,} rows have no text (--on-empty)"))
    if summary.failed:
        rows.append(("failed", f"{summary.failed:,} rows have no vectors; the column `error` has the reason"))
    return print_table(rows)
