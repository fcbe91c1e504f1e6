"""Attacks on the TLS port: unfinished handshakes and floods of handshakes."""

from __future__ import annotations

import asyncio
import ssl
import warnings

from tests.attack.target import Attempt, Target, insecure_context

HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # the beginning of a ClientHello of 508 bytes


async def unfinished_handshakes(target: Target, attempt: Attempt) -> None:
    """A part of a ClientHello, then silence."""
    if not target.is_tls:
        attempt.skipped = "no TLS"
        return

    async def one(number: int) -> None:
        async with target.connection(tls=False) as (reader, writer):
            writer.write(HELLO + b"a" * 100)
            try:
                async with asyncio.timeout(attempt.left_s() + 0.1):
                    attempt.saw("closed" if not await reader.read(1) else "answered")
                await asyncio.sleep(0.1)
            except TimeoutError:
                attempt.saw("held")

    await attempt.crowd(one, 4 * attempt.connections)


async def handshake_flood(target: Target, attempt: Attempt) -> None:
    """Complete handshakes without a request, one after the other; and with old versions, which must fail."""
    if not target.is_tls:
        attempt.skipped = "no TLS"
        return
    old = insecure_context()
    old.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():  # Python deprecates what this attack needs
        warnings.simplefilter("ignore", DeprecationWarning)
        old.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        old.maximum_version = ssl.TLSVersion.TLSv1_1

    async def one(number: int) -> None:
        outdated = number % 8 == 0
        try:
            async with asyncio.timeout(20):
                context = old if outdated else insecure_context()
                _, writer = await asyncio.open_connection(
                    target.host, target.port, ssl=context, local_addr=target.source_address
                )
        except ssl.SSLError:
            attempt.saw("refused")
            return
        attempt.saw(writer.get_extra_info("ssl_object").version())
        if outdated:
            attempt.fault("TLS 1.1 was accepted")
        writer.transport.abort()

    await attempt.crowd(one, min(attempt.connections, 16))


ATTACKS = (unfinished_handshakes, handshake_flood)
