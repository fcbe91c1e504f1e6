"""`vectord key`: create a key for --api-keys-file."""

from __future__ import annotations

import sys

import click

from vectord.cli.printing import print_text
from vectord.config.command_line import Command

HELP = """\
Create a random key called NAME. The key is written to standard error. Its entry for --api-keys-file is written to
standard output:

\b
  vectord key search >> keys.toml

You may add to the entry: admin = true, models = ["NAME"], requests_per_minute = N, tokens_per_minute = N,
lane = "bulk". Requests make a running server check the file for
changes, at most once per second.

\b
Exit codes:
  0  the key was created
  2  a missing or invalid name"""


@click.command(cls=Command, help=HELP, short_help="Create a key for --api-keys-file.")
@click.argument("name")
def command(name: str) -> int:
    from vectord.server.admission.keys import new_key  # noqa: PLC0415

    key, entry = new_key(name)
    sys.stderr.write(f"The key of {name}. It is shown only once and stored nowhere:\n\n    {key}\n\n")
    return print_text(entry)
