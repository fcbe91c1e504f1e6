"""Which words of a command line are options, values and models, and the errors for other words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.config.start import NOTHING, load, refused

from vectord.config.profiles import make_profile
from vectord.config.settings import SETTINGS
from vectord.config.sources import Origin
from vectord.products.common.profiles import profiles

PROFILES = [make_profile(name, profiles()) for name in profiles()]
FLAGS = sorted(
    {flag for profile in PROFILES for setting in profile.settings for flag in setting.flags}
    | {flag for profile in PROFILES for flag in profile.ignored_options}
)
TEI, INFINITY = (["--profile", name] for name in ("tei", "infinity"))


@pytest.mark.parametrize(
    ("argv", "models"),
    [
        (["a", "b"], ("a", "b")),
        (["a", "--model", "b", "--models=c,d"], ("a", "b", "c", "d")),
        (["--port", "1", "a"], ("a",)),
        (["--auto-truncate", "a"], ("a",)),
        (["--auto-truncate", "false", "a"], ("a",)),
        (["--", "--odd"], ("--odd",)),
        (["folder, with comma"], ("folder, with comma",)),
        ([], ()),
    ],
    ids=str,
)
def test_other_words_are_models(tmp_path: Path, argv: list[str], models: tuple[str, ...]) -> None:
    """In their order. One word is one model; an option's value may list several."""
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
def test_a_switch_may_have_a_value(tmp_path: Path, argv: list[str], value: bool | None) -> None:
    """As TEI's --auto-truncate. The last one wins."""
    assert load(argv, NOTHING, tmp_path).config.engine.auto_truncate is value


def test_options_of_other_servers_are_accepted(tmp_path: Path) -> None:
    """TEI's --hostname, -p and --json-output. The origin has the given name."""
    loaded = load([*TEI, "--hostname", "0.0.0.0", "-p", "80", "--json-output"], NOTHING, tmp_path)
    assert (loaded.config.server.host, loaded.config.server.port) == ("0.0.0.0", 80)
    assert loaded.config.telemetry.log_format == "json"
    assert loaded.origins["port"] == Origin("command line", "-p")


def test_of_several_batch_sizes_the_largest_counts(tmp_path: Path) -> None:
    """infinity's option has one for each model."""
    assert load([*INFINITY, "--batch-size", "8;16"], NOTHING, tmp_path).config.device.max_batch_requests == 16


def test_a_host_name_on_the_command_line_counts(tmp_path: Path) -> None:
    """Shells set the variable HOSTNAME, but not the option."""
    assert load([*TEI, "--hostname", "laptop"], {"HOSTNAME": "4f2a9c1e77b0"}, tmp_path).config.server.host == "laptop"


@pytest.mark.parametrize("source", ["option", "variable"])
def test_a_number_format_of_all_vectors_is_refused(tmp_path: Path, source: str) -> None:
    """infinity's, unless it is the usual one: without it, vectors would have another format."""
    line = refused(
        [*INFINITY, *(["--embedding-dtype", "int8"] if source == "option" else [])],
        {"INFINITY_EMBEDDING_DTYPE": "float32;int8"} if source == "variable" else NOTHING,
        tmp_path,
    )
    assert "expected float32" in line
    assert load([*INFINITY, "--embedding-dtype", "float32"], NOTHING, tmp_path).notes


@pytest.mark.parametrize(
    "argv",
    [
        ["--engine", "torch", "a"],
        ["--engine=torch", "a"],
        ["--compile", "a"],
        ["--compile", "true", "a"],
        ["--no-compile", "a"],
    ],
    ids=" ".join,
)
def test_an_option_without_effect_takes_its_value(tmp_path: Path, argv: list[str]) -> None:
    """No word of another server's command line becomes a model."""
    loaded = load([*INFINITY, *argv], NOTHING, tmp_path)
    assert loaded.config.model.models == ("a",)
    assert argv[0].partition("=")[0] in loaded.notes[0]


def test_an_option_for_each_model_may_be_repeated(tmp_path: Path) -> None:
    """As on infinity's command line: equal values are one, and the largest batch counts."""
    words = "a b --dtype float16 --dtype float16 --revision r --revision r --batch-size 64 --batch-size 32 --device cpu"
    config = load([*INFINITY, *words.split()], NOTHING, tmp_path).config
    assert (config.device.dtype, config.model.revision, config.device.device) == ("float16", "r", "cpu")
    assert config.device.max_batch_requests == 64


