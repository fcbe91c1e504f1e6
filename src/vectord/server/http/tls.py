"""The certificate that the server shows, checked before anything starts. Called by run.py and rpc/."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from vectord.config import ServerConfig
from vectord.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Certificate:
    """PEM files: the chain, leaf first, and its private key."""

    chain_file: str
    key_file: str


def certificate_of(config: ServerConfig) -> Certificate | None:
    """None where TLS is not spoken. Raises ConfigError, in one line, if the files are missing or do not fit."""
    chain_file, key_file = config.tls_cert_file, config.tls_key_file
    if config.tls_enabled is False or (config.tls_enabled is None and chain_file is None and key_file is None):
        return None
    if chain_file is None or key_file is None:
        raise ConfigError("TLS takes two files: --tls-cert-file and --tls-key-file; one of them is not set")
    for option, file in (("--tls-cert-file", chain_file), ("--tls-key-file", key_file)):
        _check_readable(option, file)
    try:
        # A key under a password would ask for it on the terminal: "" is none.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(chain_file, key_file, password="")
    except (OSError, ValueError) as problem:  # ssl.SSLError is an OSError
        reason = getattr(problem, "reason", None) or type(problem).__name__
        raise ConfigError(f"--tls-cert-file and --tls-key-file: no certificate and its key ({reason})") from None
    return Certificate(chain_file, key_file)


def _check_readable(option: str, file: str) -> None:
    try:
        with open(file, "rb"):  # noqa: PTH123 - Path("") would be the working folder
            pass
    except (OSError, ValueError) as problem:
        raise ConfigError(f"{option}: {file!r} cannot be read: {type(problem).__name__}") from None
