"""Served models by name, and their state."""

from __future__ import annotations

import pytest
from tests.engine.fakes import FakeBackend, source

from vectord.engine.registry import Registry
from vectord.errors import Unavailable


def test_two_models_cannot_share_a_name():
    """An alias counts as a name."""
    with pytest.raises(ValueError, match="two models"):
        Registry([source(FakeBackend(), "a", "b"), source(FakeBackend(), "b")])


def test_an_alias_may_repeat_the_models_own_name():
    """A served name that is also the model's id is no conflict."""
    registry = Registry([source(FakeBackend(), "a", "a", "b")])
    assert registry.resolve("b") is registry.resolve("a") is registry.resolve(None)


def test_before_loading_the_facts_are_known_and_nothing_is_served():
    """`/info` answers while the model loads; a request is told to come back."""
    (served,) = Registry([source(FakeBackend(), "a")]).models
    info = served.info()
    assert (info.state, info.dimensions, info.device) == ("loading", 8, "unknown")
    with pytest.raises(Unavailable, match="loading"):
        served.ready_runner()
