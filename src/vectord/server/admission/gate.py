"""Admits or refuses a request before its body is read: client address, rate limits, key.

Created once per process, by compose.py; server/pipeline.py calls it on the event loop. Rate limits come first, so that
a flood costs no key lookups and key guessing is limited, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from vectord.config import ServerConfig
from vectord.products.common.dialect import Dialect
from vectord.server.admission.buckets import TokenBuckets
from vectord.server.admission.caller import TrustedProxies
from vectord.server.admission.keys import Key, Keys, KeysFile
from vectord.server.admission.rate_limit import RateLimits


class Gate:
    def __init__(
        self, config: ServerConfig, dialects: Sequence[Dialect] = (), buckets: TokenBuckets | None = None
    ) -> None:
        """buckets: None creates this process's own, as `config` says.

        Raises ConfigError for an invalid keys file or an invalid proxy address.
        """
        file = KeysFile(config.api_keys_file) if config.api_keys_file is not None else None
        self.keys = Keys(config.accepted_keys, config.admin_key, file)
        self.limits = RateLimits(config, dialects, buckets)
        self._proxies = TrustedProxies(config.trusted_proxies)

    def address(self, peer: str, forwarded: Iterable[str]) -> str:
        """The client's address. peer: of the connection; forwarded: the values of X-Forwarded-For."""
        return self._proxies.client_of(peer, forwarded)

    async def admit(
        self, address: str, key: Key | None, headers: Mapping[str, str], dialect: str | None = None, *, admin: bool
    ) -> None:
        """key: the result of `keys.lookup`; dialect: None if the body decides it; admin: for an admin route.

        Raises RateLimited, Unauthorized, Forbidden, NoSuchRoute.
        """
        await self.limits.check(address, key, dialect)
        if admin:
            self.keys.require_admin(key, headers)
        else:
            self.keys.require(key, headers)
