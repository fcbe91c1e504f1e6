"""Rate limits, and the responses of limited clients."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.keys import entry, keys_file
from tests.server.asgi import call
from tests.server.fakes import EMBED, FakeEngine, dialect, route
from tests.server.live import Reply

from vectord.config import ServerConfig
from vectord.observability.metrics import Metrics
from vectord.products.common.dialect import Rate, load_dialects
from vectord.schema import TextLength, TextLengths
from vectord.server.admission.buckets import Draw, LocalBuckets
from vectord.server.admission.rate_limit import Buckets
from vectord.server.http.app import create_app

SMART_EMBEDDER, EMBEDDING_SERVER, OPENAI = load_dialects(("smart_embedder", "embedding_server", "openai"))


@pytest.fixture(autouse=True)
def stopped(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A manual clock, which advances by a microsecond at each read."""
    now = [1000.0]

    def look() -> float:
        passes(1e-6)
        return now[0]

    def passes(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(LocalBuckets, "now_s", staticmethod(look))
    return passes


def limited(amount: int, burst: int, *, per_key: bool = False) -> Any:
    """A product with `amount` requests per minute."""
    rate = Rate(amount, period_s=60, burst=burst, per_key=per_key)
    return type(EMBED)(
        name="slow",
        title="",
        routes=(
            route("slow", "/slow"),
            route("slow", "/shared", keys=("slow",)),
            route("slow", "/up", "GET", public=True),
        ),
        render_error=EMBED.render_error,
        rate=rate,
    )


FAST = dialect("fast", route("fast", "/shared", keys=("fast",)), route("fast", "/fast"))


class Server:
    """An app, and the statuses of its responses."""

    def __init__(
        self, *dialects: Any, engine: FakeEngine | None = None, metrics: Metrics | None = None, **settings: Any
    ):
        self.engine = engine or FakeEngine()
        self.app = create_app(self.engine, dialects or (EMBED,), ServerConfig(**settings), metrics)

    async def ask(
        self, path: str = "/v1/embed", body: object = {"input": "x"}, *, peer: str = "10.0.0.1", **headers: str
    ) -> Reply:
        named: Mapping[str, str] = {name.replace("_", "-"): value for name, value in headers.items()}
        content = json.dumps(body).encode() if body is not None else b""
        method = "GET" if body is None else "POST"
        return await call(self.app, method, path, content, headers=named, client=(peer, 1))

    async def statuses(self, number: int, *arguments: Any, **named: Any) -> list[int]:
        return [(await self.ask(*arguments, **named)).status for _ in range(number)]


# --- addresses, by the settings -------------------------------------------------------------------------------


async def test_by_default_most_routes_have_no_limit() -> None:
    """The queue bounds the load."""
    assert set(await Server(EMBED).statuses(300)) == {200}


async def test_a_configured_rate_applies_to_every_route(stopped: Callable[[float], None]) -> None:
    """Per address; unserved paths, invalid bodies and wrong keys count, too."""
    server = Server(EMBED, FAST, rate_limit_requests_per_minute=60, rate_limit_burst_size=4, api_key="k")
    assert await server.statuses(2, x_api_key="k") == [200, 200]
    assert await server.statuses(1, "/nothing", x_api_key="k") == [404]
    assert await server.statuses(1, "/fast", x_api_key="guess") == [401]
    assert await server.statuses(2, x_api_key="k") == [429, 429]
    assert await server.statuses(1, "/fast", x_api_key="guess") == [429]
    assert await server.statuses(1, x_api_key="k", peer="10.0.0.2") == [200]
    stopped(2.0)
    assert await server.statuses(3, x_api_key="k") == [200, 200, 429]


async def test_probes_are_never_limited() -> None:
    """A flood must not make the server look dead."""
    server = Server(EMBED, rate_limit_requests_per_minute=1, rate_limit_burst_size=1)
    await server.ask()
    for path in ("/health/live", "/health", "/"):
        assert await server.statuses(3, path, None) == [200, 200, 200]


@pytest.mark.parametrize("path", ["/docs", "/openapi.json", "/console/calls", "/metrics"])
async def test_pages_are_limited(path: str) -> None:
    """They need no key and cost more than a probe."""
    settings = {"rate_limit_requests_per_minute": 1, "rate_limit_burst_size": 2, "api_key": "k"}
    server = Server(EMBED, metrics=Metrics("0"), **settings)
    assert await server.statuses(3, path, None) == [200, 200, 429]
    assert await server.statuses(1, path, None, peer="10.0.0.2") == [200]


@pytest.mark.parametrize(("path", "is_probe"), [("/api/version", False), ("/v1/health", True)])
async def test_public_routes_of_products_are_limited_unless_they_are_probes(path: str, is_probe: bool) -> None:
    """They need no key, so nothing else bounds them."""
    dialects = load_dialects(("ollama", "llamacpp"))
    server = Server(*dialects, rate_limit_requests_per_minute=1, rate_limit_burst_size=2, api_key="k")
    assert (429 in await server.statuses(3, path, None)) is not is_probe


async def test_a_limited_request_is_not_parsed() -> None:
    """The engine does not see it either."""
    server = Server(EMBED, rate_limit_requests_per_minute=1, rate_limit_burst_size=1)
    await server.ask()
    reply = await server.ask(body="no object")
    assert (reply.status, reply.json["error"], len(server.engine.callers)) == (429, "RateLimited", 1)


async def test_clients_of_a_proxy_are_limited_separately() -> None:
    """By the address in X-Forwarded-For."""
    settings = {"rate_limit_requests_per_minute": 1, "rate_limit_burst_size": 1}
    server = Server(EMBED, trusted_proxies=("10.0.0.1",), **settings)
    for client in ("1.1.1.1", "2.2.2.2"):
        assert await server.statuses(2, x_forwarded_for=client) == [200, 429]


async def test_zero_disables_all_limits() -> None:
    """Also those of the products."""
    server = Server(limited(1, 1), rate_limit_requests_per_minute=0)
    assert await server.statuses(3, "/slow") == [200, 200, 200]


# --- the products' own ----------------------------------------------------------------------------------------


async def test_a_products_rate_applies_to_its_own_routes() -> None:
    """On a shared path for its own bodies; its public routes are not limited."""
    server = Server(limited(60, 3), FAST)
    assert await server.statuses(2, "/slow") == [200, 200]
    assert await server.statuses(2, "/shared", {"slow": "x"}) == [200, 429]
    assert set(await server.statuses(5, "/shared", {"fast": "x"})) == {200}
    assert await server.statuses(1, "/slow") == [429]
    assert await server.statuses(2, "/up", None) == [200, 200]


async def test_a_rate_per_key_falls_back_to_addresses() -> None:
    """One key from two addresses is one client, and two keys are two."""
    server = Server(limited(60, 2, per_key=True), api_key="k")
    found = [
        await server.statuses(1, "/slow", x_api_key="k", peer=peer) for peer in ("10.0.0.1", "10.0.0.2", "10.0.0.3")
    ]
    assert found == [[200], [200], [429]]
    two_keys = Server(limited(60, 2, per_key=True), api_key="k", api_token="t")
    for key in "kt":
        assert await two_keys.statuses(3, "/slow", x_api_key=key) == [200, 200, 429]
    open_server = Server(limited(60, 2, per_key=True))
    for peer in ("10.0.0.1", "10.0.0.2"):
        assert await open_server.statuses(3, "/slow", peer=peer, x_api_key="made up") == [200, 200, 429]


@pytest.mark.parametrize(
    ("settings", "burst"), [({}, 120), ({"rate_limit_burst_size": 7}, 7), ({"rate_limit_requests_per_minute": 9}, 9)]
)
async def test_smart_embedders_limit(settings: dict[str, int], burst: int) -> None:
    """The documented numbers, text, header and key; its settings change them."""
    server = Server(SMART_EMBEDDER, **settings)
    replies = [await server.ask("/rerank", {"query": "q", "passages": []}) for _ in range(burst + 1)]
    assert [reply.status for reply in replies] == [400] * burst + [429]
    amount = settings.get("rate_limit_requests_per_minute", 3600)
    expected = {"detail": f"Rate limit exceeded. Max {amount} requests per minute.", "retry_after": 60}
    assert (replies[-1].json, replies[-1].headers["retry-after"]) == (expected, "60")


async def test_embedding_servers_limit() -> None:
    """50 at once and 80 per second for each key, with TEI's body and a wait in seconds."""
    server = Server(EMBEDDING_SERVER, api_key="k")
    replies = [await server.ask("/api/v1/embed", {"inputs": 3}, authorization="Bearer k") for _ in range(51)]
    assert [reply.status for reply in replies] == [422] * 50 + [429]
    assert replies[-1].json["error"] == "Rate limit exceeded. Max 80 requests per second."
    assert replies[-1].headers["retry-after"] == "1"


async def test_every_product_returns_retry_after() -> None:
    """On its first route, with the limit in the message."""
    for each in load_dialects(ServerConfig().dialects):
        server = Server(each, rate_limit_requests_per_minute=1, rate_limit_burst_size=1, api_key="k")
        path = next(route.path for route in each.routes if route.method == "POST").replace("{model:path}", "m")
        await server.ask(path)
        reply = await server.ask(path)
        assert reply.status == 429, each.name
        assert b"Rate limit exceeded. Max 1 requests per minute." in reply.body, each.name
        assert 1 <= int(reply.headers["retry-after"]) <= 60, each.name


async def test_refusals_are_counted() -> None:
    """By the route's template, with a reason."""
    metrics = Metrics("0")
    server = Server(limited(60, 2), metrics=metrics, api_key="k")
    await server.statuses(3, "/slow", x_api_key="guess")
    page, _ = await metrics.exposition("")
    assert b'vectord_requests_rejected_total{reason="auth"} 2.0' in page
    assert b'vectord_requests_rejected_total{reason="rate_limit"} 1.0' in page
    assert re.search(rb'vectord_requests_total{[^}]*route="/slow",status="401"} 2\.0', page)
    assert re.search(rb'vectord_requests_total{[^}]*route="/slow",status="429"} 1\.0', page)


# --- quotas of keys -------------------------------------------------------------------------------------------


async def test_a_keys_requests(tmp_path: Path, stopped: Callable[[float], None]) -> None:
    """A burst of one minute's requests, then an even rate, on every route and from every address."""
    server = Server(
        EMBED, FAST, api_keys_file=keys_file(tmp_path, entry("team", "secret", requests_per_minute=3)), api_key="other"
    )
    assert await server.statuses(2, x_api_key="secret") == [200, 200]
    assert await server.statuses(2, "/fast", x_api_key="secret", peer="10.0.0.2") == [200, 429]
    assert set(await server.statuses(9, x_api_key="other")) == {200}
    stopped(20.0)
    assert await server.statuses(2, x_api_key="secret") == [200, 429]
    assert await server.statuses(3, "/health", None, x_api_key="secret") == [200, 200, 200]


async def test_a_keys_tokens(tmp_path: Path, stopped: Callable[[float], None]) -> None:
    """A request within the quota is answered completely; the key then waits until its debt is repaid."""
    engine = FakeEngine(TextLengths.of([TextLength(300, 250)]))
    server = Server(
        EMBED, engine=engine, api_keys_file=keys_file(tmp_path, entry("team", "secret", tokens_per_minute=100))
    )
    assert await server.statuses(2, x_api_key="secret") == [200, 429]
    reply = await server.ask(x_api_key="secret")
    assert reply.json["message"] == "Token quota exceeded. Max 100 tokens per minute."
    stopped(89.0)  # 250 tokens are owed for from above 100: 1.5 minutes
    assert await server.statuses(1, x_api_key="secret") == [429]
    stopped(2.0)
    assert await server.statuses(2, x_api_key="secret") == [200, 429]


async def test_a_refused_request_takes_no_tokens(tmp_path: Path) -> None:
    """What failed has cost nothing that could be counted."""
    keys = keys_file(tmp_path, entry("team", "secret", tokens_per_minute=3))
    server = Server(EMBED, api_keys_file=keys)
    assert await server.statuses(5, "/v1/embed", [1], x_api_key="secret") == [400] * 5
    assert await server.statuses(2, x_api_key="secret") == [200, 429]


# --- buckets --------------------------------------------------------------------------------------------------


async def refused_for_s(buckets: Buckets, rate: Rate, bucket: str, amount: int = 1) -> float:
    refusal = await buckets.draw([Draw(rate, bucket, amount)])
    return 0.0 if refusal is None else refusal.wait_s


async def test_a_bucket_in_debt_refuses_until_it_is_repaid(stopped: Callable[[float], None]) -> None:
    """The reported wait is exact."""
    buckets, rate = Buckets(), Rate(60, period_s=60, burst=10)
    await buckets.spend(rate, "a", 30)
    wait_s = await refused_for_s(buckets, rate, "a", 0)
    assert wait_s == pytest.approx(21.0, abs=1e-4)  # until there is one again
    stopped(wait_s - 0.1)
    assert await refused_for_s(buckets, rate, "a", 0) == pytest.approx(0.1, abs=1e-4)
    stopped(0.101)
    assert await refused_for_s(buckets, rate, "a", 0) == 0
    assert await refused_for_s(buckets, rate, "b", 0) == 0


async def test_draws_stop_at_the_first_failure() -> None:
    """Earlier draws are made, later ones are not."""
    buckets, many, one = Buckets(), Rate(60, period_s=60, burst=10), Rate(1, period_s=60, burst=1)
    draws = [Draw(many, "first"), Draw(one, "second"), Draw(one, "third")]
    assert await buckets.draw([draws[1]]) is None
    refusal = await buckets.draw(draws)
    assert refusal is not None
    assert (refusal.place, refusal.wait_s) == (1, pytest.approx(60, abs=1e-3))
    assert await refused_for_s(buckets, many, "first", 10) > 0
    assert await refused_for_s(buckets, one, "third") == 0


async def test_buckets_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses can be forged, so the least recently used bucket is evicted. A bucket that refuses is in use: its
    client is not forgotten while others come."""
    monkeypatch.setattr("vectord.server.admission.buckets.MAX_BUCKETS", 100)
    buckets, rate = Buckets(), Rate(1, period_s=60, burst=1)
    assert await refused_for_s(buckets, rate, "a") == 0
    for number in range(1000):
        assert await refused_for_s(buckets, rate, str(number)) == 0
        assert await refused_for_s(buckets, rate, "a") > 0
    assert await refused_for_s(buckets, rate, "999") > 0
    assert await refused_for_s(buckets, rate, "901") > 0
    assert await refused_for_s(buckets, rate, "900") == 0
