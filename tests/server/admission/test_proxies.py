"""The client's address, if requests pass through proxies."""

from __future__ import annotations

import pytest
from tests.server.fakes import EMBED, FakeEngine
from tests.server.live import ask, live, post

from vectord.config import ServerConfig
from vectord.errors import ConfigError
from vectord.server.admission.caller import MAX_HOPS, TrustedProxies
from vectord.server.http.app import create_app

TRUSTED = ("10.0.0.0/8", "192.168.1.1", "fd00::/8")


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
