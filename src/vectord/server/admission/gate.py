"""What every request passes before its body is read: whose it is, how often that may ask, and which key it brings.

Made once a process, by compose; handler.py and rpc/ call it, on the event loop. A flood is refused before its keys are
judged, and whoever guesses keys is limited, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from vectord.config import ServerConfig
from vectord.products.common.dialect import Dialect
from vectord.server.admission.auth import Keys
from vectord.server.admission.keys import Key, KeysFile
from vectord.server.admission.proxies import TrustedProxies
from vectord.server.admission.rate_limit import RateLimits, TokenBuckets
from vectord.server.http.routing import Endpoint

FORWARDED_FOR = b"x-forwarded-for"


class Gate:
    def __init__(
        self, config: ServerConfig, dialects: Sequence[Dialect] = (), buckets: TokenBuckets | None = None
    ) -> None:
        """buckets: what limits draw on; None: this process's own, as `config` says.

        Raises ConfigError for a keys file that cannot be used, and for a proxy that is no address.
        """
        file = KeysFile(config.api_keys_file) if config.api_keys_file is not None else None
        self.keys = Keys(config.accepted_keys, config.admin_key, file)
        self.limits = RateLimits(config, dialects, buckets)
        self._proxies = TrustedProxies(config.trusted_proxies)

    def address(self, peer: str, forwarded: Iterable[str]) -> str:
        """The client's. peer: who connected; forwarded: the values of X-Forwarded-For, looked at if `peer` may say."""
        return self._proxies.client_of(peer, forwarded)

    async def admit(self, endpoint: Endpoint, address: str, key: Key | None, headers: Mapping[str, str]) -> None:
        """key: what `keys.known` of the headers. Raises RateLimited, Unauthorized, Forbidden, NoSuchRoute."""
        if endpoint.public:
            return
        await self.limits.check(address, key, endpoint.dialect)
        if endpoint.admin:
            self.keys.demand_admin(key, headers)
        else:
            self.keys.demand(key, headers)
