"""The shared grammar of `input`: which JSON is one input, which is several, which is none."""

from __future__ import annotations

import pytest

from vectord.errors import EmptyInput, InvalidField
from vectord.products.common.inputs import TextItem, read_inputs


@pytest.mark.parametrize(
    ("value", "inputs"),
    [
        pytest.param("a", ["a"], id="text"),
        pytest.param("", [""], id="empty text"),
        pytest.param(["a"], ["a"], id="list of one text"),
        pytest.param(["a", "", "b"], ["a", "", "b"], id="texts"),
        pytest.param([1, 2], [[1, 2]], id="ids are one input"),
        pytest.param([[1, 2]], [[1, 2]], id="list of one id list"),
        pytest.param([[1], [2, 3]], [[1], [2, 3]], id="id lists"),
        pytest.param(["a", [1, 2]], ["a", [1, 2]], id="texts and id lists"),
        pytest.param([TextItem("a"), "b", [3]], ["a", "b", [3]], id="objects, texts and id lists"),
    ],
)
def test_the_shapes_of_input(value, inputs):
    """Each shape gives its inputs in order."""
    assert list(read_inputs(value, "input")) == inputs


@pytest.mark.parametrize(
    ("value", "index"),
    [pytest.param([], None, id="empty list"), pytest.param(["a", []], 1, id="empty id list among texts")],
)
def test_an_empty_list_is_refused(value, index):
    """An answer without vectors is an error to every client, so nothing in gives nothing out."""
    with pytest.raises(EmptyInput) as caught:
        read_inputs(value, "input")
    assert (caught.value.field, caught.value.index) == ("input", index)


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
def test_integers_beside_other_items_are_refused(value, index):
    """A flat list of integers is one input, so its neighbours have no meaning; the first misfit is named."""
    with pytest.raises(InvalidField) as caught:
        read_inputs(value, "input")
    assert caught.value.index == index
    assert f"`input[{index}]`" in caught.value.message
