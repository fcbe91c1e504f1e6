"""`vectord models`, `list` and `show`: the models on this machine, of a running server, or of the catalogue."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

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
from vectord.cli.commands.ps import print_served, served_models
from vectord.cli.printing import print_json, print_table, printable
from vectord.config import ModelConfig
from vectord.config.command_line import flag, pass_command_line
from vectord.config.sources import CommandLine, export_hub
from vectord.errors import ConfigError, StartError

if TYPE_CHECKING:
    from vectord.checkpoints.spec import ModelSpec, RequestedModel

_DTYPES = {
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F64": "float64",
    "F8_E4M3": "fp8",
    "I8": "int8",
}

HELP = """\
List the models on this machine: those that `vectord serve` would serve with the same options, the Hugging Face cache,
and installed packages. With MODELs, only those; a single one with all its facts. Contacts no network, except for a
running server with --url, whose served models are listed instead.

\b
Exit codes:
  0  the list was printed
  1  a named MODEL is not on this machine, or cannot be served; with --url, it is not served
  2  a bad option; with --url, no server or a wrong key

\b
Examples:
  vectord models
  vectord models BAAI/bge-m3
  vectord models --all --json
  vectord models --url http://gpu-box:8000"""


SHOW_HELP = """\
Print the facts of a MODEL on this machine: its folder, vectors, limits, prompts and fingerprint. Several MODELs get a
table. Contacts no network, except for a running server with --url, which then states the facts of its MODEL.

\b
Exit codes:
  0  the facts were printed
  1  a MODEL is not on this machine, or cannot be served; with --url, it is not served
  2  a bad option, or no MODEL; with --url, no server or a wrong key

\b
Examples:
  vectord show all-minilm
  vectord show BAAI/bge-m3 --json
  vectord show bge-m3 --url http://gpu-box:8000"""


@pass_command_line
def _list(line: CommandLine, show_all: bool, url: str | None, token: str | None, as_json: bool) -> int:
    names = names_for_server(line, url, token)
    if names is None:
        return _list_here(line, show_all=show_all, as_json=as_json)
    if show_all:
        raise ConfigError("--all: lists the catalogue of this machine; leave it out with --url")
    return _list_served(line, url, token, names, as_json=as_json)


PARAMETERS = (
    flag("--all", "show_all", help="Also the models of the catalogue that are not on this machine."),
    *(INSTEAD_URL, TOKEN, CACERT, JSON),
)
command = command_with_settings(help=HELP, short_help="List models and their files.", params=[*PARAMETERS])(_list)
list_command = command_with_settings(help=HELP, short_help="The same as models, as in Ollama.", params=[*PARAMETERS])(
    _list
)


@command_with_settings(
    help=SHOW_HELP, short_help="Print the facts of a model.", params=[INSTEAD_URL, TOKEN, CACERT, JSON]
)
@pass_command_line
def show_command(line: CommandLine, url: str | None, token: str | None, as_json: bool) -> int:
    if not line.named_models:
        raise ConfigError("name a model; vectord list has them")
    names = names_for_server(line, url, token)
    if names is not None:
        return _list_served(line, url, token, names, as_json=as_json)
    return _list_here(line, show_all=False, as_json=as_json)


def _list_served(line: CommandLine, url: str | None, token: str | None, names: Sequence[str], *, as_json: bool) -> int:
    """The exit code. Prints the models of a running server, or the facts of those with these names."""
    with running_server(line, url, token) as server:
        if not names:
            models = served_models(server)
            return print_json(models) if as_json else print_served(models)
        found = [answer for _, answer in answers_about(server, names, "GET")]
    if as_json:
        print_json(found)
    elif len(names) == 1 and found:
        _print_table_of(found[0])
    elif found:
        print_served(found)
    return int(len(found) < len(names))


