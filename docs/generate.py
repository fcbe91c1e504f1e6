"""Generates files from the code: `make format`. A test fails when a file is out of date.

.env.example, docs/configuration.md   from the settings
docs/models.md, docs/models.csv       from the catalogue of models
docs/models.md                        from docs/mteb.csv, which scripts/mteb_models.py writes
docs/apis.md, docs/apis/              from the tables of the dialects, by apis.py
values.schema.json of the chart       from its values and the settings, by chart.py
"""

from __future__ import annotations

import csv
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from io import StringIO
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from docs.apis import OWN, PRODUCTS, apis, product
from docs.chart import values_schema

from docs import mteb
from vectord.checkpoints.catalogue import CATALOGUE, Entry
from vectord.compute.networks.network import ARCHITECTURES
from vectord.config.profiles import make_profile
from vectord.config.settings import SECTION_TITLES, SETTINGS, Setting, option_name
from vectord.config.sources import CONFIG_FILE
from vectord.products.common.profiles import profiles

ROOT = Path(__file__).resolve().parent.parent
IN_ENV_EXAMPLE = (  # the settings that most operators set
    *("models", "served_model_name", "host", "port", "api_key"),
    *("device", "dtype", "auto_truncate", "offline", "hf_token"),
)

MIGRATING = "".join(path.read_text("utf-8") for path in sorted((ROOT / "docs/migrating").glob("*.md")))


def env_example() -> str:
    """The settings of IN_ENV_EXAMPLE as environment variables, commented out, at their defaults."""
    lines = [
        "# The most common settings of vectord. Copy this file, remove the # of a setting, and start the server with",
        "# --env-file. Environment variables and options take precedence. docs/configuration.md lists all settings.",
    ]
    by_name = {setting.name: setting for setting in SETTINGS}
    for setting in (by_name[name] for name in IN_ENV_EXAMPLE):
        meaning = textwrap.fill(
            _meaning(setting), 118, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False
        )
        lines += ["", meaning, f"#{setting.env[0]}={default_of(setting)}"]
    return "\n".join(lines) + "\n"


def configuration() -> str:
    """The reference page."""
    lines = [
        "# Configuration",
        "",
        "`make format` generates this page. `vectord serve --print-config` prints the values in force.",
        "",
        "A setting comes from the first of these sources that contains it:",
        "",
        "1. the command line;",
        "2. the environment: `VECTORD_PORT`, else the other names below. Empty counts as unset. `--env-compat`",
        "   adds names such as `PORT`. A profile other than `default` adds these and the product's names;",
        "3. a file of `NAME=VALUE`: `--env-file FILE` or `VECTORD_ENV_FILE`. Without both, `.env` in the working",
        f"   folder, if `--profile` or `VECTORD_PROFILE` (not the TOML file) names {_env_files()};",
        f"4. a TOML file: `--config FILE` or `VECTORD_CONFIG`, else `./{CONFIG_FILE}`; keys as below, by section;",
        '5. the profile: `--profile NAME`, `VECTORD_PROFILE`, or `profile = "NAME"` at the top of the TOML file;',
        "6. the default.",
        "",
        "Lists are separated by `,` or `;`. Booleans are true, t, 1, yes, y, on or false, f, 0, no, n, off, in any",
        "case; as options they need no value, and `--no-NAME` negates them. An unknown option, key or `VECTORD_`",
        "variable, and a value out of range, stop the start with exit code 2 and one line that names the source.",
        "",
        "## Profiles",
        "",
        f"The profiles are {_listed(sorted(profiles()))}. [Migrating](migrating/index.md) describes each. A product's",
        "variables and options count under its profile only; the log names those that are set without it.",
    ]
    for section, title in SECTION_TITLES.items():
        lines += [
            "",
            f"## [{section}]",
            "",
            f"{title}.",
            "",
            "| key | default | meaning |",
            "|---|---|---|",
        ]
        lines += [_row(setting) for setting in _of(section)]
    return "\n".join([*lines, *_of_profiles(), *_read_otherwise()]) + "\n"


def _env_files() -> str:
    return " or ".join(f"`{name}`" for name, fields in profiles().items() if "env_file" in fields)


def _of_profiles() -> list[str]:
    """The section on the settings that count under one profile only."""
    lines = [
        "",
        "## Settings of profiles",
        "",
        "These settings count under the profiles in the last column only, which may have other defaults.",
        "",
        "| key | default | meaning | section | profiles |",
        "|---|---|---|---|---|",
    ]
    names: dict[str, list[str]] = {}
    for name in profiles():
        for setting in make_profile(name, profiles()).settings[len(SETTINGS) :]:
            names.setdefault(f"{_row(setting, MIGRATING)} `[{setting.section}]` |", []).append(name)
    return [*lines, *(f"{row} {_listed(of_profiles)} |" for row, of_profiles in names.items())]


