"""`vectord doctor`: examine this machine and its models, test a running server, or compare two servers."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click

from vectord.cli.commands import (
    CACERT,
    JSON,
    cacert,
    command_with_settings,
    configure_log,
    load_settings,
    names_for_server,
    require_url,
)
from vectord.cli.printing import console, print_json, print_table, print_text, printable
from vectord.config.command_line import flag, pass_command_line, value
from vectord.config.sources import CommandLine, Loaded
from vectord.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from vectord.tools.doctor.against import Comparison
    from vectord.tools.doctor.self_test import SelfTest
    from vectord.tools.probe import ProbedServer

HELP = """\
Show what vectord finds on this machine: the CPU and its instructions, threads, memory, GPUs, libraries, the model
cache, settings that differ from their defaults, and ports. Then load the models as `vectord serve` would, run their
self-test, time them, embed long texts on all streams at once, compare their vectors with references, and print advice,
each with its reason and the setting to change. Accepts MODELs and the options of `vectord serve`.

With --url, test a running server of any product and one of its models, its first one unless MODEL names another:
health, the token, vectors, scores, concurrent clients and long texts. A feature that it lacks is "not offered".

With --against, send the same requests to two servers and print the results side by side: cosines of vectors, scores and
rankings, limits and error statuses. The server "here" is started on a free port with the given MODELs and settings, or
is the running one at --url.

\b
Exit codes:
  0    no problem; with --against: vectors and rankings are interchangeable
  1    a problem, or a failed test; with --against: vectors with a cosine below 0.99, or another ranking
  2    a bad option, a missing model, or no server at the URL; with --against: nothing could be compared
  130  Ctrl-C

\b
Examples:
  vectord doctor
  vectord doctor BAAI/bge-m3 --no-self-test --json
  vectord doctor ./all-mpnet-base-v2 --dtype float32 --reference
  vectord doctor --url http://gpu-box:8000 --token "$TOKEN"
  vectord doctor --against http://old-tei:8080 BAAI/bge-small-en-v1.5 --profile tei
  vectord doctor --against http://old:8000 --url http://new:8000"""


@command_with_settings(
    help=HELP,
    short_help="Examine this machine, test a server, or compare two.",
    params=[
        flag("--no-self-test", help="Load no model."),
        flag("--reference", help="Also compare vectors with the package sentence-transformers, in float32."),
        value("--url", "URL", "Test this running server."),
        value("--token", "KEY", "Bearer token of the server at --url.", env=["VECTORD_API_KEY"]),
        value("--against", "URL", "Compare with the server at this URL."),
        value("--against-token", "KEY", "Bearer token of that server.", env=["DOCTOR_TOKEN"]),
        value("--against-model", "NAME", "That server's name of the model.  [default: its first]"),
        value("--timeout", "S", "Seconds for a request.", kind=click.FloatRange(0.1, 3600), default=120.0),
        CACERT,
        JSON,
    ],
)
@pass_command_line
def command(
    line: CommandLine,
    no_self_test: bool,
    reference: bool,
    url: str | None,
    token: str | None,
    against: str | None,
    against_token: str | None,
    against_model: str | None,
    timeout: float,
    as_json: bool,
) -> int:
    context = click.get_current_context()
    for option, needed, given in (
        ("token", "--url", url),
        ("against_token", "--against", against),
        ("against_model", "--against", against),
    ):
        if given is None and context.get_parameter_source(option) is click.core.ParameterSource.COMMANDLINE:
            raise ConfigError(f"--{option.replace('_', '-')}: requires {needed}")
    if url is None and against is None:
        require_url()
        loaded = load_settings(line)
        return _examine(loaded, self_test=not no_self_test, with_library=reference, as_json=as_json)
    if no_self_test or reference:
        option = "--no-self-test" if no_self_test else "--reference"
        raise ConfigError(f"{option}: concerns the models of this machine; leave it out with --url and --against")
    if against is None:
        with _server_here(line, url, token, timeout) as (server, model):
            return _test_server(server, model, as_json=as_json)
    from vectord.tools.doctor.against import compare  # noqa: PLC0415
    from vectord.tools.probe import ProbedServer, check_url  # noqa: PLC0415 - httpx

    with ProbedServer(check_url(against, "--against"), against_token, timeout, cacert()) as there:
        there.check_reachable("--against")
        with _server_here(line, url, token, timeout) as (here, model):
            found = compare(here, there, model_here=model, model_there=against_model)
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


@contextmanager
def _server_here(
    line: CommandLine, url: str | None, token: str | None, timeout_s: float
) -> Iterator[tuple[ProbedServer, str | None]]:
    """The server at `url`, or one of this machine with the settings and models of the command line, until the end;
    and its model to test, None for the first one."""
    if url is not None:
        from vectord.tools.probe import ProbedServer, check_url  # noqa: PLC0415 - httpx

        names = names_for_server(line, url, token) or []
        if len(names) > 1:
            raise ConfigError("--url: name one model of the server")
        with ProbedServer(check_url(url, "--url"), token, timeout_s, cacert()) as server:
            server.check_reachable("--url")
            yield server, names[0] if names else None
        return
    from vectord.tools.doctor.against import own_server  # noqa: PLC0415

    config = load_settings(line).config  # reports a bad setting before a process starts
    with own_server(line.words, config.server.api_key, timeout_s) as server:
        yield server, None


# --- a running server -----------------------------------------------------------------------------------------


def _test_server(server: ProbedServer, model: str | None, *, as_json: bool) -> int:
    from rich.text import Text  # noqa: PLC0415

    from vectord.tools.doctor.server import test_server  # noqa: PLC0415

    terminal, findings = console(), []
    for finding in test_server(server, model):
        findings.append(finding)
        if not as_json:  # each as soon as its test ends
            why = f"  {printable(finding.why)}" if finding.why else ""
            verdict = (f"{finding.verdict:11}", _STYLES[finding.verdict])
            terminal.print(Text.assemble(verdict, f"  {printable(finding.name)}{why}"), soft_wrap=True)
    counts = {verdict: sum(one.verdict == verdict for one in findings) for verdict in _STYLES}
    if as_json:
        named = {verdict.replace(" ", "_"): count for verdict, count in counts.items()}
        print_json({"url": server.url, **named, "tests": findings})
    else:
        print_text("\n" + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return ExitCode.FAILED if counts["failed"] or not counts["passed"] else 0


_STYLES = {"passed": "green", "failed": "bold red", "not offered": "dim"}


# --- this machine ---------------------------------------------------------------------------------------------


def _examine(loaded: Loaded, *, self_test: bool, with_library: bool, as_json: bool) -> int:
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
        models=[],
    )
    if self_test:
        from vectord.tools.doctor.self_test import self_tests  # noqa: PLC0415 - everything that computes

        configure_log(loaded)
        found.models = asyncio.run(self_tests(config, with_library=with_library))
    found.advice = advice(found.machine, found.cache, found.ports, found.models, config, list(found.libraries))
    if as_json:
        print_json(vars(found))
    else:
        from rich.text import Text  # noqa: PLC0415

        for title, rows in _sections(found):
            names = (Text(f"{name:16}", style="bold red" if name == "problem" else "cyan") for name, _ in rows)
            cells = [(name, Text(text)) for name, (_, text) in zip(names, rows, strict=True)]
            print_table(cells, title=Text(title, style="bold"))
    return ExitCode.FAILED if any(one.level == "problem" for one in found.advice) else 0


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
        compared = [(one.verdict, f"{one.name}: {one.why}") for model in found.models for one in model.references]
        if compared:
            yield "references", compared
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
