"""The config file and the profiles, and their errors."""

from __future__ import annotations

import os
import pkgutil
from pathlib import Path

import pytest
from tests.config.start import NOTHING, load, refused

from vectord.config import DEFAULT_MODEL, sources
from vectord.config.sources import Loaded
from vectord.products import ORDER
from vectord.products.common.profiles import profiles
from vectord.products.smart_embedder.metrics import LONG_SIZES, MAX_LENGTHS, SHORT_SIZES, SHORT_TOKENS

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("toml", "line"),
    [
        ("[server]\nprt = 1", "unknown key prt in [server] of vectord.toml; did you mean port?"),
        ("[engine]\nport = 1", "unknown key port in [engine] of vectord.toml; it belongs in [server]"),
        (
            "[sever]\nport = 1",
            "unknown section [sever] in vectord.toml; there are: model, device, engine, server, teleme",
        ),
        (
            "port = 1",
            "port in vectord.toml: expected a section, one of model, device, engine, server, telemetry; it be",
        ),
        ("[server]\nport = true", "[server] port (config file): expected a whole number from 0 to 65535, got True"),
        ("[server", "vectord.toml is not TOML: "),
        ("profile = 1", "profile in vectord.toml: expected the name of a profile, got 1"),
        ('profile = "x"', "unknown profile 'x'; there are: cohere, default, "),
    ],
    ids=lambda value: value.replace("\n", " ") if isinstance(value, str) else None,
)
def test_a_bad_config_file_is_refused(tmp_path: Path, toml: str, line: str) -> None:
    """An unknown key is an error with a suggestion."""
    (tmp_path / "vectord.toml").write_text(toml)
    assert refused((), NOTHING, tmp_path).startswith(line)


def test_a_named_config_file_replaces_the_default_one(tmp_path: Path) -> None:
    """By --config or VECTORD_CONFIG, also in the env file."""
    (tmp_path / "vectord.toml").write_text("[server]\nport = 1")
    (tmp_path / "other.toml").write_text("[server]\nport = 2")
    (tmp_path / "third.toml").write_text("[server]\nport = 3")
    assert load(["--config", "other.toml"], NOTHING, tmp_path).config.server.port == 2
    (tmp_path / ".env").write_text("VECTORD_CONFIG=third.toml")
    words = ["--env-file", ".env"]
    assert load(words, NOTHING, tmp_path).config.server.port == 3
    assert load(words, {"VECTORD_CONFIG": "other.toml"}, tmp_path).config.server.port == 2


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path) -> None:
    """Editors of Windows write one."""
    (tmp_path / "vectord.toml").write_bytes(b"\xef\xbb\xbf[server]\r\nport = 1\r\n")
    assert load([], NOTHING, tmp_path).config.server.port == 1
    (tmp_path / ".env").write_bytes(b"\xef\xbb\xbfVECTORD_PORT=2\r\nVECTORD_HOST=\r\n")
    assert load(["--env-file", ".env"], NOTHING, tmp_path).config.server.port == 2


@pytest.mark.parametrize("name", ["vectord.toml", ".env"])
def test_a_binary_file_is_refused(tmp_path: Path, name: str) -> None:
    """In one line, without a traceback."""
    (tmp_path / name).write_bytes(b"\xff\xfe\x00PORT=1")
    words = ["--env-file", name] if name == ".env" else []
    assert "cannot be read" in refused(words, NOTHING, tmp_path)


# --- profiles -------------------------------------------------------------------------------------------------


def started(name: str, cwd: Path) -> Loaded:
    """The profile's configuration, with its required setting."""
    return load(["--profile", name, "--models", "some/model"], NOTHING, cwd)


@pytest.mark.parametrize("name", profiles())
def test_every_profile_of_the_folder_loads(tmp_path: Path, name: str) -> None:
    """The folder is the registry; a profile holds only known keys and good values, and no secret."""
    loaded = started(name, tmp_path)
    assert loaded.profile == name
    assert loaded.config.server.accepted_keys == {}


# Profiles whose first dialects have other names.
FIRST = {"llama-cpp": ("llamacpp",), "simple-inference-server": ("simple_inference_server", "llamacpp")}


@pytest.mark.parametrize("name", [name for name in profiles() if name != "default"])
def test_a_profile_puts_its_own_dialect_first(tmp_path: Path, name: str) -> None:
    """All others follow in their usual order, so that a profile removes nothing."""
    first = FIRST.get(name, (name.replace("-", "_"),))
    others = tuple(other for other in ORDER if other not in first)
    assert started(name, tmp_path).config.server.dialects == (*first, *others)


