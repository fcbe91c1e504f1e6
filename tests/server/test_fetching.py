"""Files of URLs come from public addresses of the allowed hosts alone, whatever a client or a host does."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trustme

from vectord.errors import InvalidField
from vectord.server.fetching import Fetcher, is_public

NAME = "images.example"
ENDLESS = b"HTTP/1.1 200 OK\r\n\r\n"


def answer(content: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(content)}", "Connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode() + content


@dataclass
class Host:
    """A server on this machine, with an answer for each path; the last one without an end."""

    answers: dict[str, bytes]
    port: int = 0
    heads: list[str] = field(default_factory=list)
    sent: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        reply = self.answers[head.split()[1]]
        writer.write(reply)
        try:
            while reply == ENDLESS:
                writer.write(bytes(65_536))
                await writer.drain()
                self.sent += 65_536
        except ConnectionError:
            pass
        writer.close()


@asynccontextmanager
async def hosting(answers: dict[str, bytes], tls: ssl.SSLContext | None = None) -> AsyncIterator[Host]:
    host = Host(answers)
    server = await asyncio.start_server(host.serve, "127.0.0.1", 0, ssl=tls)
    host.port = server.sockets[0].getsockname()[1]
    async with server:
        yield host


@dataclass
class Names:
    """A name server: each query of a name gets the next of its answers, and the last one again and again."""

    answers: Sequence[Sequence[str]] = (("127.0.0.1",),)
    queries: list[str] = field(default_factory=list)

    def __call__(self, host: str, port: int) -> Sequence[str]:
        self.queries.append(host)
        return self.answers[min(len(self.queries), len(self.answers)) - 1]


def fetcher(names: Names, *hosts: str) -> Fetcher:
    """It may use this machine's address, which stands for a public one."""
    return Fetcher(hosts or (NAME,), names, lambda address: address == "127.0.0.1" or is_public(address))


async def fetch(made: Fetcher, url: str, take: Callable[[int], None] = lambda n_bytes: None) -> bytes:
    return await asyncio.wait_for(made.fetch(url, take), 30)


async def test_the_connection_goes_to_the_checked_address() -> None:
    """The name is resolved once: its next address, a private one, is never asked for."""
    names = Names((("127.0.0.1",), ("10.0.0.1",)))
    async with hosting({"/a.png?b=c": answer(b"file")}) as host:
        assert await fetch(fetcher(names), f"http://{NAME}:{host.port}/a.png?b=c#d") == b"file"
    assert names.queries == [NAME]
    assert f"host: {NAME}:{host.port}\r\n" in host.heads[0].lower()


@pytest.mark.parametrize("addresses", [("10.0.0.1",), ("127.0.0.1", "10.0.0.1"), ()], ids=str)
async def test_a_name_with_a_private_address_is_not_connected_to(addresses: Sequence[str]) -> None:
    """One private address of several is enough; so is none."""
    async with hosting({}) as host:
        with pytest.raises(InvalidField, match="no address, or one that is not public"):
            await fetch(fetcher(Names((addresses,))), f"http://{NAME}:{host.port}/")
        assert not host.heads


LOCAL = ["127.0.0.1", "[::ffff:127.0.0.1]", "2130706433", "0x7f.1", "017700000001", "localhost", "[::1]", "0.0.0.0"]
RESERVED = [
    "192.0.0.192",
    "169.254.169.254",
    "[fd00:ec2::254]",
    "[64:ff9b::7f00:1]",
    "[2002:7f00:1::]",
    "224.0.0.1",
    "100.64.0.1",
]


@pytest.mark.parametrize("address", LOCAL + RESERVED)
async def test_no_spelling_of_an_address_leads_to_this_machine_or_network(address: str) -> None:
    """With every host allowed."""
    async with hosting({"/": answer(b"secret")}) as host:
        with pytest.raises(InvalidField, match="not public"):
            await fetch(Fetcher(["*"]), f"http://{address}:{host.port}/")
        assert not host.heads


URLS = [
    "file:///etc/passwd",
    "ftp://images.example/",
    "http://",
    "http://a:b@images.example/",
    "http://images.example:99999/",
    "http://xn--a/",
    "http://images.example/\ud800",
    "a" * 9000,
]


