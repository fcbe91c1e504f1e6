"""`vectord doctor`: examine this machine, this installation and these models, or compare two servers."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click

from vectord.cli.commands import CACERT, JSON, cacert, command_with_settings, load_settings, server_here
from vectord.cli.printing import print_json, print_table, print_text, printable
from vectord.config.command_line import flag, pass_command_line, value
from vectord.config.sources import CommandLine, Loaded
from vectord.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from vectord.tools.doctor.against import Comparison
    from vectord.tools.doctor.self_test import SelfTest

HELP = """\
Show what vectord finds on this machine: the CPU and its instructions, threads, memory, GPUs, libraries, the model
cache, settings that differ from their defaults, and ports. Then load the models as `vectord serve` would, run their
self-test, time them, and print advice, each with its reason and the setting to change.

With --against, send the same requests to two servers and print the results side by side: cosines of vectors, scores and
rankings, limits, error statuses and speed. The server "here" is started on a free port with the given MODELs and
settings, or is the running one at --url.

Accepts MODELs and the options of `vectord serve`.

\b
Exit codes:
  0    no problem; with --against: vectors and rankings are interchangeable
  1    a problem; with --against: vectors with a cosine below 0.99, or another ranking
  2    a bad option, a missing model, or no server at the URL; with --against: nothing could be compared
  130  Ctrl-C

\b
Examples:
  vectord doctor
  vectord doctor BAAI/bge-m3 --no-self-test --json
  vectord doctor --against http://old-tei:8080 BAAI/bge-small-en-v1.5 --profile tei
  vectord doctor --against http://old:8000 --url http://new:8000"""


@command_with_settings(
    help=HELP,
    short_help="Examine this machine, or compare two servers.",
    params=[
        flag("--no-self-test", help="Load no model."),
        value("--against", "URL", "Compare with the server at this URL."),
        value("--against-token", "KEY", "Bearer token of that server.", env=["DOCTOR_TOKEN"]),
        value("--against-model", "NAME", "That server's name of the model.  [default: its first]"),
        value("--url", "URL", "The server here.  [default: one that is started now]"),
        value("--token", "KEY", "Bearer token of the server at --url.", env=["API_TOKEN", "VECTORD_API_KEY"]),
        value("--timeout", "S", "Seconds for a request.", kind=click.FloatRange(0.1, 3600), default=120.0),
        CACERT,
        JSON,
    ],
)
@pass_command_line
def command(
    line: CommandLine,
    no_self_test: bool,
    against: str | None,
    against_token: str | None,
    against_model: str | None,
    url: str | None,
    token: str | None,
    timeout: float,
    as_json: bool,
) -> int:
    if against is None:
        context = click.get_current_context()
        for name in ("url", "token", "against_token", "against_model"):
            if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
                raise ConfigError(f"--{name.replace('_', '-')}: requires --against")
        return _examine(load_settings(line), self_test=not no_self_test, as_json=as_json)
    from vectord.tools.doctor.against import compare  # noqa: PLC0415
    from vectord.tools.probe import ProbedServer, check_url  # noqa: PLC0415 - httpx

    with ProbedServer(check_url(against, "--against"), against_token, timeout, cacert()) as there:
        there.check_reachable("--against")
        with server_here(line, url, token, timeout) as here:
            here.check_reachable("--url")
            found = compare(here, there, model_there=against_model)
            here.check_reachable("--url")  # results of a server that stopped meanwhile mean nothing
            there.check_reachable("--against")
    if as_json:
        verdict = {"compared": found.compared, "interchangeable": found.interchangeable, "reasons": found.reasons}
        print_json({**dataclasses.asdict(found), **verdict})
    else:
        _print_comparison(found)
    if not found.compared:
        raise ConfigError("--against: nothing was compared, because no API returns vectors or scores on both servers")
    return 0 if found.interchangeable else ExitCode.FAILED


# --- this machine ---------------------------------------------------------------------------------------------


def _examine(loaded: Loaded, *, self_test: bool, as_json: bool) -> int:
    from vectord.checkpoints.hub import cache_folder  # noqa: PLC0415
    from vectord.config.sources import export_hub  # noqa: PLC0415
    from vectord.tools.doctor import facts  # noqa: PLC0415
    from vectord.tools.doctor.advice import advice  # noqa: PLC0415

    config = loaded.config
    export_hub(config.model, os.environ)
    found = SimpleNamespace(
        machine=facts.read_machine(),
        libraries=facts.read_versions(),
        cache=facts.read_cache(cache_folder(config.model.hf_home, os.environ)),
        profile=loaded.profile,
        settings=facts.read_settings(loaded),
        ports=facts.read_ports(config.server),
        models=_self_tests(loaded) if self_test else [],
    )
    found.advice = advice(found.machine, found.cache, found.ports, found.models, config, list(found.libraries))
    if as_json:
        print_json(vars(found))
    else:
        _print_findings(found)
    return ExitCode.FAILED if any(one.level == "problem" for one in found.advice) else 0


