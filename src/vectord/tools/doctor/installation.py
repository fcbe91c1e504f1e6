"""Facts about the installation: libraries, the model cache, changed settings, ports."""

from __future__ import annotations

import os
import platform
import shutil
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from vectord import __version__
from vectord.config import ServerConfig
from vectord.config.settings import SETTINGS
from vectord.config.sources import Loaded

LIBRARIES = (
    *("openvino", "tokenizers", "numpy", "huggingface_hub", "starlette", "uvicorn", "uvloop", "httpx"),
    *("torch", "transformers", "onnxruntime", "onnxruntime-gpu", "pyarrow", "grpcio", "redis"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    folder: str
    exists: bool
    writable: bool  # the folder, or its closest parent that exists
    free_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedSetting:
    """A setting that is not at its default."""

    setting: str
    value: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    setting: str
    host: str
    port: int
    problem: str | None  # why it is not available


def read_versions() -> dict[str, str]:
    """Versions of Python, vectord and the installed libraries of LIBRARIES."""
    found = {"vectord": __version__, "Python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def read_cache(folder: Path) -> Cache:
    """Writes nothing to the folder."""
    nearest = next((place for place in (folder, *folder.absolute().parents) if place.is_dir()), Path("/"))
    try:
        free_bytes = shutil.disk_usage(nearest).free
    except OSError:
        free_bytes = None
    writable = os.access(nearest, os.W_OK | os.X_OK)
    return Cache(folder=str(folder), exists=folder.is_dir(), writable=writable, free_bytes=free_bytes)


def read_settings(loaded: Loaded) -> list[ChangedSetting]:
    """Settings that differ from their defaults, with their sources. Secrets are ***."""
    found = []
    for setting in SETTINGS:
        origin = loaded.origins[setting.name]
        if origin.source == "default":
            continue
        value = getattr(getattr(loaded.config, setting.section), setting.name)
        text = ", ".join(value) if isinstance(value, tuple) else str(value)
        text = "***" if setting.secret and value is not None else text
        found.append(ChangedSetting(setting=f"{setting.section}.{setting.name}", value=text, source=str(origin)))
    return found


def read_ports(config: ServerConfig) -> Sequence[Port]:
    ports = {"port": config.port, "grpc_port": config.grpc_port, "prometheus_port": config.prometheus_port}
    return [
        Port(setting=setting, host=config.host, port=port, problem=_problem(config.host, port))
        for setting, port in ports.items()
        if port
    ]


def _problem(host: str, port: int) -> str | None:
    """The reason why the server cannot listen there; None if it can."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        return error.strerror or type(error).__name__
    return None
