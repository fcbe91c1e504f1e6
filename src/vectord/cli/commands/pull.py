"""`vectord pull`: fetch models from the hub into the cache, and record them in vectord.lock."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import click
import msgspec
from msgspec.structs import asdict

from vectord.cli.commands import (
    CACERT,
    INSTEAD_URL,
    TOKEN,
    command_with_settings,
    configure_log,
    load_settings,
    names_for_server,
    refusal,
    running_server,
)
from vectord.cli.printing import print_json, print_table, print_text, printable
from vectord.config import ModelConfig, TelemetryConfig
from vectord.config.command_line import flag, pass_command_line
from vectord.config.sources import CommandLine, export_hub
from vectord.errors import ConfigError, ExitCode
from vectord.observability.progress import BARS, show_bars, terminal_handler
from vectord.schema import PullResult

if TYPE_CHECKING:
    from vectord.checkpoints.pulling import Progress
    from vectord.tools.probe import ProbedServer, ProbeReply

POLL_S = 0.5  # between two requests for the progress of a running server

HELP = """\
Fetch each MODEL (a hub id; default: the models of the settings) into the cache of `vectord serve`. Only the files that
the server reads are fetched; torch files and graphs only if there are no safetensors. After an interruption, the same
command fetches the missing files. Every file is checked against the hub's checksum, existing files too.

The lock file vectord.lock gets each model's commit, and each file's size and sha256. `vectord serve --lock-file
vectord.lock` serves these commits and refuses files that differ. --lock-file names another file.

With --url, a running server fetches each MODEL and serves it until it ends. It needs an --admin-key, which --token
passes; its settings pull_allow, lock_file and offline apply. Ctrl-C does not end its download.

Accepts the options of `vectord serve`. These matter: --revision, --hf-home, --hub-cache, --hf-endpoint, --hf-token
(HF_TOKEN), --model-catalogue, and --backend onnxruntime with --onnx-file.

\b
Exit codes:
  0    every file is present and correct; with --url, the models are served
  1    with --url: the server refused or failed; a line on standard error has its reason
  2    a model that is not on the hub, a wrong checksum, a model missing in the lock file
  130  Ctrl-C; the same command fetches the missing files

\b
Examples:
  vectord pull BAAI/bge-m3 BAAI/bge-reranker-v2-m3
  vectord pull BAAI/bge-m3 --locked --hub-cache /models
  vectord pull BAAI/bge-m3 --url http://gpu-box:8000 --token "$ADMIN_KEY"
  HF_ENDPOINT=https://mirror.example vectord pull intfloat/multilingual-e5-small --json"""