def _read_otherwise() -> list[str]:
    """The section on variables whose values have another format."""
    names: dict[str, dict[str, None]] = {}
    of_core = {name for setting in SETTINGS for name in setting.reads}
    for setting in chain.from_iterable(make_profile(name, profiles()).settings for name in profiles()):
        for name in setting.env:
            if name in setting.reads and (name in of_core or f"`{name}`" not in MIGRATING):
                names.setdefault(setting.reads[name].__doc__ or "", {})[name] = None
    rows = [_cells(_listed(group), how) for how, group in names.items()]
    return ["", "## Variables with other value formats", "", "| names | format |", "|---|---|", *rows]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _cells(*cells: str) -> str:
    texts = (" ".join(cell.split()).replace("|", "\\|") for cell in cells)
    return "|" + "|".join(f" {text} " if text else " " for text in texts) + "|"


def _of(section: str) -> list[Setting]:
    return [setting for setting in SETTINGS if setting.section == section]


def _meaning(setting: Setting) -> str:
    values = _values(setting)
    return f"{setting.meaning} ({values})" if values else setting.meaning


def _values(setting: Setting) -> str:
    """The permitted values, unless the meaning already states them."""
    return "" if setting.type is str and not setting.choices else setting.expected


def default_of(setting: Setting) -> str:
    """As it is written, in .env.example too."""
    value = setting.default
    if value is None:
        return ""
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _row(setting: Setting, elsewhere: str = "") -> str:
    """elsewhere: pages whose names of the setting the row leaves out."""
    default = default_of(setting).replace(",", ", ")
    flags = [flag for flag in setting.flags[1:] if flag not in map(option_name, setting.env)]
    also = [name for name in (*flags, *setting.env[1:]) if f"`{name}`" not in elsewhere]
    meaning = [setting.meaning]
    meaning += [f"One of {', '.join(setting.choices)}."] if setting.choices else []
    meaning += ["A list."] if setting.type is tuple else []
    meaning += [f"Also: {_listed(also)}."] if also else []
    return _cells(f"`{setting.name}`", f"`{default}`" if default else "", " ".join(meaning))


# --- models ---------------------------------------------------------------------------------------------------


def models() -> str:
    """The reference page."""
    lines = [
        "# Models",
        "",
        "`make format` generates this page. vectord also serves other models of these architectures, by their hub ids",
        "or folders, and many as [GGUF files](own-models.md#gguf-files).",
        "",
        "## Architectures",
        "",
        "Other architectures use the backend `transformers` ([own-models.md](own-models.md)). The tests compare each",
        "one with transformers, or with the reference in the second column, on small random weights in float32, and",
        "again with each setting of config.json changed. The second column also names real weights that were compared.",
        "",
        "| `model_type` | compared with | speed of | tokens/s per core |",
        "|---|---|---|---|",
        *map(_architecture_row, sorted({*ARCHITECTURES, *COMPARED, *MEASURED})),
        "",
        "The speeds have random weights in the size of one published model, in the default dtype: `python -m bench",
        "families`, commit c414ac8, 2 cores of an Intel Xeon with AMX, texts of 61 tokens on average. Of large models,",
        "only some layers were computed, and the rate is scaled to all layers. The cosine with float32 is at least",
        f"{min(one['cosine'] for one in MEASURED.values()):.4f} for each; trained weights may differ.",
        "",
        "## Models by name",
        "",
        "[models.csv](models.csv) lists the models that have facts here: other names, prompts, the widths to which",
        "their vectors may be cut. A model's own files take precedence, and have the facts of empty cells; of shorter",
        "widths, an empty cell means none, ? unknown ones. `vectord show NAME` prints a model's facts on this machine.",
        "",
        *_registered(),
    ]
    return "\n".join(lines) + "\n"


def _registered() -> list[str]:
    """The section on MTEB's models of the year."""
    rows, package = mteb.stored(), mteb.package()
    loading, counted = mteb.share(rows)
    share, version, since = f"{loading} of them ({loading / counted:.0%})", package["mteb"], package["since"]
    groups = groupby(mteb.summary(rows), key=lambda line: (line[0], line[3]))
    return [
        "## Models of the year",
        "",
        f"MTEB {version} lists {counted} text models released since {since}, with a permissive",
        f"licence and at most 8B parameters: {share} load here. The server's reader decides on a tiny folder with",
        "the settings of each. Most settings of single models are inferred from base model, card and size,",
        "not read from config.json. [mteb.csv](mteb.csv) has each model, and `base model` as `source` if its base's",
        "settings are assumed. `transformers`: with that extra.",
        "",
        "| architecture | settings (models) | loads |",
        "|---|---|---|",
        *(
            _cells(
                f"`{name}`" if name else "",
                "; ".join(f"{settings} ({count})" for _, settings, count, _ in group),
                loads,
            )
            for (name, loads), group in groups
        ),
    ]


