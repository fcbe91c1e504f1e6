"""What other programs' names say, in our words: a text -> the text that the setting reads, or None if not meant for us.

declared.py says which name is read by which of these; environment.py and command_line.py call them. None of them fails:
what it does not understand it hands on, and the setting refuses that. docs/configuration.md quotes their docstrings.
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path

TRUE = frozenset({"true", "t", "1", "yes", "y", "on"})
FALSE = frozenset({"false", "f", "0", "no", "n", "off"})

# A dense and a sparse vector of BGE-M3, the tokens that are their key, and what stands around one entry.
CACHED_TEXT_BYTES = 8192
# tiktoken's name for cl100k_base in its cache: the SHA-1 of the address it comes from.
CL100K_FILE = "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"


def address_only(text: str) -> str | None:
    """An address or localhost. Shells and containers set it to the machine's name, which means nothing here."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return text if text == "localhost" else None
    return text


def no_service_link(text: str) -> str | None:
    """Not the `tcp://10.0.0.1:80` that Kubernetes puts into NAME_PORT for a service called NAME."""
    return None if "://" in text else text


def first_bare_level(text: str) -> str | None:
    """`info` of `info,tower=debug`; what is said for single targets has no meaning here."""
    return next((part.strip() for part in text.split(",") if part.strip() and "=" not in part), None)


def json_lines(text: str) -> str:
    """A switch: json if it is on, else text."""
    return "text" if text.lower() in FALSE else "json"


def named_models(text: str) -> str | None:
    """Models that may be asked for, all of which are served; `*` allows any and names none."""
    return None if text == "*" else text


def same_for_all(text: str) -> str:
    """One value a model, as in `cuda;cuda;`: the value, if they are the same."""
    values = {part.strip() for part in text.split(";") if part.strip()}
    return values.pop() if len(values) == 1 else text


def largest(text: str) -> str:
    """One number a model, as in `32;64`: the largest, since there is one limit here."""
    parts = [part.strip() for part in text.split(";") if part.strip()]
    return max(parts, key=int) if parts and all(re.fullmatch("[0-9]{1,18}", part) for part in parts) else text


def cpu_if_none_visible(text: str) -> str | None:
    """-1 hides every GPU: cpu. Any other value torch reads for itself."""
    return "cpu" if text == "-1" else None


def python_list(text: str) -> str | None:
    """`['cuda:0', 'cuda:1']` without its brackets and quotes; None names nothing."""
    names = [part.strip(" \t'\"") for part in text.strip(" \t[]()").split(",")]
    return None if names in ([""], ["None"]) else ",".join(names)


def cuda_numbers(text: str) -> str | None:
    """Numbers of GPUs, `0,1`, as their names; what is no number is read by nobody here."""
    numbers = [part.strip() for part in text.strip(" ;").split(",")]
    return ",".join(f"cuda:{number}" for number in numbers) if all(map(str.isdecimal, numbers)) else None


def cuda_if_there(text: str) -> str:
    """`cuda` falls back to the processor: cuda-or-cpu."""
    return "cuda-or-cpu" if text.lower() == "cuda" else text


def one_text_if_off(text: str) -> str | None:
    """A switch: 1 if it is off, so that each text is a batch of its own."""
    if text.lower() in FALSE:
        return "1"
    return None if text.lower() in TRUE else text


def all_if_on(text: str) -> str | None:
    """A switch: * if it is on."""
    if text.lower() in TRUE:
        return "*"
    return None if text.lower() in FALSE else text


def texts_as_bytes(text: str) -> str:
    """A number of texts, taken to need 8 KiB each."""
    return str(int(text) * CACHED_TEXT_BYTES) if re.fullmatch("[0-9]{1,12}", text) else text


def milliseconds(text: str) -> str:
    """A whole number of milliseconds."""
    return str(int(text) / 1000) if re.fullmatch("[0-9]{1,12}", text) else text


def cl100k_in(text: str) -> str | None:
    """The folder where tiktoken keeps its files: that of cl100k_base, if it is there."""
    path = Path(text).expanduser() / CL100K_FILE
    return str(path) if path.is_file() else None
