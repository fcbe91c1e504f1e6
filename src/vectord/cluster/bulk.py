"""`python -m vectord.cluster.bulk IN OUT`: a folder of Parquet to a folder of Parquet, on every node of a Ray cluster.

Accepts the options of `vectord bulk`. The driver splits the input into parts; Ray Data sends them to actors, again if a
node dies. Each part becomes a file of OUT. The same command resumes a stopped job.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click

from vectord.bulk.job import BulkFailed
from vectord.bulk.options import config_of, job_of, parameters, read_options
from vectord.cluster.ray.cluster import QUIET, check_ray, cluster_parameters, exit_code_of, join, prepare, read_words
from vectord.config.command_line import Command, value
from vectord.config.sources import CommandLine, load
from vectord.errors import ConfigError
from vectord.housekeeping import Housekeeping
from vectord.products.common.profiles import profiles

if TYPE_CHECKING:
    from vectord.bulk.job import BulkJob
    from vectord.cluster.ray.parts import InputPart, SharedStorage
    from vectord.config import Config

PART_ROWS = 16_384

HELP = """\
Embed every text of the Parquet files in IN on all nodes of a Ray cluster, and write the folder OUT: the same rows in
the same order, with all their columns and the vectors. IN and OUT are paths that every node sees, or URIs such as
s3://bucket/folder. One file of OUT is what `vectord bulk` makes of the same rows. Accepts MODELs and the options of
`vectord serve`.

A part of OUT exists completely or not at all. The same command makes the missing parts.

\b
Examples:
  python -m vectord.cluster.bulk docs/ vectors/ --actors 2 --cpus 4
  python -m vectord.cluster.bulk s3://bucket/docs s3://bucket/vectors BAAI/bge-m3 --address auto --actors 16 --gpus 1"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterJob:
    """options: the values of COMMAND. In `job`, source and out are not used: they may be URIs."""

    job: BulkJob
    config: Config
    options: SimpleNamespace


def run(words: Sequence[str]) -> int:
    job = cluster_job(*read_words(COMMAND, words))
    check_ray()
    prepare(QUIET)
    join(job.options.address)
    import ray  # noqa: PLC0415 - after `prepare`, as all of Ray

    progress = Housekeeping("a line of progress")
    try:
        summary = embed(job, lambda line: progress.run(sys.stderr.write, line + "\n"))
    finally:
        ray.shutdown()
    sys.stdout.write(json.dumps(summary) + "\n")
    return 0


def embed(job: ClusterJob, report: Callable[[str], object]) -> dict[str, Any]:
    """Make OUT on the cluster that this process has joined. Returns the summary.

    report: called with a line for each part. Raises ConfigError, BulkFailed.
    """
    from vectord.cluster.ray.parts import (  # noqa: PLC0415 - pyarrow, an extra
        SharedStorage,
        begin,
        finish,
        finished_parts,
        parts_of,
    )

    started_s, options = time.monotonic(), job.options
    source, out = SharedStorage(options.source), SharedStorage(options.out)
    files = source.parquet_files()
    parts = list(parts_of(files, options.part_rows))
    begin(out, job.job, files, options.part_rows, restart=options.restart)
    done = finished_parts(out, parts)
    missing = [part for part in parts if part.name not in done]
    made = _make(job, missing, _facts_of(done), out, report)
    summary = {
        "out": options.out,
        "rows": sum(file.rows for file in files),
        "parts": len(parts),
        "parts_before": len(done),
        "tokens": sum(row["tokens"] for row in made),
        "cut": sum(row["cut"] for row in made),
        "failed": sum(row["failed"] for row in made),
        "seconds": round(time.monotonic() - started_s, 3),
    }
    finish(out, summary)
    return summary


def _make(
    job: ClusterJob,
    missing: Sequence[InputPart],
    made_with: Mapping[str, Any],
    out: SharedStorage,
    report: Callable[[str], object],
) -> list[dict[str, Any]]:
    """The reports of the parts, in any order. made_with: the facts of the finished parts. Raises BulkFailed."""
    if not missing:
        return []
    import ray.data  # noqa: PLC0415 - after `prepare`
    from ray.exceptions import RayError  # noqa: PLC0415

    from vectord.cluster.ray.part_embedder import PartEmbedder  # noqa: PLC0415

    rows = ray.data.from_items([asdict(part) for part in missing], override_num_blocks=len(missing))
    done = rows.map(
        PartEmbedder,
        fn_constructor_args=[
            job.config,
            job.job,
            job.options.source,
            job.options.out,
            made_with.get("fingerprint"),
            job.options.patience_s,
        ],
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=min(job.options.actors, len(missing))),
        num_cpus=job.options.cpus,
        num_gpus=job.options.gpus,
    )
    made: list[dict[str, Any]] = []
    space = made_with.get("space", "")
    try:
        for row in done.iter_rows():
            if row["error"]:
                raise BulkFailed(row["error"])
            space = space or row["space"]
            if row["space"] not in ("", space):  # a node has other files for the same model name
                out.remove(row["name"])
                raise BulkFailed(f"The nodes have different weights: spaces {space} and {row['space']}")
            made.append(row)
            report(
                f"{row['name']}: {row['rows']:,} rows, {row['tokens']:,} tokens; {len(made)} of {len(missing)} parts"
            )
    except RayError as failed:
        raise BulkFailed(f"Ray failed: {str(failed).strip()}") from failed
    return made


def _facts_of(done: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """The facts of the model that made these parts. Raises BulkFailed if they have several vector spaces."""
    spaces = {facts.get("space") for facts in done.values()} - {"", None}
    if len(spaces) > 1:
        raise BulkFailed("OUT has parts made with different weights; --restart starts over")
    return next((facts for facts in done.values() if facts.get("space")), {})


def cluster_job(options: SimpleNamespace, line: CommandLine) -> ClusterJob:
    """Raises ConfigError."""
    options = read_options({**vars(options), "output_format": "parquet"})
    if options.url is not None:
        raise ConfigError("--url: the nodes open the model themselves; use vectord bulk --url for a server")
    config = config_of(load(line, os.environ, Path.cwd(), profiles()), options)
    threads = config.device.num_threads or options.cpus
    config = replace(config, device=replace(config.device, num_threads=threads))
    return ClusterJob(job=job_of(options), config=config, options=options)


COMMAND = Command(
    "python -m vectord.cluster.bulk",
    settings=True,
    profiles=lambda: list(profiles()),
    help=HELP,
    params=[
        *parameters(),
        value("--actors", "N", "Actors that work at once, each with the model.", kind=click.IntRange(min=1), default=1),
        value(
            "--part-rows",
            "N",
            "Rows in one file of OUT, and the most that a dead node loses.",
            kind=click.IntRange(min=1),
            default=PART_ROWS,
        ),
        *cluster_parameters("an actor"),
    ],
)


if __name__ == "__main__":
    sys.exit(exit_code_of(run, sys.argv[1:]))