@command_with_settings(
    help=HELP,
    short_help="Fetch models from the hub and lock them.",
    params=[
        flag(
            "--locked",
            "--frozen",
            help="Fetch the commits of the lock file, which must list every MODEL. A file that differs is refused.",
        ),
        INSTEAD_URL,
        TOKEN,
        CACERT,
        flag("--json", "as_json", help="Print JSON, and no progress bar."),
    ],
)
@pass_command_line
def command(line: CommandLine, locked: bool, url: str | None, token: str | None, as_json: bool) -> int:
    names = names_for_server(line, url, token)
    if names is not None:
        if locked:
            raise ConfigError("--locked: the server has its own lock file; leave it out with --url")
        if not names:
            raise ConfigError("--url: name the models to pull")
        return _pull_onto(line, url, token, names, as_json)
    from vectord.checkpoints.catalogue import hub_id_of  # noqa: PLC0415
    from vectord.checkpoints.hub import cache_folder, find_base, is_model_folder  # noqa: PLC0415
    from vectord.checkpoints.lock import LOCK_FILE, read_lock, write_lock  # noqa: PLC0415
    from vectord.checkpoints.pulling import pull  # noqa: PLC0415
    from vectord.engine.models.backend import required_graphs  # noqa: PLC0415

    loaded = load_settings(line)
    config = loaded.config.model
    if config.offline:
        raise ConfigError(f"{loaded.origins['offline']}: forbids vectord pull, which contacts the hub")
    export_hub(config, os.environ)
    path = Path(config.lock_file or LOCK_FILE).expanduser()
    lock = dict(read_lock(path)) if locked or path.exists() else {}
    pulled = []
    configure_log(loaded)
    revisions: dict[str, str | None] = dict.fromkeys(_hub_ids(config), config.revision)
    names = list(revisions)
    for hub_id in names:
        if locked and hub_id not in lock:
            raise ConfigError(f"--locked: {hub_id} is not in {path}; vectord pull without --locked adds it")
        one = pull(
            hub_id,
            revision=revisions[hub_id],
            cache=cache_folder(config.hf_home, os.environ),
            token=config.hf_token,
            progress=_progress(as_json),
            graphs=required_graphs(loaded.config.device),
            held_to=lock[hub_id] if locked else None,
        )
        pulled.append(one)
        if not locked:  # after each model, so that a later failure loses nothing
            lock[hub_id] = one.locked
            write_lock(path, lock.values())
        base = find_base(one.folder)
        if base is not None and not is_model_folder(Path(base)) and (base_id := hub_id_of(base)) not in revisions:
            revisions[base_id] = None  # the setting is the adapter's
            names.append(base_id)
    if as_json:
        rows = [{**asdict(one.locked), "folder": str(one.folder), "fetched_bytes": one.fetched_bytes} for one in pulled]
        return print_json({"lock_file": str(path), "models": rows})
    table = [
        (
            one.locked.model,
            one.locked.commit[:12],
            str(len(one.locked.files)),
            f"{sum(file.size_bytes for file in one.locked.files) / 1e6:.1f} MB",
            f"{one.fetched_bytes / 1e6:.1f} MB",
            str(one.folder),
        )
        for one in pulled
    ]
    caption = f"{'matches' if locked else 'written to'} {path}"
    headings = ("model", "commit", ">files", ">size", ">fetched", "where")
    return print_table(table, headings, caption=caption, caption_justify="left")


def _pull_onto(line: CommandLine, url: str | None, token: str | None, names: Sequence[str], as_json: bool) -> int:
    """Let the server at `url` pull these models."""
    from vectord.observability import logs  # noqa: PLC0415

    logs.configure(TelemetryConfig(log_level="warning"))
    served = []
    with running_server(line, url, token) as server:
        for name in names:
            reply = _await_pull(server, name, _progress(as_json))
            if isinstance(reply, PullResult):
                served.append(printable(reply.model))
                continue
            click.echo(f"vectord: {name}: {refusal(reply)}", file=sys.stderr)
    if (handler := terminal_handler()) is not None:
        handler.end_bars()
    if as_json:
        print_json({"served": served})
    elif served:
        print_text("\n".join(f"{name} is served" for name in served))
    return 0 if len(served) == len(names) else ExitCode.FAILED


def _await_pull(server: ProbedServer, name: str, progress: Progress) -> PullResult | ProbeReply:
    """The report of the served model, or the refusal."""
    while True:
        reply = server.send("POST", f"/vectord/models/{quote(name)}/pull", None)
        try:
            report = msgspec.convert(reply.json(), PullResult)
        except msgspec.ValidationError:
            return reply
        if reply.status != 200 or report.state == "served":
            return report if reply.status == 200 else reply
        if report.total_bytes:
            progress(name, report.done_bytes, report.total_bytes)
        time.sleep(POLL_S)


def _hub_ids(config: ModelConfig) -> list[str]:
    """Each model once. Raises ConfigError for a folder."""
    from vectord.checkpoints.catalogue import hub_id_of  # noqa: PLC0415
    from vectord.engine.models.requested import requested_models  # noqa: PLC0415

    found: dict[str, None] = {}
    for requested in requested_models(config):
        if Path(requested.model).is_absolute() or requested.model.startswith((".", "~")):
            raise ConfigError(f"model {requested.model}: a folder cannot be fetched; give a hub id such as BAAI/bge-m3")
        found[hub_id_of(requested.model)] = None
    return list(found)


def _progress(as_json: bool) -> Progress:
    """Shows the progress of a model: a bar of the log on a terminal, else a line. Nothing with JSON."""
    begun = as_json

    def show(hub_id: str, done: int, total: int) -> None:
        nonlocal begun
        if terminal_handler() is not None and not as_json:
            show_bars()
            BARS.info(hub_id, extra={"progress": (done, total)})
        elif not begun:
            begun = True
            sys.stderr.write(f"vectord: {hub_id}, {total:,} bytes\n")

    return show
