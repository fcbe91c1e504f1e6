"""`vectord doctor`: this machine, this installation, these models; or this server against another."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vectord.cli.parsing import Parser, seconds, token_of
from vectord.cli.printing import print_table, print_text, printable
from vectord.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from vectord.config.sources import Loaded
    from vectord.tools.doctor.advice import Advice
    from vectord.tools.doctor.against import Comparison
    from vectord.tools.doctor.installation import Cache, Port, Said
    from vectord.tools.doctor.machine import Machine
    from vectord.tools.doctor.self_test import SelfTest
    from vectord.tools.probe.server import Server

USAGE = "doctor [MODEL ...] [options]"
SUMMARY = "look at this machine, or compare with another server"

_USAGE = """\
vectord doctor [MODEL ...] [options] [settings of vectord serve]
       vectord doctor --against URL [MODEL ...] [options] [settings of vectord serve]
       vectord doctor --against URL --url URL [options]"""

_DESCRIPTION = """\
Shows what vectord finds on this machine: processor and its instructions, the threads it will use, memory, GPUs,
libraries, the cache of models, settings that are not at their defaults and where each was said, ports. Then it
loads the models as `vectord serve` would, has them answer the self-test (texts whose cosine is known, alone and in
batches), times them, and says what would help, each time with its reason and the setting.

With --against it asks two servers the same and shows the answers side by side: cosines of their vectors, scores
and rankings, the longest text and the most texts they take, the statuses of errors, speed. The server here is one
that is started for the time on a free port of this machine, with the MODELs and settings given, or, with --url, one
that runs."""

_EPILOG = """\
exit codes:
  0    no problem; with --against: vectors and rankings are interchangeable
  1    a problem; with --against: vectors below a cosine of 0.99, or another ranking
  2    bad options, no such model, or nothing answers at URL
  130  Ctrl-C

environment:
  API_TOKEN, else VECTORD_API_KEY    the token of the server at --url; DOCTOR_TOKEN that of --against

examples:
  vectord doctor
  vectord doctor BAAI/bge-m3 --no-self-test --json
  vectord doctor --against http://old-tei:8080 BAAI/bge-small-en-v1.5 --profile tei
  vectord doctor --against http://old:8000 --url http://new:8000"""


def help() -> str:
    return parser().format_help()


def parser() -> Parser:
    own = Parser("doctor", usage=_USAGE, description=_DESCRIPTION, epilog=_EPILOG)
    add = own.add_argument_group("this machine").add_argument
    add("--no-self-test", action="store_true", help="facts alone; load no model")
    add = own.add_argument_group("another server").add_argument
    add("--against", metavar="URL", help="compare with the server there")
    add("--against-token", metavar="KEY", help="Bearer token of that server")
    add("--against-model", metavar="NAME", help="as that server calls it (default: the first that it names)")
    add("--url", help="the server to compare it with (default: one that is started here)")
    add("--token", help="Bearer token of the server at --url")
    add("--timeout", metavar="S", type=seconds(3600, least=0.1), default=120.0, help="of one request (default: 120)")
    own.add_common()
    return own


def run(words: Sequence[str]) -> int:
    options, rest = parser().parse_known_args(words)
    if options.against is not None:
        return _against(options, rest)
    for option in ("url", "token", "against_token", "against_model"):
        if getattr(options, option) is not None:
            raise ConfigError(f"--{option.replace('_', '-')}: goes with --against")
    return _machine(options, rest)


# --- this machine ---------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class _Findings:
    machine: Machine
    libraries: dict[str, str]
    cache: Cache
    profile: str
    settings: Sequence[Said]
    ports: Sequence[Port]
    models: Sequence[SelfTest]
    advice: Sequence[Advice]


def _machine(options: Namespace, rest: Sequence[str]) -> int:
    from vectord.checkpoints.hub import cache_folder  # noqa: PLC0415
    from vectord.config.hub import tell_hub  # noqa: PLC0415
    from vectord.config.sources import load  # noqa: PLC0415
    from vectord.tools.doctor.advice import advice  # noqa: PLC0415
    from vectord.tools.doctor.installation import read_cache, read_ports, read_settings, read_versions  # noqa: PLC0415
    from vectord.tools.doctor.machine import read_machine  # noqa: PLC0415

    loaded = load(rest, os.environ, Path.cwd())
    config = loaded.config
    tell_hub(config.model, os.environ)
    machine, libraries = read_machine(), read_versions()
    cache = read_cache(cache_folder(config.model.hf_home, os.environ))
    ports = read_ports(config.server)
    models = [] if options.no_self_test else _tested(loaded)
    findings = _Findings(
        machine=machine,
        libraries=libraries,
        cache=cache,
        profile=loaded.profile,
        settings=read_settings(loaded),
        ports=ports,
        models=models,
        advice=advice(machine, cache, ports, models, config, list(libraries)),
    )
    code = ExitCode.FAILED if any(one.level == "problem" for one in findings.advice) else 0
    if options.json:
        print_text(json.dumps(dataclasses.asdict(findings), indent=2))
        return code
    for title, rows in _sections(findings):
        print_table(_section(title, rows))
    return code


def _tested(loaded: Loaded) -> list[SelfTest]:
    from vectord.observability import logs  # noqa: PLC0415
    from vectord.tools.doctor.self_test import self_tests  # noqa: PLC0415 - everything that computes

    said = loaded.origins["log_level"].source != "default"
    telemetry = loaded.config.telemetry
    logs.configure(telemetry if said else dataclasses.replace(telemetry, log_level="warning"))
    return asyncio.run(self_tests(loaded.config))


