"""sources.py: who wins, what is refused and how, and that no source but the given ones is read."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vectord.config import DEFAULT_MODEL, Config
from vectord.config.settings import SETTINGS
from vectord.config.sources import PROFILES, Loaded, Origin, load, profiles
from vectord.errors import ConfigError

NOTHING: Mapping[str, str] = {}


def refused(argv: Sequence[str], environ: Mapping[str, str], cwd: Path) -> str:
    """The one line that stops the start."""
    with pytest.raises(ConfigError) as refusal:
        load(argv, environ, cwd)
    assert "\n" not in refusal.value.message
    return refusal.value.message


def from_all_sources(cwd: Path, sources: Sequence[str]) -> Loaded:
    """Load a configuration whose given sources each say another port."""
    argv = ["--profile=tei"] if "profile" in sources else []
    environ = {"PORT": "2000"} if "environment" in sources else {}
    if "command line" in sources:
        argv += ["--port", "1000"]
    if ".env" in sources:
        (cwd / ".env").write_text("PORT=2500\n")
    if "config file" in sources:
        (cwd / "vectord.toml").write_text("[server]\nport = 2700\n")
    return load(argv, environ, cwd)


# --- who wins -------------------------------------------------------------------------------------------------


def test_nothing_said_is_the_default(tmp_path: Path) -> None:
    """With no source at all the process runs on Config()."""
    loaded = load((), NOTHING, tmp_path)
    assert loaded.config == Config()
    assert set(loaded.origins) == {setting.name for setting in SETTINGS}
    assert set(loaded.origins.values()) == {Origin("default")}


@pytest.mark.parametrize(
    ("sources", "port", "origin"),
    [
        (["command line", "environment", ".env", "config file", "profile"], 1000, "--port (command line)"),
        (["environment", ".env", "config file", "profile"], 2000, "PORT (environment)"),
        ([".env", "config file", "profile"], 2500, "PORT (.env)"),
        (["config file", "profile"], 2700, "[server] port (config file)"),
        (["profile"], 3000, "[server] port (profile)"),
        ([], 8000, "default"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) and value else None,
)
def test_the_first_source_wins_and_is_named(tmp_path: Path, sources: list[str], port: int, origin: str) -> None:
    """Command line, environment, .env, config file, profile, default."""
    loaded = from_all_sources(tmp_path, sources)
    assert loaded.config.server.port == port
    assert str(loaded.origins["port"]) == origin


def test_sources_are_merged_setting_by_setting(tmp_path: Path) -> None:
    """A source that wins one setting does not hide what another says about the next."""
    (tmp_path / "vectord.toml").write_text('profile = "tei"\n[device]\nnum_threads = 3\n')
    loaded = load(["--port=1"], {"DTYPE": "float32"}, tmp_path)
    assert (loaded.config.server.port, loaded.config.device.dtype) == (1, "float32")
    assert (loaded.config.device.num_threads, loaded.config.engine.max_client_batch_size) == (3, 32)


def test_the_prefixed_name_wins_and_then_the_first_listed(tmp_path: Path) -> None:
    """VECTORD_HOST before HOST before the names of other servers, HOSTNAME last."""
    environ = {"HOSTNAME": "127.0.0.9", "API_HOST": "127.0.0.8", "HOST": "127.0.0.7", "VECTORD_HOST": "127.0.0.6"}
    hosts = []
    for name in ("VECTORD_HOST", "HOST", "API_HOST", "HOSTNAME"):
        hosts.append(load((), environ, tmp_path).config.server.host)
        del environ[name]
    assert hosts == ["127.0.0.6", "127.0.0.7", "127.0.0.8", "127.0.0.9"]


def test_an_alias_in_the_environment_beats_the_plain_name_in_dotenv(tmp_path: Path) -> None:
    """The source counts before the name."""
    (tmp_path / ".env").write_text("PORT=2500")
    assert load((), {"API_PORT": "2000"}, tmp_path).config.server.port == 2000


def test_an_empty_variable_is_not_set(tmp_path: Path) -> None:
    """Containers hand on variables that nobody filled in; an empty key must not open the server."""
    (tmp_path / ".env").write_text("API_KEY=secret")
    assert load((), {"API_KEY": "", "PORT": " "}, tmp_path).config.server.api_key == "secret"


def test_a_machines_name_in_hostname_is_passed_over(tmp_path: Path) -> None:
    """Every container has one."""
    assert load((), {"HOSTNAME": "4f2a9c1e77b0"}, tmp_path).config.server.host == "127.0.0.1"


def test_service_links_of_kubernetes_are_passed_over(tmp_path: Path) -> None:
    """A service called vectord must not keep the pods of its namespace from starting."""
    environ = {
        "VECTORD_SERVICE_HOST": "10.0.0.7",
        "VECTORD_SERVICE_PORT": "8000",
        "VECTORD_SERVICE_PORT_HTTP": "8000",
        "VECTORD_PORT": "tcp://10.0.0.7:8000",
        "VECTORD_PORT_8000_TCP": "tcp://10.0.0.7:8000",
        "VECTORD_PORT_8000_TCP_ADDR": "10.0.0.7",
    }
    assert load((), environ, tmp_path).config == Config()


def test_dotenv_takes_dollars_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No expansion: it would read the process's environment and change keys."""
    monkeypatch.setenv("USER", "somebody")
    (tmp_path / ".env").write_text("API_KEY=a$b${USER}")
    assert load((), NOTHING, tmp_path).config.server.api_key == "a$b${USER}"


