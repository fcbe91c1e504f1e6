"""Models that an operator pulls while the engine runs, from a small hub of this machine."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import constants
from tests.checkpoints.small_hub import MODEL, Hub, small_hub
from tests.engine.fakes import FakeBackend, source
from tests.reference.reference_models import write_bge_m3

from vectord.checkpoints import pulling
from vectord.config import Config, DeviceConfig, EngineConfig, ModelConfig
from vectord.engine.engine import Engine
from vectord.engine.models import open_models, pulls
from vectord.errors import Forbidden, InvalidField, ModelNotFound, Unavailable
from vectord.schema import (
    ANYONE,
    Caller,
    EmbedRequest,
    ListModels,
    PullModel,
    PullResult,
    RemoveModel,
    RemoveResult,
)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with small_hub(write_bge_m3(tmp_path / "repository")) as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield hub


@asynccontextmanager
async def serving(tmp_path: Path, **settings: object):
    model = replace(ModelConfig(hf_home=str(tmp_path / "hf")), **settings)
    config = Config(model=model, device=DeviceConfig(backend="fake"))
    engine = Engine([source(FakeBackend(), "m0")], EngineConfig(model_loading="first-use"), pulling=config)
    await engine.start()
    yield engine
    await engine.close()


async def pull(engine: Engine, name: str = MODEL, caller: Caller = ANYONE) -> PullResult:
    """Asks until the model is served."""
    while (report := await engine.answer(PullModel(model=name), caller)).state != "served":
        await asyncio.sleep(0.01)
    return report


async def refusal(engine: Engine, name: str = MODEL, caller: Caller = ANYONE) -> str:
    with pytest.raises((Forbidden, InvalidField)) as caught:
        await pull(engine, name, caller)
    return caught.value.message


async def test_a_pulled_model_is_served(hub: Hub, tmp_path: Path) -> None:
    """It is listed after the models of the start, loads on its first use, and is not fetched again."""
    async with serving(tmp_path) as engine:
        assert (await pull(engine)).model == MODEL
        fetched = len(hub.asked)
        listed = (await engine.answer(ListModels(), ANYONE)).models
        assert [(info.name, info.state) for info in listed] == [("m0", "unloaded"), (MODEL, "unloaded")]
        result = await engine.answer(EmbedRequest(inputs=["a text"], model="model"), ANYONE)
        assert (result.model, len(result.dense["float"])) == (MODEL, 1)
        assert (await pull(engine)).state == "served"
        assert len(hub.asked) == fetched


async def test_a_running_pull_reports_its_bytes(hub: Hub, tmp_path: Path) -> None:
    """Every request gets the progress; another model has to wait."""
    hub.stalls = threading.Event()
    async with serving(tmp_path) as engine:
        first = await engine.answer(PullModel(model=MODEL), ANYONE)
        assert first == PullResult(model=MODEL, state="pulling")
        while not hub.asked:
            await asyncio.sleep(0.01)
        assert (await engine.answer(PullModel(model=MODEL), ANYONE)).state == "pulling"
        with pytest.raises(Unavailable, match="one at a time"):
            await engine.answer(PullModel(model="some/other"), ANYONE)
        hub.stalls.set()
        await pull(engine)
        assert len(hub.asked) == len({path for path, _ in hub.asked})


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"offline": True}, "offline"),
        ({"pull_allow": ("BAAI/*", "some/other")}, "pull_allow"),
    ],
    ids=["offline", "another pattern"],
)
async def test_the_settings_forbid_a_pull(hub: Hub, tmp_path: Path, settings: dict[str, object], reason: str) -> None:
    """Nothing is downloaded."""
    async with serving(tmp_path, **settings) as engine:
        assert reason in await refusal(engine)
        assert not hub.asked


async def test_a_model_may_be_too_large(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The admin key of a running server cannot fill the disk with one name."""
    monkeypatch.setattr(pulls, "LIMIT_BYTES", 1000)
    async with serving(tmp_path) as engine:
        assert "at most 1,000 bytes" in await refusal(engine)


async def test_a_model_outside_the_lock_file_is_refused(hub: Hub, tmp_path: Path) -> None:
    """The lock file lists all models that the operator has reviewed."""
    lock = tmp_path / "vectord.lock"
    lock.write_text("version = 1\n")
    async with serving(tmp_path, lock_file=str(lock)) as engine:
        assert "is not in the lock file" in await refusal(engine)
        assert not hub.asked


@pytest.mark.parametrize(
    "name", ["../../etc", "/etc", "ollama:x", "http://169.254.169.254/x", "a/b/c", "a\0b", ".", ""]
)
async def test_a_name_that_is_no_hub_id_is_refused(hub: Hub, tmp_path: Path, name: str) -> None:
    """Neither a path of this machine nor a URL is read, and the hub is not asked."""
    async with serving(tmp_path, model_path=str(tmp_path)) as engine:
        assert await refusal(engine, name)
        assert not hub.asked and not hub.tokens


async def test_a_key_pulls_only_models_that_it_may_use(hub: Hub, tmp_path: Path) -> None:
    """A key without restriction, or with the name, may."""
    async with serving(tmp_path) as engine:
        assert "may not use" in await refusal(engine, caller=Caller(models=frozenset({"m0"})))
        assert not hub.asked
        assert (await pull(engine, caller=Caller(models=frozenset({MODEL})))).state == "served"