def test_the_order_names_every_dialect_of_the_folder() -> None:
    """A missing dialect would never answer, and an unknown one would prevent every start."""
    folder = {module.name for module in pkgutil.iter_modules([str(ROOT / "src" / "vectord" / "products")])} - {"common"}
    assert set(ORDER) == folder


@pytest.mark.parametrize("name", ["smart_embedder", "smart-embedder"])
def test_a_profile_may_be_written_with_underscores(tmp_path: Path, name: str) -> None:
    """Like its dialect."""
    assert load((), {"VECTORD_PROFILE": name}, tmp_path).profile == "smart-embedder"


def test_an_unknown_profile_lists_them_all(tmp_path: Path) -> None:
    """From any source; a misspelt one is answered with the nearest."""
    assert refused(["--profile", "x"], NOTHING, tmp_path) == f"unknown profile 'x'; there are: {', '.join(profiles())}"
    line = "unknown profile 'te'; did you mean tei?"
    assert refused(["--profile", "te"], NOTHING, tmp_path) == line
    assert refused((), {"VECTORD_PROFILE": "te"}, tmp_path) == line


@pytest.mark.parametrize(
    ("name", "host", "port"),
    [
        ("default", "127.0.0.1", 8000),
        ("embedding-server", "0.0.0.0", 8080),
        ("smart-embedder", "127.0.0.1", 8000),
        ("simple-inference-server", "0.0.0.0", 8000),
        ("semantic-explorer", "0.0.0.0", 8090),
        ("tei", "0.0.0.0", 3000),
        ("infinity", "0.0.0.0", 7997),
        ("llama-cpp", "127.0.0.1", 8080),
        ("vllm", "127.0.0.1", 8000),
        ("ollama", "127.0.0.1", 11434),
    ],
)
def test_a_profile_listens_where_its_product_does(tmp_path: Path, name: str, host: str, port: int) -> None:
    """On other addresses only if the product's documentation does so."""
    server = started(name, tmp_path).config.server
    assert (server.host, server.port) == (host, port)


@pytest.mark.parametrize(
    ("name", "models"),
    [
        ("default", (DEFAULT_MODEL,)),
        ("embedding-server", ("Qwen/Qwen3-Embedding-0.6B",)),
        ("smart-embedder", ("BAAI/bge-m3", "BAAI/bge-reranker-v2-m3")),
        ("semantic-explorer", ("BAAI/bge-small-en-v1.5", "BAAI/bge-reranker-base")),
        ("infinity", ("michaelfeil/bge-small-en-v1.5",)),
    ],
)
def test_a_profile_has_its_products_models(tmp_path: Path, name: str, models: tuple[str, ...]) -> None:
    """`vectord serve --profile NAME` serves the product's default models."""
    assert load(["--profile", name], NOTHING, tmp_path).config.model.in_order == models


@pytest.mark.parametrize(
    ("name", "places", "wait_s", "inputs", "dtype"),
    [
        ("embedding-server", 1, 0.0, 2, "float16"),
        ("smart-embedder", 200, 0.5, 2048, "auto"),
        ("simple-inference-server", 64, 2.0, 32, "auto"),
        ("tei", 512, 0.0, 32, "auto"),
    ],
)
def test_a_profile_has_its_products_limits(
    tmp_path: Path, name: str, places: int, wait_s: float, inputs: int, dtype: str
) -> None:
    """Concurrent requests, the wait for admission, inputs of a request, and the number format of a GPU."""
    config = started(name, tmp_path).config
    limits = (config.engine.max_concurrent_requests, config.engine.queue_timeout_s, config.engine.max_client_batch_size)
    assert (limits, config.device.dtype) == ((places, wait_s, inputs), dtype)


def test_a_name_of_vectord_wins_over_the_product_s(tmp_path: Path) -> None:
    loaded = load(["--profile", "ollama"], {"OLLAMA_HOST": "0.0.0.0", "HOST": "127.0.0.1"}, tmp_path)
    assert loaded.config.server.host == "127.0.0.1"


