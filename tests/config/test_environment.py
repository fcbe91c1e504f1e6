"""Variables in the environment and in the env file, vectord's and other servers'."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.config.start import NOTHING, load, refused

from vectord.config import Config
from vectord.errors import ConfigError

ENV_FILE = ("--env-file", ".env")


def test_the_prefixed_name_wins_and_then_the_first_listed(tmp_path: Path) -> None:
    """VECTORD_DEVICE, then DEVICE, then the profile's names, then those of libraries."""
    names = ("VECTORD_DEVICE", "DEVICE", "MODEL_DEVICE", "CUDA_VISIBLE_DEVICES")
    environ = dict(zip(names, ("cuda:1", "cuda:2", "cuda:3", "-1"), strict=True))
    devices = []
    for name in names:
        words = ["--profile", "simple-inference-server", "--models", "m"]
        devices.append(load(words, environ, tmp_path).config.device.device)
        del environ[name]
    assert devices == ["cuda:1", "cuda:2", "cuda:3", "cpu"]


def test_an_empty_variable_is_not_set(tmp_path: Path) -> None:
    """Containers pass on empty variables; an empty key must not open the server."""
    (tmp_path / ".env").write_text("VECTORD_API_KEY=secret")
    environ = {"VECTORD_API_KEY": "", "VECTORD_PORT": " "}
    assert load(ENV_FILE, environ, tmp_path).config.server.api_key == "secret"
    sources = dict.fromkeys(("VECTORD_CONFIG", "VECTORD_ENV_FILE", "VECTORD_PROFILE"), "")
    assert load((), sources, tmp_path).config == Config()


@pytest.mark.parametrize("words", [["--profile", "tei"], ["--env-compat"]], ids=" ".join)
def test_a_name_without_the_prefix_counts_where_it_is_meant_for_this_server(tmp_path: Path, words: list[str]) -> None:
    """Under another product's profile, or with --env-compat."""
    loaded = load(words, {"PORT": "9000"}, tmp_path)
    assert (loaded.config.server.port, str(loaded.origins["port"])) == (9000, "PORT (environment)")


def test_other_names_without_the_prefix_are_ignored_and_logged(tmp_path: Path) -> None:
    """Other programs use them too. Hugging Face's and OpenTelemetry's own names count."""
    environ = {"PORT": "9000", "HOST": "x86_64-linux", "HF_TOKEN": "t", "OTEL_SERVICE_NAME": "search", "API_KEY": "k"}
    loaded = load((), environ, tmp_path)
    assert loaded.config == load((), {"HF_TOKEN": "t", "OTEL_SERVICE_NAME": "search"}, tmp_path).config
    ignored = "set, but ignored: HOST, PORT, API_KEY; put VECTORD_ in front, or start with --env-compat"
    assert loaded.notes == (ignored,)
    with pytest.raises(
        ConfigError, match=r"API_KEY does not protect this server; .* or --env-compat, or unset API_KEY"
    ):
        loaded.check_keys()


def test_an_env_file_is_read_if_it_is_named(tmp_path: Path) -> None:
    """Another .env may belong to another program: it is logged if it has our names. Some profiles read it."""
    (tmp_path / ".env").write_text("COMPOSE_FILE=a.yml  # not VECTORD_PORT")
    assert load((), NOTHING, tmp_path).notes == ()
    (tmp_path / ".env").write_text("VECTORD_PORT=9000")
    loaded = load((), NOTHING, tmp_path)
    assert (loaded.config, len(loaded.notes)) == (Config(), 1)
    assert loaded.notes[0] == ".env is not read, and sets VECTORD_PORT; to read it, start with --env-file .env"
    for words, environ in (
        (ENV_FILE, {}),
        ((), {"VECTORD_ENV_FILE": ".env"}),
        (("--profile", "smart-embedder"), {}),
        (("--models", "m"), {"VECTORD_PROFILE": "simple-inference-server"}),
    ):
        loaded = load(words, environ, tmp_path)
        assert (str(loaded.origins["port"]), loaded.notes) == ("VECTORD_PORT (env file)", ())
    assert refused(("--env-file", "no.env"), NOTHING, tmp_path) == "env file 'no.env': no such file"


