"""Served models by name, and their state."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from tests.engine.fakes import M3, FakeBackend, source, spec

from vectord.checkpoints.spec import Adapter
from vectord.engine.models.registry import CompositeSource, ModelSource, Registry
from vectord.errors import ModelCannot, ModelNotFound, Unavailable

DENSE = spec(("dense",), fingerprint="d" * 16)
SPARSE = spec(("splade",), fingerprint="5" * 16)


def served(name: str, *aliases: str, model=DENSE) -> ModelSource:
    return source(FakeBackend(), name, *aliases, model=model)


def test_two_models_cannot_share_a_name():
    """Aliases and names of composites count."""
    with pytest.raises(ValueError, match="two models"):
        Registry([served("a", "b"), served("b")])
    with pytest.raises(ValueError, match="two models"):
        Registry([served("a")], [CompositeSource("a", {"dense": "a"})])


def test_an_alias_may_repeat_the_models_own_name():
    """A served name that is also the model's id is no conflict."""
    registry = Registry([served("a", "a", "b")])
    assert registry.named("b") is registry.named("a") is registry.models[0]


def test_a_name_with_an_adapter_is_split_at_the_model():
    """Under every name of the model; if two models fit, the shorter name counts."""
    adapted = replace(DENSE, adapters=tuple(Adapter(name=name, scale=1.0, rank=4) for name in ("t", "b:t")))
    registry = Registry([served("a", "alias", model=adapted), served("a:b", model=adapted), served("plain")])
    names = ("a:t", "alias:t", "a:b:t", "a:b:b:t", "a", "a:b", "a:other", "plain:t", "t", None)
    found = [registry.adapter_in(name) for name in names]
    assert found[:4] == [("a", "t"), ("alias", "t"), ("a", "b:t"), ("a:b", "b:t")]
    assert found[4:] == [None] * 6


def test_a_name_of_colons_is_looked_up_once():
    """A client's name may fill a body; cutting it at every colon would take minutes."""
    adapted = replace(DENSE, adapters=(Adapter(name="t", scale=1.0, rank=4),))
    assert Registry([served("a", model=adapted)]).adapter_in("a:" * 10**6) is None


def test_without_a_name_the_first_that_can_answers():
    """Models before composites, in order."""
    registry = Registry([served("a", model=SPARSE), served("b")], [CompositeSource("c", {"dense": "b", "sparse": "a"})])
    chosen = [
        registry.resolve("do it", [lambda target, kinds, needed=needed: needed <= kinds]).name
        for needed in ({"dense"}, {"sparse"}, {"dense", "sparse"})
    ]
    assert chosen == ["b", "a", "c"]
    with pytest.raises(ModelCannot, match="do it"):
        registry.resolve("do it", [lambda target, kinds: False])


def test_an_unknown_name_raises_an_error_with_the_served_names():
    """Names of composites included."""
    registry = Registry([served("a")], [CompositeSource("c", {"dense": "a"})])
    with pytest.raises(ModelNotFound, match="a, c"):
        registry.named("?")


@pytest.mark.parametrize(
    ("name", "hint"),
    [("bge-n3", " Did you mean bge-m3? "), ("BGE-M3", " Did you mean bge-m3? "), ("secrets", ""), ("b", "")],
)
def test_a_name_that_is_almost_served_is_named_in_the_error(name: str, hint: str) -> None:
    """In any case of its letters; of the models that the caller may see."""
    registry = Registry([served("a", "bge-m3"), served("secret")], [])
    with pytest.raises(ModelNotFound) as refused:
        registry.named(name, frozenset({"a"}))
    assert refused.value.message.startswith(f"No such model is served here.{hint or ' '}Served: a. ")


def test_a_stalled_model_is_reported_as_stalled():
    """In its info, in the states, and in composites with it."""
    registry = Registry([served("a"), served("b")], [CompositeSource("c", {"dense": "a"})])
    stalled, other = registry.models
    facts = SimpleNamespace(dtype="float32", device="cpu", name="fake", gpu=None)
    for model, stalls in ((stalled, True), (other, False)):
        model.state = "ready"
        worker = SimpleNamespace(stalled=stalls, states={"cpu": "hung" if stalls else "ready"})
        model.runner = SimpleNamespace(worker=worker, facts=facts)
    assert registry.readiness() == {"a": "stalled", "b": "ready"}
    assert [target.info().state for target in registry.targets] == ["stalled", "ready", "stalled"]
    assert [target.info().devices["cpu"] for target in registry.targets] == ["hung", "ready", "hung"]


def test_before_loading_the_info_is_complete_and_requests_are_refused():
    """`/info` answers while the model loads; other requests may retry later."""
    (model,) = Registry([served("a")]).models
    info = model.info()
    assert (info.state, info.dimensions, info.device) == ("unloaded", 8, "unknown")
    with pytest.raises(Unavailable, match="loading"):
        model.ready_runner()


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_a_composite_shows_all_its_vectors_and_the_facts_of_its_dense_model(order):
    """Under its own name and fingerprint. Ready when all members are."""
    members = {"sparse": "a", "dense": "b"}
    registry = Registry([served("a", model=SPARSE), served("b")], [CompositeSource("c", members)])
    composite = registry.named("c")
    info = composite.info()
    assert (info.name, info.dimensions, info.outputs) == ("c", 8, {"dense", "sparse"})
    assert info.sources == {"sparse": "a", "dense": "b"}
    assert not registry.named("a").info().sources
    assert info.fingerprint == composite.fingerprint not in {"d" * 16, "5" * 16}
    states = []
    for name in order:
        registry.named(name).state = "ready"
        states.append(composite.info().state)
    assert states == ["unloaded", "ready"]


def test_a_composites_fingerprint_depends_on_its_members():
    """Not on its name or the order of its members."""
    sources = [served("a", model=SPARSE), served("b"), served("m3", model=M3)]
    composites = [
        CompositeSource("c", {"sparse": "a", "dense": "b"}),
        CompositeSource("d", {"dense": "b", "sparse": "a"}),
        CompositeSource("e", {"dense": "b", "sparse": "m3"}),
    ]
    registry = Registry(sources, composites)
    first, second, third = (registry.named(name).fingerprint for name in "cde")
    assert first == second != third


def test_a_caller_sees_only_the_models_it_may_use():
    """By any of their names. Permission for a composite does not include its members."""
    registry = Registry([served("a"), served("b", "b2"), served("c")], [CompositeSource("d", {"dense": "a"})])
    allowed = frozenset({"d", "b2", "unknown"})
    assert [target.name for target in registry.seen_by(allowed)] == ["b", "d"]
    assert registry.named("b", allowed).name == registry.named("b2", allowed).name == "b"
    assert registry.named("d", allowed).name == "d"
    for name in ("a", "c", "unknown"):
        with pytest.raises(ModelNotFound) as refused:
            registry.named(name, allowed)
        assert "Served: b, d. " in refused.value.message
        assert "--model-aliases" in refused.value.message
    assert registry.resolve("do it", [lambda target, kinds: True], allowed).name == "b"
    with pytest.raises(ModelCannot):
        registry.resolve("do it", [lambda target, kinds: True], frozenset())
    assert registry.seen_by(None) == registry.targets