def test_smart_embedders_profile_has_its_queue_times_guards_and_batch_sizes(tmp_path: Path) -> None:
    """From its documentation: 32 rerank requests, 90 s and 60 s timeouts, 128 items, and tables of batch sizes."""
    config = started("smart-embedder", tmp_path).config
    engine, server = config.engine, config.server
    assert (engine.max_concurrent_requests, engine.count_running_requests) == (200, False)
    assert engine.max_concurrent_reranks == 32
    assert (engine.request_timeout_s, engine.rerank_timeout_s, engine.forward_timeout_s) == (90, 60, 30)
    assert engine.gpu_forward_timeout_s == 15
    assert {name: getattr(config.model, name) for name in MAX_LENGTHS} == MAX_LENGTHS
    assert server.imitates == "smart_embedder"
    characters = ("sentence_chars", "total_chars_per_request", "rerank_text_chars", "rerank_total_chars")
    items = {"max_sentences_per_request": 128, "max_rerank_passages": 128}
    assert server.product == items | {f"max_{name}": None for name in characters}
    short = [f"{SHORT_TOKENS}:{above_gb}:{texts}" for above_gb, texts, _ in SHORT_SIZES]
    long = [f"1000000:{above_gb}:{texts}" for above_gb, texts, _ in LONG_SIZES]
    assert list(config.device.batch_sizes) == short + long  # the sizes that its /health reports


def test_a_config_file_has_the_settings_of_its_profile(tmp_path: Path) -> None:
    """Those that only the product reads are in [product]; without the profile they are unknown."""
    own = "[product]\nmax_rerank_passages = 8\n[engine]\nrerank_timeout_s = 7.0\n"
    (tmp_path / "vectord.toml").write_text(f'profile = "smart-embedder"\n{own}')
    loaded = load((), NOTHING, tmp_path)
    assert loaded.config.server.product["max_rerank_passages"] == 8
    assert loaded.config.engine.rerank_timeout_s == 7
    shown = {setting.name: (value, str(origin)) for setting, value, origin in loaded.printable()}
    assert shown["max_rerank_passages"] == (8, "[product] max_rerank_passages (config file)")
    (tmp_path / "vectord.toml").write_text(own)
    assert refused((), NOTHING, tmp_path).startswith("unknown section [product] in vectord.toml")


@pytest.mark.parametrize("name", profiles())
def test_no_profile_truncates_silently(tmp_path: Path, name: str) -> None:
    """Each dialect decides about truncation, and no profile lowers a model's length."""
    config = started(name, tmp_path).config
    assert config.engine.auto_truncate is None
    lengths = (config.model.bge_embed_max_length, config.model.qwen_embed_max_length)
    assert lengths == ((8192, 32_768) if name == "smart-embedder" else (None, None))


def test_simple_inference_server_requires_models(tmp_path: Path) -> None:
    """From its documentation: the server exits without them."""
    argv = ["--profile", "simple-inference-server"]
    line = "MODELS is not set, and the profile simple-inference-server requires it (or --models)"
    assert refused(argv, NOTHING, tmp_path) == refused(argv, {"MODELS": ","}, tmp_path) == line
    assert load(argv, {"MODELS": "bge-m3"}, tmp_path).config.model.in_order == ("bge-m3",)


def test_a_profiles_folders_count_if_they_exist(tmp_path: Path) -> None:
    """Simple Inference Server's catalogue and folder of models, in the working folder."""
    assert started("simple-inference-server", tmp_path).config.model.model_catalogue is None
    (tmp_path / "models").mkdir()
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "model_config.yaml").write_text("models: []")
    model = started("simple-inference-server", tmp_path).config.model
    assert (model.model_catalogue, model.hub_cache) == ("configs/model_config.yaml", "models")


@pytest.mark.parametrize("state", ["writable", "not writable", "absent"])
def test_a_profiles_cache_counts_if_it_is_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    """Semantic Explorer's volume. A folder of another user is not used, and a note says how to mount it."""
    volume = tmp_path / "volume"
    values = {"model": {"hf_home": str(volume)}}
    if state != "absent":
        volume.mkdir()
    if state == "not writable":  # os.access is true for root, who runs some test machines
        monkeypatch.setattr("vectord.config.sources.os.access", lambda path, mode: mode == os.F_OK)
    loaded = sources.load(sources.CommandLine(profile="own"), NOTHING, tmp_path, {"own": {"values": values}})
    assert loaded.config.model.hf_home == (str(volume) if state == "writable" else None)
    assert ["cannot write there" in note for note in loaded.notes] == ([True] if state == "not writable" else [])
