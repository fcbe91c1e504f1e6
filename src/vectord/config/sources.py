"""Where each setting's value comes from: `load(argv, environ, cwd) -> Loaded`, the one reader of all sources.

    command line > environment > .env > config file > profile > default

cli.py and asgi.py call it once, before anything starts; everybody else receives the Config. The first source that
says something about a setting wins, and within the environment the first of the setting's names.
"""

from __future__ import annotations

import re
import tomllib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from vectord.config.declared import SECTIONS, Config
from vectord.config.settings import FALSE, PREFIX, SETTINGS, TRUE, BadValue, Setting
from vectord.errors import ConfigError

PROFILES = Path(__file__).parent / "profiles"
CONFIG_FILE = "vectord.toml"

Source: TypeAlias = Literal["command line", "environment", ".env", "config file", "profile", "default"]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where one value came from."""

    source: Source
    name: str = ""  # what it is called there: --port, PORT, [server] port

    def __str__(self) -> str:
        return f"{self.name} ({self.source})" if self.name else self.source


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """config, and for each setting's name where its value came from; switches: which of the asked ones were given."""

    config: Config
    origins: Mapping[str, Origin]
    profile: str
    switches: frozenset[str] = frozenset()


# What a source says, not yet read: setting name -> (a text, a list of texts or a TOML value, where it stands).
Layer: TypeAlias = dict[str, tuple[object, Origin]]


def load(argv: Sequence[str], environ: Mapping[str, str], cwd: Path, *, switches: Sequence[str] = ()) -> Loaded:
    """The configuration of this process.

    argv: options and models, without the program's name and command. switches: options without a value that are the
    caller's own. Raises ConfigError, in one line: which key, where it stands, what was expected. Reads files below
    cwd only (.env, vectord.toml) and the one that --config names; asks no network.
    """
    command = _read_argv(argv, switches)
    dotenv = _read_dotenv(cwd / ".env")
    environment, dotted = _read_environ(environ, "environment"), _read_environ(dotenv, ".env")
    named_file = command.own.get("--config") or environ.get("VECTORD_CONFIG") or dotenv.get("VECTORD_CONFIG")
    file, file_profile = _read_file(cwd, named_file)
    profile = (
        command.own.get("--profile")
        or environ.get("VECTORD_PROFILE")
        or dotenv.get("VECTORD_PROFILE")
        or file_profile
        or "default"
    )
    layers = (command.layer, environment, dotted, file, _read_profile(profile))
    values: dict[str, dict[str, Any]] = {section.name: {} for section in SECTIONS}
    origins: dict[str, Origin] = {}
    for setting in SETTINGS:
        raw, origin = next(
            (layer[setting.name] for layer in layers if setting.name in layer), (None, Origin("default"))
        )
        origins[setting.name] = origin
        if origin.source != "default":
            values[setting.section][setting.name] = _read(setting, raw, origin)
    sections = {section.name: type(getattr(Config(), section.name))(**values[section.name]) for section in SECTIONS}
    return Loaded(config=Config(**sections), origins=origins, profile=profile, switches=command.switches)


def profiles() -> tuple[str, ...]:
    """The profiles there are: one TOML file each."""
    return tuple(sorted(path.stem for path in PROFILES.glob("*.toml")))


def nearest(word: str, known: Iterable[str]) -> str:
    """A half sentence that suggests the known name most like `word`, or nothing."""
    import difflib  # noqa: PLC0415 - only on the way out

    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _read(setting: Setting, raw: object, origin: Origin) -> Any:
    try:
        return setting.from_text(raw) if isinstance(raw, str) else setting.from_toml(raw)
    except BadValue as problem:
        got = "something else" if setting.secret else _shown(raw)
        raise ConfigError(f"{origin}: expected {problem}, got {got}") from None


def _shown(raw: object) -> str:
    """The operator's own value, on one line and no longer than one."""
    text = repr(raw)
    return text if len(text) <= 80 else text[:77] + "..."


# --- command line ---------------------------------------------------------------------------------------------


OWN_OPTIONS = ("--config", "--profile")  # options that say where settings come from, not settings themselves
_BY_FLAG = {flag: setting for setting in SETTINGS for flag in setting.flags}
_NEGATIVE = {"--no-" + flag[2:]: setting for flag, setting in _BY_FLAG.items() if setting.type is bool}


@dataclass(slots=True)
class _CommandLine:
    layer: Layer = field(default_factory=dict)
    own: dict[str, str] = field(default_factory=dict)
    switches: frozenset[str] = frozenset()


def _read_argv(argv: Sequence[str], switches: Sequence[str]) -> _CommandLine:
    """Options as --name value or --name=value; --name alone and --no-name for booleans; all other words are models.

    Not argparse: an option whose value may be left out (--auto-truncate) would swallow the model that follows it.
    """
    line = _CommandLine()
    words = deque(argv)
    while words:
        word = words.popleft()
        name, equals, value = word.partition("=")
        if word == "--":
            _add_to_list(line.layer, "models", list(words), Origin("command line"))
            break
        if not word.startswith("-") or word == "-":
            _add_to_list(line.layer, "models", [word], Origin("command line"))
        elif name in (*switches, *_NEGATIVE) and equals:
            raise ConfigError(f"{name} (command line): takes no value")
        elif name in switches:
            line.switches |= {name}
        elif name in _NEGATIVE:
            line.layer[_NEGATIVE[name].name] = ("false", Origin("command line", name))
        elif name in OWN_OPTIONS:
            line.own[name] = value if equals else _next_value(name, words)
        elif name in _BY_FLAG:
            _add_option(line.layer, name, value if equals else None, words)
        else:
            known = (*_BY_FLAG, *_NEGATIVE, *OWN_OPTIONS, *switches)
            raise ConfigError(f"unknown option {_shown(name)}{nearest(name, known)}")
    return line


