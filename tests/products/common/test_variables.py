"""How the values of products' variables are read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vectord.products.common import variables

READ: dict[str, tuple[Callable[[str], str | None], str, str | None]] = {
    "an address": (variables.address_only, "0.0.0.0", "0.0.0.0"),
    "an IPv6 address": (variables.address_only, "::1", "::1"),
    "localhost": (variables.address_only, "localhost", "localhost"),
    "a machine's name": (variables.address_only, "laptop", None),
    "a container's name": (variables.address_only, "4f2a9c1e77b0", None),
    "a pod's name": (variables.address_only, "vectord-7d9f-x2x", None),
    "a domain": (variables.address_only, "localhost.localdomain", None),
    "a level before a target": (variables.first_bare_level, "info,tower=debug", "info"),
    "a level after a target": (variables.first_bare_level, "tower=debug, warn", "warn"),
    "a level": (variables.first_bare_level, "debug", "debug"),
    "no bare level": (variables.first_bare_level, "a=info", None),
    "an empty level": (variables.first_bare_level, "", None),
    "JSON": (variables.json_lines, "true", "json"),
    "JSON as a number": (variables.json_lines, "1", "json"),
    "no JSON": (variables.json_lines, "False", "text"),
    "no JSON as a number": (variables.json_lines, "0", "text"),
    "any model": (variables.named_models, "*", None),
    "two models": (variables.named_models, "a,b", "a,b"),
    "one value": (variables.same_for_all, "cuda", "cuda"),
    "one value twice": (variables.same_for_all, "cuda; cuda;", "cuda"),
    "two values": (variables.same_for_all, "cuda;cpu", "cuda;cpu"),
    "two numbers": (variables.largest, "32;64;", "64"),
    "numbers by value": (variables.largest, "9;10", "10"),
    "no numbers": (variables.largest, "32;x", "32;x"),
    "a provider": (variables.cuda_if_there, "CUDA", "cuda-or-cpu"),
    "another provider": (variables.cuda_if_there, "cpu", "cpu"),
    "batching off": (variables.never_if_off, "0", "never"),
    "batching on": (variables.never_if_off, "1", None),
    "warm-up off": (variables.none_if_off, "0", "0"),
    "warm-up on": (variables.none_if_off, "1", None),
    "milliseconds": (variables.milliseconds, "1500", "1.5"),
    "a host that is no address": (variables.host_of, "http://[::1", "http://[::1"),
    "a port that is no address": (variables.port_of, "http://[::1", "http://[::1"),
    "no duration": (variables.idle_seconds, "1.2.3", "1.2.3"),
    "no duration with a unit": (variables.idle_seconds, "..s", "..s"),
    "a fraction of an hour": (variables.idle_seconds, ".5h1.m", "1860"),
    "no milliseconds": (variables.milliseconds, "1.5", "1.5"),
}


@pytest.mark.parametrize("case", READ)
def test_a_value_is_translated_or_passed_on(case: str) -> None:
    """The setting refuses a value that a reader passes on. None is ignored."""
    reader, text, read = READ[case]
    assert reader(text) == read


@given(st.text("[]:/@%0123456789\u00b2\u0663\u2100.-+,;='\" msht", max_size=12) | st.text(max_size=12))
def test_no_text_makes_a_reader_fail(text: str) -> None:
    """Every server reads the variables of all products."""
    for reader in {reader for reader, _, _ in READ.values()}:
        reader(text)
