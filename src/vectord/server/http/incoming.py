"""What products read of a server besides a request: its limits and the served models. For handler.py and batches/."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from vectord.config import ServerConfig
from vectord.engine.client import EngineClient
from vectord.products.common.dialect import Guards
from vectord.products.common.models import failed_last
from vectord.schema import ANYONE, Caller, ModelInfo


def guards_of(engine: EngineClient, config: ServerConfig) -> Guards:
    return Guards(
        max_inputs=engine.models().limits.max_inputs_per_request,
        alone=config.imitates or (config.dialects[0] if len(config.dialects) == 1 else None),
        own_ids=config.own_token_ids,
        product=config.product,
    )


@dataclass(eq=False)
class LazyModelList(Sequence[ModelInfo]):
    """The models that the caller may use, the default first and failed ones last. Asks the engine at first use. For one
    request."""

    engine: EngineClient
    caller: Caller = ANYONE

    @cached_property
    def _models(self) -> Sequence[ModelInfo]:
        return failed_last(self.engine.models(self.caller).models)

    def load(self) -> None:
        """Ask now, on the event loop, before a thread reads the list."""
        len(self)

    def __len__(self) -> int:
        return len(self._models)

    def __getitem__(self, index: Any) -> Any:
        return self._models[index]
