"""`vectord health`: whether the server on this machine is ready. The HEALTHCHECK of the images."""

from __future__ import annotations

import ssl
import sys
import urllib.error
import urllib.request
from pathlib import Path

import click

from vectord.cli.commands import command_with_settings, load_settings, own_url, trusted_certificate
from vectord.config.command_line import pass_command_line, value
from vectord.config.sources import CommandLine
from vectord.errors import ExitCode, plain_reason

TIMEOUT_S = 5.0

HELP = """\
Request /health/ready of the server that runs on this machine with the same settings: their port, and TLS with their
certificate. --of-process reads the command line of that server, too.

\b
Exit codes:
  0  the server is ready
  1  it is not, or no server answers
  2  a bad option

\b
Examples:
  vectord health
  vectord health --of-process 1           # in a container, whose first process is the server"""


@command_with_settings(
    help=HELP,
    short_help="Exit with 0 if the server on this machine is ready.",
    params=[value("--of-process", "PID", "Also apply the options of this process, `... serve OPTIONS`.", kind=int)],
)
@pass_command_line
def command(line: CommandLine, of_process: int | None) -> int:
    if of_process is not None:
        from vectord.cli.commands.serve import command as serve  # noqa: PLC0415

        try:
            words = Path(f"/proc/{of_process}/cmdline").read_text().removesuffix("\0").split("\0")
        except OSError:
            words = []
        # Without options if the process is not a server, or cannot be read.
        options = words[words.index("serve") + 1 :] if "serve" in words else []
        line = serve.make_context("serve", options).ensure_object(CommandLine)
    config = load_settings(line).config.server
    url = f"{own_url(config)}/health/ready"
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S, context=trusted_certificate(config)):  # noqa: S310 - our own URL
            return 0
    except urllib.error.HTTPError as refused:
        reason = f"status {refused.code}"
    except OSError as problem:
        cause = getattr(problem, "reason", problem)
        reason = plain_reason(cause if isinstance(cause, BaseException) else problem)
        if isinstance(cause, ssl.SSLCertVerificationError):
            reason += "; the server has another one than --tls-cert-file"
        else:
            reason += "; no server runs there, or it has other settings (--port, --host, TLS)"
    click.echo(f"vectord: {url}: {reason}", file=sys.stderr)
    return ExitCode.FAILED
