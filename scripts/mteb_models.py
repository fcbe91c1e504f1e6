"""Decides which text models of MTEB's registry load, writes docs/mteb.csv, and prints a summary with the reasons.

    python -m scripts.mteb_models                                 # the models stored in docs/mteb.json
    python -m scripts.mteb_models --read [--since 2025-11-28]     # stores the installed mteb's models first

docs/mteb.toml has the settings of each model, which the registry lacks. A folder of each kind is written, and the
server's own reader decides whether it loads. `python -m docs.generate` renders a table in docs/models.md from the file.
"""

from __future__ import annotations

import argparse
import csv
import json
import logging
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import safetensors.numpy
from docs.mteb import DOCS, UNKNOWN, Row, share, summary
from tokenizers import Tokenizer, models
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from vectord.checkpoints.files.packed_table import REST, TABLE
from vectord.checkpoints.files.read import unread_settings
from vectord.checkpoints.reader import read_spec
from vectord.checkpoints.spec import Located, ModelSpec
from vectord.compute.backends.transformers import find_class
from vectord.compute.networks.network import check_architecture, find_architecture
from vectord.errors import ModelUnavailable, StartError
from vectord.text.tokenizer import TextEncoder

KEYS = ("release_date", "n_parameters", "license", "adapted_from", "model_type")
WIDTH = 8
PACKAGE = "sentence_transformers.models."
LIBRARIES = {"pylate.": "ColBERT", "SpladePooling": "SparseEncoder"}  # model_type of a folder, by its last module


# --- the registry ---------------------------------------------------------------------------------------------


def registered(since: str) -> str:
    """JSON of the text models with open weights, released on that day or later, with MTEB's facts about them."""
    import mteb  # noqa: PLC0415 - a large package, which only this reading needs

    found = {
        meta.name: {key: getattr(meta, key) for key in KEYS}
        for meta in mteb.get_model_metas()
        if meta.modalities == ["text"] and meta.open_weights and (meta.release_date or "") >= since
    }
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(facts)}" for name, facts in sorted(found.items()))
    head = f'"mteb": "{mteb.__version__}", "since": "{since}"'
    return f'{{\n "package": {{{head}}},\n "models": {{\n{lines}\n }}\n}}\n'


def read_models() -> Mapping[str, Any]:
    """Return each stored model with MTEB's facts."""
    found: Mapping[str, Any] = json.loads((DOCS / "mteb.json").read_text("utf-8"))["models"]
    return found


def decide_all() -> list[Row]:
    """Return a row for each stored model, by architecture and settings."""
    facts = tomllib.loads((DOCS / "mteb.toml").read_text("utf-8"))
    decisions = [decide(kind) for kind in facts["kinds"]]
    rows = (_row(name, model, facts, decisions) for name, model in read_models().items())
    return sorted(rows, key=lambda row: (row.architecture or "~", row.settings, row.model))


def _row(name: str, model: Mapping[str, Any], facts: Mapping[str, Any], decisions: Sequence[tuple[str, str]]) -> Row:
    values = (name, model["release_date"], str(model["n_parameters"]), model["license"] or "")
    place, source = _find(facts["kinds"], "models", name), "card or code"
    if place is None:
        unknown = (why for pattern, why in facts["unknown"].items() if fnmatchcase(name, pattern))
        if why := next(unknown, None):
            return Row(*values, "", UNKNOWN, "", "no", why)
        place, source = _find(facts["kinds"], "bases", str(model["adapted_from"])), "base model"
    if place is None:
        return Row(*values, "", UNKNOWN, "", "no", "settings not found")
    kind = facts["kinds"][place]
    model_type = kind.get("config", {}).get("model_type", "static")
    return Row(*values, model_type, kind["settings"], source, *decisions[place])


def _find(kinds: Iterable[Mapping[str, Any]], key: str, name: str) -> int | None:
    found = (i for i, kind in enumerate(kinds) if any(fnmatchcase(name, each) for each in kind.get(key, ())))
    return next(found, None)


# --- the decision ---------------------------------------------------------------------------------------------


def decide(kind: Mapping[str, Any]) -> tuple[str, str]:
    """Whether a folder of this kind loads: "yes", "transformers" with that extra, or "no" and why, in the server's
    words."""
    with TemporaryDirectory() as place:
        folder = Path(place)
        write(folder, kind)
        located = Located(folder=folder, model_id=kind.get("name", "maker/model"), revision=None, source="folder")
        try:
            spec = read_spec(located, task=kind.get("task", "auto"))
            TextEncoder(spec)
            return _network(spec), ""
        except StartError as error:
            return "no", error.message.replace(f"{folder}/", "").replace(f"{folder}: ", "").replace(
                str(folder), "the folder"
            ).partition(";")[0]


def _network(spec: ModelSpec) -> str:
    if spec.static is not None:
        return "yes"
    try:
        check_architecture(spec)
    except ModelUnavailable:
        if spec.model_type in CONFIG_MAPPING and find_architecture(spec.architecture) is None:
            find_class(spec, unread_settings(spec.folder / "config.json", spec.config))
            return "transformers"
        raise
    return "yes"


