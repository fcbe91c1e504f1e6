"""The words behind `vectord serve` as a Layer: options, and models.

Not argparse: an option whose value may be left out (--auto-truncate) would swallow the model that follows it.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from vectord.config.ignored import BY_FLAG as IGNORED
from vectord.config.layer import Layer, Origin, nearest, shown
from vectord.config.readers import FALSE, TRUE
from vectord.config.settings import SETTINGS
from vectord.errors import ConfigError

OWN_OPTIONS = ("--config", "--profile")  # options that say where settings come from, not settings themselves

_BY_FLAG = {flag: setting for setting in SETTINGS for flag in setting.flags}
_NEGATIVE = {"--no-" + flag[2:]: flag for flag, setting in _BY_FLAG.items() if setting.type is bool}
_NEGATIVE |= {"--no-" + flag[2:]: flag for setting in SETTINGS for flag in setting.switches}
_NEGATIVE_IGNORED = {"--no-" + flag[2:]: flag for flag, ignored in IGNORED.items() if ignored.switch}


@dataclass(slots=True)
class CommandLine:
    layer: Layer = field(default_factory=dict)
    own: dict[str, str] = field(default_factory=dict)  # by option of OWN_OPTIONS
    switches: frozenset[str] = frozenset()  # of the caller's own, those given
    ignored: list[str] = field(default_factory=list)  # options of other servers without effect here


def read_argv(argv: Sequence[str], switches: Sequence[str]) -> CommandLine:
    """Options as --name value or --name=value; --name alone and --no-name for booleans; all other words are models.

    switches: options without a value that are the caller's own. Raises ConfigError: an unknown option, one without the
    value that it takes.
    """
    line = CommandLine()
    words = deque(argv)
    while words:
        word = words.popleft()
        name, equals, given = word.partition("=")
        value = given if equals else None
        if word == "--":
            _add_to_list(line.layer, "models", list(words), Origin("command line"))
            break
        if not word.startswith("-") or word == "-":
            _add_to_list(line.layer, "models", [word], Origin("command line"))
        elif name in (*switches, *_NEGATIVE, *_NEGATIVE_IGNORED) and equals:
            raise ConfigError(f"{name} (command line): takes no value")
        elif name in switches:
            line.switches |= {name}
        elif name in _NEGATIVE:
            _add_option(line.layer, _NEGATIVE[name], "false", words, shown_as=name)
        elif name in OWN_OPTIONS:
            _add_own(line, name, _next_value(name, words) if value is None else value)
        elif name in _BY_FLAG:
            _add_option(line.layer, name, value, words, shown_as=name)
        elif name in IGNORED or name in _NEGATIVE_IGNORED:
            _skip(name, value, words)
            line.ignored.append(name)
        else:
            known = (*_BY_FLAG, *_NEGATIVE, *OWN_OPTIONS, *switches)
            raise ConfigError(f"unknown option {shown(name)}{nearest(name, known)}")
    return line


def _add_own(line: CommandLine, name: str, value: str) -> None:
    """--config of Simple Inference Server names its catalogue of models, which is YAML; ours is TOML."""
    if name == "--config" and value.lower().endswith((".yaml", ".yml")):
        line.layer["model_catalogue"] = (value, Origin("command line", name))
    else:
        line.own[name] = value


def _add_option(layer: Layer, flag: str, value: str | None, words: deque[str], *, shown_as: str) -> None:
    setting = _BY_FLAG[flag]
    origin = Origin("command line", shown_as)
    if value is None:
        value = _value(flag, words, alone=setting.type is bool or flag in setting.switches)
    if flag in setting.reads:
        meant = setting.reads[flag](value)
        if meant is None and flag in setting.switches:  # its other position: nothing is said
            return
        if meant is None:
            raise ConfigError(f"{origin}: expected {setting.expected}, got {shown(value)}")
        value = meant
    if setting.type is tuple:
        _add_to_list(layer, setting.name, re.split("[,;]", value), origin)
    else:
        layer[setting.name] = (value, origin)


def _skip(flag: str, value: str | None, words: deque[str]) -> None:
    if value is None and flag in IGNORED:
        _value(flag, words, alone=IGNORED[flag].switch)


def _value(flag: str, words: deque[str], *, alone: bool) -> str:
    """The value that follows; alone: whether there may be none, which is as good as "true"."""
    if alone:
        return words.popleft() if words and words[0].lower() in TRUE | FALSE else "true"
    return _next_value(flag, words)


def _next_value(flag: str, words: deque[str]) -> str:
    if not words or words[0].startswith("--"):
        raise ConfigError(f"{flag} (command line): a value must follow")
    return words.popleft()


def _add_to_list(layer: Layer, name: str, items: list[str], origin: Origin) -> None:
    """Lists grow: `vectord serve A --model-id B` serves both."""
    before, first_origin = layer.get(name, ([], origin))
    assert isinstance(before, list)
    layer[name] = ([*before, *items], first_origin)