async def test_a_failed_pull_is_reported_once(hub: Hub, tmp_path: Path) -> None:
    """The next request tries again, and the file that was wrong is fetched anew."""
    hub.announced["config.json"] = b"{}"
    hub.files["config.json"], good = b"[]", hub.files["config.json"]
    async with serving(tmp_path) as engine:
        assert "checksum" in await refusal(engine)
        hub.announced.clear()
        hub.files["config.json"] = good
        assert (await pull(engine)).state == "served"


async def test_a_model_that_does_not_fit_on_the_disk_is_refused(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first byte."""
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1000))
    async with serving(tmp_path) as engine:
        assert "1,000 bytes free" in await refusal(engine)
        assert not hub.asked


async def remove(engine: Engine, name: str = MODEL, caller: Caller = ANYONE) -> RemoveResult:
    result = await engine.answer(RemoveModel(model=name), caller)
    assert isinstance(result, RemoveResult)
    return result


async def test_a_removed_model_is_neither_served_nor_in_the_cache(hub: Hub, tmp_path: Path) -> None:
    """It is unloaded first, under any of its names; it can be pulled again."""
    folder = pulling.repository_folder(MODEL, tmp_path / "hf" / "hub")
    async with serving(tmp_path) as engine:
        for _ in range(2):
            await pull(engine)
            await engine.answer(EmbedRequest(inputs=["a text"], model="model"), ANYONE)
            removed = await remove(engine, "model")
            assert (removed.model, removed.freed_bytes > 1000) == (MODEL, True)
            assert not folder.exists()
            assert list(engine.readiness()) == ["m0"]
            with pytest.raises(ModelNotFound):
                await engine.answer(EmbedRequest(inputs=["a text"], model=MODEL), ANYONE)


async def test_a_model_in_use_is_not_removed(hub: Hub, tmp_path: Path) -> None:
    """It stays served, and its files stay."""
    async with serving(tmp_path) as engine:
        await pull(engine)
        served = engine._registry.named(MODEL)
        async with engine._lifecycle.use(served):
            with pytest.raises(Unavailable, match="in use"):
                await remove(engine)
        assert (await engine.answer(EmbedRequest(inputs=["a text"], model=MODEL), ANYONE)).model == MODEL


async def test_a_request_that_holds_a_removed_model_does_not_load_it(hub: Hub, tmp_path: Path) -> None:
    """The request resolved its model before the removal."""
    async with serving(tmp_path) as engine:
        await pull(engine)
        held = engine._registry.named(MODEL)
        await remove(engine)
        with pytest.raises(Unavailable, match="has been removed"):
            await engine._lifecycle.load(held)


async def test_a_model_of_an_earlier_process_is_removed_from_the_cache(hub: Hub, tmp_path: Path) -> None:
    """The cache has it, and this process does not serve it."""
    async with serving(tmp_path) as engine:
        await pull(engine)
    async with serving(tmp_path) as engine:
        assert (await remove(engine)).model == MODEL
        with pytest.raises(InvalidField, match="not in the cache"):
            await remove(engine)


@pytest.mark.parametrize(
    ("name", "caller", "reason"),
    [
        ("m0", ANYONE, "settings of this server name the model m0"),
        (MODEL, Caller(models=frozenset({"m0"})), "may not use"),
        ("../hub", ANYONE, "neither a folder nor a hub id"),
        ("/etc", ANYONE, "neither a folder nor a hub id"),
        ("all-MiniLM-L6-v2", ANYONE, "not in the cache"),
    ],
    ids=["of the settings", "of another key", "a relative path", "an absolute path", "a package"],
)
async def test_other_models_are_not_removed(hub: Hub, tmp_path: Path, name: str, caller: Caller, reason: str) -> None:
    """The pulled model stays served."""
    async with serving(tmp_path) as engine:
        await pull(engine)
        with pytest.raises((Forbidden, InvalidField), match=reason):
            await remove(engine, name, caller)
        assert list(engine.readiness()) == ["m0", MODEL]
        assert pulling.repository_folder(MODEL, tmp_path / "hf" / "hub").is_dir()


async def test_files_of_a_model_of_the_settings_are_not_removed(hub: Hub, tmp_path: Path) -> None:
    """The settings name a folder of the cache, which is served under another name than the repository's."""
    async with serving(tmp_path) as engine:
        await pull(engine)
    model = ModelConfig(models=(MODEL,), hf_home=str(tmp_path / "hf"), offline=True)
    config = Config(model=model, device=DeviceConfig(backend="fake"))
    (pulled,) = [each.spec for each in open_models(config)]
    named = source(FakeBackend(), "m1", model=pulled)
    engine = Engine([named], EngineConfig(model_loading="first-use"), pulling=config)
    await engine.start()
    with pytest.raises(Forbidden, match="settings of this server name the model m1"):
        await remove(engine)
    assert pulled.weights[0].is_file()
    await engine.close()


async def test_nothing_is_removed_during_a_pull(hub: Hub, tmp_path: Path) -> None:
    """Its files are incomplete."""
    hub.stalls = threading.Event()
    async with serving(tmp_path) as engine:
        await engine.answer(PullModel(model=MODEL), ANYONE)
        with pytest.raises(Unavailable, match="one at a time"):
            await remove(engine)
        hub.stalls.set()
        await pull(engine)
