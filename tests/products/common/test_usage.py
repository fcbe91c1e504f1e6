"""Tokens as OpenAI's clients read them."""

from __future__ import annotations

import msgspec

from vectord.products.common.usage import TokenUsage, token_usage
from vectord.products.common.vectors import dump_json
from vectord.schema import TextLength, Usage


def usage(*lengths: tuple[int, int], characters_cut: int = 0, further_tokens: int = 0) -> Usage:
    """lengths: seen and kept of each text."""
    return Usage(
        lengths=[TextLength(seen, kept, characters_cut) for seen, kept in lengths],
        characters=9,
        further_tokens=further_tokens,
    )


def test_what_was_run_is_counted():
    """Kept and not seen; a query's own tokens and a second model's too. Nothing is generated: the total is the same."""
    assert token_usage(usage((3, 3), (9, 4), further_tokens=6)) | {"truncated_inputs": None} == {
        "prompt_tokens": 13,
        "total_tokens": 13,
        "truncated_inputs": None,
    }


def test_inputs_that_were_cut_are_named_by_their_places():
    """Also those of which characters were dropped before there were tokens; without any there is no such key."""
    assert token_usage(usage((3, 3), (9, 4), (5, 4)))["truncated_inputs"] == [1, 2]
    assert token_usage(usage((3, 3), characters_cut=7))["truncated_inputs"] == [0]
    assert "truncated_inputs" not in token_usage(usage((3, 3)))


def test_what_is_written_is_what_the_schema_shows():
    """Key for key, with and without what was cut."""
    names = {field.encode_name for field in msgspec.structs.fields(TokenUsage)}
    for one in (usage((3, 3)), usage((9, 4))):
        shown = token_usage(one)
        assert set(shown) <= names
        assert msgspec.to_builtins(msgspec.json.decode(dump_json(shown), type=TokenUsage)) == shown
