"""How values of other programs' variables are read."""

from __future__ import annotations

import pytest

from vectord.config import other_servers as readers
from vectord.config.other_servers import Reader


@pytest.mark.parametrize(("text", "read"), [("0.0.0.0", "0.0.0.0"), ("::1", "::1"), ("localhost", "localhost")])
def test_an_address_in_hostname_counts(text: str, read: str) -> None:
    """HOSTNAME counts if the server can listen on it."""
    assert readers.address_only(text) == read


@pytest.mark.parametrize("text", ["laptop", "4f2a9c1e77b0", "vectord-7d9f-x2x", "localhost.localdomain"])
def test_a_machine_name_in_hostname_is_ignored(text: str) -> None:
    """Shells and containers set it."""
    assert readers.address_only(text) is None


def test_a_service_link_of_kubernetes_is_not_a_port() -> None:
    """A service called vectord, or api, puts a URL into VECTORD_PORT or API_PORT of every pod."""
    assert readers.no_service_link("tcp://10.0.0.7:8000") is None
    assert readers.no_service_link("8000") == "8000"


@pytest.mark.parametrize(
    ("text", "level"),
    [("info,tower=debug", "info"), ("tower=debug, warn", "warn"), ("debug", "debug"), ("a=info", None), ("", None)],
)
def test_rust_log_gives_its_first_bare_level(text: str, level: str | None) -> None:
    """Levels of single targets are ignored."""
    assert readers.first_bare_level(text) == level


@pytest.mark.parametrize(("text", "format_"), [("true", "json"), ("1", "json"), ("False", "text"), ("0", "text")])
def test_json_output_is_a_log_format(text: str, format_: str) -> None:
    """TEI's variable is a switch."""
    assert readers.json_lines(text) == format_


@pytest.mark.parametrize(
    ("reader", "text", "read"),
    {
        "any model": (readers.named_models, "*", None),
        "two models": (readers.named_models, "a,b", "a,b"),
        "one value": (readers.same_for_all, "cuda", "cuda"),
        "one value twice": (readers.same_for_all, "cuda; cuda;", "cuda"),
        "two values": (readers.same_for_all, "cuda;cpu", "cuda;cpu"),
        "two numbers": (readers.largest, "32;64;", "64"),
        "numbers by value": (readers.largest, "9;10", "10"),
        "no numbers": (readers.largest, "32;x", "32;x"),
        "no GPU": (readers.cpu_if_none_visible, "-1", "cpu"),
        "one GPU": (readers.cpu_if_none_visible, "0", None),
        "a provider": (readers.cuda_if_there, "CUDA", "cuda-or-cpu"),
        "another provider": (readers.cuda_if_there, "cpu", "cpu"),
        "batching off": (readers.one_text_if_off, "0", "1"),
        "batching on": (readers.one_text_if_off, "1", None),
        "batching perhaps": (readers.one_text_if_off, "perhaps", "perhaps"),
        "texts": (readers.texts_as_bytes, "256", str(256 * 8192)),
        "no texts": (readers.texts_as_bytes, "0", "0"),
        "fewer texts": (readers.texts_as_bytes, "-1", "-1"),
        "milliseconds": (readers.milliseconds, "1500", "1.5"),
        "no milliseconds": (readers.milliseconds, "1.5", "1.5"),
    }.values(),
    ids=lambda value: None if callable(value) else str(value),
)
def test_a_value_is_translated_or_passed_on(reader: Reader, text: str, read: str | None) -> None:
    """The setting refuses a value that a reader passes on. None is ignored."""
    assert reader(text) == read