def test_only_the_given_environment_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """load is a function of its arguments and the files below cwd."""
    monkeypatch.setenv("PORT", "9")
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text("PORT=10")
    (tmp_path / "elsewhere").mkdir()
    assert load((), NOTHING, tmp_path / "elsewhere").config.server.port == 8000


# --- command line ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "models"),
    [
        (["a", "b"], ("a", "b")),
        (["a", "--model-id", "b", "--models=c,d"], ("a", "b", "c", "d")),
        (["--port", "1", "a"], ("a",)),
        (["--auto-truncate", "a"], ("a",)),
        (["--auto-truncate", "false", "a"], ("a",)),
        (["--", "--odd"], ("--odd",)),
        (["folder, with comma"], ("folder, with comma",)),
        ([], (DEFAULT_MODEL,)),
    ],
    ids=str,
)
def test_words_that_are_no_options_are_models(tmp_path: Path, argv: list[str], models: tuple[str, ...]) -> None:
    """In the order given; one word is one model, an option's value may list several."""
    assert load(argv, NOTHING, tmp_path).config.model.models == models


@pytest.mark.parametrize(
    ("argv", "value"),
    [
        (["--auto-truncate"], True),
        (["--auto-truncate", "no"], False),
        (["--auto-truncate=FALSE"], False),
        (["--no-auto-truncate"], False),
        (["--no-auto-truncate", "--auto-truncate"], True),
        ([], None),
    ],
    ids=str,
)
def test_a_switch_stands_alone_or_takes_a_value(tmp_path: Path, argv: list[str], value: bool | None) -> None:
    """As TEI's --auto-truncate does; the last word counts."""
    assert load(argv, NOTHING, tmp_path).config.engine.auto_truncate is value