def _add_option(layer: Layer, flag: str, value: str | None, words: deque[str]) -> None:
    setting = _BY_FLAG[flag]
    reader = setting.reads.get(flag)
    if value is None and (setting.type is bool or reader):  # may stand alone
        value = words.popleft() if words and words[0].lower() in TRUE | FALSE else "true"
    elif value is None:
        value = _next_value(flag, words)
    if reader:
        value = reader(value) or ""
    origin = Origin("command line", flag)
    if setting.type is tuple:
        _add_to_list(layer, setting.name, re.split("[,;]", value), origin)
    else:
        layer[setting.name] = (value, origin)


def _next_value(flag: str, words: deque[str]) -> str:
    if not words or words[0].startswith("--"):
        raise ConfigError(f"{flag} (command line): a value must follow")
    return words.popleft()


def _add_to_list(layer: Layer, name: str, items: list[str], origin: Origin) -> None:
    """Lists grow: `vectord serve A --model-id B` serves both."""
    before, first_origin = layer.get(name, ([], origin))
    assert isinstance(before, list)
    layer[name] = ([*before, *items], first_origin)


# --- environment and .env -------------------------------------------------------------------------------------


_ENV_NAMES = frozenset({"VECTORD_CONFIG", "VECTORD_PROFILE", *(name for setting in SETTINGS for name in setting.env)})
# What Kubernetes puts into every pod when a service is called vectord.
_SERVICE_LINK = re.compile(r"VECTORD_(SERVICE_(HOST|PORT)|PORT_[0-9]+_(TCP|UDP|SCTP)).*")


def _read_environ(environ: Mapping[str, str], source: Source) -> Layer:
    """Empty is unset: containers hand on variables that nobody filled in."""
    for name in environ:
        if name.startswith(PREFIX) and name not in _ENV_NAMES and not _SERVICE_LINK.fullmatch(name):
            known = (known for known in _ENV_NAMES if known.startswith(PREFIX))
            raise ConfigError(f"unknown name {_shown(name)} ({source}){nearest(name, known)}")
    layer: Layer = {}
    for setting in SETTINGS:
        for name in setting.env:
            text = environ.get(name, "").strip()
            if text and name in setting.reads:
                text = setting.reads[name](text) or ""
            if setting.synonyms.get(text.lower(), text) is None:  # "auto" for a value that nobody chose: look on
                text = ""
            if text:
                layer[setting.name] = (text, Origin(source, name))
                break
    return layer


def _read_dotenv(path: Path) -> Mapping[str, str]:
    if not path.is_file():
        return {}
    from dotenv import dotenv_values  # noqa: PLC0415 - 20 ms, for those who have the file

    try:
        # interpolate would read the process's environment, and change keys that hold a dollar sign.
        return {name: text for name, text in dotenv_values(path, interpolate=False).items() if text is not None}
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f".env cannot be read: {type(problem).__name__}") from problem


# --- config file and profile ----------------------------------------------------------------------------------


def _read_file(cwd: Path, named: str | None) -> tuple[Layer, str | None]:
    """(what the config file says, the profile it names)."""
    path = cwd / (named or CONFIG_FILE)
    if not path.is_file():
        if named:
            raise ConfigError(f"config file {_shown(named)}: no such file")
        return {}, None
    tables = _read_toml(path, path.name)
    profile = tables.pop("profile", None)
    if profile is not None and not isinstance(profile, str):
        raise ConfigError(f"profile in {path.name}: expected one of {', '.join(profiles())}")
    return _read_tables(tables, "config file", path.name), profile


def _read_profile(name: str) -> Layer:
    if name not in profiles():
        raise ConfigError(f"unknown profile {_shown(name)}; there are: {', '.join(profiles())}")
    tables = _read_toml(PROFILES / f"{name}.toml", f"profile {name}")
    tables.pop("description", None)
    return _read_tables(tables, "profile", f"profile {name}")


def _read_toml(path: Path, title: str) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except tomllib.TOMLDecodeError as problem:
        raise ConfigError(f"{title} is not TOML: {problem}") from None
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"{title} cannot be read: {type(problem).__name__}") from problem


def _read_tables(tables: Mapping[str, object], source: Source, title: str) -> Layer:
    layer: Layer = {}
    keys = {(setting.section, setting.name) for setting in SETTINGS}
    for section, table in tables.items():
        if not isinstance(table, dict):
            raise ConfigError(f"{section} in {title}: expected a section, one of {_section_names()}{_place(section)}")
        if section not in {known.name for known in SECTIONS}:
            raise ConfigError(f"unknown section [{section}] in {title}; there are: {_section_names()}")
        for key, value in table.items():
            if (section, key) not in keys:
                raise ConfigError(f"unknown key {key} in [{section}] of {title}{_place(key)}")
            layer[key] = (value, Origin(source, f"[{section}] {key}"))
    return layer


def _section_names() -> str:
    return ", ".join(section.name for section in SECTIONS)


def _place(key: str) -> str:
    """Where a key belongs, or the one it was meant to be."""
    sections = {setting.name: setting.section for setting in SETTINGS}
    if key in sections:
        return f"; it belongs in [{sections[key]}]"
    return nearest(key, sections)
