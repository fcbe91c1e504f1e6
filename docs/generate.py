"""Generates files from the code: `make format`. A test fails when a file is out of date.

.env.example, docs/configuration.md   from the settings
docs/models.md                        from the catalogue of models
docs/tuning.md                        its table of advice, from `vectord doctor`'s, by advice.py
docs/apis.md, docs/apis/              from the tables of the dialects, by apis.py
values.schema.json of the chart       from its values and the settings, by chart.py
"""

from __future__ import annotations

import json
import sys
import textwrap
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from docs.advice import found
from docs.apis import PRODUCTS, apis, product
from docs.chart import values_schema

from vectord.checkpoints.catalogue import CATALOGUE, Entry
from vectord.compute.networks.network import ARCHITECTURES
from vectord.config.other_servers import IGNORED
from vectord.config.settings import SECTION_TITLES, SETTINGS, Setting, option_name
from vectord.config.sources import CONFIG_FILE
from vectord.products.common.profiles import profiles

ROOT = Path(__file__).resolve().parent.parent
LENIENT = [name for setting in SETTINGS for name in setting.env if name in setting.lenient]
IN_ENV_EXAMPLE = (  # the settings that most operators set
    *("models", "reranker_model", "host", "port", "api_key"),
    *("device", "dtype", "auto_truncate", "offline", "hf_token"),
)


def env_example() -> str:
    """The settings of IN_ENV_EXAMPLE as environment variables, commented out, at their defaults."""
    lines = [
        "# The most common settings of vectord. Copy this file to .env in the server's working folder and remove the # of",
        "# a setting. Environment variables and the command line take precedence. docs/configuration.md lists all settings.",
    ]
    by_name = {setting.name: setting for setting in SETTINGS}
    for setting in (by_name[name] for name in IN_ENV_EXAMPLE):
        lines += ["", *textwrap.wrap(_meaning(setting), 118, initial_indent="# ", subsequent_indent="# ")]
        lines.append(f"#{setting.env[1]}={_default(setting)}")
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
        "2. the environment: `VECTORD_PORT`, else `PORT`, else the other names in the table (empty counts as unset);",
        "3. `.env` in the working folder, with the same names;",
        f"4. a TOML file: `--config FILE` or `VECTORD_CONFIG`, else `./{CONFIG_FILE}`; keys as below, by section;",
        '5. the profile: `--profile NAME`, `VECTORD_PROFILE`, or `profile = "NAME"` at the top of the TOML file;',
        "6. the default.",
        "",
        "Lists are separated by `,` or `;`. Booleans are true, t, 1, yes, y, on or false, f, 0, no, n, off, in any",
        "case; as options they need no value, and `--no-NAME` negates them. Every name is also an option: `MODEL_ID`",
        "is `--model-id`, `INFINITY_BATCH_SIZE` is `--batch-size`. An unknown option, key or `VECTORD_` variable, and",
        "a value out of range, stop the start with exit code 2 and one line that names the source. As in Smart",
        "Embedder, an invalid value of only these environment variables is ignored, with a warning:",
        f"{_listed(LENIENT)}.",
        "",
        "## Profiles",
        "",
        "`vectord serve --profile NAME` replaces another product: its API has priority on shared paths, and all",
        "others remain available. The name may contain `-` or `_`.",
        "",
        "| profile | product | sets |",
        "|---|---|---|",
        *map(_profile_row, profiles()),
    ]
    for section, title in SECTION_TITLES.items():
        lines += [
            "",
            f"## [{section}]",
            "",
            f"{title}.",
            "",
            "| key | default | values | meaning | other names |",
            "|---|---|---|---|---|",
        ]
        lines += [_row(setting) for setting in _of(section)]
    return "\n".join([*lines, *_read_otherwise(), *_without_effect()]) + "\n"


def _read_otherwise() -> list[str]:
    """The section on variables whose values have another format."""
    names: dict[tuple[str, str], list[str]] = {}
    for setting in SETTINGS:
        for name in setting.env:
            if name in setting.reads:
                names.setdefault((setting.name, setting.reads[name].__doc__ or ""), []).append(name)
    rows = [_cells(_listed(group), f"`{setting}`", how) for (setting, how), group in names.items()]
    return ["", "## Variables with other value formats", "", "| name | sets | format |", "|---|---|---|", *rows]


