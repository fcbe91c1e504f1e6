"""What `vectord --help` and `vectord COMMAND --help` print. All of it comes from the settings; cli.py prints it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from vectord.config.files import CONFIG_FILE, profiles
from vectord.config.settings import SECTION_TITLES, SETTINGS, Setting, option

MAIN = """\
vectord: a self-hosted server for retrieval models.

Usage: vectord serve [MODEL ...] [options]    serve models over HTTP
       vectord models [MODEL ...] [options]   what can be served, and where its files are
       vectord key NAME                       make a key for --api-keys-file
       vectord --version
       vectord COMMAND --help

Try:   vectord serve
       curl localhost:8000/v1/embeddings -d '{"input": "Hello, world"}'
"""

_SERVE = """\
Usage: vectord serve [MODEL ...] [options]

Serves each MODEL (a hub id, a folder, an installed package) over HTTP until it is told to stop.

Every option has an environment name, with or without VECTORD_ before it (the longer one wins).
The other names in brackets are those of other servers, and options too: MODEL_ID is --model-id,
INFINITY_BATCH_SIZE is --batch-size. Names of theirs that mean nothing here are accepted, and the
log says so once (docs/configuration.md says why).

Command line beats environment, environment beats .env, .env beats the config file, that beats
the profile. A list takes several names, separated by , or ;. A switch may stand alone, take true
or false, or be turned around: --no-auto-truncate.
"""

_MODELS = """\
Usage: vectord models [MODEL ...] [--json] [options]

Lists the models that can be served here, whether their files are on this machine, where, and
how large they are. Asks no network. Takes the options of `vectord serve`.
"""

_KEY = """\
Usage: vectord key NAME

Makes a new random key. The key itself goes to standard error, for whoever is to have it; what the
server needs to know of it goes to standard output, for the file that --api-keys-file names:

       vectord key search >> keys.toml

Beside it there may stand, for that key: admin = true, models = ["NAME"], requests_per_minute = N,
tokens_per_minute = N, lane = "bulk". A server that runs reads the file anew within a second.
"""

_WIDTH = 100
_METAVAR = {bool: "", int: "N", float: "X", str: "TEXT", tuple: "LIST"}


def serve() -> str:
    own = (
        _entry(f"--config FILE  [VECTORD_CONFIG; default: ./{CONFIG_FILE} if there is one]", "Settings as TOML."),
        _entry(
            "--profile NAME  [VECTORD_PROFILE; default: default]",
            f"Stand in for another product: {', '.join(profiles())}.",
        ),
        _entry("--print-config", "Print each value and where it came from, and stop."),
        _entry("--json", "With --print-config: as JSON."),
        _entry("-h, --help", "Print this text."),
    )
    return "\n".join((_SERVE, "Sources", *own, *_sections()))


def models() -> str:
    return _MODELS


def key() -> str:
    return _KEY


def _sections() -> Iterator[str]:
    for section, title in SECTION_TITLES.items():
        yield f"\n{title}"
        yield from (_setting(setting) for setting in SETTINGS if setting.section == section)


def _setting(setting: Setting) -> str:
    names = ", ".join(setting.env[1:])  # the prefixed form goes without saying
    return _entry(f"{_flags(setting)}  [{names}{_default(setting)}]", setting.meaning)


def _flags(setting: Setting) -> str:
    """Its own option and those that no environment name says, short ones first."""
    others = {option(name) for name in setting.env[2:]} - {setting.flags[0]}
    own = [flag for flag in setting.flags if flag not in others]
    metavar = "|".join(setting.choices) or _METAVAR[setting.type]
    return f"{', '.join(sorted(own, key=lambda flag: flag.startswith('--')))} {metavar}".rstrip()


def _default(setting: Setting) -> str:
    value = setting.default
    if value is None or value == ():
        return ""
    if isinstance(value, tuple):
        return "; default: " + ", ".join(value)
    return f"; default: {str(value).lower() if isinstance(value, bool) else value}"


def _entry(head: str, meaning: str) -> str:
    lines = textwrap.wrap(head, _WIDTH, initial_indent=" " * 2, subsequent_indent=" " * 10)
    lines += textwrap.wrap(meaning, _WIDTH, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return "\n".join(lines)