def write(folder: Path, kind: Mapping[str, Any]) -> None:
    """Write the files of a folder of this kind that the reader of folders opens, in a tiny size."""
    special = [*kind.get("tokens", ()), "[Q] ", "[D] ", "[MASK]"]  # the last are of ColBERT models
    tokens = Tokenizer(models.WordLevel({f"word{i}": i for i in range(9)} | {"no": 9, "yes": 10}, unk_token="word0"))  # noqa: S106
    tokens.add_special_tokens(special)
    settings = {
        "config_sentence_transformers.json": kind.get("sentence", {}),
        "sentence_bert_config.json": {"max_seq_length": 1024},
        "tokenizer_config.json": {"mask_token": special[-1], **kind.get("tokenizer", {})},
    }
    if "config" in kind:
        sizes = {"hidden_size": WIDTH, "vocab_size": 14, "max_position_embeddings": 1026}
        has_sizes = kind["config"].get("model_type") not in ("model2vec", "t5gemma2")
        settings["config.json"] = {**(sizes if has_sizes else {}), **kind["config"]}
    if "tokenizer" in kind:  # a tokenizer of its own kind has only its words
        (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n", "utf-8")
    else:
        tokens.save(str(folder / "tokenizer.json"))
    tables = {name: np.ones(shape, np.float32) for name, shape in kind.get("tables", {"x": [1]}).items()}
    names = kind.get("modules", ())
    if names == ["SSEQ.SSEQ"]:
        safetensors.numpy.save_file(tables, folder / REST)
        (folder / TABLE).write_bytes(bytes(14 * (WIDTH // 2 + 4)))
    else:
        safetensors.numpy.save_file(tables, folder / "model.safetensors")
    if names:
        settings["modules.json"] = [_module(folder, kind, i) for i in range(len(names))]
        own = next((name for end, name in LIBRARIES.items() if names[-1].startswith(end)), "SentenceTransformer")
        settings["config_sentence_transformers.json"] = {"model_type": own, **kind.get("sentence", {})}
    for name, value in settings.items():
        (folder / name).write_text(json.dumps(value), "utf-8")


def _module(folder: Path, kind: Mapping[str, Any], place: int) -> Mapping[str, Any]:
    """Write the folder of a module, and return its entry of modules.json."""
    names: list[str] = kind["modules"]
    name = names[place].rpartition(".")[2]
    path = f"{place}_{name}" if place else ""
    (folder / path).mkdir(exist_ok=True)
    config: dict[str, Any] = {}
    match name:
        case "Pooling":
            config = {"embedding_dimension": WIDTH, "pooling_mode": kind.get("pooling", "lasttoken")}
        case "Dense":
            scores = place == len(names) - 1 and "CrossEncoder" in kind.get("sentence", {}).values()
            config = {"in_features": WIDTH, "out_features": 1 if scores else WIDTH, "bias": False}
            config |= {"activation_function": "torch.nn.modules.linear.Identity", **kind.get("dense", {})}
            config |= {"module_output_name": "scores"} if scores else {}
            safetensors.numpy.save_file(
                {"linear.weight": np.ones((1, 1), np.float32)}, folder / path / "model.safetensors"
            )
        case "SpladePooling":
            config = {"pooling_strategy": "max", "activation_function": "relu"}
        case "LayerNorm":
            config = {"dimension": WIDTH}
            norm = {f"norm.{part}": np.ones(WIDTH, np.float32) for part in ("weight", "bias")}
            safetensors.numpy.save_file(norm, folder / path / "model.safetensors")
    if path and config:
        (folder / path / "config.json").write_text(json.dumps(config), "utf-8")
    return {
        "idx": place,
        "name": str(place),
        "path": path,
        "type": names[place] if "." in names[place] else PACKAGE + name,
    }


# --- the files ------------------------------------------------------------------------------------------------


def table(rows: Iterable[Row]) -> str:
    """docs/mteb.csv: a line for each model."""
    text = StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(Row._fields)
    lines.writerows(rows)
    return text.getvalue()


def report(rows: Sequence[Row]) -> str:
    loading, all_models = share(rows)
    lines = [f"{'architecture':26} {'models':>6}  settings"]
    for architecture, settings, count, loads in summary(rows):
        lines.append(f"{architecture:26} {count:>6}  {settings}" + ("" if loads == "yes" else f"\n{'':35}{loads}"))
    return "\n".join([*lines, f"{loading} of {all_models} load: {loading / all_models:.1%}"])


def main() -> None:
    parser = argparse.ArgumentParser(description="Which text models of MTEB's registry load?")
    parser.add_argument("--read", action="store_true", help="store the models of the installed mteb")
    parser.add_argument("--since", default="2025-11-28", help="the first day of release")
    options = parser.parse_args()
    if options.read:
        (DOCS / "mteb.json").write_text(registered(options.since), "utf-8")
    logging.getLogger("vectord").addHandler(logging.NullHandler())  # the tiny folders cause warnings
    rows = decide_all()
    (DOCS / "mteb.csv").write_text(table(rows), "utf-8")
    sys.stdout.write(f"{report(rows)}\n")


if __name__ == "__main__":
    main()
