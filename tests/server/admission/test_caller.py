"""The client of a request: its id, its address behind proxies, its deadline."""

from __future__ import annotations

import re
import time

import pytest
from tests.server.fakes import EMBED, FakeEngine
from tests.server.live import ask, live, post

from vectord.config import ServerConfig
from vectord.errors import ConfigError, InvalidField
from vectord.server.admission.caller import (
    ENVOY_TIMEOUT_MS,
    MAX_HOPS,
    TIMEOUT_MS,
    TrustedProxies,
    caller_of,
    request_id,
)
from vectord.server.http.app import create_app

TRUSTED = ("10.0.0.0/8", "192.168.1.1", "fd00::/8")


@pytest.mark.parametrize("given", ["a", "req-1/2:3", "~" * 128])
def test_a_clients_own_id_is_kept(given: str) -> None:
    """1 to 128 letters, digits and the marks of common ids."""
    assert request_id({"x-request-id": given}) == given


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, "\xe9", "a\tb", "a\n", 'x"status=200'], ids=repr)
def test_any_other_id_is_replaced(given: str) -> None:
    """Text that could break a log line or a header."""
    assert re.fullmatch("[0-9a-f]{32}", request_id({"x-request-id": given}))


def test_generated_ids_differ() -> None:
    assert len({request_id({}) for _ in range(100)}) == 100


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        pytest.param("203.0.113.9", ["1.2.3.4"], "203.0.113.9", id="a stranger's word"),
        pytest.param("10.0.0.1", ["1.2.3.4"], "1.2.3.4", id="one proxy"),
        pytest.param("10.0.0.1", ["6.6.6.6, 1.2.3.4"], "1.2.3.4", id="a client that lies"),
        pytest.param("10.0.0.1", ["6.6.6.6, 1.2.3.4, 10.0.0.2"], "1.2.3.4", id="two proxies"),
        pytest.param("10.0.0.1", ["6.6.6.6", "1.2.3.4", "192.168.1.1"], "1.2.3.4", id="a line for each"),
        pytest.param("10.0.0.1", ["6.6.6.6", "1.2.3.4,10.0.0.2"], "1.2.3.4", id="lines and lists"),
        pytest.param("10.0.0.1", ["10.0.0.3, 10.0.0.2"], "10.0.0.3", id="trusted all the way"),
        pytest.param("10.0.0.1", [], "10.0.0.1", id="no header"),
        pytest.param("10.0.0.1", [""], "10.0.0.1", id="an empty header"),
        pytest.param("10.0.0.1", ["unknown"], "10.0.0.1", id="no address"),
        pytest.param("10.0.0.1", ["1.2.3.4, unknown, 10.0.0.2"], "10.0.0.2", id="no address in between"),
        pytest.param("10.0.0.1", ["1.2.3.4:5678"], "1.2.3.4", id="with a port"),
        pytest.param("10.0.0.1", ["[2001:db8::1]:5678"], "2001:db8::1", id="IPv6 with a port"),
        pytest.param("10.0.0.1", ["2001:DB8:0::1"], "2001:db8::1", id="IPv6, written at length"),
        pytest.param("fd00::1", ["1.2.3.4"], "1.2.3.4", id="an IPv6 proxy"),
        pytest.param("::ffff:10.0.0.1", ["::ffff:1.2.3.4"], "1.2.3.4", id="IPv4 as IPv6 writes it"),
        pytest.param("", ["1.2.3.4"], "", id="a Unix socket"),
    ],
)
def test_the_client_is_the_last_untrusted_address(peer: str, forwarded: list[str], client: str) -> None:
    """Any client can forge the addresses before it."""
    assert TrustedProxies(TRUSTED).client_of(peer, forwarded) == client


@pytest.mark.parametrize("peer", ["10.0.0.1", "127.0.0.1"])
def test_without_trusted_proxies_the_header_is_ignored(peer: str) -> None:
    """Also from this machine."""
    assert TrustedProxies(()).client_of(peer, ["1.2.3.4"]) == peer


def test_the_number_of_hops_is_bounded() -> None:
    """A header of 60,000 proxies costs no more than one of 32."""
    hops = ["10.0.0.2"] * 60_000
    assert TrustedProxies(TRUSTED).client_of("10.0.0.1", ["1.2.3.4", *hops]) == "10.0.0.2"
    assert TrustedProxies(TRUSTED).client_of("10.0.0.1", ["1.2.3.4", *hops[: MAX_HOPS - 1]]) == "1.2.3.4"


@pytest.mark.parametrize("trusted", ["nginx", "10.0.0.1/8", "10.0.0.0/99", "*"])
def test_an_invalid_proxy_is_a_one_line_error(trusted: str) -> None:
    """At start, with the option's name."""
    with pytest.raises(ConfigError, match="--trusted-proxies") as caught:
        create_app(FakeEngine(), [EMBED], ServerConfig(trusted_proxies=(trusted,)))
    assert "\n" not in caught.value.message


async def test_the_engine_receives_the_clients_address() -> None:
    """Also if the header is repeated."""
    engine = FakeEngine()
    async with live(engine, trusted_proxies=("127.0.0.0/8",)) as running:
        request = post({"input": "x"}, headers={"x-forwarded-for": "6.6.6.6, 1.2.3.4\r\nx-forwarded-for: 127.0.0.2"})
        assert (await ask(running, request)).status == 200
    assert [caller.client for caller in engine.callers] == ["1.2.3.4"]


@pytest.mark.parametrize("header", [TIMEOUT_MS, ENVOY_TIMEOUT_MS])
def test_a_timeout_is_a_deadline(header: str) -> None:
    """Our header or Envoy's, counted from the arrival of the request."""
    before_s = time.monotonic()
    deadline_s = caller_of({header: "1500"}, "10.0.0.1").deadline_s
    assert deadline_s is not None
    assert before_s + 1.5 <= deadline_s <= time.monotonic() + 1.5


def test_the_callers_timeout_overrides_the_proxys() -> None:
    deadline_s = caller_of({TIMEOUT_MS: "1000", ENVOY_TIMEOUT_MS: "15000"}, "").deadline_s
    assert deadline_s is not None
    assert deadline_s <= time.monotonic() + 1


def test_without_a_timeout_there_is_no_deadline() -> None:
    """The server may have its own (request_timeout_s)."""
    assert caller_of({}, "").deadline_s is None


@pytest.mark.parametrize("text", ["", "-1", "1.5", "soon", "1e3", "9" * 10, "\u0663"])
def test_an_invalid_timeout_is_refused_by_name(text: str) -> None:
    """The error does not contain the value."""
    with pytest.raises(InvalidField) as caught:
        caller_of({TIMEOUT_MS: text}, "")
    assert caught.value.field == TIMEOUT_MS
