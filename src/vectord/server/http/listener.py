"""Listening sockets and the TLS certificate, checked at start. Called by run.py, grpc/ and compose.py."""

from __future__ import annotations

import errno
import os
import socket
import stat
from typing import TYPE_CHECKING, Any

from vectord.config import ServerConfig
from vectord.errors import ConfigError, plain_reason

if TYPE_CHECKING:  # imported for TLS only: at start, models should begin to load first
    import ssl

NO_ADDRESS = "--host {host!r} is not an address of this machine."


def bind(host: str, port: int, *, option: str = "--port") -> socket.socket:
    """A socket bound to `host` and `port`, not yet listening. port 0: any free one.

    Raises ConfigError, which names the `option` to change.
    """
    try:
        family, address = _resolve(host, port)
        listener = socket.socket(family, socket.SOCK_STREAM)
    except (OSError, ValueError):  # ValueError: not a valid host name
        raise ConfigError(NO_ADDRESS.format(host=host)) from None
    try:
        if os.name == "posix":  # on other systems this option lets two processes share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if address[0] == "::":
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(address)
        listener.set_inheritable(True)
    except OSError as problem:
        listener.close()
        reason = f"Cannot listen on {host} port {port}: {problem.strerror}."
        if problem.errno == errno.EADDRINUSE:
            reason = (
                f"Port {port} on {host} is in use; stop the program that listens there or set another with {option}."
            )
        elif problem.errno == errno.EACCES:
            reason = f"Port {port} needs more rights than this process has; set one above 1023 with {option}."
        elif problem.errno == errno.EADDRNOTAVAIL:
            reason = NO_ADDRESS.format(host=host)
        raise ConfigError(reason) from None
    return listener


def check_server(config: ServerConfig) -> None:
    """Checks ports and certificates before models load."""
    if config.grpc_port:  # bound in the app's lifespan, where a port in use would end in a traceback
        bind(config.host, config.grpc_port, option="--grpc-port").close()
    if config.prometheus_port:
        if config.prometheus_port in (config.port, config.grpc_port):
            raise ConfigError(
                f"--prometheus-port {config.prometheus_port} is already the port of another service of this server."
            )
        bind(config.host, config.prometheus_port, option="--prometheus-port").close()
    certificate_of(config)  # read again when it is used


def url_of(listener: socket.socket, scheme: str = "http") -> str:
    host, port = listener.getsockname()[:2]
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _resolve(host: str, port: int) -> tuple[int, tuple[Any, ...]]:
    """Family and socket address. IPv4 first if a name has both, because clients try it first for localhost."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return family, address


def tls_context(config: ServerConfig) -> ssl.SSLContext | None:
    """None without TLS. Raises ConfigError, see `certificate_of`."""
    if certificate_of(config) is None:
        return None
    import ssl  # noqa: PLC0415

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_certificate(config, context)
    return context


def load_certificate(config: ServerConfig, context: ssl.SSLContext) -> None:
    """The next handshakes use the present files. Raises ConfigError if they are invalid; the context is unchanged."""
    if (files := certificate_of(config)) is not None:
        context.load_cert_chain(*files, password="")


def certificate_of(config: ServerConfig) -> tuple[str, str] | None:
    """The PEM files of the chain, leaf first, and of its private key; None without TLS.

    Raises ConfigError, in one line, if a file is missing or the files do not match.
    """
    chain_file, key_file = config.tls_cert_file, config.tls_key_file
    if config.tls_enabled is False or (config.tls_enabled is None and chain_file is None and key_file is None):
        return None
    if chain_file is None or key_file is None:
        raise ConfigError("TLS needs two files: --tls-cert-file and --tls-key-file; one of them is not set")
    for option, file in (("--tls-cert-file", chain_file), ("--tls-key-file", key_file)):
        try:
            if not stat.S_ISREG(os.stat(file).st_mode):  # noqa: PTH116 - Path("") would be the working folder
                raise ConfigError(f"{option}: {file!r} is not a regular file")  # a pipe would block
            open(file, "rb").close()  # noqa: PTH123
        except (OSError, ValueError) as problem:
            raise ConfigError(f"{option}: {file!r} cannot be read: {plain_reason(problem)}") from None
    import ssl  # noqa: PLC0415

    try:
        # password="" prevents a prompt on the terminal for an encrypted key.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(chain_file, key_file, password="")
    except (OSError, ValueError) as problem:  # ssl.SSLError is an OSError
        reason = getattr(problem, "reason", None) or type(problem).__name__
        message = f"--tls-cert-file and --tls-key-file are not a certificate and its key ({reason})"
        raise ConfigError(message) from None
    return chain_file, key_file
