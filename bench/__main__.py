"""`python -m bench [NAME]`, for `make bench` and others; `_options` lists the benchmarks."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import (
    bulk,
    chart,
    console,
    fairness,
    families,
    int8,
    large,
    overload,
    peer_models,
    peers,
    precision,
    quality,
    rejections,
    run,
    soak,
    static,
    systems,
    texts,
    tokenizing,
    wire,
)
from bench.child import REPOSITORY
from bench.corpus import digest_of, make_corpus
from bench.machine import conditions
from bench.precision_texts import precision_texts
from bench.report import Report, Row, plain, show
from bench.soak_texts import make_long_pool, make_pool
from bench.subject import Subject, make_subject
from vectord.checkpoints.hub import resolve
from vectord.config import DEFAULT_MODEL


def main() -> None:
    options = _options()
    if options.measure == "wire":
        costs = wire.measure(options.rounds)
        about = {"figures": "CPU of one call, the best of several rounds; no server and no model"}
        show(
            Report(title="vectord wire", conditions=conditions() | about, rows=wire.rows(costs), rounds=costs),
            options.json,
        )
        return
    if options.measure == "rejections":
        rejected = rejections.measure(options.rounds)
        about = {"figures": "CPU of the server's process, system calls included, in the best of many bursts; no model"}
        report = Report(
            title="vectord rejections",
            conditions=conditions() | about,
            rows=rejections.rows(rejected),
            rounds={"rejections": rejected},
        )
        show(report, options.json)
        return
    if options.measure in ("tokenizing", "images"):
        {"tokenizing": _tokenizing, "images": _images}[options.measure](options)
        return
    if options.measure == "precision":
        corpus = make_corpus(resolve(DEFAULT_MODEL, offline=True).folder / "tokenizer.json", options.texts)
        texts = precision_texts(corpus.texts, options.texts)
        compared = precision.measure(options.models, texts)
        about = {"reference": "sentence-transformers in float32", "texts": f"{len(texts)}, corpus {digest_of(texts)}"}
        report = Report(title="vectord precision", conditions=conditions() | about, rows=(), rounds=compared)
        show(report, options.json)
        if not options.json:
            print(precision.table(compared))
        return
    if options.measure == "quality":
        _quality(options)
        return
    if options.measure == "texts":
        options.backend = "fake"
    options.command = options.command.absolute()  # servers run in another folder
    if not options.command.exists():
        sys.exit(f"{options.command} is missing: `make serve` installs it, or name another with --command")
    machine = conditions()  # before the benchmark's own load
    if options.measure == "large":
        found = large.measure(options.command, options.backend, options.models_folder, options.rounds)
        about = {"models": "random weights in the shapes named, float32 files (Qwen3: bfloat16)"}
        figures = {"figures": f"the best of {options.rounds} rounds"}
        report = Report(
            title="vectord large", conditions=machine | about | figures, rows=large.rows(found), rounds=found
        )
        show(report, options.json)
        return
    if options.measure == "int8":
        with tempfile.TemporaryDirectory(prefix="vectord-bench-") as folder:
            in_int8 = int8.measure(
                options.command, options.backend, options.models, options.rounds, options.texts, Path(folder)
            )
        about = {"tokens/s": f"in process, the best of {options.rounds} alternating rounds of {options.texts} texts"}
        report = Report(
            title="vectord int8", conditions=machine | about, rows=int8.rows(in_int8), rounds={"int8": [in_int8]}
        )
        show(report, options.json)
        return
    if options.measure == "families":
        with tempfile.TemporaryDirectory(prefix="vectord-bench-") as folder:
            sizes = families.measure(options.families, options.backend, Path(folder), options.rounds)
        about = {"models": "random weights in the shapes named", "tokens/s": "per core, the best round"}
        show(
            Report(title="vectord families", conditions=machine | about, rows=families.rows(sizes), rounds={}),
            options.json,
        )
        return
    if options.measure == "peers":
        _peers(options, machine)
        return
    _vectord(options, machine)


def _vectord(options: argparse.Namespace, machine: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory(prefix="vectord-bench-") as folder:
        subject = make_subject(options.command, options.backend, options.dtype, Path(folder))
        rows, rounds = _measure(options, subject)
        corpus = subject.corpus
    about = {
        "model": f"{DEFAULT_MODEL}, dtype {options.dtype}, backend {options.backend}, vector cache off",
        "texts": f"{len(corpus.texts)}, {corpus.tokens / len(corpus.texts):.1f} tokens each, corpus {corpus.digest}",
    }
    if options.measure not in ("soak", "overload", "fairness", "console"):
        about["figures"] = f"the best of {options.rounds} rounds"
    report = Report(title=f"vectord {options.measure}", conditions=machine | about, rows=rows, rounds=rounds)
    show(report, options.json)
    if options.measure == "bench":
        chart.keep("bench", plain(report))


def _quality(options: argparse.Namespace) -> None:
    data = quality.read_data_set(options.folder)
    found = quality.measure(options.models, options.backend, data)
    about = {"data set": f"{data.name}: {len(data.queries)} queries, {len(data.passages)} passages"}
    show(Report(title="vectord quality", conditions=conditions() | about, rows=(), rounds=found), options.json)
    if not options.json:
        print(quality.table(found))


def _images(options: argparse.Namespace) -> None:
    from bench import images  # noqa: PLC0415 - torch, transformers and Pillow

    machine, count = conditions(), min(options.texts, 512)
    found = images.measure(
        options.models_folder, options.families, count, options.rounds, install=not options.no_install
    )
    about = {
        "models": "random weights in the shapes named",
        "images": f"{count} JPEG photographs of {images.SIZE[0]} x {images.SIZE[1]} pixels, or "
        f"{images.PAGES_A_ROUND} pages of {images.PAGE[0]} x {images.PAGE[1]}; over HTTP "
        f"{images.PER_REQUEST} a request on {images.CONNECTIONS} connections",
        "figures": f"the best of {options.rounds} alternating rounds; decoding: one thread, without the network",
    }
    show(
        Report(title="vectord images", conditions=machine | about, rows=images.rows(found), rounds=found), options.json
    )


def _tokenizing(options: argparse.Namespace) -> None:
    corpus, times = tokenizing.measure(options.models[0] / "tokenizer.json", options.texts, options.rounds)
    about = {
        "texts": f"{len(corpus.texts)}, {corpus.tokens / len(corpus.texts):.1f} tokens each, corpus {corpus.digest}",
        "figures": f"CPU of one thread, special tokens left out, the best of {options.rounds} rounds",
    }
    report = Report(
        title="vectord tokenizing", conditions=conditions() | about, rows=tokenizing.rows(times), rounds=times
    )
    show(report, options.json)


def _peers(options: argparse.Namespace, machine: dict[str, str]) -> None:
    model = peer_models.peer_model(options.model)
    texts = options.texts or model.texts
    with tempfile.TemporaryDirectory(prefix="vectord-bench-") as folder:
        subject = Subject(
            options.command, options.backend, options.dtype, Path(folder), model.corpus, model.folder,
            model.folder / "tokenizer.json",
        )  # fmt: skip
        found = peers.measure(subject, model, options.tei, options.only, not options.no_install, options.rounds, texts)
    about = {
        "model": f"{model.name}, dtype {options.dtype}, backend {options.backend}, vector cache off",
        "texts": f"{texts}, {model.corpus.tokens / len(model.corpus.texts):.1f} tokens each, "
        f"corpus {model.corpus.digest}",
        "figures": f"of each peer, the best of {options.rounds} rounds; x: vectord's tokens/s divided by the peer's",
        **{one.peer.name: one.peer.settings for one in found if one.rounds},
    }
    report = Report(
        title="vectord peers", conditions=machine | about, rows=peers.rows(found), rounds=peers.rounds_of(found)
    )
    show(report, options.json)
    chart.keep("peers", plain(report))


def _measure(options: argparse.Namespace, subject: Subject) -> tuple[Sequence[Row], Mapping[str, Sequence[Any]]]:
    if options.measure == "soak":
        pool, long = make_pool(subject), make_long_pool(subject)
        with subject.start_server(pool.model, str(subject.folder / long.model), "--auto-truncate") as server:
            for each in (pool, long):
                server.wait_until_answering(question=soak.request(["ready?"], model=each.model))
            rows, soaked = soak.soak(server, pool, long, options.minutes)
        return rows, {"soak": soaked}
    if options.measure == "overload":
        with subject.start_server(*overload.OPTIONS) as server:
            server.wait_until_answering()
            rows, overloaded = overload.overload(server, subject.corpus, options.minutes)
        rejected = rejections.measure(1)  # the server's threads would count, too
        return [*rows, *rejections.rows(rejected)], {"overload": overloaded, "rejections": rejected}
    if options.measure == "fairness":
        with subject.start_server(*fairness.OPTIONS) as server:
            server.wait_until_answering()
            rows, fair = fairness.fairness(server, subject.corpus, options.job_texts)
        more, servers = fairness.two_servers(subject)
        return [*rows, *more], {"fairness": fair, "two servers": servers}
    if options.measure == "console":
        with subject.start_server() as server:
            server.wait_until_answering()
            rows, opened = console.console(server, subject.corpus)
        return rows, {"console": opened}
    if options.measure == "static":
        tables = static.measure(subject.corpus, options.models[0], options.rounds)
        return static.rows(tables), tables
    if options.measure == "systems":
        published = systems.measure(subject, options.models_folder, options.rounds)
        return systems.rows(published), published
    if options.measure == "texts":
        further = texts.measure(subject, options.rounds)
        return texts.rows(further), further
    if options.measure == "bulk":
        jobs = bulk.measure(subject, options.rounds, options.texts)
        return bulk.rows(jobs), jobs
    found = run.measure(subject, options.rounds, options.texts)
    return run.rows(found), {**found.rounds, "starts": found.starts}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure vectord with the default model.")
    parser.add_argument(
        "measure",
        nargs="?",
        default="bench",
        choices=(
            "bench",
            "peers",
            "soak",
            "overload",
            "rejections",
            "fairness",
            "large",
            "families",
            "images",
            "wire",
            "bulk",
            "console",
            "precision",
            "quality",
            "int8",
            "static",
            "systems",
            "texts",
            "tokenizing",
        ),
        help="bench: vectord; peers: vectord next to other servers and libraries; "
        "soak: memory and answers over minutes; overload: five times the load it can bear; "
        "rejections: CPU time of a rejected request; "
        "fairness: single requests during a bulk job, and two servers on one machine; "
        "large: BGE-M3, its reranker and Qwen3-0.6B with random weights; "
        "families: tokens per second and core of every architecture; wire: CPU time of each API; "
        "images: photographs in process and over HTTP, next to sentence-transformers and infinity; "
        "bulk: a file to a file; console: cost of the page; "
        "precision: vectors and search results of each dtype; "
        "quality: nDCG@10 and recall of each dtype and kind of vectors; int8: its speed next to the usual dtype; "
        "static: a table in process, next to model2vec and sentence-transformers; "
        "systems: the benchmarks that other servers have published; "
        "texts: CPU time of a further text in a request, without computing it; "
        "tokenizing: CPU time of a text in tokenizers and in tokie",
    )
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=REPOSITORY / "bench/questions",
        help="of quality: a data set in BEIR's format (default: questions about this documentation)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON with every round instead of the table")
    parser.add_argument("--rounds", type=int, default=3, help="the best round counts (default: %(default)s)")
    parser.add_argument(
        "--texts",
        type=int,
        help="texts of the corpus a round (default: 2048; of peers, the model's), or images, at most 512",
    )
    parser.add_argument("--model", choices=peer_models.MODELS, default="minilm", help="of peers (default: %(default)s)")
    parser.add_argument("--only", nargs="+", default=[], help="peers whose names start so (default: all)")
    parser.add_argument("--no-install", action="store_true", help="of peers: skip those whose environment is missing")
    parser.add_argument(
        "--tei", default="", help="TEI's binary (default: TEI_BINARY, or text-embeddings-router on PATH)"
    )
    parser.add_argument(
        "--models-folder",
        type=Path,
        default=REPOSITORY / "models/bench",
        help="where large and systems write random models, once, 5.6 GB (default: %(default)s)",
    )
    parser.add_argument(
        "--models",
        type=Path,
        nargs="+",
        default=[resolve(DEFAULT_MODEL, offline=True).folder],
        help="folders of precision, quality, int8 and tokenizing (default: the default model), and the table of static",
    )
    parser.add_argument(
        "--families", nargs="+", default=[], help="names in bench/families.py or images.py (default: all)"
    )
    parser.add_argument("--job-texts", type=int, default=100_000, help="of fairness's job (default: %(default)s)")
    parser.add_argument("--minutes", type=float, help="of soak and overload (default: 20 and 1)")
    parser.add_argument("--backend", default="openvino", help="default: %(default)s")
    parser.add_argument("--dtype", default="auto", help="default: %(default)s")
    parser.add_argument(
        "--command",
        type=Path,
        default=REPOSITORY / ".venv/bin/vectord",
        help="the vectord to serve with (default: the one of `make serve`, without torch)",
    )
    options = parser.parse_args()
    if options.texts is None and options.measure != "peers":
        options.texts = 2048
    if options.minutes is None:
        options.minutes = 1 if options.measure == "overload" else 20
    return options


if __name__ == "__main__":
    main()
