"""URLs of a request are refused, or fetched within limits that hold for the request as a whole."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from vectord.errors import InvalidField, Overloaded, VectordError
from vectord.schema import ClassifyRequest, Conversation, EmbedRequest, Media, MultiRequest, RerankRequest
from vectord.server import media_urls
from vectord.server.fetching import Fetcher
from vectord.server.media_urls import MediaUrls, places_of


class FakeFetcher:
    """The file of a URL is its text. A URL with "slow" takes forever, one with "gone" is not there."""

    def __init__(self) -> None:
        self.fetched: list[str] = []
        self.running = self.most = 0

    async def fetch(self, url: str, take: Callable[[int], None]) -> bytes:
        self.fetched.append(url)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await (asyncio.Event().wait() if "slow" in url else asyncio.sleep(0))
        finally:
            self.running -= 1
        if "gone" in url:
            raise InvalidField("{field} is gone.")
        take(len(url))
        return url.encode()


def at(url: str) -> Media:
    return Media(b"", url=url)


async def fetched(request: Any, limit_bytes: int = 1000, fetcher: FakeFetcher | None = None) -> Any:
    made = MediaUrls(cast("Fetcher", fetcher or FakeFetcher()), limit_bytes)
    return await made.fetched(request, places_of(request))


async def refusal(request: Any, limit_bytes: int = 1000, fetcher: FakeFetcher | None = None) -> VectordError:
    with pytest.raises(VectordError) as caught:
        await fetched(request, limit_bytes, fetcher)
    return caught.value


async def test_every_place_of_a_request_gets_its_file() -> None:
    """Alone, in an item, in a conversation, on both sides of a ranking, and in parts of a request."""
    whole = MultiRequest(
        requests=[
            EmbedRequest(inputs=["a", at("b"), ["c", at("d")], Media(b"e"), [1, 2]]),
            EmbedRequest(inputs=(), conversations=[Conversation(messages="[]", media=[at("f")])]),
            RerankRequest(query=at("g"), passages=["h", ["i", at("j")]]),
        ]
    )
    embedded, conversation, ranking = (await fetched(whole)).requests
    assert embedded.inputs == ["a", Media(b"b"), ["c", Media(b"d")], Media(b"e"), [1, 2]]
    assert conversation.conversations[0].media == [Media(b"f")]
    assert (ranking.query, ranking.passages) == (Media(b"g"), ["h", ["i", Media(b"j")]])


def test_a_request_without_urls_has_no_places() -> None:
    """Nor one of texts alone, whatever they say."""
    for request in (EmbedRequest(inputs=["http://a/"]), EmbedRequest(inputs=[Media(b"a"), [1]])):
        assert not places_of(request)
    assert not places_of(ClassifyRequest(inputs=["http://a/"]))


async def test_a_server_fetches_nothing_by_default() -> None:
    """The error says which setting changes this."""
    request = EmbedRequest(inputs=["a", at("b")])
    with pytest.raises(InvalidField, match="--allow-media-urls") as caught:
        await MediaUrls(None, 0).fetched(request, places_of(request))
    assert (caught.value.field, caught.value.index) == ("inputs", 1)


async def test_an_error_has_the_place_of_the_url() -> None:
    """The first one of a URL that occurs several times."""
    embed = EmbedRequest(inputs=["a", at("b"), at("gone"), at("gone")])
    error = await refusal(embed)
    assert (error.field, error.index, error.part) == ("inputs", 2, None)
    error = await refusal(MultiRequest(requests=[EmbedRequest(inputs=["a"]), embed]))
    assert (error.field, error.index, error.part) == ("inputs", 2, 1)
    error = await refusal(RerankRequest(query=at("gone"), passages=["a"]))
    assert (error.field, error.index) == ("query", None)


async def test_a_url_is_fetched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And only some at a time."""
    monkeypatch.setattr(media_urls, "AT_ONCE", 3)
    fetcher = FakeFetcher()
    await fetched(EmbedRequest(inputs=[at(str(number % 10)) for number in range(1000)]), fetcher=fetcher)
    assert sorted(fetcher.fetched) == [str(number) for number in range(10)]
    assert fetcher.most == 3


async def test_the_limits_hold_for_the_whole_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of URLs, of bytes, and of seconds; the other fetches end with the first failure."""
    many = EmbedRequest(inputs=[at(str(number)) for number in range(65)])
    assert "at most 64 URLs; got 65" in (await refusal(many)).message
    assert "at most 5 bytes together" in (await refusal(EmbedRequest(inputs=[at("abc"), at("def")]), 5)).message
    monkeypatch.setattr(media_urls, "TIMEOUT_S", 0.05)
    fetcher = FakeFetcher()
    slow = await refusal(EmbedRequest(inputs=[at("a"), at("slow 1"), at("slow 2")]), fetcher=fetcher)
    assert "did not arrive within 0.05 s" in slow.message
    gone = await refusal(EmbedRequest(inputs=[at("slow"), at("gone")]), fetcher=fetcher)
    assert "gone" in gone.message
    assert not fetcher.running


async def test_slow_urls_of_one_client_leave_places_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each client has some places, which its own requests wait for; if all are taken, the server is busy."""
    monkeypatch.setattr(media_urls, "TIMEOUT_S", 2.0)
    monkeypatch.setattr(media_urls, "MAX_REQUESTS", 10)
    fetcher = FakeFetcher()
    made = MediaUrls(cast("Fetcher", fetcher), 1000)

    def fetch(url: str, client: str) -> asyncio.Future[Any]:
        request = EmbedRequest(inputs=[at(url)])
        return asyncio.ensure_future(made.fetched(request, places_of(request), client))

    slow = [fetch(f"slow {number}", "one") for number in range(20)]
    await asyncio.sleep(0)
    assert (await fetch("a", "two")).inputs == [Media(b"a")]
    assert fetcher.running == media_urls.AT_ONCE
    slow += [fetch(f"slow {number}", "two") for number in range(20, 22)]
    monkeypatch.setattr(media_urls, "TIMEOUT_S", 0.1)  # of the late one: a slow one must not leave it its place
    late = await asyncio.gather(fetch("b", "three"), *slow, return_exceptions=True)
    assert [type(error) for error in late[:2]] == [Overloaded, InvalidField]
    assert (fetcher.most, fetcher.running) == (10, 0)
