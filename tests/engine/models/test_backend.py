"""Which backend computes a model, on which devices, and with how many threads."""

from __future__ import annotations

import dataclasses
import importlib
import logging
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.checkpoints.files.onnx_bytes import field, graph, model
from tests.opening import FAKE, minilm_folder, opened

from vectord.checkpoints.spec import Adapter, ModelSpec
from vectord.compute.backends import fake
from vectord.compute.backends.base import BackendFacts, BackendOptions
from vectord.compute.backends.fake import FakeBackend
from vectord.config import DEFAULT_MODEL, Config, DeviceConfig, ModelConfig
from vectord.engine.models import backend, open_models
from vectord.engine.models.backend import with_graph
from vectord.errors import ConfigError


@pytest.mark.parametrize("name", backend.backend_names())
def test_every_backend_of_the_folder_can_load(name: str) -> None:
    """The folder is the registry: each name is a module with a `load`."""
    assert callable(importlib.import_module(f"vectord.compute.backends.{name}").load)


@pytest.mark.parametrize(
    ("device", "cuda", "mps", "name"),
    [
        ("auto", False, False, "openvino"),
        ("auto", False, True, "torch"),
        ("auto", True, False, "torch"),
        ("cpu", True, True, "openvino"),
        ("cuda", True, False, "torch"),
        ("cuda:1", True, False, "torch"),
        ("mps", False, True, "torch"),
    ],
)
def test_the_device_chooses_the_backend(
    device: str, cuda: bool, mps: bool, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """auto is openvino on the processor and torch on a GPU of either kind."""
    monkeypatch.setattr(backend, "_cuda_count", lambda: int(cuda))
    monkeypatch.setattr(backend, "_has_mps", lambda: mps)
    (model,) = opened(DEFAULT_MODEL)
    assert backend.backend_of(model.spec, DeviceConfig(device=device)) == name


@pytest.mark.parametrize(
    ("facts", "name"),
    {
        "own class": ({"handler": "my.House"}, "handler"),
        "a graph": ({"weights": (Path("model.onnx"),)}, "onnx"),
        "undescribed": ({"architecture": "gpt2"}, "transformers"),
    }.values(),
    ids=["own class", "a graph", "undescribed"],
)
def test_the_model_chooses_the_backend_before_the_device_does(facts: dict[str, Any], name: str) -> None:
    """A model that only one backend can run goes there, unless the configuration names a backend."""
    (model,) = opened(DEFAULT_MODEL)
    spec = replace(model.spec, **facts)
    assert backend.backend_of(spec, DeviceConfig()) == name
    assert backend.backend_of(spec, FAKE) == "fake"


def test_a_backend_whose_library_is_missing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The core has no torch; the error says what to install."""
    monkeypatch.setattr(backend, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install -e .*\[torch\]"):
        open_models(Config(device=DeviceConfig(device="cuda")))


@pytest.mark.parametrize(("cuda", "device"), [(True, "cuda"), (False, "cpu")], ids=["with CUDA", "without"])
def test_cuda_or_cpu_never_fails(
    cuda: bool, device: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Semantic Explorer's provider `cuda` falls back to the processor with a warning."""
    monkeypatch.setattr(backend, "_cuda_count", lambda: int(cuda))
    with caplog.at_level(logging.WARNING, "vectord"):
        assert backend.settle_device(DeviceConfig(device="cuda-or-cpu")).device == device
    assert [record.levelname for record in caplog.records] == ([] if cuda else ["WARNING"])


def test_onnxruntime_finds_cuda_by_itself() -> None:
    """It needs no torch to find it, and falls back by itself."""
    config = DeviceConfig(device="cuda-or-cpu", backend="onnxruntime")
    assert backend.settle_device(config).device == "cuda"


@pytest.mark.parametrize(
    ("dtype", "names"),
    [("int8", "onnxruntime, openvino, torch"), ("int8-weights", "openvino"), ("int4-weights", "openvino")],
)
def test_a_dtype_is_refused_by_backends_without_it(dtype: str, names: str) -> None:
    """The error names the backends that have it."""
    with pytest.raises(ConfigError, match=rf"dtype {dtype}: the fake backend has none; those that have: {names}$"):
        open_models(Config(device=dataclasses.replace(FAKE, dtype=dtype)))


@pytest.mark.parametrize("name", ["handler", "static"])
def test_a_backend_logs_a_number_format_that_it_does_not_use(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """The setting is also for other models; nothing else would tell that it does not apply."""
    for dtype in ("auto", "float32", "bfloat16", "float16"):
        assert backend.check_dtype(name, dtype) == name
    formats = ("bfloat16", "float16")
    assert caplog.messages == [f"dtype {one}: the {name} backend does not use it" for one in formats]


def test_each_graph_file_has_a_fingerprint_of_its_own(tmp_path: Path) -> None:
    """ONNX Runtime runs the file whose name contains the dtype; its vectors belong to another space."""
    folder = minilm_folder(tmp_path / "minilm")
    (folder / "onnx").mkdir()
    data = model(graph(inputs={}, outputs={"last_hidden_state": ["n", "l", 384]}))
    for name in ("model.onnx", "model_int8.onnx"):
        (folder / "onnx" / name).write_bytes(data + field(6, name))
    (own,) = opened(str(folder))
    found = []
    for dtype in ("auto", "int8"):
        device = DeviceConfig(backend="onnxruntime", dtype=dtype)
        (source,) = open_models(Config(model=ModelConfig(models=(str(folder),)), device=device))
        found.append(source.spec)
    assert [spec.weights[0].name for spec in found] == ["model.onnx", "model_int8.onnx"]
    assert len({own.spec.fingerprint, *(spec.fingerprint for spec in found)}) == 3


def test_a_graph_labels_no_tokens(tmp_path: Path) -> None:
    """The model still embeds, and requests for classes of tokens are refused."""
    folder = minilm_folder(tmp_path / "minilm")
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_bytes(
        model(graph(inputs={}, outputs={"last_hidden_state": ["n", "l", 384]}))
    )
    (own,) = opened(str(folder))
    spec = replace(own.spec, outputs=own.spec.outputs | {"token_scores"}, token_labels=("name", "other"))
    found = with_graph(spec, "onnx", DeviceConfig(backend="onnx"))
    assert (found.outputs, found.token_labels) == (own.spec.outputs, ())


@pytest.mark.parametrize(
    ("architecture", "named", "run"),
    [
        ("bert", None, "model_fp16.onnx"),
        ("gemma3_text", None, "model.onnx"),
        ("gemma3_text", "onnx/model_fp16.onnx", "model_fp16.onnx"),
    ],
)
def test_gemma_has_no_graph_in_float16(
    architecture: str, named: str | None, run: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It overflows in float16. The float32 graph runs, with a warning, unless the operator names the file."""
    folder = minilm_folder(tmp_path / "model")
    (folder / "onnx").mkdir()
    for name in ("model.onnx", "model_fp16.onnx"):
        (folder / "onnx" / name).write_bytes(model(graph(inputs={}, outputs={"last_hidden_state": ["n", "l", 384]})))
    (own,) = opened(str(folder))
    device = DeviceConfig(backend="onnxruntime", dtype="float16", onnx_file=named)
    found = with_graph(replace(own.spec, architecture=architecture), "onnxruntime", device)
    assert found.weights[0].name == run
    assert ("overflows in float16; using float32" in caplog.text) == (run == "model.onnx")


@pytest.mark.parametrize(("configured", "used"), [(None, None), (1, 1), (4, 4), (5, 4)])
def test_threads_are_limited_to_the_processor(
    configured: int | None, used: int | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """ORT_NUM_THREADS=4 in a compose file must not slow a container of two cores sixfold."""
    monkeypatch.setattr(backend, "thread_budget", lambda: 4)
    with caplog.at_level(logging.WARNING, "vectord"):
        assert backend.settle_device(DeviceConfig(num_threads=configured)).num_threads == used
    assert len(caplog.records) == (configured != used)


@pytest.mark.parametrize(
    ("present", "configured", "used", "warnings"),
    [
        pytest.param(2, "cuda:0,cuda:1", "cuda:0,cuda:1", [], id="both present"),
        pytest.param(2, "cuda,cuda:1", "cuda:0,cuda:1", [], id="cuda is the first"),
        pytest.param(3, "cuda:all", "cuda:0,cuda:1,cuda:2", [], id="all"),
        pytest.param(1, "cuda:0,cuda:0", "cuda:0,cuda:0", [], id="twice the same"),
        pytest.param(1, "cuda:all", "cuda:0", [], id="all of one"),
        pytest.param(
            1,
            "cuda:0,cuda:1",
            "cuda:0",
            ["CUDA:1 requested but not available, going on with cuda:0"],
            id="one is missing",
        ),
        pytest.param(
            0, "cuda:0,cuda:1", "cpu", ["CUDA requested but not available, falling back to CPU"], id="none of them"
        ),
        pytest.param(0, "cuda:all", "cpu", ["CUDA requested but not available, falling back to CPU"], id="none at all"),
        pytest.param(0, "cuda", "cpu", ["CUDA requested but not available, falling back to CPU"], id="no CUDA"),
        pytest.param(1, "cuda:1", "cpu", ["CUDA requested but not available, falling back to CPU"], id="no second one"),
        pytest.param(0, "cpu,cpu", "cpu,cpu", [], id="the processor twice"),
        pytest.param(0, "auto", "auto", [], id="no CUDA configured"),
    ],
)
def test_absent_gpus_are_dropped(
    present: int,
    configured: str,
    used: str,
    warnings: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without any GPU the processor serves, once. The warning has the words that the product's operators know."""
    monkeypatch.setattr(backend, "_cuda_count", lambda: present)
    with caplog.at_level(logging.WARNING, "vectord"):
        assert backend.settle_device(DeviceConfig(device=configured)).device == used
    assert caplog.messages == warnings


def test_copies_share_the_processors_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device named twice has two copies."""
    monkeypatch.setattr(backend, "thread_budget", lambda: 8)
    (one,) = backend.backend_options(DeviceConfig(device="cpu"), "torch")
    assert (one.device, one.threads, one.sharers) == ("cpu", None, 1)
    several = backend.backend_options(DeviceConfig(device="cuda:0,cuda:0,cuda:1,cuda:1"), "torch")
    assert [options.device for options in several] == ["cuda:0", "cuda:0", "cuda:1", "cuda:1"]
    assert {(options.threads, options.sharers) for options in several} == {(2, 2)}
    several = backend.backend_options(DeviceConfig(device="cpu,cpu", num_threads=1), "torch")
    assert [options.threads for options in several] == [1, 1]


def test_several_devices_are_refused_by_backends_with_one() -> None:
    """OpenVINO already uses all threads: a second copy would only use memory."""
    with pytest.raises(
        ConfigError, match=r"the openvino backend runs a model once, .*fake, static, torch, transformers"
    ):
        open_models(Config(device=DeviceConfig(backend="openvino", device="cpu,cpu")))


def test_the_weights_of_each_copy_count_as_memory() -> None:
    """The memory budget counts every copy."""
    (one,) = open_models(Config(device=FAKE))
    (two,) = open_models(Config(device=dataclasses.replace(FAKE, device="cpu,cpu")))
    assert two.memory_bytes == 2 * one.memory_bytes > 0
    _, backends = two.load()
    assert len(backends) == 2


def test_devices_of_different_dtypes_are_refused() -> None:
    """Otherwise a text's vector would depend on the device that runs it."""
    facts = BackendFacts(
        name="torch", device="cuda:0", dtype="bfloat16", streams=2, cost="packed", max_batch_tokens=1024
    )
    backend.check_alike([facts, replace(facts, device="cuda:1", max_batch_tokens=2048)])
    with pytest.raises(ConfigError, match="cuda:0 in bfloat16, cuda:1 in float16; set dtype"):
        backend.check_alike([facts, replace(facts, device="cuda:1", dtype="float16")])


def test_if_one_copy_fails_to_load_the_others_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error reaches the operator and the memory of the other copies is freed."""
    closed: list[str] = []

    class Opened(FakeBackend):
        def close(self) -> None:
            closed.append("one")

    def load(spec: ModelSpec, options: BackendOptions) -> FakeBackend:
        if options.device == "cuda:1":
            raise RuntimeError("CUDA error: initialization error")
        return Opened({"dense": 8})

    monkeypatch.setattr(fake, "load", load)
    monkeypatch.setattr(backend, "_cuda_count", lambda: 2)
    (source,) = open_models(Config(device=dataclasses.replace(FAKE, device="cuda:0,cuda:1")))
    with pytest.raises(RuntimeError, match="initialization error"):
        source.load()
    assert closed == ["one"]


def test_torch_is_not_imported_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """The import takes seconds."""
    (model,) = opened(DEFAULT_MODEL)
    monkeypatch.setattr(Path, "glob", lambda self, pattern: iter(()))
    monkeypatch.setattr(Path, "exists", lambda self: False)
    monkeypatch.setattr(backend, "import_module", lambda name: pytest.fail(f"{name} was imported"))
    assert backend.backend_of(model.spec, DeviceConfig()) == "openvino"


def test_adapters_need_a_backend_that_computes_them() -> None:
    """And a model with one network: they would change only its documents."""
    (model,) = opened(DEFAULT_MODEL)
    spec = replace(model.spec, adapters=(Adapter(name="legal", scale=1.0, rank=1),))
    backend.check_adapters(spec, "torch")
    backend.check_adapters(model.spec, "onnx")
    with pytest.raises(ConfigError, match=r"adapters \(legal\), which the onnx backend does not compute"):
        backend.check_adapters(spec, "onnx")
    with pytest.raises(ConfigError, match="another for documents"):
        backend.check_adapters(replace(spec, query=model.spec), "torch")
