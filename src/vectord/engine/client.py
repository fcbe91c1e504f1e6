"""What the server sees of the engine. The engine in this process is one; a remote one would be another."""

from __future__ import annotations

from typing import Protocol

from vectord.schema import ANYONE, Caller, ModelList, Request, Result


class EngineClient(Protocol):
    """Answers canonical requests on the event loop it was started on."""

    async def answer(self, request: Request, caller: Caller) -> Result:
        """The result of `request`, inputs in order. Cancelling the task takes its work out of the queue.

        Raises the VectordError that says what is wrong; never returns a number that is not finite, nor, unless asked
        to, an answer to some of the inputs only.
        """
        ...

    def readiness(self) -> dict[str, str]:
        """Served name -> "unloaded" | "loading" | "ready" | "failed" | "stalled".

        Requests are answered when every value is "ready", or "unloaded": such a model loads on its next use.
        """
        ...

    def models(self, caller: Caller = ANYONE) -> ModelList:
        """What is served to this caller, as `answer(ListModels())` says, for those who cannot wait."""
        ...

    async def drain(self) -> None:
        """Accept nothing new from now on; return when everything accepted has been answered."""
        ...
