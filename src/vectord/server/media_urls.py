"""URLs in requests in place of images: fetched before the engine has the request, or refused.

pipeline.py asks for the places of URLs in every parsed request, and calls `fetched` if there are any.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from weakref import WeakValueDictionary

from msgspec.structs import replace

from vectord.errors import InvalidField, Overloaded, TooManyInputs, VectordError
from vectord.schema import EmbedRequest, Media, MultiRequest, RerankRequest, media_of

if TYPE_CHECKING:
    from vectord.server.fetching import Fetcher

R = TypeVar("R")
# Of a URL: the field and the index of its input, and which request of a MultiRequest.
Place: TypeAlias = tuple[str, int | None, int | None]

MAX_URLS = 64  # of a request, each once
TIMEOUT_S = 10.0  # of a request, for all its URLs
AT_ONCE = 8  # URLs of a request, and requests of a client: slow hosts of one client leave places to others
MAX_REQUESTS = 64  # that fetch at once


def places_of(request: object) -> list[tuple[str, Place]]:
    """Every URL in a request, with its place."""
    return [*_urls(request)]


def _urls(request: object, part: int | None = None) -> Iterator[tuple[str, Place]]:
    fields: dict[str, Sequence[Any]] = {}
    if isinstance(request, MultiRequest):
        for index, one in enumerate(request.requests):
            yield from _urls(one, index)
    elif isinstance(request, EmbedRequest):
        fields = {"inputs": request.inputs, "conversations": [one.media for one in request.conversations]}
    elif isinstance(request, RerankRequest):
        fields = {"query": [request.query], "passages": request.passages}
    for field, items in fields.items():
        for index, item in enumerate(items):
            for media in media_of(item):
                if media.url:
                    yield media.url, (field, None if field == "query" else index, part)


class MediaUrls:
    """One per process."""

    def __init__(self, fetcher: Fetcher | None, limit_bytes: int) -> None:
        """fetcher: None refuses all URLs. limit_bytes: of the files of a request together."""
        self._fetcher = fetcher
        self._limit_bytes = limit_bytes
        self._requests = asyncio.Semaphore(MAX_REQUESTS)
        self._clients: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def fetched(self, request: R, places: Sequence[tuple[str, Place]], client: str = "") -> R:
        """The request with the files of its URLs. client: the caller's name or address.

        Raises InvalidField and TooManyInputs, and Overloaded without a place in time.
        """
        found = dict(reversed(places))  # the first place of each
        if self._fetcher is None:
            template = (
                "{field} has a URL, and this server fetches none; send the image as a data URI with base64, or start "
                "the server with --allow-media-urls."
            )
            raise _placed(InvalidField(template), places[0][1])
        if len(found) > MAX_URLS:
            template = "{field}: a request may have at most {limit} URLs; got {given}."
            raise _placed(TooManyInputs(template, limit=MAX_URLS, given=len(found)), places[0][1])
        turns, has_begun = self._clients.setdefault(client, asyncio.Semaphore(AT_ONCE)), False
        try:
            async with asyncio.timeout(TIMEOUT_S), turns, self._requests:
                has_begun = True
                files = await self._fetch_all(self._fetcher, found)
        except TimeoutError:
            if not has_begun:
                template = "Other requests fetched URLs for {limit} s, and this one had no place."
                raise Overloaded(template, limit=TIMEOUT_S, retry_after_s=TIMEOUT_S) from None
            template = "{field} has a URL whose file did not arrive within {limit} s."
            raise _placed(InvalidField(template, limit=TIMEOUT_S), places[0][1]) from None
        filled: R = _filled(request, files)
        return filled

    async def _fetch_all(self, fetcher: Fetcher, found: Mapping[str, Place]) -> Mapping[str, bytes]:
        left = self._limit_bytes
        turns = asyncio.Semaphore(AT_ONCE)

        def take(n_bytes: int) -> None:
            nonlocal left
            left -= n_bytes
            if left < 0:
                template = "{field}: the files of URLs may have at most {limit} bytes together."
                raise InvalidField(template, limit=self._limit_bytes)

        async def fetch(url: str, place: Place) -> bytes:
            async with turns:
                try:
                    return await fetcher.fetch(url, take)
                except InvalidField as error:
                    raise _placed(error, place) from error.__cause__

        tasks = [asyncio.ensure_future(fetch(url, place)) for url, place in found.items()]
        try:
            return dict(zip(found, await asyncio.gather(*tasks), strict=True))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


def _placed(error: VectordError, place: Place) -> VectordError:
    field, index, part = place
    return error.at(field=field, index=index, part=part)


def _filled(request: Any, files: Mapping[str, bytes]) -> Any:
    """A request, or a part of one, with the files in place of their URLs."""
    match request:
        case Media():
            return replace(request, data=files[request.url], url="") if request.url else request
        case MultiRequest():
            return replace(request, requests=[_filled(one, files) for one in request.requests])
        case EmbedRequest():
            conversations = [replace(one, media=_filled(one.media, files)) for one in request.conversations]
            return replace(request, inputs=_filled(request.inputs, files), conversations=conversations)
        case RerankRequest():
            return replace(request, query=_filled(request.query, files), passages=_filled(request.passages, files))
        case list() | tuple():
            return [_filled(one, files) for one in request]
    return request
