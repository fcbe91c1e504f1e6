"""An engine and a product for tests of the server alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from msgspec import defstruct
from tests.products.results import model_info, model_list

from vectord.errors import InvalidField, MalformedBody, Overloaded, ShuttingDown, VectordError
from vectord.products.common.dialect import Call, Dialect, Incoming, Rendered, Route
from vectord.schema import (
    ANYONE,
    Caller,
    EmbedRequest,
    EmbedResult,
    ListModels,
    LoadModel,
    ModelList,
    Operation,
    PullModel,
    PullResult,
    RemoveModel,
    RemoveResult,
    Request,
    Result,
    TextLengths,
    UnloadModel,
    Usage,
)

MODEL = "fake-model"
FINGERPRINT = "0123456789abcdef"

ONE_TEXT = TextLengths([3])


class FakeEngine:
    """Returns the same vector for every text; can wait, fail or be unready.

    gate: while it is not set, requests wait; at first if `held`. lengths: of the texts in each result.
    """

    answered: Any = EmbedRequest | LoadModel | PullModel | RemoveModel | UnloadModel

    def __init__(self, lengths: TextLengths = ONE_TEXT, dimensions: int = 2, *, held: bool = False) -> None:
        self.callers: list[Caller] = []
        self.states = {MODEL: "ready"}
        self.starting = False
        self.error: BaseException | None = None
        self.busy: Overloaded | None = None
        self.checked: list[tuple[Operation, Caller]] = []
        self.gate = asyncio.Event()
        if not held:
            self.gate.set()
        self.draining = asyncio.Event()
        self.running = 0
        self.idle = asyncio.Event()
        self.idle.set()
        self.cancelled = asyncio.Semaphore(0)
        self.entered = asyncio.Semaphore(0)
        self.lengths = lengths
        self.vector = np.full(dimensions, dimensions**-0.5, np.float32)

    async def answer(self, request: Request, caller: Caller, tokenized: object = None) -> Result:
        if self.draining.is_set():
            raise ShuttingDown
        if isinstance(request, ListModels):
            return self.models()
        assert isinstance(request, self.answered)
        self.callers.append(caller)
        self.running += 1
        self.idle.clear()
        self.entered.release()
        try:
            await self.before_answer()
        except asyncio.CancelledError:
            self.cancelled.release()
            raise
        finally:
            self.running -= 1
            if self.running == 0:
                self.idle.set()
        if self.error is not None:
            raise self.error
        return self.result_of(request)

    def result_of(self, request: Request) -> Result:
        if isinstance(request, PullModel):
            return PullResult(model=request.model, state="served")
        if isinstance(request, RemoveModel):
            return RemoveResult(model=request.model, freed_bytes=0)
        if isinstance(request, LoadModel | UnloadModel):
            return model_list(request.model)
        assert isinstance(request, EmbedRequest)
        dense = {"float": np.stack([self.vector] * len(request.inputs))}
        used = Usage(lengths=self.lengths, characters=1)
        return EmbedResult(model=MODEL, fingerprint=FINGERPRINT, dense=dense, usage=used)

    async def before_answer(self) -> None:
        await self.gate.wait()

    async def check_busy(self, operation: Operation, caller: Caller) -> None:
        self.checked.append((operation, caller))
        if self.busy is not None:
            raise self.busy

    def models(self, caller: Caller = ANYONE) -> ModelList:
        seen = self.states if caller.models is None else self.states.keys() & caller.models
        infos = [model_info(name, state=state) for name, state in self.states.items() if name in seen]
        return model_list(*infos, starting=self.starting)

    def readiness(self) -> dict[str, str]:
        return dict(self.states)

    def names(self) -> dict[str, str]:
        return {MODEL: MODEL, "alias": MODEL}

    async def drain(self) -> None:
        self.draining.set()
        await self.idle.wait()


def dialect(name: str, *routes: Route) -> Dialect:
    return Dialect(name=name, title=name.title(), routes=routes, render_error=lambda error: _failed(name, error))


def route(
    name: str,
    path: str,
    method: str = "POST",
    keys: Sequence[str] = ("input",),
    also: Sequence[str] = (),
    *,
    public: bool = False,
) -> Route:
    """A route of product `name`; its responses contain the product and the inputs.

    A body has one of `keys`, and may have the others and those of `also`.
    """

    def parse(incoming: Incoming) -> Call:
        inputs = read(incoming)
        return Call(EmbedRequest(inputs=inputs), partial(render, inputs))

    def read(incoming: Incoming) -> Sequence[str]:
        if method == "GET":
            return [*incoming.path.values()] or ["none"]
        try:
            body = json.loads(incoming.body)
        except (ValueError, RecursionError):
            raise MalformedBody("The body is not JSON.") from None
        if not isinstance(body, dict):
            raise InvalidField("The body must be an object.")
        return [str(value) for value in body.values()]

    def render(inputs: Sequence[str], result: Result) -> Rendered:
        assert isinstance(result, EmbedResult)
        shown = {"dialect": name, "inputs": inputs, "vectors": result.dense["float"].tolist()}
        return Rendered(body=json.dumps(shown).encode())

    return Route(
        method=method,
        path=path,
        parse=parse,
        summary=f"{name} {path}",
        computes=None if method == "GET" else "embed",
        example=None if method == "GET" else {keys[0]: "hello"},
        body=None if method == "GET" else defstruct("Body", [(key, Any, None) for key in (*keys, *also)]),
        one_of=frozenset(keys),
        public=public,
    )


def _failed(name: str, error: VectordError) -> Rendered:
    shown = {"dialect": name, "error": type(error).__name__, "message": error.message}
    return Rendered(body=json.dumps(shown).encode(), status=STATUSES.get(type(error).__name__, 400))


STATUSES = {
    "VectordError": 500,
    "Unauthorized": 401,
    "Forbidden": 403,
    "NoSuchRoute": 404,
    "MethodNotAllowed": 405,
    "PayloadTooLarge": 413,
    "UnsupportedMediaType": 415,
    "Overloaded": 429,
    "RateLimited": 429,
    "NotAcceptable": 406,
    "Unavailable": 503,
    "ShuttingDown": 503,
}

EMBED = dialect("first", route("first", "/v1/embed"))