def _list_here(line: CommandLine, *, show_all: bool, as_json: bool) -> int:
    """The exit code. Prints the facts of a single named model, else a table."""
    from vectord.checkpoints.catalogue import CATALOGUE  # noqa: PLC0415
    from vectord.checkpoints.hub import cache_folder  # noqa: PLC0415
    from vectord.checkpoints.spec import RequestedModel  # noqa: PLC0415
    from vectord.engine.models.requested import requested_models  # noqa: PLC0415

    config = replace(load_settings(line).config.model, offline=True)
    export_hub(config, os.environ)
    served = {one.name or one.model: one for one in requested_models(config)}
    rows = [_row(name, one, config, is_served=True) for name, one in served.items()]
    if line.named_models:
        if as_json:
            print_json(rows)
        elif len(rows) == 1 and rows[0]["problem"]:
            print_table([("model", rows[0]["model"]), ("problem", rows[0]["problem"])])
        elif len(rows) == 1:
            _print_table_of({**rows[0], "bytes": f"{rows[0]['bytes']:,}", "served": None, "problem": None})
        else:
            _print_rows(rows)
        return int(any(row["problem"] for row in rows))
    cached = sorted(cache_folder(config.hf_home, os.environ).glob("models--*"))
    names = [path.name.removeprefix("models--").replace("--", "/", 1) for path in cached]
    known = {entry.hub_id: entry for entry in CATALOGUE}
    names += [name for name, entry in known.items() if entry.package or show_all]
    others = [name for name in dict.fromkeys(names) if name not in served]
    found = [_row(name, RequestedModel(name), config, is_served=False) for name in others]
    rows += [row for row in found if row["folder"] or show_all]
    return print_json(rows) if as_json else _print_rows(rows)


def _row(name: str, model: RequestedModel, config: ModelConfig, *, is_served: bool) -> dict[str, Any]:
    """One model: its place and its facts, or the problem."""
    from vectord.checkpoints.hub import resolve  # noqa: PLC0415
    from vectord.engine.models.opening import read_facts  # noqa: PLC0415

    row: dict[str, Any] = {"model": name, "served": is_served, "source": None, "revision": None, "folder": None}
    row |= {"bytes": 0, "problem": None}
    try:
        located = resolve(model.model, revision=config.revision, offline=True, hf_home=config.hf_home, token=None)
        size_bytes = sum(file.stat().st_size for file in located.folder.rglob("*") if file.is_file())
        row |= {"source": located.source, "revision": located.revision, "folder": str(located.folder)}
        row["bytes"] = size_bytes
        return row | _facts(read_facts(model, config))
    except StartError as problem:
        return row | {"problem": problem.message}


def _facts(spec: ModelSpec) -> dict[str, Any]:
    scores = (["rerank"] if spec.reranks else ["classify"]) if "scores" in spec.kinds else []
    vectors = sorted(spec.kinds.keys() - {"scores", "tokens", "token_scores"})
    return {
        "gives": [*vectors, *scores],
        "architecture": spec.model_type,
        "dimensions": spec.usual_dimensions or None,
        "max_tokens": spec.max_tokens,
        "dtype": _dtype(spec),
        "pooling": spec.pooling_name or None,
        "prompts": dict(spec.prompts),
        "labels": len(spec.labels) or None,
        "fingerprint": f"{spec.fingerprint}{spec.width_of_space(None)}",
    }


def _dtype(spec: ModelSpec) -> str | None:
    """The number format of most of the weights; None for a graph, whose file has its own, and for packed numbers."""
    from vectord.checkpoints.checkpoint import open_checkpoint  # noqa: PLC0415

    if any(path.suffix not in {".safetensors", ".bin"} for path in spec.weights):
        return None
    checkpoint = open_checkpoint(spec.weights)
    sizes: dict[str, int] = {}
    for weight in checkpoint.values():
        sizes[weight.dtype] = sizes.get(weight.dtype, 0) + weight.array.nbytes
    checkpoint.close()
    return _DTYPES.get(max(sizes, key=sizes.__getitem__)) if sizes else None


def _print_rows(rows: list[dict[str, Any]]) -> int:
    table = [
        (
            row["model"],
            ", ".join(row.get("gives", ())),
            row.get("dtype") or "",
            str(row.get("dimensions") or ""),
            f"{row['max_tokens']:,}" if "max_tokens" in row else "",
            f"{row['bytes'] / 1e6:,.0f} MB" if row["bytes"] else "",
            row["source"] or "",
            _state(row),
        )
        for row in rows
    ]
    return print_table(table, ("model", "gives", "dtype", ">width", ">tokens", ">size", "from", "state"))


def _state(row: dict[str, Any]) -> str:
    if row["folder"] is None:
        return "not on this machine"
    if row["problem"]:
        return f"cannot be served: {row['problem']}"
    return "served by default" if row["served"] else "ready to serve"


def _print_table_of(facts: dict[str, Any]) -> int:
    """One line for each fact that is set."""
    rows = []
    for name, value in facts.items():
        text = "" if value is None else str(value)
        if isinstance(value, dict):
            text = "; ".join(f"{key}: {part!r}" for key, part in value.items())
        elif isinstance(value, list):
            text = ", ".join(map(str, value))
        if text:
            rows.append((name, printable(text)))
    return print_table(rows)