@pytest.mark.parametrize("url", URLS, ids=lambda url: url[:20])
async def test_other_urls_are_refused(url: str) -> None:
    """Other schemes, a user's name, no host, a name that cannot be decoded, no URL."""
    with pytest.raises(InvalidField, match="must be an http or https URL"):
        await fetch(fetcher(Names()), url)


async def test_only_listed_hosts_are_asked() -> None:
    """In any case of letters, and not by a part of their name."""
    names = Names()
    async with hosting({"/": answer(b"file")}) as host:
        assert await fetch(fetcher(names, "Images.Example"), f"http://IMAGES.example:{host.port}/") == b"file"
        for other in ("images.example.org", "an.images.example", "example"):
            with pytest.raises(InvalidField, match="from which this server fetches nothing"):
                await fetch(fetcher(names), f"http://{other}:{host.port}/")
    assert len(names.queries) == len(host.heads) == 1


async def test_redirects_stay_at_their_host() -> None:
    """Each is resolved and checked again; the fourth is refused."""

    def to(location: str) -> bytes:
        return answer(b"", "302 Found", f"Location: {location}")

    answers = {"/a": to("/b"), "/b": answer(b"file"), "/away": to("http://other.example/b"), "/round": to("/round")}
    answers["/odd"] = to("http://xn--a/")
    async with hosting(answers) as host:
        url = f"http://{NAME}:{host.port}"
        names = Names()
        assert await fetch(fetcher(names), f"{url}/a") == b"file"
        assert len(names.queries) == 2
        with pytest.raises(InvalidField, match="leads to another host"):
            await fetch(fetcher(Names(), "*"), f"{url}/away")
        with pytest.raises(InvalidField, match="more than 3 redirects"):
            await fetch(fetcher(Names()), f"{url}/round")
        with pytest.raises(InvalidField, match="sent no complete answer"):
            await fetch(fetcher(Names()), f"{url}/odd")
        host.heads.clear()
        with pytest.raises(InvalidField, match="not public"):
            await fetch(fetcher(Names((("127.0.0.1",), ("10.0.0.1",)))), f"{url}/a")
        assert len(host.heads) == 1


async def test_a_file_without_end_is_left() -> None:
    """As soon as its pieces exceed what the caller takes."""
    left = 2**20

    def take(n_bytes: int) -> None:
        nonlocal left
        left -= n_bytes
        if left < 0:
            raise InvalidField("enough")

    async with hosting({"/": ENDLESS}) as host:
        with pytest.raises(InvalidField, match="enough"):
            await fetch(fetcher(Names()), f"http://{NAME}:{host.port}/", take)
    assert host.sent < 2**25


async def test_what_is_no_file_is_refused() -> None:
    """Another status, and an answer that is cut off or no HTTP."""
    cut = answer(b"file").replace(b"Content-Length: 4", b"Content-Length: 5")
    async with hosting({"/none": answer(b"", "404 Not Found"), "/cut": cut, "/ssh": b"SSH-2.0-x\r\n"}) as host:
        for path, reason in (("/none", "status 404"), ("/cut", "no complete answer"), ("/ssh", "no complete answer")):
            with pytest.raises(InvalidField, match=reason):
                await fetch(fetcher(Names()), f"http://{NAME}:{host.port}{path}")
    with pytest.raises(InvalidField, match="no complete answer"):  # nothing listens any more
        await fetch(fetcher(Names()), f"http://{NAME}:{host.port}/")


async def test_a_certificate_must_have_the_name_of_the_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection goes to an address, and the certificate is checked for the name."""
    authority, tls = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    authority.issue_cert(NAME).configure_cert(tls)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    async with hosting({"/": answer(b"file")}, tls) as host:
        assert await fetch(fetcher(Names()), f"https://{NAME}:{host.port}/") == b"file"
        with pytest.raises(InvalidField, match="no complete answer"):
            await fetch(fetcher(Names(), "*"), f"https://other.example:{host.port}/")


def test_public_addresses_are_allowed() -> None:
    """Also those of IPv4 in the form of IPv6."""
    assert all(map(is_public, ("8.8.8.8", "::ffff:8.8.8.8", "2606:4700::1111")))
    assert not any(map(is_public, ("fe80::1%eth0", "fec0::1", "ff02::1", "255.255.255.255", "192.0.2.1", "::")))
