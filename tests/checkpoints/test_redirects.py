"""A hub's redirects do not lead into the private network (SSRF), unless the operator named a hub there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from huggingface_hub import constants
from tests.checkpoints.folders import write_sentence_model
from tests.checkpoints.small_hub import MODEL, Hub, small_hub

from vectord.checkpoints import pulling, redirects
from vectord.checkpoints.pulling import pull
from vectord.checkpoints.redirects import RefusedRedirect, refusing_redirects
from vectord.errors import ModelUnavailable

PUBLIC = {"hub.example": "93.184.216.34", "cdn.example": "2606:4700::1111", "inside.example": "10.0.0.7"}


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that resolve without a network; addresses resolve to themselves."""

    def resolve(host: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        return [(0, 0, 0, "", (PUBLIC.get(host, host), 0))]

    monkeypatch.setattr(redirects, "getaddrinfo", resolve)


def follow(endpoint: str, *places: str) -> int:
    """The number of requests of a download that is redirected to these places, one after the other."""
    urls = iter((*places, None))
    n_requests = 0

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal n_requests
        n_requests += 1
        place = next(urls)
        return httpx.Response(200) if place is None else httpx.Response(302, headers={"location": place})

    with httpx.Client(transport=httpx.MockTransport(answer), follow_redirects=True) as session:
        with refusing_redirects(session, endpoint):
            session.get(f"{endpoint}/file")
        assert session.event_hooks["request"] == []
    return n_requests


@pytest.mark.parametrize(
    "place",
    [
        "http://127.0.0.1:6379/",
        "http://0.0.0.0/",
        "http://[::1]/",
        "http://[::ffff:10.0.0.1]/",
        "http://169.254.169.254/latest/meta-data/",
        "http://[fe80::1]/",
        "http://192.168.0.1/",
        "http://[fd00::1]/",
        "http://100.64.0.1/",
        "https://inside.example/",
    ],
)
def test_a_public_hub_cannot_reach_the_private_network(place: str) -> None:
    """Directly, after a redirect to a public host, and by a name."""
    with pytest.raises(RefusedRedirect, match=r"redirects to .*, a (private|link-local|loopback) address"):
        follow("https://hub.example", place)
    with pytest.raises(RefusedRedirect):
        follow("https://hub.example", "https://cdn.example/", place)


def test_a_hub_of_the_private_network_redirects_within_it() -> None:
    """A mirror with its own storage; but not to the server's machine, or to the metadata of a cloud."""
    assert follow("http://inside.example", "http://10.0.0.9/", "https://cdn.example/") == 3
    for place in ("http://127.0.0.1/", "http://169.254.169.254/"):
        with pytest.raises(RefusedRedirect):
            follow("http://inside.example", place)


def test_a_hub_of_this_machine_redirects_to_other_ports_of_it() -> None:
    """A local mirror with its own storage, which the operator chose; but not into the network around it."""
    assert follow("http://127.0.0.1:8080", "http://127.0.0.1:9000/", "https://cdn.example/") == 3
    for place in ("http://10.0.0.9/", "http://169.254.169.254/"):
        with pytest.raises(RefusedRedirect):
            follow("http://127.0.0.1:8080", place)


def test_public_redirects_are_followed() -> None:
    assert follow("https://hub.example", "https://cdn.example/", "https://hub.example/again") == 3


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with small_hub(write_sentence_model(tmp_path / "repository")) as hub:
        yield hub


def test_a_pull_that_is_redirected_inside_ends_in_one_line(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first attempt, without a request to the address. The hub is a public host here."""
    monkeypatch.setattr(pulling, "PAUSE_S", 0.0)
    monkeypatch.setitem(PUBLIC, "localhost", PUBLIC["hub.example"])
    url = hub.url.replace("127.0.0.1", "localhost")
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
    hub.redirects["config.json"] = f"{hub.url}/{MODEL}/elsewhere"
    with pytest.raises(ModelUnavailable, match=r"the hub redirects to 127\.0\.0\.1, a loopback address$"):
        pull(MODEL, revision=None, cache=tmp_path / "cache", token=None)
    assert hub.asked.count(("config.json", None)) == 1