def _without_effect() -> list[str]:
    """The section on variables of other products that have no effect."""
    return [
        "",
        "## Names without effect",
        "",
        "These variables and options are accepted and logged once in a warning at start. Only",
        "`INFINITY_EMBEDDING_DTYPE` with another value than float32 stops the start. torch itself reads",
        "`PYTORCH_CUDA_ALLOC_CONF`.",
        "",
        "| name | reason |",
        "|---|---|",
        *(_cells(_listed(ignored.names), ignored.why) for ignored in IGNORED),
    ]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _cells(*cells: str) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


def _of(section: str) -> list[Setting]:
    return [setting for setting in SETTINGS if setting.section == section]


def _meaning(setting: Setting) -> str:
    values = _values(setting)
    return f"{setting.meaning} ({values})" if values else setting.meaning


def _values(setting: Setting) -> str:
    """The permitted values, unless the meaning already states them."""
    return "" if setting.type is str and not setting.choices else setting.expected


def _default(setting: Setting) -> str:
    value = setting.default
    if value is None:
        return ""
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _row(setting: Setting) -> str:
    default = _default(setting)
    also = [flag for flag in setting.flags[1:] if flag not in map(option_name, setting.env)] + list(setting.env[2:])
    return _cells(
        f"`{setting.name}`",
        f"`{default}`" if default else "",
        _values(setting),
        setting.meaning,
        " ".join(f"`{name}`" for name in also),
    )


def _profile_row(name: str) -> str:
    tables = tomllib.loads(profiles()[name].read_text("utf-8"))
    variables = tables.pop("environment", {})
    read = [f"`{key}` from `{source.split()[0]}`" for key, source in variables.items()]
    sections = [table for table in tables.values() if isinstance(table, dict)]
    sets = [f"`{key} = {json.dumps(value)}`" for section in sections for key, value in section.items()]
    required = [f"`{key}` must be set" for key in tables.get("required", ())]
    return _cells(f"`{name}`", tables["description"], ", ".join([*required, *sets, *read]))


# --- models ---------------------------------------------------------------------------------------------------