def test_other_servers_options_are_understood(tmp_path: Path) -> None:
    """TEI's --hostname, -p and --json-output, each named as it was written."""
    loaded = load(["--hostname", "0.0.0.0", "-p", "80", "--json-output"], NOTHING, tmp_path)
    assert (loaded.config.server.host, loaded.config.server.port) == ("0.0.0.0", 80)
    assert loaded.config.telemetry.log_format == "json"
    assert loaded.origins["port"] == Origin("command line", "-p")


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["--prot", "1"], "unknown option '--prot'; did you mean --port?"),
        (["--no-offlin"], "unknown option '--no-offlin'; did you mean --no-offline?"),
        (["--profil", "x"], "unknown option '--profil'; did you mean --profile?"),
        (["--qqqqqq"], "unknown option '--qqqqqq'"),
        (["--port"], "--port (command line): a value must follow"),
        (["--port", "--host", "x"], "--port (command line): a value must follow"),
        (["--no-offline=yes"], "--no-offline (command line): takes no value"),
        (["--port=x"], "--port (command line): expected a whole number from 0 to 65535, got 'x'"),
        (["--offline=perhaps"], "--offline (command line): expected true or false, got 'perhaps'"),
        (["--profile", "te"], "unknown profile 'te'; there are: default, tei"),
        (["--config", "no.toml"], "config file 'no.toml': no such file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_bad_option_stops_the_start(tmp_path: Path, argv: list[str], line: str) -> None:
    """One line: which option, what was expected, the nearest name."""
    assert refused(argv, NOTHING, tmp_path) == line


def test_switches_of_the_caller_are_handed_back(tmp_path: Path) -> None:
    """`serve --print-config` is the command line's own; its name is suggested like any other."""
    assert load(["--now", "a"], NOTHING, tmp_path, switches=("--now",)).switches == {"--now"}
    assert "did you mean --now?" in refused_with(["--nwo"], tmp_path)


def refused_with(argv: list[str], cwd: Path) -> str:
    with pytest.raises(ConfigError) as refusal:
        load(argv, NOTHING, cwd, switches=("--now",))
    return refusal.value.message


# --- environment and files ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "line"),
    [
        ({"PORT": "x"}, "PORT (environment): expected a whole number from 0 to 65535, got 'x'"),
        ({"VECTORD_PRT": "1"}, "unknown name 'VECTORD_PRT' (environment); did you mean VECTORD_PORT?"),
        ({"RUST_LOG": "loud"}, "RUST_LOG (environment): expected one of debug, info, warning, error, got 'loud'"),
        ({"VECTORD_PROFILE": "te"}, "unknown profile 'te'; there are: default, tei"),
        ({"DEVICE": "gpu"}, "DEVICE (environment): expected auto, cpu, cuda, cuda:N or mps, got 'gpu'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_a_bad_variable_stops_the_start(tmp_path: Path, environ: dict[str, str], line: str) -> None:
    """With its own name and what was expected."""
    assert refused((), environ, tmp_path) == line


def test_a_stranger_in_the_environment_is_ignored(tmp_path: Path) -> None:
    """Only VECTORD_ is ours."""
    assert load((), {"PRT": "1", "MAX_BATCH_TOKEN": "x"}, tmp_path).config == Config()


def test_a_misspelt_name_in_dotenv_is_suggested(tmp_path: Path) -> None:
    """The same rule, and the file is named."""
    (tmp_path / ".env").write_text("VECTORD_HOTS=x")
    assert refused((), NOTHING, tmp_path) == "unknown name 'VECTORD_HOTS' (.env); did you mean VECTORD_HOST?"


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
        ("profile = 1", "profile in vectord.toml: expected one of default, tei"),
        ('profile = "x"', "unknown profile 'x'; there are: default, tei"),
    ],
    ids=lambda value: value.replace("\n", " ") if isinstance(value, str) else None,
)
def test_a_bad_config_file_stops_the_start(tmp_path: Path, toml: str, line: str) -> None:
    """Unknown keys are errors too, and say what was meant."""
    (tmp_path / "vectord.toml").write_text(toml)
    assert refused((), NOTHING, tmp_path).startswith(line)


def test_a_named_config_file_replaces_the_usual_one(tmp_path: Path) -> None:
    """--config, or VECTORD_CONFIG, also from .env."""
    (tmp_path / "vectord.toml").write_text("[server]\nport = 1")
    (tmp_path / "other.toml").write_text("[server]\nport = 2")
    (tmp_path / "third.toml").write_text("[server]\nport = 3")
    assert load(["--config", "other.toml"], NOTHING, tmp_path).config.server.port == 2
    (tmp_path / ".env").write_text("VECTORD_CONFIG=third.toml")
    assert load((), NOTHING, tmp_path).config.server.port == 3
    assert load((), {"VECTORD_CONFIG": "other.toml"}, tmp_path).config.server.port == 2


@pytest.mark.parametrize("name", ["vectord.toml", ".env"])
def test_a_file_that_is_not_text_stops_the_start(tmp_path: Path, name: str) -> None:
    """Whatever a file holds, the start ends with a line and not with a traceback."""
    (tmp_path / name).write_bytes(b"\xff\xfe\x00PORT=1")
    assert "cannot be read" in refused((), NOTHING, tmp_path)


@pytest.mark.parametrize(
    ("argv", "environ", "toml"),
    [
        (["--hf-token"], {}, ""),
        ([], {}, "[server]\napi_key = 1234567"),
        ([], {"VECTORD_API_KEYS": "1234567"}, ""),
    ],
)
def test_a_secret_is_never_shown(tmp_path: Path, argv: list[str], environ: dict[str, str], toml: str) -> None:
    """An error about a key does not print the key."""
    (tmp_path / "vectord.toml").write_text(toml)
    assert "1234567" not in refused(argv, environ, tmp_path)


def test_a_long_value_is_shown_short(tmp_path: Path) -> None:
    """The line stays a line."""
    assert len(refused(["--port", "x\n" * 10_000], NOTHING, tmp_path)) < 200


@pytest.mark.parametrize("name", profiles())
def test_every_profile_of_the_folder_loads(tmp_path: Path, name: str) -> None:
    """The folder is the registry; a profile holds only known keys and good values, and no secret."""
    loaded = load(["--profile", name], NOTHING, tmp_path)
    assert loaded.profile == name
    assert loaded.config.server.api_key is None
    assert "description" in (PROFILES / f"{name}.toml").read_text("utf-8")


@settings(max_examples=150, deadline=None)
@given(st.lists(st.text(max_size=12) | st.sampled_from([flag for s in SETTINGS for flag in s.flags])))
def test_any_words_load_or_are_refused_in_one_line(tmp_path_factory: pytest.TempPathFactory, argv: list[str]) -> None:
    """Whatever stands on the command line, load returns or raises ConfigError."""
    cwd = tmp_path_factory.getbasetemp()
    logging.disable()
    try:
        load(argv, NOTHING, cwd)
    except ConfigError as refusal:
        assert len(refusal.message.splitlines()) == 1
    finally:
        logging.disable(logging.NOTSET)
