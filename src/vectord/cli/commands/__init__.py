"""One module for each command of `vectord`, with a click command called `command`. The folder is the registry;
`FURTHER` in main.py has the commands that share a module.

A command imports the packages that it needs when it runs, so that `vectord --help` is fast.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from vectord.cli.printing import printable
from vectord.config.command_line import Command, flag, value
from vectord.config.sources import CommandLine, Loaded, load
from vectord.errors import ConfigError
from vectord.products.common.profiles import profiles

if TYPE_CHECKING:
    from ssl import SSLContext

    from vectord.config import ServerConfig
    from vectord.tools.probe import ProbedServer, ProbeReply

ANSWER_TIMEOUT_S = 600.0  # unloading waits for running requests

command_with_settings = partial(click.command, cls=Command, settings=True, profiles=profiles)


def load_settings(line: CommandLine) -> Loaded:
    """The settings of this process, from all sources."""
    return load(line, os.environ, Path.cwd(), profiles())


def configure_log(loaded: Loaded, *, quiet: bool = True) -> None:
    """quiet: the log has warnings only, unless its level is set."""
    from vectord.observability import logs  # noqa: PLC0415

    telemetry = loaded.config.telemetry
    if quiet and loaded.origins["log_level"].source == "default":
        telemetry = replace(telemetry, log_level="warning")
    logs.configure(telemetry)


# A parameter of the context instead of the command, since every command with --url has it and none reads it.
CACERT = click.Option(
    ["--cacert"],
    metavar="FILE",
    expose_value=False,
    callback=lambda context, option, file: context.meta.update({option.name: file}),
    help="PEM file of the authorities to trust at the URL.  [default: SSL_CERT_FILE, or the usual ones]",
)


def cacert() -> SSLContext:
    """Trusts the authorities of --cacert, or the default ones."""
    from vectord.tools.probe import trusted_authorities  # noqa: PLC0415 - httpx

    return trusted_authorities(click.get_current_context().meta.get(CACERT.name))


def require_url() -> None:
    """Raises ConfigError for an option that is only read with --url."""
    if click.get_current_context().meta.get(CACERT.name) is not None:
        raise ConfigError("--cacert: belongs to --url")


JSON = flag("--json", "as_json", help="Print JSON.")
URL = value("--url", "URL", "The server.  [default: this machine, at the port of the settings]")
TOKEN = value("--token", "KEY", "Bearer token of the server.")
INSTEAD_URL = value("--url", "URL", "A running server, instead of this machine.")


@contextmanager
def running_server(line: CommandLine, url: str | None, token: str | None) -> Iterator[ProbedServer]:
    """The server at `url`, or the one that runs on this machine with the settings of the command line.

    The latter gets the strongest key of the settings. Raises ConfigError if no server answers, and for settings of a
    server at `url`.
    """
    from vectord.tools.probe import ProbedServer, check_url  # noqa: PLC0415 - httpx

    if url is not None:
        _check_for_server(line)
        server = ProbedServer(check_url(url, "--url"), token, ANSWER_TIMEOUT_S, cacert())
    else:
        require_url()
        config = load_settings(line).config.server
        key = token or config.admin_key or config.api_key or config.api_token
        server = ProbedServer(own_url(config), key, ANSWER_TIMEOUT_S, trusted_certificate(config))
    with server:
        server.check_reachable("--url" if url else "--port")
        yield server


def names_for_server(line: CommandLine, url: str | None, token: str | None) -> list[str] | None:
    """The models of the command line, without Ollama's tag; None without `url`: the command concerns this machine.

    Raises ConfigError for options that the server at `url` does not see.
    """
    if url is None:
        if token is not None:
            raise ConfigError("--token: belongs to --url")
        require_url()
        return None
    _check_for_server(line)
    return [name.removesuffix(":latest") for name in line.named_models]


def _check_for_server(line: CommandLine) -> None:
    """Raises ConfigError for options that a server at --url does not see."""
    if line.options.keys() - line.model_options:
        raise ConfigError("--url: the server has its own settings; leave out the other options; --token passes a key")


def answers_about(
    server: ProbedServer, names: Sequence[str], method: str, action: str = "", *, field: str = "model_id"
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each model that the server has answered for, and the answer. Writes a line for each one that it refuses.

    action: the end of the route, such as /unload. field: a key of vectord's answer, which other products do not have.
    """
    for name in names:
        served = name.removesuffix(":latest")  # Ollama's tag of a name without one
        reply = server.send(method, f"/vectord/models/{quote(served)}{action}", None)
        answer = reply.json()
        if reply.status == 200 and isinstance(answer, dict) and field in answer:
            yield name, answer
        else:
            click.echo(f"vectord: {name}: {refusal(reply)}", err=True)


def refusal(reply: ProbeReply) -> str:
    """Why a server refused a request to one of the operator's routes."""
    if reply.status == 0:
        return printable(reply.summary())
    answer = reply.json()
    error = answer.get("error") if isinstance(answer, dict) else None
    if not isinstance(error, dict) or "given" not in error:  # a key of every error of these routes
        if reply.status >= 500 or reply.status in (400, 408, 431):  # a proxy before vectord, or vectord's HTTP parser
            return printable(reply.summary())
        product = reply.headers.get("server", "another product")
        content = reply.headers.get("content-type", "no content type").partition(";")[0]
        return printable(
            f"no vectord API at this URL: {product[:80]} answers with status {reply.status} and {content[:80]}"
        )
    if error.get("type") == "no_such_route":
        return "the server has no admin key; start it with --admin-key"
    return printable(str(error.get("message"))) + (" (--token KEY)" if reply.status == 401 else "")


def own_url(config: ServerConfig) -> str:
    """Where a server with these settings answers on this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.host, config.host)  # noqa: S104
    return f"{'https' if serves_tls(config) else 'http'}://{f'[{host}]' if ':' in host else host}:{config.port}"


def serves_tls(config: ServerConfig) -> bool:
    has_files = config.tls_cert_file is not None and config.tls_key_file is not None
    return has_files if config.tls_enabled is None else config.tls_enabled


def trusted_certificate(config: ServerConfig) -> SSLContext | None:
    """Trusts the certificate of the settings, under any name of this machine. None without TLS."""
    if not serves_tls(config) or config.tls_cert_file is None:
        return None
    import ssl  # noqa: PLC0415

    context = ssl.create_default_context(cafile=config.tls_cert_file)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context
