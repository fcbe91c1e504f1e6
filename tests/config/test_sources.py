"""The order of sources, secrets in errors, and notes for the operator."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.config.start import NOTHING, load, refused

from vectord.config import Config
from vectord.config.settings import OF_PROFILES, SETTINGS
from vectord.config.sources import Loaded, Origin


def from_all_sources(cwd: Path, sources: Sequence[str]) -> Loaded:
    """Load a configuration in which each of the sources sets another port."""
    argv = ["--profile=tei"] if "profile" in sources else []
    environ = {"VECTORD_PORT": "2000"} if "environment" in sources else {}
    if "command line" in sources:
        argv += ["--port", "1000"]
    if "env file" in sources:
        (cwd / "env").write_text("VECTORD_PORT=2500\n")
        argv += ["--env-file", "env"]
    if "config file" in sources:
        (cwd / "vectord.toml").write_text("[server]\nport = 2700\n")
    return load(argv, environ, cwd)


def test_without_sources_the_defaults_count(tmp_path: Path) -> None:
    """The result is Config()."""
    loaded = load((), NOTHING, tmp_path)
    assert loaded.config == Config()
    assert set(loaded.origins) == {setting.name for setting in SETTINGS} | OF_PROFILES.keys()
    assert set(loaded.origins.values()) == {Origin("default")}


@pytest.mark.parametrize(
    ("sources", "port", "origin"),
    [
        (["command line", "environment", "env file", "config file", "profile"], 1000, "--port (command line)"),
        (["environment", "env file", "config file", "profile"], 2000, "VECTORD_PORT (environment)"),
        (["env file", "config file", "profile"], 2500, "VECTORD_PORT (env file)"),
        (["config file", "profile"], 2700, "[server] port (config file)"),
        (["profile"], 3000, "[server] port (profile)"),
        ([], 8000, "default"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) and value else None,
)
def test_the_first_source_wins_and_is_named(tmp_path: Path, sources: list[str], port: int, origin: str) -> None:
    """Command line, environment, env file, config file, profile, default."""
    loaded = from_all_sources(tmp_path, sources)
    assert loaded.config.server.port == port
    assert str(loaded.origins["port"]) == origin


def test_sources_are_merged_setting_by_setting(tmp_path: Path) -> None:
    """Each setting takes its first source."""
    (tmp_path / "vectord.toml").write_text('profile = "tei"\n[device]\nnum_threads = 3\n')
    loaded = load(["--port=1"], {"DTYPE": "float32"}, tmp_path)
    assert (loaded.config.server.port, loaded.config.device.dtype) == (1, "float32")
    assert (loaded.config.device.num_threads, loaded.config.engine.max_client_batch_size) == (3, 32)


def test_names_that_other_programs_use_too_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without their values."""
    (tmp_path / ".env").write_text("API_KEY=sesame\nVECTORD_PORT=2500\nMODELS=a,b")
    found = load(["--env-file", ".env", "--env-compat"], {"HOST": "10.0.0.1", "HF_HOME": "/data"}, tmp_path)
    with caplog.at_level("INFO"):
        found.log_notes()
    assert caplog.messages == ["settings from the environment: HOST", "settings from the env file: MODELS, API_KEY"]


def test_an_alias_in_the_environment_beats_the_plain_name_in_the_env_file(tmp_path: Path) -> None:
    """The source counts before the name."""
    (tmp_path / ".env").write_text("PORT=2500")
    words = ["--profile", "semantic-explorer", "--env-file", ".env"]
    assert load(words, {"API_PORT": "2000"}, tmp_path).config.server.port == 2000


