"""`vectord check`: test a running server."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from vectord.cli.commands import JSON, cacert, server_options
from vectord.cli.printing import console, print_json, print_text, printable
from vectord.config.command_line import Command, flag, value
from vectord.errors import ExitCode

if TYPE_CHECKING:
    from vectord.tools.check import Finding

HELP = """\
Test the server at --url, of any product: health, models, vectors, scores, errors, and each route in its /openapi.json
with that route's own example. A feature that the server does not have is "not offered", neither passed nor failed.

\b
Exit codes:
  0    all tests passed
  1    at least one test failed
  2    a bad option, or no server at --url
  130  Ctrl-C

\b
Examples:
  vectord check
  vectord check --url http://gpu-box:8000 --token "$TOKEN" --json
  vectord check --url http://old-server:8080 --backpressure-requests 0 --all"""


@click.command(
    cls=Command,
    help=HELP,
    short_help="Test a running server.",
    params=[
        *server_options(0.1, "Bearer token. Also tests that requests without it fail."),
        value(
            "--backpressure-requests",
            "N",
            "Concurrent requests, each of which must be answered or properly refused; 0 skips this test.",
            kind=click.IntRange(0, 10_000),
            default=200,
        ),
        flag("--all", "show_all", help="Also print tests of features that are not offered."),
        JSON,
    ],
)
def command(
    url: str,
    token: str | None,
    model: str | None,
    timeout: float,
    backpressure_requests: int,
    show_all: bool,
    as_json: bool,
) -> int:
    from vectord.tools.check import open_subject, run_checks  # noqa: PLC0415
    from vectord.tools.probe import ProbedServer, check_url  # noqa: PLC0415 - httpx

    with ProbedServer(check_url(url, "--url"), token, timeout, cacert()) as server:
        subject = open_subject(server, model=model, backpressure_requests=backpressure_requests)
        found = run_checks(subject)
        findings = list(found if as_json else _print_each(found, show_all))
        return _print_summary(server.url, findings, as_json)


def _print_each(findings: Iterable[Finding], show_all: bool) -> Iterable[Finding]:
    """Yield the findings, and print each as soon as its check ends."""
    from rich.text import Text  # noqa: PLC0415

    styles = {"passed": "green", "failed": "bold red", "not offered": "dim"}
    terminal = console()
    for finding in findings:
        yield finding
        if show_all or finding.verdict != "not offered":
            why = f"  {printable(finding.why)}" if finding.why else ""
            verdict = (f"{finding.verdict:11}", styles[finding.verdict])
            terminal.print(Text.assemble(verdict, f"  {printable(finding.name)}{why}"), soft_wrap=True)


def _print_summary(url: str, findings: Sequence[Finding], as_json: bool) -> int:
    passed, failed, not_offered = (
        sum(finding.verdict == verdict for finding in findings) for verdict in ("passed", "failed", "not offered")
    )
    ran = passed + failed
    if as_json:
        counts: dict[str, Any] = {
            "url": url,
            "passed": passed,
            "failed": failed,
            "ran": ran,
            "not_offered": not_offered,
        }
        print_json({**counts, "checks": findings})
    else:
        print_text(
            f"\n{passed}/{ran} tests passed" + (f" ({not_offered} not offered; see --all)" if not_offered else "")
        )
    return ExitCode.FAILED if failed or not ran else 0
