"""How the values of products' variables are read: `[names]` of a profile.toml names these functions.

Each returns the text that vectord's setting accepts, or None if the variable sets nothing. A function never fails: it
passes on a text that it does not understand, and the setting rejects that. docs/configuration.md quotes the docstrings.
"""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import SplitResult, urlsplit

ON = frozenset({"true", "t", "1", "yes", "y", "on"})
OFF = frozenset({"false", "f", "0", "no", "n", "off"})
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER = r"[0-9]+\.?[0-9]*|\.[0-9]+"


# --- addresses ------------------------------------------------------------------------------------------------


def address_only(text: str) -> str | None:
    """An address or localhost. Other values are ignored: shells and containers set it to the machine's name."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return text if text == "localhost" else None
    return text


def host_of(text: str) -> str | None:
    """The host of `host`, `host:port` or `http://host:port`; of `:port` every address, as in Go."""
    text = unquoted(text)
    if text.startswith(":") and not text.startswith("::"):
        return "0.0.0.0"  # noqa: S104
    parts = _authority(text)
    return text if parts is None else parts.hostname


def port_of(text: str) -> str | None:
    """The port of `host:port`, `:port` or `http://host:port`; of a URL without one, 80 or 443."""
    parts = _authority(unquoted(text))
    if parts is None:
        return text
    digits = parts.netloc.rpartition("]")[2].partition(":")[2]  # after an IPv6 address
    return digits or {"http": "80", "https": "443"}.get(parts.scheme)


def _authority(text: str) -> SplitResult | None:
    """None for a text that is no address."""
    if text.count(":") > 1 and "[" not in text and "://" not in text:  # an IPv6 address alone
        text = f"[{text}]"
    try:
        return urlsplit(text if "://" in text else f"//{text}")
    except ValueError:
        return None


def all_if_on(text: str) -> str | None:
    """A switch: on means *."""
    return "*" if text.lower() in ON else None if text.lower() in OFF else text


# --- models and devices ---------------------------------------------------------------------------------------


def named_models(text: str) -> str | None:
    """Models that requests may name; all of them are served. `*` allows every model and names none."""
    return None if text == "*" else text


def same_for_all(text: str) -> str:
    """One value for each model, as in `cuda;cuda;`. They must be equal."""
    values = {part.strip() for part in text.split(";") if part.strip()}
    return values.pop() if len(values) == 1 else text


def largest(text: str) -> str:
    """One number for each model, as in `32;64`. The largest counts, since there is one limit here."""
    parts = [part.strip() for part in text.split(";") if part.strip()]
    return max(parts, key=int) if parts and all(re.fullmatch("[0-9]{1,18}", part) for part in parts) else text


def python_list(text: str) -> str | None:
    """`['cuda:0', 'cuda:1']` without brackets and quotes. None, or an empty list, is ignored."""
    names = [part.strip(" \t'\"") for part in text.strip(" \t[]()").split(",")]
    return None if names in ([""], ["None"]) else ",".join(names)


def cuda_numbers(text: str) -> str | None:
    """Numbers of GPUs: `0,1` means cuda:0,cuda:1. Other values are ignored."""
    numbers = [part.strip() for part in text.strip(" ;").split(",")]
    return ",".join(f"cuda:{number}" for number in numbers) if all(map(str.isdecimal, numbers)) else None


def cuda_if_there(text: str) -> str:
    """`cuda` falls back to the CPU: cuda-or-cpu."""
    return "cuda-or-cpu" if text.lower() == "cuda" else text


# --- numbers and switches -------------------------------------------------------------------------------------


def never_if_off(text: str) -> str | None:
    """A switch: off means never."""
    return "never" if text.lower() in OFF else None


def none_if_off(text: str) -> str | None:
    """A switch: off means 0."""
    return "0" if text.lower() in OFF else None


def unless_default(text: str) -> str | None:
    """A number. -1, which stands for the default, is ignored."""
    return None if text == "-1" else text


def unless_zero(text: str) -> str | None:
    """A number. 0, which stands for a default, is ignored."""
    return None if unquoted(text) == "0" else unquoted(text)


def milliseconds(text: str) -> str:
    """A whole number of milliseconds."""
    return str(int(text) / 1000) if re.fullmatch("[0-9]{1,12}", text) else text


def idle_seconds(text: str) -> str:
    """Seconds, or a duration such as `5m` or `1h30m`. Negative: never. 0: after one second."""
    text = unquoted(text)
    match = re.fullmatch(rf"(-?)(?:({_NUMBER})|((?:(?:{_NUMBER})(?:ms|s|m|h))+))", text)
    if match is None:
        return text
    sign, plain, units = match.groups()
    pieces = re.findall(rf"({_NUMBER})(ms|s|m|h)", units or f"{plain}s")
    seconds = sum(float(number) * _UNIT_S[unit] for number, unit in pieces)
    return "0" if sign else f"{max(seconds, 1.0):g}"


def unquoted(text: str) -> str:
    """A text without the quotes around it, which `docker --env-file` keeps."""
    return text.strip("\"'")


# --- the log --------------------------------------------------------------------------------------------------


def first_bare_level(text: str) -> str | None:
    """The first level without a target: `info` of `info,tower=debug`."""
    return next((part.strip() for part in text.split(",") if part.strip() and "=" not in part), None)


def json_lines(text: str) -> str:
    """A switch: json if on, text if off."""
    return "text" if text.lower() in OFF else "json"
