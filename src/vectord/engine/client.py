"""What the server may call of the engine. Implemented by the engine in this process and by cluster.remote."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from vectord.errors import Overloaded
from vectord.schema import ANYONE, Caller, ModelList, Request, Result


class EngineClient(Protocol):
    """Answers canonical requests on the event loop that started it."""

    async def answer(self, request: Request, caller: Caller) -> Result:
        """The result of `request`, in the order of its inputs. Cancelling the task removes its texts from the queue.

        Raises a VectordError. Every number of a result is finite, and a result covers every input unless the request
        allows partial ones.
        """
        ...

    async def check_busy(self, kinds: Sequence[Request], caller: Caller) -> None:
        """Raises Overloaded if every request of these types by this caller would be refused now; counts the refusal.

        kinds: any requests of these types; their texts do not matter. Does not wait for the engine's load to change.
        """
        ...

    def busy_error(self, kinds: Sequence[Request], caller: Caller) -> Overloaded | None:
        """The error of `check_busy`; None if there is none, or if only another process knows it."""
        ...

    def readiness(self) -> dict[str, str]:
        """Served name -> "unloaded" | "loading" | "ready" | "failed" | "stalled".

        The server is ready when every value is "ready" or "unloaded": such a model loads on its next use.
        """
        ...

    def models(self, caller: Caller = ANYONE) -> ModelList:
        """The same as `answer(ListModels())`, without waiting."""
        ...

    async def drain(self) -> None:
        """Refuse new requests; return when every accepted one has been answered."""
        ...