@pytest.mark.parametrize(
    ("words", "text"),
    [((), "VECTORD_API_KEY=k"), (("--profile", "tei"), "API_KEY=k"), ((), "VECTORD_API_KEYS_FILE=keys.toml")],
    ids=["default", "a product's", "a file of keys"],
)
def test_a_key_in_an_env_file_that_is_not_read_stops_the_start(
    tmp_path: Path, words: tuple[str, ...], text: str
) -> None:
    """Else the server would be open. Another key protects it, too."""
    (tmp_path / ".env").write_text(text)
    with pytest.raises(ConfigError, match=r" in \.env does not protect this server"):
        load(words, NOTHING, tmp_path).check_keys()
    load((*words, "--api-key", "other"), NOTHING, tmp_path).check_keys()


def test_another_programs_env_file_is_ignored(tmp_path: Path) -> None:
    """Without a note: names without the prefix are its own, and it may have any encoding."""
    for content in (b"API_KEY=k\nPORT=1", b"\xff\xfe"):
        (tmp_path / ".env").write_bytes(content)
        loaded = load((), NOTHING, tmp_path)
        loaded.check_keys()
        assert loaded.notes == ()


def test_a_file_of_keys_without_the_prefix_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="API_KEYS_FILE does not protect this server; set VECTORD_API_KEYS_FILE"):
        load((), {"API_KEYS_FILE": "keys.toml"}, tmp_path).check_keys()


def test_a_machine_name_in_hostname_is_ignored(tmp_path: Path) -> None:
    """Every container sets it."""
    server = load(["--profile", "tei"], {"HOSTNAME": "4f2a9c1e77b0"}, tmp_path).config.server
    assert server.host == "0.0.0.0"


def test_service_links_of_kubernetes_are_ignored(tmp_path: Path) -> None:
    """A service called vectord, or vectord-grpc, must not prevent the pods of its namespace from starting."""
    environ = {
        "VECTORD_SERVICE_HOST": "10.0.0.7",
        "VECTORD_SERVICE_PORT": "8000",
        "VECTORD_SERVICE_PORT_HTTP": "8000",
        "VECTORD_PORT": "tcp://10.0.0.7:8000",
        "VECTORD_PORT_8000_TCP": "tcp://10.0.0.7:8000",
        "VECTORD_PORT_8000_TCP_ADDR": "10.0.0.7",
        "VECTORD_GRPC_SERVICE_HOST": "10.0.0.8",
        "VECTORD_GRPC_PORT": "tcp://10.0.0.8:50051",
        "VECTORD_GRPC_PORT_50051_TCP_PROTO": "tcp",
        "VECTORD_GPU_PORT": "tcp://10.0.0.9:8000",
        "VECTORD_DNS_PORT": "udp://10.0.0.9:53",
    }
    assert load((), environ, tmp_path).config == Config()


def test_dotenv_does_not_expand_dollar_signs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Expansion would read the process's environment and change keys."""
    monkeypatch.setenv("USER", "me")
    (tmp_path / ".env").write_text("VECTORD_API_KEY=a$b${USER}")
    assert load(ENV_FILE, NOTHING, tmp_path).config.server.api_key == "a$b${USER}"


def test_a_line_of_dotenv_that_is_no_setting_is_named(tmp_path: Path) -> None:
    """By its number, because it may contain a secret. The other lines apply."""
    (tmp_path / ".env").write_text("# a comment\n\n= secret\nVECTORD_API_KEY=mine\n")
    loaded = load(ENV_FILE, NOTHING, tmp_path)
    assert loaded.config.server.api_key == "mine"
    assert loaded.notes == (".env: line 3 is not NAME=VALUE, and is ignored",)


