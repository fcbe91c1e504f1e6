"""Readers of shared inputs and options accept the products' forms, and name the field of any other."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vectord.errors import EmptyInput, InvalidField, TooManyCharacters, TooManyInputs
from vectord.products.common.dialect import Call, Incoming, Rendered, Routes
from vectord.products.common.inputs import (
    Switch,
    TextItem,
    agreed,
    check_characters,
    check_count,
    join_chunks,
    read_fingerprint,
    read_inputs,
    read_kind,
    read_side,
    read_switch,
)
from vectord.schema import ListModels, Span


class Switched(msgspec.Struct):
    flag: Annotated[Switch, msgspec.Meta(description="what it switches")] = None


# --- inputs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "inputs"),
    [
        pytest.param("", [""], id="empty text"),
        pytest.param(["a", "", "b"], ["a", "", "b"], id="texts"),
        pytest.param([1, 2], [[1, 2]], id="ids"),
        pytest.param([[1], [2, 3]], [[1], [2, 3]], id="id lists"),
        pytest.param([TextItem("a"), "b", [3]], ["a", "b", [3]], id="objects, texts and id lists"),
    ],
)
def test_inputs_are_read_in_order(value, inputs):
    """A string is one input, and so is a flat list of ids."""
    assert list(read_inputs(value)) == inputs


@pytest.mark.parametrize(
    ("value", "index"), [pytest.param([], None, id="no inputs"), pytest.param(["a", []], 1, id="no ids")]
)
def test_an_empty_list_is_rejected(value, index):
    """Clients treat a response without vectors as an error."""
    with pytest.raises(EmptyInput) as caught:
        read_inputs(value)
    error = caught.value.named({"inputs": "input"})
    assert (error.field_name, error.index, error.message) == ("input", index, "`input` cannot be empty")


@pytest.mark.parametrize(
    ("value", "index"),
    [
        pytest.param([1, "a"], 1, id="text among ids"),
        pytest.param([1, 2, [3]], 2, id="id list among ids"),
        pytest.param(["a", 1], 1, id="id among texts"),
        pytest.param([[1], 2], 1, id="id among id lists"),
        pytest.param([TextItem("a"), 2], 1, id="id among objects"),
    ],
)
def test_an_integer_among_other_items_is_rejected(value, index):
    """The error has the index of the first item that does not fit."""
    with pytest.raises(InvalidField, match=rf"^`ids\[{index}\]`") as caught:
        read_inputs(value, "ids")
    assert caught.value.index == index


def test_a_count_above_the_limit_is_rejected():
    """The error has the limit and the number, and mentions the unit."""
    with pytest.raises(TooManyInputs) as caught:
        check_count(9, 8, unit="chunk")
    assert (caught.value.limit, caught.value.given) == (8, 9)
    assert caught.value.message == "`inputs` may hold at most 8 chunks; got 9."
    check_count(8, 8)
    check_count(9, None)


def test_a_text_of_too_many_characters_is_rejected():
    """The error has the first such text. Characters are counted, not bytes, and token ids are not."""
    with pytest.raises(TooManyCharacters) as caught:
        check_characters(["ok", "x" * 20_001, "x" * 30_000], 20_000)
    error = caught.value
    assert error.message == "Input at index 1 exceeds max length 20000 chars"
    assert (error.index, error.limit, error.given) == (1, 20_000, 20_001)
    check_characters(["ü" * 5, [1] * 100], 5)
    check_characters(["x" * 100], None)


@given(st.lists(st.text(min_size=1), max_size=20))
def test_a_chunk_is_its_span_of_the_document(chunks):
    """Chunks are in order, with at most one space between two."""
    text, spans = join_chunks(chunks)
    assert [text[span.start : span.stop] for span in spans] == chunks
    assert {text[left.stop : right.start] for left, right in pairwise(spans)} <= {"", " "}


@pytest.mark.parametrize(
    ("chunks", "text"), [(["a", "b"], "a b"), (["a ", "b"], "a b"), (["a", "\nb"], "a\nb"), ([], "")], ids=str
)
def test_a_space_is_inserted_between_words(chunks, text):
    """It belongs to neither chunk."""
    assert join_chunks(chunks)[0] == text
    assert join_chunks(["ab", "c"])[1] == [Span(0, 2), Span(3, 4)]


# --- options --------------------------------------------------------------------------------------------------

KINDS = {
    "query": ["query", "retrieval.query", "search_query", "nl2code.query"],
    "document": ["document", "passage", "retrieval.passage", "search_document", "code2code.passage"],
    "classification": ["classification"],
    "clustering": ["clustering", "separation"],
    None: [None, ""],
}


@pytest.mark.parametrize(("kind", "words"), KINDS.items(), ids=str)
def test_a_task_selects_the_use_of_the_texts(kind, words):
    """Words of Jina, Cohere, Voyage and Weaviate."""
    assert {read_kind(word) for word in words} == {kind}


def test_fields_that_mean_the_same_may_not_differ():
    """null and an absent field differ from nothing. The error names both fields."""
    assert agreed(one=None, two=None) is None
    assert agreed(one=None, two=["a"], three=["a"]) == ["a"]
    assert agreed(one=False, two=None) is False
    with pytest.raises(InvalidField) as refused:
        agreed(one=None, two=True, three=False)
    assert (refused.value.field, refused.value.message) == (
        "three",
        "`three` contradicts `two`; leave one of them out.",
    )


@pytest.mark.parametrize(
    ("value", "switch"),
    [(True, True), (False, False), ("true", True), ("False", False), ("TRUE", True), (None, None)],
)
def test_a_switch_is_a_boolean_or_its_name(value, switch):
    """null is unset, which differs from false. Clients such as RAGFlow send the name."""
    routes, seen = Routes(), []

    @routes.post("/switch", answer=None, summary="", example=None)
    def parse(body: Switched, incoming: Incoming) -> Call:
        seen.append(body.flag)
        return Call(ListModels(), lambda result: Rendered(body=b""))

    (route,) = routes
    route.parse(Incoming(body=msgspec.json.encode({"flag": value})))
    assert seen == [switch]


@pytest.mark.parametrize(
    ("word", "side"), [(None, "right"), ("Right", "right"), ("right", "right"), ("Left", "left"), ("LEFT", "left")]
)
def test_a_side_is_read_in_any_case(word, side):
    """TEI writes them with a capital, and reads both."""
    assert read_side(word) == side


@pytest.mark.parametrize("value", [None, "0", "0123456789abcdef:256", "0123456789abcdef:256:raw", "f:raw"])
def test_a_fingerprint_is_returned_unchanged(value):
    """With or without a width, of normalized or raw vectors."""
    assert read_fingerprint(value) == value


INVALID: dict[str, tuple[Callable[..., object], list[Any], str]] = {
    "switch": (read_switch, ["", "yes", "1", " true", "none"], "`flag` must be true or false."),
    "kind": (read_kind, ["text-matching", "Query", "query ", "qeury"], "`flag` must be one of query, "),
    "fingerprint": (read_fingerprint, ["", "f" * 33, "f:12345678", "f:raw:8", "F", "a b", "a\n", "\u0660"], "`flag` "),
}


@pytest.mark.parametrize(("read", "values", "message"), INVALID.values(), ids=INVALID)
def test_other_values_are_rejected(read, values, message):
    """The error has the field, and not the value."""
    for value in values:
        with pytest.raises(InvalidField) as caught:
            read(value, "flag")
        assert caught.value.field == "flag"
        assert caught.value.message.startswith(message)


@pytest.mark.parametrize("word", ["", "middle", "right "])
def test_another_side_is_rejected(word):
    """In the field that TEI's servers have for it."""
    with pytest.raises(InvalidField, match=r"^`truncation_direction` must be 'Right' or 'Left'") as caught:
        read_side(word)
    assert caught.value.field == "truncation_direction"
