"""Environment variables as a Layer: those of the process and those of `.env`, by the same rules.

Nothing here reads os.environ: the caller hands it in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from vectord.config.ignored import BY_NAME as IGNORED
from vectord.config.layer import Layer, Origin, Source, nearest, shown
from vectord.config.settings import PREFIX, SETTINGS, BadValue, Setting
from vectord.errors import ConfigError

_NAMES = frozenset({"VECTORD_CONFIG", "VECTORD_PROFILE", *(name for setting in SETTINGS for name in setting.env)})
# What Kubernetes puts into every pod when a service is called vectord, or vectord-something.
_SERVICE_LINK = re.compile(r"VECTORD_(\w+_)?(SERVICE_(HOST|PORT)|PORT_[0-9]+_(TCP|UDP|SCTP)).*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Environment:
    layer: Layer
    ignored: tuple[str, ...]  # names of other servers without effect here
    warnings: tuple[str, ...]  # of values that were passed over


def read_environ(environ: Mapping[str, str], source: Source) -> Environment:
    """Empty is unset: containers hand on variables that nobody filled in. Raises ConfigError for a VECTORD_ name that
    is no setting's."""
    _check_names(environ, source)
    layer: Layer = {}
    warnings: list[str] = []
    for setting in SETTINGS:
        for name, text in _said(setting, environ):
            origin = Origin(source, name)
            if name in setting.lenient and not _is_good(setting, text):
                warnings.append(f"{origin}: expected {setting.expected}; going on without it")
                continue
            layer[setting.name] = (text, origin)
            break
    ignored = tuple(name for name in IGNORED if environ.get(name, "").strip())
    return Environment(layer, ignored, tuple(warnings))


def read_dotenv(path: Path) -> Mapping[str, str]:
    if not path.is_file():
        return {}
    from dotenv import dotenv_values  # noqa: PLC0415 - 20 ms, for those who have the file

    try:
        # interpolate would read the process's environment, and change keys that hold a dollar sign.
        return {name: text for name, text in dotenv_values(path, interpolate=False).items() if text is not None}
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f".env cannot be read: {type(problem).__name__}") from problem


def _check_names(environ: Mapping[str, str], source: Source) -> None:
    for name in environ:
        if name.startswith(PREFIX) and name not in _NAMES and not _SERVICE_LINK.fullmatch(name):
            known = (known for known in _NAMES if known.startswith(PREFIX))
            raise ConfigError(f"unknown name {shown(name)} ({source}){nearest(name, known)}")


def _said(setting: Setting, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What the setting's names say, in our words, the one that wins first."""
    for name in setting.env:
        text: str | None = environ.get(name, "")
        if text is None or not text.strip():
            continue
        if name in setting.reads:
            text = setting.reads[name](text.strip())
        # "auto" for a value that nobody chose is as good as unset: look on.
        if text and setting.synonyms.get(text.strip().lower(), text) is not None:
            yield name, text


def _is_good(setting: Setting, text: str) -> bool:
    try:
        setting.from_text(text)
    except BadValue:
        return False
    return True