@pytest.mark.parametrize(
    ("environ", "line"),
    [
        ({"VECTORD_PORT": "x"}, "VECTORD_PORT (environment): expected a whole number from 0 to 65535, got 'x'"),
        ({"VECTORD_PRT": "1"}, "unknown name 'VECTORD_PRT' (environment); did you mean VECTORD_PORT?"),
        (
            {"VECTORD_LOG_LEVEL": "loud"},
            "VECTORD_LOG_LEVEL (environment): expected one of debug, info, warning, error, got 'loud'",
        ),
        ({"VECTORD_UDS_PATH": "/x"}, "unknown name 'VECTORD_UDS_PATH' (environment); did you mean VECTORD_DENSE_PATH?"),
        (
            {"VECTORD_MAX_QUEUE_WAIT": "1"},
            "unknown name 'VECTORD_MAX_QUEUE_WAIT' (environment); did you mean VECTORD_MAX_QUEUE_WAIT_S?",
        ),
        (
            {"VECTORD_URL_PREFIX": "v1/"},
            "VECTORD_URL_PREFIX (environment): expected a path such as /api/models, got 'v1/'",
        ),
        ({"VECTORD_DEVICE": "gpu"}, "VECTORD_DEVICE (environment): expected auto, cpu, cuda, cuda:N, cuda:all, mps"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_a_bad_variable_is_refused(tmp_path: Path, environ: dict[str, str], line: str) -> None:
    """With its name and the expected form."""
    assert refused((), environ, tmp_path).startswith(line)


@pytest.mark.parametrize(
    ("argv", "environ", "origin"),
    [
        ([], {"VECTORD_API_KEY": "k\udce8y"}, "VECTORD_API_KEY (environment)"),
        (["--served-model-name", "a;mod\udce8le"], {}, "--served-model-name (command line)"),
        (["/models/mod\udce8le"], {}, "command line"),
    ],
    ids=["a key", "a list", "a model"],
)
def test_a_value_in_another_encoding_is_refused(
    argv: list[str], environ: dict[str, str], origin: str, tmp_path: Path
) -> None:
    """No response could contain such a name, and no client could send such a key. Python has half a surrogate pair for
    each byte that is not UTF-8."""
    assert refused(argv, environ, tmp_path) == f"{origin}: not UTF-8"


def test_a_misspelt_name_in_dotenv_is_suggested(tmp_path: Path) -> None:
    """As in the environment, with the name of the file."""
    (tmp_path / ".env").write_text("VECTORD_HOTS=x")
    assert refused(ENV_FILE, NOTHING, tmp_path) == "unknown name 'VECTORD_HOTS' (env file); did you mean VECTORD_HOST?"


# --- lenient variables of Smart Embedder ----------------------------------------------------------------------


@pytest.mark.parametrize("source", ["environment", "env file"])
def test_a_bad_value_of_a_lenient_variable_is_logged(tmp_path: Path, source: str) -> None:
    """Smart Embedder logs it and uses its default. The warning does not contain the value."""
    environ = {"MAX_QUEUE_SIZE": "many-5417"}
    if source == "env file":
        (tmp_path / ".env").write_text("MAX_QUEUE_SIZE=many-5417")
        environ = {}
    loaded = load(["--profile", "smart-embedder"], environ, tmp_path)
    assert loaded.config.engine.max_concurrent_requests == 200
    assert str(loaded.origins["max_concurrent_requests"]) == "[engine] max_concurrent_requests (profile)"
    assert loaded.notes == (
        f"MAX_QUEUE_SIZE ({source}): expected a whole number from 1 to 1000000; the value is ignored",
    )


def test_a_bad_lenient_variable_yields_to_the_next(tmp_path: Path) -> None:
    """MAX_INPUT_LENGTH follows BGE_EMBED_MAX_LENGTH."""
    environ = {"BGE_EMBED_MAX_LENGTH": "8193", "MAX_INPUT_LENGTH": "2048"}
    loaded = load(["--profile", "smart-embedder"], environ, tmp_path)
    assert loaded.config.model.bge_embed_max_length == 2048
    assert len(loaded.notes) == 1


@pytest.mark.parametrize(
    ("argv", "environ"),
    [
        (["--bge-embed-max-length", "0"], {}),
        (["--qwen-rerank-max-length", "127"], {}),
        ([], {"VECTORD_BGE_EMBED_MAX_LENGTH": "8193"}),
        ([], {"VECTORD_MAX_CONCURRENT_REQUESTS": "0"}),
        ([], {"MAX_CONCURRENT_REQUESTS": "abc"}),
    ],
    ids=str,
)
def test_only_a_plain_variable_of_the_product_is_lenient(
    tmp_path: Path, argv: list[str], environ: dict[str, str]
) -> None:
    """Not an option, not a name with vectord's prefix, not vectord's own name if the product has another one."""
    words = ["--profile", "smart-embedder", *argv]
    assert "expected a whole number from" in refused(words, environ, tmp_path)


def test_spaces_around_a_prompt_count(tmp_path: Path) -> None:
    """`query: ` without its space is another prompt. A value of only spaces is unset."""
    assert load((), {"VECTORD_DEFAULT_PROMPT": "query: "}, tmp_path).config.model.default_prompt == "query: "
    assert load(["--default-prompt", " x "], NOTHING, tmp_path).config.model.default_prompt == " x "
    assert load((), {"VECTORD_DEFAULT_PROMPT": "  "}, tmp_path).config.model.default_prompt is None
