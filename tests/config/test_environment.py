"""Variables in the environment and in .env, vectord's and other servers'."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.config.start import NOTHING, load, refused

from vectord.config import Config


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
    (tmp_path / ".env").write_text("API_KEY=secret")
    assert load((), {"API_KEY": "", "PORT": " "}, tmp_path).config.server.api_key == "secret"


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
    (tmp_path / ".env").write_text("API_KEY=a$b${USER}")
    assert load((), NOTHING, tmp_path).config.server.api_key == "a$b${USER}"


def test_a_line_of_dotenv_that_is_no_setting_is_named(tmp_path: Path) -> None:
    """By its number, because it may contain a secret. The other lines apply."""
    (tmp_path / ".env").write_text("# a comment\n\n= secret\nAPI_KEY=mine\n")
    loaded = load((), NOTHING, tmp_path)
    assert loaded.config.server.api_key == "mine"
    assert [note for note in loaded.notes if "NAME" in note] == [
        ".env: line 3 is not NAME=VALUE, and is ignored",
    ]


@pytest.mark.parametrize(
    ("environ", "line"),
    [
        ({"PORT": "x"}, "PORT (environment): expected a whole number from 0 to 65535, got 'x'"),
        ({"VECTORD_PRT": "1"}, "unknown name 'VECTORD_PRT' (environment); did you mean VECTORD_PORT?"),
        ({"LOG_LEVEL": "loud"}, "LOG_LEVEL (environment): expected one of debug, info, warning, error, got 'loud'"),
        ({"VECTORD_UDS_PATH": "/x"}, "unknown name 'VECTORD_UDS_PATH' (environment); did you mean VECTORD_DENSE_PATH?"),
        (
            {"VECTORD_MAX_QUEUE_WAIT": "1"},
            "unknown name 'VECTORD_MAX_QUEUE_WAIT' (environment); did you mean VECTORD_MAX_QUEUE_WAIT_S?",
        ),
        (
            {"URL_PREFIX": "v1/"},
            "URL_PREFIX (environment): expected a path such as /api/models, got 'v1/'",
        ),
        ({"DEVICE": "gpu"}, "DEVICE (environment): expected auto, cpu, cuda, cuda:N, cuda:all, mps"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_a_bad_variable_is_refused(tmp_path: Path, environ: dict[str, str], line: str) -> None:
    """With its name and the expected form."""
    assert refused((), environ, tmp_path).startswith(line)


@pytest.mark.parametrize(
    ("argv", "environ", "origin"),
    [
        ([], {"API_KEY": "k\udce8y"}, "API_KEY (environment)"),
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


def test_other_variables_are_ignored(tmp_path: Path) -> None:
    """Only the prefix VECTORD_ belongs to vectord."""
    assert load((), {"PRT": "1", "MAX_BATCH_TOKEN": "x"}, tmp_path).config == Config()


def test_a_misspelt_name_in_dotenv_is_suggested(tmp_path: Path) -> None:
    """As in the environment, with the name of the file."""
    (tmp_path / ".env").write_text("VECTORD_HOTS=x")
    assert refused((), NOTHING, tmp_path) == "unknown name 'VECTORD_HOTS' (.env); did you mean VECTORD_HOST?"


# --- lenient variables of Smart Embedder ----------------------------------------------------------------------


@pytest.mark.parametrize("source", ["environment", ".env"])
def test_a_bad_value_of_a_lenient_variable_is_logged(tmp_path: Path, source: str) -> None:
    """Smart Embedder logs it and uses its default. The warning does not contain the value."""
    environ = {"MAX_QUEUE_SIZE": "many-5417"}
    if source == ".env":
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
    assert load((), {"DEFAULT_PROMPT": "query: "}, tmp_path).config.model.default_prompt == "query: "
    assert load(["--default-prompt", " x "], NOTHING, tmp_path).config.model.default_prompt == " x "
    assert load((), {"DEFAULT_PROMPT": "  "}, tmp_path).config.model.default_prompt is None