def test_of_any_other_repeated_option_the_last_one_counts(tmp_path: Path) -> None:
    """Also if the option has a reader."""
    argv = "--hostname ::1 --hostname 0.0.0.0 --json-output true --json-output false --rust-log info --rust-log debug"
    config = load([*TEI, *argv.split()], NOTHING, tmp_path).config
    assert (config.server.host, config.telemetry.log_format, config.telemetry.log_level) == ("0.0.0.0", "text", "debug")
    argv = "--permissive-cors false --permissive-cors true --device-id 0 --device-id 1"
    config = load([*INFINITY, *argv.split()], NOTHING, tmp_path).config
    assert (config.server.cors_allow_origin, config.device.device) == (("*",), "cuda:1")


def test_a_value_may_look_like_another_servers_option(tmp_path: Path) -> None:
    """Also after a switch that stands alone."""
    loaded = load(["--auto-truncate", "--default-prompt", "-c", "a"], NOTHING, tmp_path)
    assert (loaded.config.model.default_prompt, loaded.config.model.models) == ("-c", ("a",))


def test_an_option_of_another_server_is_no_option_here(tmp_path: Path) -> None:
    """Otherwise its answer would never be given; and the options that the answers name exist."""
    instead = {option: text for profile in PROFILES for option, text in profile.instead.items()}
    assert not instead.keys() & set(FLAGS)
    named = {name for text in instead.values() for name in re.findall(r"--[a-z-]+", text)}
    assert named <= {flag for setting in SETTINGS for flag in setting.flags} | {"--no-access-log"}


def test_a_yaml_config_is_the_catalogue_of_simple_inference_server(tmp_path: Path) -> None:
    """Its --config is a list of models; vectord's is TOML."""
    loaded = load(["--config", "configs/model_config.yaml"], NOTHING, tmp_path)
    assert loaded.config.model.model_catalogue == "configs/model_config.yaml"


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["--prot", "1"], "unknown option '--prot'; did you mean --port?"),
        (["--no-offlin"], "unknown option '--no-offlin'; did you mean --no-offline?"),
        (["--profil", "x"], "unknown option '--profil'; did you mean --profile?"),
        (["--qqqqqq"], "unknown option '--qqqqqq'"),
        (["--max-num-seqs", "8"], "--max-num-seqs is another server's option: use --max-batch-requests"),
        (["-ngl", "99"], "-ngl is another server's option: use --device cuda"),
        (
            ["--auto-truncate", "-c", "512"],
            "-c is another server's option: a model's own length applies, and --max-length shortens it",
        ),
        (["--alias=a"], "--alias is another server's option: use --served-model-name"),
        (["--tool-parser", "x"], "unknown option '--tool-parser'"),
        (["--port"], "--port (command line): expected a value"),
        (["--port", "--host", "x"], "--port (command line): expected a value"),
        (["--no-offline=yes"], "Option '--no-offline' does not take a value."),
        (
            [*INFINITY, "--dtype", "float16", "--dtype", "float32"],
            "--dtype (command line): expected one of auto, float32, bfloat16, "
            "float16, int8, fp8, int8-weights, int4-weights, got 'float16;float32'",
        ),
        (["--port=x"], "--port (command line): expected a whole number from 0 to 65535, got 'x'"),
        (
            ["--cors-allow-origin=http://a.example,example.com"],
            "--cors-allow-origin (command line): expected origins such as https://example.com, null, "
            "or *, got ['http://a.example', 'example.com']",
        ),
        (["--offline=perhaps"], "--offline (command line): expected true or false, got 'perhaps'"),
        (
            ["--otel-resource-attributes", "host.name=a"],
            "--otel-resource-attributes (command line): expected a text, got 'host.name=a'",
        ),
        (["--config", "no.toml"], "config file 'no.toml': no such file"),
        (["--engine"], "--engine (command line): expected a value"),
        (["--no-compile=1"], "Option '--no-compile' does not take a value."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_bad_option_is_refused(tmp_path: Path, argv: list[str], line: str) -> None:
    """In one line, with the option, the expected form and the closest name."""
    assert refused(argv, NOTHING, tmp_path) == line
