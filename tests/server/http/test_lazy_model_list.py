"""The served models, for parsers."""

from __future__ import annotations

from tests.products.results import model_list
from tests.server.fakes import FakeEngine

from vectord.schema import ANYONE, Caller, ModelList
from vectord.server.http.handler import LazyModelList


class AskedEngine(FakeEngine):
    """Counts its calls, and serves one more model after each."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def models(self, caller: Caller = ANYONE) -> ModelList:
        self.asked += 1
        return model_list(*(f"model-{number}" for number in range(self.asked)))


def test_the_engine_is_called_at_first_use() -> None:
    """Most parsers do not need the models."""
    engine = AskedEngine()
    LazyModelList(engine)
    assert engine.asked == 0


def test_the_engine_is_called_once() -> None:
    """All reads return the first list."""
    engine = AskedEngine()
    served = LazyModelList(engine)
    assert len(served) == 1
    assert [info.name for info in served] == ["model-0"]
    assert served[0] == served[:1][0]
    assert engine.asked == 1
