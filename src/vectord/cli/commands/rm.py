"""`vectord rm`: remove models from the Hugging Face cache of this machine or of a running server."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from vectord.cli.commands import (
    CACERT,
    INSTEAD_URL,
    JSON,
    TOKEN,
    answers_about,
    command_with_settings,
    load_settings,
    names_for_server,
    running_server,
)
from vectord.cli.printing import print_json, print_text, printable
from vectord.config.command_line import pass_command_line
from vectord.config.sources import CommandLine, export_hub
from vectord.errors import ConfigError, ExitCode

HELP = """\
Remove each MODEL from the cache of `vectord pull`, with all revisions. A folder of your own and an installed package
are refused. A server that has the model in memory continues until it loads it again.

With --url, a running server stops serving each MODEL that was pulled onto it, and removes it from its own cache. It
needs an --admin-key, which --token passes. A model that its settings name is refused.

\b
Exit codes:
  0  the models are removed
  1  with --url: the server refused; a line on standard error has its reason
  2  a bad option, or a MODEL that is not in the cache; nothing is removed

\b
Examples:
  vectord rm BAAI/bge-m3
  vectord rm nomic-embed-text --hub-cache /models
  vectord rm BAAI/bge-m3 --url http://gpu-box:8000 --token "$ADMIN_KEY\""""


@command_with_settings(help=HELP, short_help="Remove models from the cache.", params=[INSTEAD_URL, TOKEN, CACERT, JSON])
@pass_command_line
def command(line: CommandLine, url: str | None, token: str | None, as_json: bool) -> int:
    if not line.named_models:
        raise ConfigError("name a model; vectord list has them")
    names = names_for_server(line, url, token)
    if names is not None:
        with running_server(line, url, token) as server:
            removed = [answer for _, answer in answers_about(server, names, "DELETE", field="freed_bytes")]
        _report(removed, as_json)
        return 0 if len(removed) == len(names) else ExitCode.FAILED
    from vectord.checkpoints.catalogue import hub_id_of  # noqa: PLC0415
    from vectord.checkpoints.hub import cache_folder  # noqa: PLC0415
    from vectord.checkpoints.pulling import find_cached  # noqa: PLC0415

    config = load_settings(line).config.model
    export_hub(config, os.environ)
    cache = cache_folder(config.hf_home, os.environ)
    found = {}
    for name in config.models:
        hub_id = hub_id_of(name)
        cached = find_cached(hub_id, cache)
        if cached is None:
            raise ConfigError(f"model {hub_id} is not in {cache}; vectord list shows where it is")
        found[cached.folder] = cached
    for cached in found.values():
        cached.remove()
    return _report([{"model": cached.hub_id, "freed_bytes": cached.size_bytes} for cached in found.values()], as_json)


def _report(removed: Iterable[dict[str, Any]], as_json: bool) -> int:
    if as_json:
        return print_json(list(removed))
    for one in removed:
        print_text(f"removed {printable(one['model'])}, {one['freed_bytes'] / 1e6:,.1f} MB")
    return 0