def model_list() -> str:
    """docs/models.csv: a line for each model of the catalogue."""
    text = StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(("model", "other names", "outputs", "width", "tokens", "shorter widths", "architecture", "prompts"))
    for entry in sorted(CATALOGUE, key=lambda entry: entry.hub_id.lower()):
        names = " ".join(alias for alias in entry.names[1:] if alias != entry.hub_id.rpartition("/")[2])
        prompts = " ".join(f"{name}={prompt!r}" for name, prompt in entry.prompts.items())
        lines.writerow((entry.hub_id, names, *_facts(entry), entry.model_type, prompts))
    return text.getvalue()


def _architecture_row(name: str) -> str:
    measured = MEASURED.get(name)
    cells = [""] * 2
    if measured is not None:
        layers = f" ({measured['layers']} layers)" if "layers" in measured else ""
        cells = [f"{measured['model']}{layers}", f"{measured['tokens_per_s']:,}"]
    return _cells(f"`{name}`", COMPARED.get(name, ""), *cells)


MEASURED: Mapping[str, Any] = tomllib.loads((ROOT / "docs/families.toml").read_text("utf-8"))


# What an architecture is compared with, where that is not transformers' class of its name alone.
COMPARED = {
    "bert": "transformers; sentence-transformers with all-MiniLM-L6-v2 and a SPLADE model",
    "bidirectional_pplx_qwen3": "transformers' Qwen3, bidirectional",
    "bigemma3_text": "transformers' bidirectional Gemma 3",
    "biqwen3": "transformers' Qwen3, bidirectional",
    "c2llm": "transformers' Qwen2, with the makers' pooling",
    "clip_text_model": "transformers; model_type clip",
    "colmodernvbert": "transformers, its processor for PIL",
    "colpali": "transformers, its processor for PIL",
    "colqwen2": "transformers; colpali_engine's: its positions",
    "colqwen3": "transformers' Qwen3-VL",
    "gemma": "transformers; FlagEmbedding's FlagLLMReranker",
    "gemma4_vision": "transformers, images of EmbeddingGemma 2",
    "jina_bert_v2": "a module written from the description",
    "lfm2": "transformers; LFM2.5: with Liquid's changes",
    "lfm2_bidirectional": "transformers' Lfm2 with Liquid's changes",
    "llama_bidirec": "transformers' Llama, bidirectional",
    "minicpm": "transformers' Granite with MiniCPM's scales; FlagEmbedding's own class",
    "ministral3_bidirec": "transformers' Ministral3, bidirectional",
    "model2vec": "model2vec, also with real weights",
    "mpnet": "transformers; sentence-transformers with all-mpnet-base-v2",
    "new": "transformers' Gte",
    "nomic_bert": "transformers; v2: with the experts of Nomic's own code",
    "qwen2_vl_text": "transformers, in the steps of GME's script",
    "qwen3_bidirec": "transformers' Qwen3, bidirectional",
    "qwen3_vl_text": "transformers, in the steps of the models' own scripts",
    "siglip2_text_model": "transformers; NaFlex",
    "siglip_text_model": "transformers; SigLIP 1 and 2",
    "static": "sentence-transformers",
    "t5gemma2_decoder": "transformers, in the steps of KaLM-Reranker's script",
    "t5gemma2_encoder": "transformers; its reranker's passages",
}


def _gives(entry: Entry) -> str:
    if entry.listwise is not None:
        return "scores of lists"
    return "scores of pairs" if entry.task == "rerank" else " + ".join(entry.kinds)


def _facts(entry: Entry) -> tuple[str, ...]:
    width = list(entry.matryoshka or ())
    cut = "?" if entry.matryoshka is None else f"{width[0]} to {width[-1]}" if width[3:] else ", ".join(map(str, width))
    return _gives(entry), str(entry.dimensions or ""), str(entry.max_tokens or ""), cut


FILES: Mapping[str, Callable[[], str]] = {
    ".env.example": env_example,
    "docs/configuration.md": configuration,
    "docs/apis.md": apis,
    **{f"docs/apis/{name}.md": partial(product, name) for name in PRODUCTS if name != OWN},
    "docs/models.md": models,
    "docs/models.csv": model_list,
    "deploy/helm/vectord/values.schema.json": values_schema,
}


def main() -> int:
    for name, render in FILES.items():
        (ROOT / name).parent.mkdir(exist_ok=True)
        (ROOT / name).write_text(render(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
