"""Write .env.example and docs/configuration.md from the settings: `make format`. A test says when they are stale."""

from __future__ import annotations

import sys
import textwrap
import tomllib
from pathlib import Path

from vectord.config.settings import SECTION_TITLES, SETTINGS, Setting
from vectord.config.sources import CONFIG_FILE, PROFILES, profiles

ROOT = Path(__file__).resolve().parent.parent


def env_example() -> str:
    """Every setting as an environment variable, commented out, at its default."""
    lines = [
        "# Settings of vectord. Copy to .env, which is read from the folder the server starts in, and take out the #.",
        "# The real environment and the command line win over this file. `make format` writes it.",
    ]
    for section, title in SECTION_TITLES.items():
        lines += ["", f"# --- {title} ---"]
        for setting in _of(section):
            lines += ["", *textwrap.wrap(_meaning(setting), 118, initial_indent="# ", subsequent_indent="# ")]
            lines.append(f"#{setting.env[1]}={_default(setting)}")
    return "\n".join(lines) + "\n"


def configuration() -> str:
    """The reference page."""
    lines = [
        "# Configuration",
        "",
        "`make format` writes this page. `vectord serve --print-config` shows what is in force.",
        "",
        "A setting is taken from the first of these that names it:",
        "",
        "1. the command line;",
        "2. the environment: `VECTORD_PORT`, else `PORT`, else the other names in the table (empty counts as unset);",
        "3. `.env` in the working folder, same names;",
        f"4. a TOML file: `--config FILE` or `VECTORD_CONFIG`, else `./{CONFIG_FILE}`; keys as below, by section;",
        '5. the profile: `--profile NAME`, `VECTORD_PROFILE`, or `profile = "NAME"` at the top of the TOML file;',
        "6. the default.",
        "",
        "Lists are separated by `,` or `;`. Booleans are true, t, 1, yes, y, on or false, f, 0, no, n, off, in any",
        "case; as options they may stand alone, and `--no-NAME` is their opposite. An unknown option, key or",
        "`VECTORD_` name, and a value out of range, stop the start with exit code 2 and one line that says where.",
        "",
        "## Profiles",
        "",
        *(f"- `{name}`: {_description(name)}" for name in profiles()),
    ]
    for section, title in SECTION_TITLES.items():
        lines += [
            "",
            f"## [{section}]",
            "",
            f"{title}.",
            "",
            "| key | default | values | meaning | also |",
            "|---|---|---|---|---|",
        ]
        lines += [_row(setting) for setting in _of(section)]
    return "\n".join(lines) + "\n"


def _of(section: str) -> list[Setting]:
    return [setting for setting in SETTINGS if setting.section == section]


def _meaning(setting: Setting) -> str:
    values = _values(setting)
    return f"{setting.meaning} ({values})" if values else setting.meaning


def _values(setting: Setting) -> str:
    """What may be said, where the meaning does not say it already."""
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
    also = (*setting.flags[1:], *setting.env[2:])
    cells = (
        f"`{setting.name}`",
        f"`{default}`" if default else "",
        _values(setting),
        setting.meaning,
        " ".join(f"`{name}`" for name in also),
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _description(profile: str) -> str:

    return str(tomllib.loads((PROFILES / f"{profile}.toml").read_text("utf-8"))["description"])


FILES = {".env.example": env_example, "docs/configuration.md": configuration}


def main() -> int:
    for name, render in FILES.items():
        (ROOT / name).write_text(render(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