def models() -> str:
    """The reference page."""
    lines = [
        "# Models",
        "",
        "`make format` generates this page from the catalogue. vectord also serves other models of these",
        "architectures, by their hub ids or folders, and many as [GGUF files](own-models.md#gguf-files);",
        "[own-models.md](own-models.md#what-is-not-served) lists the refused ones. A model's own files take",
        "precedence over this page. A dash means that the value is read from the files.",
        "",
        "vectord implements these architectures natively; others use the backend `transformers`",
        "([own-models.md](own-models.md)). The tests compare every architecture, on small random weights in float32",
        'and with each setting of its config.json changed, with the reference in the column "compared with"; that',
        "column also names compared real weights. [Speed and precision](#speed-and-precision) explains the last",
        "column. [model-support.md](model-support.md) compares the families with the lists of other servers.",
        "",
        *_families(),
        "",
        "## Speed and precision",
        "",
        "The figures are those of random weights in the size of one published model for each architecture, in the",
        "default dtype: `python -m bench families`, commit c414ac8, 2 cores of an Intel Xeon with AMX, November 2026.",
        'The texts have 61 tokens on average. The column "cosine" has the lowest cosine of 12 texts with their',
        "vectors in float32. Of large models, only some layers were computed: the rate is scaled to all layers, and",
        "the cosine is that of the computed layers. In bfloat16, the cosine is below 0.9999 for five architectures",
        "(LFM2, its bidirectional form, Llama, Ministral and Mistral). No single operation is the cause: for LFM2,",
        "rounding only the sums between layers gives 0.9997, and rounding only the products 0.9998. In float32 the",
        "cosine is 1. That of trained weights may be higher or lower.",
        "",
        *_measured(),
        "",
        "## All models",
        "",
        "| model | aliases | architecture | outputs | width | tokens | pooling | shorter widths | prompts |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *map(_model_row, CATALOGUE)]) + "\n"


def _families() -> list[str]:
    """One row per architecture and output, with the models of the catalogue; architectures without one at the end."""
    families: dict[tuple[str, str], list[str]] = {}
    for entry in CATALOGUE:
        families.setdefault((entry.model_type, _gives(entry)), []).append(entry.hub_id)
    rows = [
        _cells(f"`{kind}`", gives, _brief(names), _compared(kind, gives), _rate(kind))
        for (kind, gives), names in sorted(families.items())
    ]
    known = {kind.replace("-", "_") for kind, _ in families}
    rows += [_cells(f"`{name}`", "-", "-", _compared(name), _rate(name)) for name in ARCHITECTURES if name not in known]
    return ["| `model_type` | outputs | examples | compared with | tokens/s per core |", "|---|---|---|---|---|", *rows]


def _rate(model_type: str) -> str:
    measured = MEASURED.get(model_type.replace("-", "_"))
    return "-" if measured is None else f"{measured['tokens_per_s']:,}"


def _measured() -> list[str]:
    """The figures of docs/families.toml."""
    rows = [
        _cells(f"`{name}`", one["model"], f"{one['tokens_per_s']:,}", f"{one['cosine']:.6f}", one.get("layers", "all"))
        for name, one in MEASURED.items()
    ]
    head = "| architecture | size of | tokens/s per core | cosine | layers |"
    return [head, "|---|---|---|---|---|", *rows]


MEASURED: Mapping[str, Any] = tomllib.loads((ROOT / "docs/families.toml").read_text("utf-8"))


# What an architecture is compared with, where that is not transformers' class of its name alone.
COMPARED = {
    "bert, dense": "transformers; sentence-transformers with all-MiniLM-L6-v2",
    "bert, sparse": "transformers; sentence-transformers with a SPLADE model",
    "bidirectional_pplx_qwen3": "transformers' Qwen3 without the causal mask",
    "gemma": "transformers; FlagEmbedding's FlagLLMReranker",
    "jina_bert_v2": "a module written from the description",
    "lfm2": "transformers; LFM2.5: with Liquid's changes",
    "lfm2_bidirectional": "transformers' Lfm2 with Liquid's changes",
    "llama_bidirec": "transformers' Llama without the causal mask",
    "minicpm": "transformers' Granite with MiniCPM's scales; FlagEmbedding's own class",
    "ministral3_bidirec": "transformers' Ministral3 without the causal mask",
    "model2vec": "model2vec, also with real weights",
    "mpnet": "transformers; sentence-transformers with all-mpnet-base-v2",
    "new": "transformers' Gte",
    "nomic_bert": "transformers; v2: with the experts of Nomic's own code",
    "static": "sentence-transformers",
}


def _compared(model_type: str, gives: str = "") -> str:
    return COMPARED.get(f"{model_type}, {gives}", COMPARED.get(model_type, "transformers"))


def _brief(names: Sequence[str]) -> str:
    shown = ", ".join(name.rpartition("/")[2] for name in names[:4])
    return f"{shown} and {len(names) - 4} more" if names[4:] else shown


def _gives(entry: Entry) -> str:
    return "scores of pairs" if entry.task == "rerank" else " + ".join(entry.kinds)


def _model_row(entry: Entry) -> str:
    width = [] if entry.matryoshka is None else list(entry.matryoshka)
    cut = "-" if entry.matryoshka is None else f"{width[0]} to {width[-1]}" if width[3:] else ", ".join(map(str, width))
    cells = (
        f"`{entry.hub_id}`",
        ", ".join(f"`{name}`" for name in entry.names[1:]),
        entry.model_type,
        _gives(entry),
        str(entry.dimensions or "-"),
        str(entry.max_tokens or "-"),
        entry.pooling or "-",
        cut or "no",
        ", ".join(entry.prompts) or "-",
    )
    return "| " + " | ".join(cells) + " |"


# --- advice ---------------------------------------------------------------------------------------------------

ADVICE, END = "<!-- advice: `make format` writes what follows -->\n", "<!-- end of advice -->"


def tuning() -> str:
    """docs/tuning.md with an updated table of advice."""
    before, _, rest = (ROOT / "docs/tuning.md").read_text("utf-8").partition(ADVICE)
    after = rest.partition(END)[2]
    rows = [_cells(one.level, one.reason, one.setting) for one in found()]
    table = "\n".join(["", "| | finding | advice |", "|---|---|---|", *rows, "", ""])
    return f"{before}{ADVICE}{table}{END}{after}"


FILES: Mapping[str, Callable[[], str]] = {
    ".env.example": env_example,
    "docs/configuration.md": configuration,
    "docs/apis.md": apis,
    **{f"docs/apis/{name}.md": partial(product, name) for name in PRODUCTS},
    "docs/models.md": models,
    "docs/tuning.md": tuning,
    "deploy/helm/vectord/values.schema.json": values_schema,
}


def main() -> int:
    for name, render in FILES.items():
        (ROOT / name).parent.mkdir(exist_ok=True)
        (ROOT / name).write_text(render(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
