"""Where each setting's value comes from: `load(argv, environ, cwd) -> Loaded`, the one reader of all sources.

    command line > environment > .env > config file > profile > default

cli.py and asgi.py call it once, before anything starts; everybody else receives the Config. The first source that
says something about a setting wins, and within the environment the first of the setting's names.

    command_line.py  environment.py  files.py  -> a Layer each -> merged here, and read by settings.py
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vectord.config.command_line import read_argv
from vectord.config.declared import SECTIONS, Config
from vectord.config.environment import read_dotenv, read_environ
from vectord.config.files import Profile, read_config_file, read_profile
from vectord.config.layer import Layer, Origin, shown
from vectord.config.settings import SETTINGS, BadValue, Setting
from vectord.errors import ConfigError

log = logging.getLogger("vectord.config")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """config, and for each setting's name where its value came from; switches: which of the asked ones were given.

    notes: what the operator should hear of, a line each, without any value.
    """

    config: Config
    origins: Mapping[str, Origin]
    profile: str
    switches: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()

    def tell(self) -> None:
        """Log the notes. For whoever starts to serve, once the log is set up."""
        for note in self.notes:
            log.warning("%s", note)


def load(argv: Sequence[str], environ: Mapping[str, str], cwd: Path, *, switches: Sequence[str] = ()) -> Loaded:
    """The configuration of this process.

    argv: options and models, without the program's name and command. switches: options without a value that are the
    caller's own. Raises ConfigError, in one line: which key, where it stands, what was expected. Reads files below
    cwd only (.env, vectord.toml) and the one that --config names; asks no network.
    """
    command = read_argv(argv, switches)
    dotenv = read_dotenv(cwd / ".env")
    environment, dotted = read_environ(environ, "environment"), read_environ(dotenv, ".env")
    named_file = command.own.get("--config") or environ.get("VECTORD_CONFIG") or dotenv.get("VECTORD_CONFIG")
    file, file_profile = read_config_file(cwd, named_file)
    profile = read_profile(
        command.own.get("--profile")
        or environ.get("VECTORD_PROFILE")
        or dotenv.get("VECTORD_PROFILE")
        or file_profile
        or "default",
        cwd,
    )
    layers = (command.layer, environment.layer, dotted.layer, file, profile.layer)
    config, origins = _merged(_one_hub_cache(layers))
    _check_required(profile, config)
    _check_one_prompt(origins)
    ignored = dict.fromkeys((*command.ignored, *environment.ignored, *dotted.ignored))
    return Loaded(
        config=config,
        origins=origins,
        profile=profile.name,
        switches=command.switches,
        notes=(*environment.warnings, *dotted.warnings, *_without_effect(ignored)),
    )


def _one_hub_cache(layers: Sequence[Layer]) -> Sequence[Layer]:
    """Without the hub_cache of layers behind one that says hf_home: --hf-home is heard before HF_HUB_CACHE, which wins
    over HF_HOME beside it, as huggingface_hub has it."""
    nearest = next((place for place, layer in enumerate(layers) if "hf_home" in layer), len(layers))
    behind = [{name: said for name, said in layer.items() if name != "hub_cache"} for layer in layers[nearest + 1 :]]
    return [*layers[: nearest + 1], *behind]


def _merged(layers: Sequence[Layer]) -> tuple[Config, Mapping[str, Origin]]:
    """The first layer that says something of a setting wins."""
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
    return Config(**sections), origins


def _read(setting: Setting, raw: object, origin: Origin) -> Any:
    try:
        return setting.from_text(raw) if isinstance(raw, str) else setting.from_toml(raw)
    except BadValue as problem:
        got = "something else" if setting.secret else shown(raw)
        raise ConfigError(f"{origin}: expected {problem}, got {got}") from None


def _check_required(profile: Profile, config: Config) -> None:
    for setting in SETTINGS:
        if setting.name in profile.required and not getattr(getattr(config, setting.section), setting.name):
            name, flag = setting.env[1], setting.flags[0]
            raise ConfigError(f"{name} is not set, and the profile {profile.name} demands it (or {flag})")


def _check_one_prompt(origins: Mapping[str, Origin]) -> None:
    text, name = origins["default_prompt"], origins["default_prompt_name"]
    if "default" not in (text.source, name.source):
        raise ConfigError(f"{text} and {name}: one of them at most")


def _without_effect(names: Mapping[str, None]) -> Iterator[str]:
    if names:
        yield f"set for other servers, without effect here: {', '.join(names)} (docs/configuration.md says why)"
