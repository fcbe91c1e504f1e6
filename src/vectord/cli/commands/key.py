"""`vectord key`: a new key for --api-keys-file."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from vectord.cli.printing import print_text
from vectord.errors import ConfigError

USAGE = "key NAME"
SUMMARY = "make a key for --api-keys-file"

_HELP = """\
Usage: vectord key NAME

Makes a new random key. The key itself goes to standard error, for whoever is to have it; what the
server needs to know of it goes to standard output, for the file that --api-keys-file names:

       vectord key search >> keys.toml

Beside it there may stand, for that key: admin = true, models = ["NAME"], requests_per_minute = N,
tokens_per_minute = N, lane = "bulk". A server that runs reads the file anew within a second.

options:
  -h, --help    print this text

exit codes:
  0    the key was made
  2    no name, or one that no file can hold
"""


def help() -> str:
    return _HELP


def run(words: Sequence[str]) -> int:
    """The stanza alone goes to standard output, so that it can be appended to the file without the key."""
    from vectord.server.admission.keys import new_key  # noqa: PLC0415

    if len(words) != 1 or words[0].startswith("-"):
        raise ConfigError("vectord key NAME: takes one name; try vectord key --help")
    key, stanza = new_key(words[0])
    sys.stderr.write(f"The key of {words[0]}, which is shown this once and kept nowhere:\n\n    {key}\n\n")
    return print_text(stanza)
