"""The models that a dialect may look at."""

from __future__ import annotations

from tests.products.results import model_list
from tests.server.fakes import FakeEngine

from vectord.schema import ANYONE, Caller, ModelList
from vectord.server.http.handler import LazyModelList


class AskedEngine(FakeEngine):
    """Counts how often it is asked what it serves, and serves one model more each time."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def models(self, caller: Caller = ANYONE) -> ModelList:
        self.asked += 1
        return model_list(*(f"model-{number}" for number in range(self.asked)))


def test_an_engine_is_not_asked_before_someone_looks() -> None:
    """Most bodies mean the same whatever is served, and a description of every model is not free."""
    engine = AskedEngine()
    LazyModelList(engine)
    assert engine.asked == 0


def test_an_engine_is_asked_once() -> None:
    """However often and in whatever way they are looked at, the models are those of the first look."""
    engine = AskedEngine()
    served = LazyModelList(engine)
    assert len(served) == 1
    assert [info.name for info in served] == ["model-0"]
    assert served[0] == served[:1][0]
    assert engine.asked == 1
