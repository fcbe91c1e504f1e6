"""A list is split into requests that together are the list."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vectord.client.errors import BadRequest
from vectord.client.requests import Part, PartLimits, Template, ids_size, pair_size, split, text_size

TEMPLATE = Template(path="/vectord/embed", key="inputs", body={"model": "m"})
TEXTS = st.lists(st.text(max_size=20), max_size=30)
LIMITS = st.builds(PartLimits, texts=st.integers(1, 8), characters=st.integers(1, 40))


@given(TEXTS, LIMITS)
@settings(deadline=None)
def test_the_parts_are_the_list_in_order(texts, limits):
    """Nothing is lost, doubled or moved, and each part knows where it begins."""
    parts = list(split(TEMPLATE, texts, text_size, limits))
    assert list(itertools.chain.from_iterable(part.items for part in parts)) == texts
    assert [part.start for part in parts] == list(itertools.accumulate((len(part.items) for part in parts), initial=0))[
        : len(parts)
    ]


@given(TEXTS, LIMITS)
@settings(deadline=None)
def test_no_part_is_empty_or_over_its_limits(texts, limits):
    """Only a text that is over the limit by itself exceeds it, and it goes alone."""
    for part in split(TEMPLATE, texts, text_size, limits):
        assert 1 <= len(part.items) <= limits.texts
        assert sum(map(len, part.items)) <= limits.characters or len(part.items) == 1


@given(TEXTS, LIMITS)
@settings(deadline=None)
def test_a_part_ends_only_where_the_next_text_does_not_fit(texts, limits):
    """So that there are no more requests than needed in this order."""
    for one, other in itertools.pairwise(split(TEMPLATE, texts, text_size, limits)):
        fits = sum(map(len, one.items)) + len(other.items[0]) <= limits.characters
        assert len(one.items) == limits.texts or not fits


def test_an_iterator_is_read_no_further_than_the_part_in_hand():
    """One text more shows that the part is full."""
    read = []
    texts = (read.append(text) or text for text in itertools.repeat("a"))
    next(split(TEMPLATE, texts, text_size, PartLimits(texts=3, characters=100)))
    assert len(read) == 4


@pytest.mark.parametrize(
    ("item", "size", "expected"),
    [("abc", text_size, 3), ("abc", pair_size, 3), (("ab", "c"), pair_size, 3), ([1, 2], ids_size, 2)],
    ids=["text", "one of pairs", "pair", "ids"],
)
def test_the_size_of_an_item_is_its_characters(item, size, expected):
    """Of ids, how many there are."""
    assert size(item, 0) == expected


@pytest.mark.parametrize(
    ("item", "size"),
    [(None, text_size), (float("nan"), text_size), (3, pair_size), (("a",), pair_size), (("a", None), pair_size)],
    ids=["none", "nan of a table", "number", "half a pair", "pair with none"],
)
def test_what_is_no_text_is_named_by_its_place(item, size):
    """Before anything is sent, and without showing it."""
    with pytest.raises(TypeError, match="item 7 must be a string"):
        size(item, 7)


def test_the_body_is_what_was_said_and_the_items():
    """JSON, with numpy's strings and numbers as plain ones."""
    template = Template(path="/", key="inputs", body={"dimensions": np.int64(3)})
    body = Part(template, 0, [np.str_("a"), "ü"]).body()
    assert json.loads(body) == {"dimensions": 3, "inputs": ["a", "ü"]}


def test_what_json_has_no_form_for_is_a_type_error():
    """An option of a class of the caller's own."""
    with pytest.raises(TypeError, match="cannot be sent: object"):
        Part(Template(path="/", key="inputs", body={"model": object()}), 0, ["a"]).body()


def test_half_a_surrogate_pair_is_refused_by_its_place_in_the_whole_list():
    """UTF-8 has no bytes for it. The message does not show the text."""
    with pytest.raises(BadRequest, match=r"^`inputs\[41\]`: half") as refused:
        Part(TEMPLATE, 40, ["fine", "secret \ud800"]).body()
    assert (refused.value.field, refused.value.index) == ("inputs", 41)
    assert "secret" not in str(refused.value)


def test_half_a_surrogate_pair_outside_the_list_is_refused_too():
    """As in a query."""
    with pytest.raises(BadRequest, match=r"^half of a surrogate"):
        Part(Template(path="/", key="passages", body={"query": "\ud800"}), 0, ["a"]).body()


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("`inputs[2]` must have at most 5 tokens; got 9", "`inputs[66]` must have at most 5 tokens; got 9"),
        ("`inputs[2][1]` must be a string", "`inputs[66][1]` must be a string"),
        ("`inputs` must have at most 5 tokens; got 9", "`inputs[66]` must have at most 5 tokens; got 9"),
    ],
    ids=["item", "within an item", "the only item of its request"],
)
def test_an_error_speaks_of_the_whole_list(message, shown):
    """The server knows the place in its request alone."""
    error = BadRequest(message)
    error.field, error.index = "inputs", 2
    Part(TEMPLATE, 64, ["a"] * 3).place(error)
    assert (str(error), error.index) == (shown, 66)


@pytest.mark.parametrize(("field", "index"), [("query", 0), ("inputs", None), (None, None)], ids=str)
def test_an_error_about_something_else_is_left_as_it_is(field, index):
    """A query's index is not one of the list."""
    error = BadRequest("`query` is too long")
    error.field, error.index = field, index
    Part(TEMPLATE, 64, ["a"]).place(error)
    assert (str(error), error.index) == ("`query` is too long", index)