def test_only_the_arguments_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`load` reads its arguments and the files in cwd."""
    monkeypatch.setenv("VECTORD_PORT", "9")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "vectord.toml").write_text("[server]\nport = 10")
    (tmp_path / "elsewhere").mkdir()
    assert load((), NOTHING, tmp_path / "elsewhere").config.server.port == 8000


@pytest.mark.parametrize(
    ("argv", "environ", "toml"),
    [
        (["--hf-token"], {}, ""),
        ([], {}, "[server]\napi_key = 1234567"),
        ([], {"VECTORD_API_KEYS": "1234567"}, ""),
        (["--device", "https://me:1234567@host"], {}, ""),
        (["--device", "redis://:1/234567@host"], {}, ""),
        (["--device", "redis://host?a=b&password=1234567"], {}, ""),
    ],
)
def test_an_error_shows_no_secret(tmp_path: Path, argv: list[str], environ: dict[str, str], toml: str) -> None:
    """Nor a value that may be one."""
    (tmp_path / "vectord.toml").write_text(toml)
    assert "234567" not in refused(argv, environ, tmp_path)


@pytest.mark.parametrize("name", ["hf_endpoint", "grafana_url", "redis_url", "shared_cache"])
def test_the_password_of_a_url_is_not_printed(tmp_path: Path, name: str) -> None:
    """As --print-config and doctor show the settings; the configuration has it."""
    url = f"{'redis' if name in ('redis_url', 'shared_cache') else 'https'}://me:1234567@host"
    loaded = load([f"--{name.replace('_', '-')}", url], NOTHING, tmp_path)
    printed = {setting.name: value for setting, value, _ in loaded.printable()}
    assert printed[name] in ("***", "https://***@host")
    assert "1234567" in repr([getattr(getattr(loaded.config, one.section), one.name) for one in SETTINGS])


def test_a_long_value_is_shown_short(tmp_path: Path) -> None:
    """It stays one short line."""
    assert len(refused(["--port", "x\n" * 10_000], NOTHING, tmp_path)) < 200


@pytest.mark.parametrize(
    ("argv", "environ"),
    [
        ([], {"VECTORD_DEFAULT_PROMPT": "query: ", "VECTORD_DEFAULT_PROMPT_NAME": "query"}),
        (["--default-prompt-name", "query"], {"VECTORD_DEFAULT_PROMPT": "query: "}),
    ],
    ids=["one source", "two sources"],
)
def test_only_one_default_prompt_may_be_set(tmp_path: Path, argv: list[str], environ: dict[str, str]) -> None:
    """As in TEI."""
    line = refused(argv, environ, tmp_path)
    assert line.startswith("VECTORD_DEFAULT_PROMPT (environment) and ")
    assert line.endswith(": set only one of them")


def test_names_without_effect_share_one_note(tmp_path: Path) -> None:
    """From all sources, and without values, which may be secret."""
    (tmp_path / ".env").write_text("INFINITY_ENGINE=torch\nINFINITY_QUEUE_SIZE=9")
    words = ["--profile", "infinity", "--env-file", ".env"]
    environ = {"INFINITY_QUEUE_SIZE": "8", "DO_NOT_TRACK": ""}
    loaded = load([*words, "--engine", "torch", "--no-compile"], environ, tmp_path)
    assert loaded.config == load(words, NOTHING, tmp_path).config
    assert loaded.notes == (
        "set, but without effect here: --engine, --no-compile, INFINITY_QUEUE_SIZE, INFINITY_ENGINE (see "
        "docs/configuration.md)",
    )


def test_settings_of_vectord_cause_no_note(tmp_path: Path) -> None:
    """Only names of other servers do."""
    assert load(["--port", "1"], {"VECTORD_HOST": "::1", "HOSTNAME": "laptop"}, tmp_path).notes == ()


def test_the_notes_go_to_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As warnings, in the log's format."""
    loaded = load(["--profile", "smart-embedder"], {"OLLAMA_HOST": "::1", "MAX_QUEUE_SIZE": "0"}, tmp_path)
    with caplog.at_level(logging.WARNING, "vectord.config"):
        loaded.log_notes()
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert caplog.messages == list(loaded.notes)


@pytest.mark.parametrize(
    ("argv", "environ", "hf_home", "hub_cache"),
    [
        ([], {"HF_HOME": "/home"}, "/home", None),
        (["--hf-home", "/near"], {"HF_HUB_CACHE": "/cache"}, "/near", None),
        ([], {"HF_HOME": "/home", "HF_HUB_CACHE": "/cache"}, "/home", "/cache"),
        ([], {"HF_HUB_CACHE": "/cache"}, None, "/cache"),
        ([], {}, None, "models"),
    ],
    ids=["before the profile", "an option before the environment", "both", "only the cache", "neither"],
)
def test_the_cache_folder_of_the_first_source_counts(
    tmp_path: Path, argv: list[str], environ: dict[str, str], hf_home: str | None, hub_cache: str | None
) -> None:
    """The profile sets hub_cache = "models". An operator that sets Hugging Face's folder overrides it."""
    (tmp_path / "models").mkdir()  # without it, the profile's setting does not count
    environ = {**environ, "MODELS": "bge-m3"}
    model = load(["--profile", "simple-inference-server", *argv], environ, tmp_path).config.model
    assert (model.hf_home, model.hub_cache) == (hf_home, hub_cache)


@pytest.mark.parametrize(
    ("profile", "environ", "seconds"),
    [
        ("smart-embedder", {}, (30, 15)),
        ("smart-embedder", {"GPU_PROCESS_TIMEOUT": "60"}, (60, None)),
        ("smart-embedder", {"GPU_FORWARD_TIMEOUT_S": "20"}, (30, 20)),
        ("smart-embedder", {"GPU_PROCESS_TIMEOUT": "60", "GPU_FORWARD_TIMEOUT_S": "20"}, (60, 20)),
        ("default", {}, (300, None)),
    ],
    ids=str,
)
def test_a_gpu_has_its_own_timeout(
    tmp_path: Path, profile: str, environ: dict[str, str], seconds: tuple[float, float | None]
) -> None:
    """Unless the operator sets one for every device."""
    engine = load(["--profile", profile], environ, tmp_path).config.engine
    assert (engine.forward_timeout_s, engine.gpu_forward_timeout_s) == seconds
