"""Serves a model folder with a complete engine in this process, for tests that compare whole answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from vectord.config import Config, DeviceConfig, EngineConfig, ModelConfig
from vectord.engine.engine import Engine
from vectord.engine.models import open_models, read_composites
from vectord.schema import Caller, Request


class Serving:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def ask(self, request: Request, **caller: Any) -> Any:
        """The engine's result."""
        return await self._engine.answer(request, Caller(**caller))

    def readiness(self) -> dict[str, str]:
        return self._engine.readiness()


@asynccontextmanager
async def serving(
    *folders: Path, backend: str = "openvino", dtype: str = "float32", engine: EngineConfig | None = None, **model: Any
) -> AsyncIterator[Serving]:
    """Yields once all models are ready; otherwise the test fails. model: more fields of ModelConfig."""
    config = Config(
        model=ModelConfig(models=tuple(map(str, folders)), offline=True, **model),
        device=DeviceConfig(backend=backend, dtype=dtype),
        engine=replace(engine or EngineConfig(), tokenization_workers=1),
    )
    models = open_models(config)
    running = Engine(models, config.engine, composites=read_composites(config.model.composites, models))
    await running.start()
    try:
        await running.loaded.wait()
        assert "failed" not in running.readiness().values(), running.readiness()
        yield Serving(running)
    finally:
        await running.close()
