"""`vectord bulk`: a file of texts to a file of vectors."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from vectord.cli.bulk_options import config_of, has_bar, job_of, parser, read_words
from vectord.cli.printing import print_table, print_text
from vectord.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from vectord.bulk.inputs import Source
    from vectord.bulk.job import Job
    from vectord.bulk.pipeline import Pipeline, Summary
    from vectord.bulk.progress import Bar, Lines
    from vectord.config import Config

USAGE = "bulk IN OUT [options]"
SUMMARY = "a file of texts to a file of vectors"


def help() -> str:
    return parser().format_help()


def run(words: Sequence[str]) -> int:
    options, rest = read_words(words)
    job = job_of(options)
    from vectord.bulk.inputs import find_source  # noqa: PLC0415
    from vectord.bulk.outputs import check_output  # noqa: PLC0415

    source = find_source(job)
    check_output(job)
    _check_arrow(source)
    config = config_of(options, rest)
    return _embed(job, source, options, config)


def _check_arrow(source: Source) -> None:
    from vectord.bulk.inputs import TABLES  # noqa: PLC0415

    if source.format in TABLES and find_spec("pyarrow") is None:
        raise ConfigError(f"IN: {source.format} needs pyarrow; it comes with pip install 'vectord[arrow]'")


def _embed(job: Job, source: Source, options: Namespace, config: Config | None) -> int:
    from vectord.bulk.failures import BulkFailed, Stopped  # noqa: PLC0415

    try:
        summary = asyncio.run(_run(job, source, options, config))
    except BulkFailed as failed:
        sys.stderr.write(f"vectord: {failed}\n")
        return ExitCode.FAILED
    except Stopped as stopped:
        again = " without --restart" if options.restart else ""
        sys.stderr.write(f"vectord: stopped; continue with the same command{again}\n")
        return ExitCode.SIGNALLED + stopped.signal
    if options.json:
        return print_text(json.dumps(dataclasses.asdict(summary)))
    return print_table(_table(summary))


async def _run(job: Job, source: Source, options: Namespace, config: Config | None) -> Summary:
    from vectord.bulk.embedder import Embedder  # noqa: PLC0415
    from vectord.bulk.pipeline import Pipeline  # noqa: PLC0415

    async with AsyncExitStack() as stack:
        progress = stack.enter_context(_progress(source, options))
        embedder: Embedder
        if config is None:
            from vectord.bulk.remote import Remote  # noqa: PLC0415 - httpx

            key = options.api_key or os.environ.get("VECTORD_API_KEY")
            embedder = await stack.enter_async_context(Remote(options.url, key, job))
        else:
            from vectord.bulk.in_process import InProcess  # noqa: PLC0415
            from vectord.compose import running_engine  # noqa: PLC0415

            embedder = InProcess(await stack.enter_async_context(running_engine(config)), job)
        pipeline = Pipeline(job, source, embedder, progress, patience_s=options.patience_s, restart=options.restart)
        _stop_on_signals(pipeline)
        return await pipeline.run()


def _stop_on_signals(pipeline: Pipeline) -> None:
    """The first one ends the job in order; the second one at once."""
    loop = asyncio.get_running_loop()

    def stop(number: signal.Signals) -> None:
        loop.remove_signal_handler(number)
        pipeline.stop(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)


def _progress(source: Source, options: Namespace) -> AbstractContextManager[Bar | Lines]:
    from vectord.bulk.progress import Bar, Lines, Size  # noqa: PLC0415

    rows = None
    if source.format == "parquet":
        from vectord.bulk.arrow.reading import count_rows  # noqa: PLC0415 - pyarrow, an extra

        rows = count_rows(source)
    in_rows = source.format in {"parquet", "arrow"}
    size = Size(rows if in_rows else source.size_bytes)
    return Bar(size) if has_bar(options) else nullcontext(Lines(size))


def _table(summary: Summary) -> Any:
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("written", summary.out)
    table.add_row("model", f"{summary.model}, vector space {summary.space}")
    going_on = f", {summary.resumed_from:,} of them before" if summary.resumed_from else ""
    table.add_row("rows", f"{summary.rows:,}{going_on}")
    table.add_row("tokens", f"{summary.tokens:,}, {summary.tokens_per_s:,.0f}/s over {summary.seconds:,.1f} s")
    table.add_row("cut", f"{summary.cut:,} texts were longer than the model reads")
    if summary.failed:
        table.add_row("failed", f"{summary.failed:,} rows have no vectors; the column `error` says why")
    return table
