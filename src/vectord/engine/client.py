"""What the server may call of the engine. Implemented by the engine in this process and by cluster.remote."""

from __future__ import annotations

import asyncio
from typing import Protocol

from vectord.schema import ANYONE, Caller, ModelList, Operation, Request, Result
from vectord.text.sequence import TokenizedTexts


class EngineClient(Protocol):
    """Answers canonical requests on the event loop that started it."""

    async def answer(self, request: Request, caller: Caller) -> Result:
        """The result of `request`, in the order of its inputs. Cancelling the task removes its texts from the queue.

        Raises a VectordError. Every number of a result is finite, and a result covers every input unless the request
        allows partial ones.
        """

    async def check_busy(self, operation: Operation, caller: Caller) -> None:
        """Raises Overloaded if any request for this operation by this caller would be refused now; counts the refusal.

        Called before a body is read: under overload most requests end here. `answer` checks with the real tokens.
        """

    def readiness(self) -> dict[str, str]:
        """Served name -> "unloaded" | "loading" | "ready" | "failed" | "stalled".

        The server is ready when every value is "ready" or "unloaded": such a model loads on its next use.
        """

    def models(self, caller: Caller = ANYONE) -> ModelList:
        """The same as `answer(ListModels())`, without waiting."""

    async def drain(self) -> None:
        """Refuse new requests; return when every accepted one has been answered."""


class LocalEngine(EngineClient, Protocol):
    """The engine of this process, with what the server of front-ends and bulk jobs call too."""

    async def answer(self, request: Request, caller: Caller, tokenized: TokenizedTexts | None = None) -> Result:
        """tokenized: the inputs of an EmbedRequest, by a front-end, which then scales the vectors; ignored if the model
        has another fingerprint."""

    def names(self) -> dict[str, str]:
        """Every name that clients may use -> the served name."""

    def failure(self, name: str) -> Exception | None:
        """Why the model could not be loaded; None if it could, and for a composite."""


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A loop for an engine: uvloop's, which its threads wake in less time."""
    try:
        import uvloop  # noqa: PLC0415 - does not exist for Windows
    except ImportError:
        return asyncio.SelectorEventLoop()  # the default there has no add_reader
    return uvloop.new_event_loop()