def _self_tests(loaded: Loaded) -> list[SelfTest]:
    from vectord.observability import logs  # noqa: PLC0415
    from vectord.tools.doctor.self_test import self_tests  # noqa: PLC0415 - everything that computes

    telemetry = loaded.config.telemetry
    if loaded.origins["log_level"].source == "default":
        telemetry = dataclasses.replace(telemetry, log_level="warning")
    logs.configure(telemetry)
    return asyncio.run(self_tests(loaded.config))


def _print_findings(found: SimpleNamespace) -> None:
    from rich.text import Text  # noqa: PLC0415

    for title, rows in _sections(found):
        cells = [
            (Text(f"{name:16}", style="bold red" if name == "problem" else "cyan"), Text(value)) for name, value in rows
        ]
        print_table(cells, title=Text(title, style="bold"))


def _sections(found: SimpleNamespace) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    machine, cache = found.machine, found.cache
    limit = "" if machine.memory_limit_bytes is None else f", limited to {_gigabytes(machine.memory_limit_bytes)}"
    available = _gigabytes(machine.memory_available_bytes)
    yield (
        "machine",
        [
            ("system", machine.system),
            ("processor", machine.processor),
            ("instructions", " ".join(machine.features) or "none of the relevant ones are reported"),
            ("bfloat16, int8", f"{_yes_no(machine.bfloat16)}, {_yes_no(machine.int8)}"),
            ("cores", f"{machine.cores}, {machine.affinity} of them for this process, {machine.threads} threads used"),
            ("memory", f"{_gigabytes(machine.memory_bytes)}{limit}, {available} available"),
            *(
                (f"GPU {number}", f"{gpu.name}, driver {gpu.driver}, {gpu.memory_mib} MiB")
                for number, gpu in enumerate(machine.gpus)
            ),
        ],
    )
    yield "libraries", list(found.libraries.items())
    free = "" if cache.free_bytes is None else f", {cache.free_bytes / 1e9:.1f} GB free"
    state = ("" if cache.exists else ", not there yet") + ("" if cache.writable else ", not writable")
    yield "model cache", [("folder", f"{cache.folder}{state}{free}")]
    changed = [(one.setting, f"{one.value}  [{one.source}]") for one in found.settings]
    yield f"settings, profile {found.profile}", changed or [("all", "at their defaults")]
    yield "ports", [(one.setting, f"{one.host}:{one.port} {one.problem or 'free'}") for one in found.ports]
    if found.models:
        yield "models", [(one.model, _model(one)) for one in found.models]
    yield "advice", [(one.level, f"{one.reason}: {one.setting}") for one in found.advice] or [("none", "")]


def _yes_no(fact: bool | None) -> str:
    return "unknown" if fact is None else "yes" if fact else "no"


def _gigabytes(size_bytes: int | None) -> str:
    return "?" if size_bytes is None else f"{size_bytes / 1e9:.1f} GB"


def _model(one: SelfTest) -> str:
    if one.problem is not None:
        return f"{one.state}: {one.problem}"
    speed = "" if one.lone_ms is None else f"; a single text {one.lone_ms} ms, {one.texts_per_s} texts/s"
    makes = ", ".join(one.outputs)
    return f"self-test passed on {one.device} ({one.backend}, {one.dtype}); makes {makes}{speed}"


# --- another server -------------------------------------------------------------------------------------------


def _print_comparison(found: Comparison) -> None:
    from rich.text import Text  # noqa: PLC0415

    styles = {"differs": "bold red", "same": "green"}
    rows: list[tuple[Any, ...]] = [
        (
            Text(one.what),
            Text(printable(one.here)),
            Text(printable(one.there)),
            Text(one.verdict, style=styles.get(one.verdict, "")),
        )
        for one in found.lines
    ]
    print_table(rows, ("", f"here, {found.here}", f"there, {found.there}", ""))
    if found.compared:
        cosines = "no vectors were compared, only rankings"
        if found.least_cosine is not None:
            cosines = f"least cosine {found.least_cosine:.6f}, mean {found.mean_cosine:.6f}"
        verdict = "Interchangeable" if found.interchangeable else "NOT interchangeable"
        print_text(f"\n{verdict}: {'; '.join([cosines, *found.reasons])}.")
