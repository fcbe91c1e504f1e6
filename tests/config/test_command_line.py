"""Which words of a command line are options, values and models, and the errors for other words."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
from click.exceptions import Exit
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.config.start import NOTHING, load, refused

from vectord.config.other_servers import IGNORED_NAMES, OTHER_OPTIONS
from vectord.config.settings import SETTINGS, option_name
from vectord.config.sources import Origin
from vectord.errors import ConfigError


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
    loaded = load(["--hostname", "0.0.0.0", "-p", "80", "--json-output"], NOTHING, tmp_path)
    assert (loaded.config.server.host, loaded.config.server.port) == ("0.0.0.0", 80)
    assert loaded.config.telemetry.log_format == "json"
    assert loaded.origins["port"] == Origin("command line", "-p")


@pytest.mark.parametrize(
    ("argv", "joins"),
    [
        (["--enable-batching", "false"], "never"),
        (["--no-enable-batching"], "never"),
        (["--enable-batching"], "window"),
        (["--enable-batching", "--join-requests", "always"], "always"),
    ],
    ids=str,
)
def test_an_option_is_read_like_its_variable(tmp_path: Path, argv: list[str], joins: str) -> None:
    """--no-enable-batching sets a value, and --enable-batching sets none."""
    words = ["--profile", "simple-inference-server", "--models", "m", *argv]
    assert load(words, NOTHING, tmp_path).config.engine.join_requests == joins


def test_of_several_batch_sizes_the_largest_counts(tmp_path: Path) -> None:
    """infinity's option has one for each model."""
    assert load(["--batch-size", "8;16"], NOTHING, tmp_path).config.device.max_batch_requests == 16


def test_a_host_name_on_the_command_line_counts(tmp_path: Path) -> None:
    """Shells set the variable HOSTNAME, but not the option."""
    assert load(["--hostname", "laptop"], {"HOSTNAME": "4f2a9c1e77b0"}, tmp_path).config.server.host == "laptop"


@pytest.mark.parametrize("source", ["option", "variable"])
def test_a_number_format_of_all_vectors_is_refused(tmp_path: Path, source: str) -> None:
    """infinity's, unless it is the usual one: without it, vectors would have another format."""
    line = refused(
        ["--embedding-dtype", "int8"] if source == "option" else [],
        {"INFINITY_EMBEDDING_DTYPE": "float32;int8"} if source == "variable" else NOTHING,
        tmp_path,
    )
    assert "expected float32" in line
    assert load(["--embedding-dtype", "float32"], NOTHING, tmp_path).notes


def test_an_option_without_meaning_is_refused(tmp_path: Path) -> None:
    """In the environment `*` is ignored, since it names no model; as an option it is an error."""
    line = refused(["--inference-allowed-rerank-models", "*"], NOTHING, tmp_path)
    assert line.startswith("--inference-allowed-rerank-models (command line): expected one name or more")


@pytest.mark.parametrize(
    "argv",
    [
        ["--uds-path", "/tmp/socket", "a"],
        ["--uds-path=/tmp/socket", "a"],
        ["--compile", "a"],
        ["--compile", "true", "a"],
        ["--no-compile", "a"],
    ],
    ids=" ".join,
)
def test_an_option_without_effect_takes_its_value(tmp_path: Path, argv: list[str]) -> None:
    """No word of another server's command line becomes a model."""
    loaded = load(argv, NOTHING, tmp_path)
    assert loaded.config.model.models == ("a",)
    assert argv[0].partition("=")[0] in loaded.notes[0]


def test_an_option_for_each_model_may_be_repeated(tmp_path: Path) -> None:
    """As on infinity's command line: equal values are one, and the largest batch counts."""
    words = "a b --dtype float16 --dtype float16 --revision r --revision r --batch-size 64 --batch-size 32 --device cpu"
    config = load(words.split(), NOTHING, tmp_path).config
    assert (config.device.dtype, config.model.revision, config.device.device) == ("float16", "r", "cpu")
    assert config.device.max_batch_requests == 64


def test_a_value_may_look_like_another_servers_option(tmp_path: Path) -> None:
    """Also after a switch that stands alone."""
    loaded = load(["--auto-truncate", "--default-prompt", "-c", "a"], NOTHING, tmp_path)
    assert (loaded.config.model.default_prompt, loaded.config.model.models) == ("-c", ("a",))


def test_an_option_of_another_server_is_no_option_here(tmp_path: Path) -> None:
    """Otherwise its answer would never be given; and the options that the answers name exist."""
    own = {flag for setting in SETTINGS for flag in setting.flags} | set(map(option_name, IGNORED_NAMES))
    assert not own & OTHER_OPTIONS.keys()
    named = {name for instead in OTHER_OPTIONS.values() for name in re.findall(r"--[a-z-]+", instead)}
    assert named <= own | {"--no-access-log"}


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
            ["--dtype", "float16", "--dtype", "float32"],
            "--dtype (command line): expected one of auto, float32, bfloat16, "
            "float16, int8, fp8, int8-weights, int4-weights, got 'float16;float32'",
        ),
        (["--port=x"], "--port (command line): expected a whole number from 0 to 65535, got 'x'"),
        (["--offline=perhaps"], "--offline (command line): expected true or false, got 'perhaps'"),
        (["--config", "no.toml"], "config file 'no.toml': no such file"),
        (["--uds-path"], "--uds-path (command line): expected a value"),
        (["--no-compile=1"], "Option '--no-compile' does not take a value."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_bad_option_is_refused(tmp_path: Path, argv: list[str], line: str) -> None:
    """In one line, with the option, the expected form and the closest name."""
    assert refused(argv, NOTHING, tmp_path) == line


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.text(max_size=12)
        | st.sampled_from([*(flag for s in SETTINGS for flag in s.flags), *map(option_name, IGNORED_NAMES)])
    )
)
def test_any_words_load_or_are_refused_in_one_line(tmp_path_factory: pytest.TempPathFactory, argv: list[str]) -> None:
    """`load` returns, raises ConfigError, or has printed the help."""
    cwd = tmp_path_factory.getbasetemp()
    logging.disable()
    try:
        load(argv, NOTHING, cwd)
    except ConfigError as refusal:
        assert len(refusal.message.splitlines()) == 1
    except Exit as end:
        assert end.exit_code == 0
        assert {"-h", "--help", "--help-all"} & set(argv)
    finally:
        logging.disable(logging.NOTSET)
