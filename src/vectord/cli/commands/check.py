"""`vectord check`: a live test of a server that runs."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from vectord.cli.parsing import Parser, seconds, token_of, whole
from vectord.cli.printing import console, print_table, print_text, printable
from vectord.errors import ExitCode

if TYPE_CHECKING:
    from vectord.tools.check.subject import Finding, Limits

USAGE = "check [--url URL] [options]"
SUMMARY = "test a server that runs"

_DESCRIPTION = """\
Tests the server at URL, whatever its make: probes, models, vectors, scores, errors, and every route that its
/openapi.json names, by that route's own example. What the server does not claim to do is "not offered", and is
neither passed nor failed. The model is asked for nothing but the texts of the tests."""

_EPILOG = """\
exit codes:
  0    all passed
  1    at least one test failed
  2    bad options, or nothing answers at URL
  130  Ctrl-C

environment:
  API_TOKEN, else VECTORD_API_KEY    the token, where --token is not given

examples:
  vectord check
  vectord check --url http://gpu-box:8000 --token "$TOKEN" --json
  vectord check --url http://old-server:8080 --backpressure-requests 0 --all"""


def help() -> str:
    return parser().format_help()


def parser() -> Parser:
    own = Parser("check", usage="vectord check [--url URL] [options]", description=_DESCRIPTION, epilog=_EPILOG)
    add = own.add_argument_group("the server").add_argument
    add("--url", default="http://localhost:8000", help="default: http://localhost:8000")
    add("--token", help="Bearer token; with it, that nothing is answered without it is tested too")
    add("--model", metavar="NAME", help="asked by that name (default: the first that the server names)")
    add("--timeout", metavar="S", type=seconds(3600, least=0.1), default=60.0, help="of one request (default: 60)")
    add = own.add_argument_group("what is tested").add_argument
    most = whole(1, 100_000_000)
    add(
        "--backpressure-requests",
        metavar="N",
        type=whole(0, 10_000),
        default=200,
        help="so many requests at once are answered or refused in order; 0: not tested (default: 200)",
    )
    add("--max-sentences", metavar="N", type=most, help="one text more than N is refused; so are those below")
    add("--max-sentence-chars", metavar="N", type=most, help="characters of a text")
    add("--max-total-chars", metavar="N", type=most, help="characters of all texts")
    add("--max-rerank-passages", metavar="N", type=most, help="passages of a rerank request")
    add("--max-rerank-text-chars", metavar="N", type=most, help="characters of a passage")
    add("--max-rerank-total-chars", metavar="N", type=most, help="characters of all passages")
    add = own.add_argument_group("what is printed").add_argument
    add("--all", action="store_true", help="show also what is not offered")
    own.add_common()
    return own


def run(words: Sequence[str]) -> int:
    options = parser().parse_args(words)
    from vectord.tools.check.suite import open_subject, run_checks  # noqa: PLC0415
    from vectord.tools.probe.server import Server, check_url  # noqa: PLC0415 - httpx

    url = check_url(options.url, "--url")
    with Server(url, token_of(options), options.timeout) as server:
        subject = open_subject(
            server,
            model=options.model,
            limits=_limits(options),
            backpressure_requests=options.backpressure_requests,
        )
        findings = _shown(run_checks(subject), options)
    return _summary(url, findings, options)


def _limits(options: Namespace) -> Limits:
    from vectord.tools.check.subject import Limits  # noqa: PLC0415

    return Limits(
        max_sentences=options.max_sentences,
        max_sentence_chars=options.max_sentence_chars,
        max_total_chars=options.max_total_chars,
        max_rerank_passages=options.max_rerank_passages,
        max_rerank_text_chars=options.max_rerank_text_chars,
        max_rerank_total_chars=options.max_rerank_total_chars,
    )


def _shown(findings: Any, options: Namespace) -> list[Finding]:
    """All of them; on a terminal a line each as soon as it is known."""
    found = []
    shown = None if options.json else console()
    for finding in findings:
        found.append(finding)
        if shown is not None and (options.all or finding.verdict != "not offered"):
            shown.print(_line(finding), soft_wrap=True)
    return found


def _line(finding: Finding) -> Any:
    from rich.text import Text  # noqa: PLC0415

    style = {"passed": "green", "failed": "bold red", "not offered": "dim"}[finding.verdict]
    why = f"  {printable(finding.why)}" if finding.why else ""
    return Text.assemble((f"{finding.verdict:11}", style), f"  {printable(finding.name)}{why}")


def _summary(url: str, findings: Sequence[Finding], options: Namespace) -> int:
    count = {
        verdict: sum(one.verdict == verdict for one in findings) for verdict in ("passed", "failed", "not offered")
    }
    ran = count["passed"] + count["failed"]
    code = ExitCode.FAILED if count["failed"] or not ran else 0
    if options.json:
        body = {"url": url, "passed": count["passed"], "failed": count["failed"], "ran": ran}
        body |= {"not_offered": count["not offered"], "checks": [asdict(one) for one in findings]}
        print_text(json.dumps(body, indent=2))
        return code
    left = f" ({count['not offered']} not offered; --all shows them)" if count["not offered"] else ""
    print_table(f"\n{count['passed']}/{ran} tests passed{left}")
    return code