def _sections(found: _Findings) -> Iterator[tuple[str, list[tuple[str, ...]]]]:
    machine = found.machine
    yield (
        "machine",
        [
            ("system", machine.system),
            ("processor", machine.processor),
            ("instructions", " ".join(machine.features) or "none of those that matter are told"),
            ("bfloat16, int8", f"{_told(machine.bfloat16)}, {_told(machine.int8)}"),
            ("cores", f"{machine.cores}, {machine.affinity} of them for this process, {machine.threads} threads used"),
            ("memory", _memory(machine)),
            *(
                (f"GPU {place}", f"{gpu.name}, driver {gpu.driver}, {gpu.memory_mib} MiB")
                for place, gpu in enumerate(machine.gpus)
            ),
        ],
    )
    yield "libraries", list(found.libraries.items())
    free = "" if found.cache.free_bytes is None else f", {found.cache.free_bytes / 1e9:.1f} GB free"
    state = ("" if found.cache.exists else ", not there yet") + ("" if found.cache.writable else ", not writable")
    yield "cache of models", [("folder", f"{found.cache.folder}{state}{free}")]
    said: list[tuple[str, ...]] = [(one.setting, f"{one.value}  [{one.source}]") for one in found.settings]
    yield f"settings, profile {found.profile}", said or [("all", "at their defaults")]
    yield "ports", [(one.setting, f"{one.host}:{one.port} {one.problem or 'free'}") for one in found.ports]
    if found.models:
        yield "models", [(one.model, _model(one)) for one in found.models]
    yield "advice", [(one.level, f"{one.reason}: {one.setting}") for one in found.advice] or [("none", "")]


def _told(fact: bool | None) -> str:
    return "not told" if fact is None else "yes" if fact else "no"


def _memory(machine: Machine) -> str:
    def gigabytes(size_bytes: int | None) -> str:
        return "?" if size_bytes is None else f"{size_bytes / 1e9:.1f} GB"

    limit = "" if machine.memory_limit_bytes is None else f", limited to {gigabytes(machine.memory_limit_bytes)}"
    return f"{gigabytes(machine.memory_bytes)}{limit}, {gigabytes(machine.memory_available_bytes)} available"


def _model(one: SelfTest) -> str:
    if one.problem is not None:
        return f"{one.state}: {one.problem}"
    makes = ", ".join(one.outputs)
    speed = "" if one.lone_ms is None else f"; a lone text {one.lone_ms} ms, {one.texts_per_s} texts/s"
    return f"self-test passed on {one.device} ({one.backend}, {one.dtype}); makes {makes}{speed}"


def _section(title: str, rows: Sequence[tuple[str, ...]]) -> Any:
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(title=Text(title, style="bold"), title_justify="left", box=None, pad_edge=False, show_header=False)
    table.add_column(min_width=16, no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(Text(name, style="bold red" if name == "problem" else "cyan"), Text(value))
    return table


# --- another server -------------------------------------------------------------------------------------------


def _against(options: Namespace, rest: Sequence[str]) -> int:
    from vectord.tools.doctor.against import compare  # noqa: PLC0415
    from vectord.tools.probe.server import Server, check_url  # noqa: PLC0415 - httpx

    other_url = check_url(options.against, "--against")
    other_token = options.against_token or os.environ.get("DOCTOR_TOKEN") or None
    with Server(other_url, other_token, options.timeout) as there:
        _check_answers(there, "--against")
        with _here(options, rest) as here:
            _check_answers(here, "--url")
            found = compare(here, there, model_there=options.against_model)
            _check_answers(here, "--url")  # one that has died on the way is compared with nothing
            _check_answers(there, "--against")
    if options.json:
        body = {**dataclasses.asdict(found), "interchangeable": found.interchangeable}
        print_text(json.dumps(body, indent=2))
    else:
        print_table(_comparison(found))
        print_table(_verdict(found))
    return 0 if found.interchangeable else ExitCode.FAILED


@contextmanager
def _here(options: Namespace, rest: Sequence[str]) -> Iterator[Server]:
    from vectord.tools.probe.server import Server, check_url  # noqa: PLC0415

    if options.url is not None:
        if rest:
            raise ConfigError(f"--url: the server has its own settings, and {rest[0]} is one of this process")
        with Server(check_url(options.url, "--url"), token_of(options), options.timeout) as server:
            yield server
        return
    from vectord.config.sources import load  # noqa: PLC0415
    from vectord.tools.doctor.own_server import own_server  # noqa: PLC0415

    config = load(rest, os.environ, Path.cwd()).config  # what is wrong is said before a process is started
    with own_server(rest, config.server.api_key, options.timeout) as server:
        yield server


def _check_answers(server: Server, option: str) -> None:
    reply = server.get("/health")
    if reply.status == 0:
        raise ConfigError(f"{option}: nothing answers at {server.url} ({reply.problem})")


def _comparison(found: Comparison) -> Any:
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False)
    for heading in ("", f"here, {found.here}", f"there, {found.there}", ""):
        table.add_column(Text(heading), overflow="fold")
    for line in found.lines:
        style = {"differs": "bold red", "same": "green"}.get(line.verdict, "")
        cells = (Text(printable(cell)) for cell in (line.here, line.there))
        table.add_row(Text(line.what), *cells, Text(line.verdict, style=style))
    return table


def _verdict(found: Comparison) -> str:
    if found.least_cosine is None:
        return "\nNo vectors could be compared." if found.interchangeable else "\nRankings differ."
    if found.interchangeable:
        return f"\nInterchangeable: least cosine {found.least_cosine:.6f}, mean {found.mean_cosine:.6f}."
    return f"\nNOT interchangeable: least cosine {found.least_cosine:.6f}, mean {found.mean_cosine:.6f}."
