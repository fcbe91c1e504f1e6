"""cli.py: what the commands print, and how a start that cannot be ends: one line, exit code 2."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import pytest

from vectord import __version__
from vectord.cli.main import run
from vectord.config import DEFAULT_MODEL
from vectord.config.ignored import BY_NAME as IGNORED
from vectord.config.settings import SETTINGS
from vectord.server.admission.keys import read_keys


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No settings but the test's own; what `serve` does to logging ends with the test."""
    monkeypatch.chdir(tmp_path)
    for name in (*(name for setting in SETTINGS for name in setting.env), *IGNORED):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def vectord(*words: str, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, to its end."""
    command = [sys.executable, "-m", "vectord", *words]
    whole = os.environ | (environ or {})
    return subprocess.run(command, env=whole, text=True, capture_output=True, check=False, timeout=60)


def refused(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The line on stderr of a start that cannot be."""
    assert run(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    return printed.err.strip()


# --- help -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["help"]], ids=" ".join)
def test_help_shows_the_commands(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A newcomer sees what to type first."""
    assert run(words) == 0
    printed = capsys.readouterr().out
    assert "vectord serve" in printed
    assert "vectord models" in printed


def test_no_command_is_no_success(capsys: pytest.CaptureFixture[str]) -> None:
    """A script that forgot the command hears of it."""
    assert run([]) == 2
    assert "Usage: vectord serve" in capsys.readouterr().err


def test_the_help_of_serve_names_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    """Each option with its environment names, its default and its meaning, under the heading of its section."""
    assert run(["serve", "--help"]) == 0
    printed = capsys.readouterr().out
    for setting in SETTINGS:
        assert re.search(rf"(?m)[ ,]{setting.flags[0]}[ ,\n]", printed), setting.name
        assert all(re.search(rf"[ \[]{name}[,;\]]", printed) for name in setting.env[1:]), setting.name
        assert setting.meaning.split()[-1] in printed
    assert "default: 8000" in printed
    assert "hf_token" not in printed


def test_the_help_does_not_need_a_good_configuration(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Help is what one asks for when something is wrong."""
    monkeypatch.setenv("PORT", "nonsense")
    assert run(["serve", "--prot", "--help"]) == 0
    assert "--port" in capsys.readouterr().out


def test_version_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """For scripts."""
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"vectord {__version__}\n"


# --- print-config ---------------------------------------------------------------------------------------------


def test_print_config_tells_values_and_origins(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every setting has a line: its value as one would write it, and where it came from."""
    monkeypatch.setenv("MAX_BATCH_TOKENS", "512")
    assert run(["serve", "a", "b", "--print-config", "--no-auto-truncate"]) == 0
    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in capsys.readouterr().out.splitlines()}
    assert lines["model.models"] == "a, b command line"
    assert lines["engine.auto_truncate"] == "false --no-auto-truncate (command line)"
    assert lines["device.max_batch_tokens"] == "512 MAX_BATCH_TOKENS (environment)"
    assert lines["server.port"] == "8000 default"
    assert {f"{setting.section}.{setting.name}" for setting in SETTINGS} <= set(lines)


def test_print_config_as_json_holds_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    """For scripts, with JSON's own types."""
    assert run(["serve", "--print-config", "--json", "--profile", "tei", "--port", "9"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["profile"] == "tei"
    assert printed["server"]["port"] == {"value": 9, "source": "command line", "name": "--port"}
    assert printed["server"]["dialects"]["value"][0] == "tei"
    assert printed["model"]["revision"] == {"value": None, "source": "default", "name": ""}
    assert printed["device"]["num_threads"]["source"] == "default"


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["table", "json"])
def test_print_config_masks_secrets(form: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """One sees that a key is set, never which."""
    assert run(["serve", "--print-config", "--api-key", "hush-1234", "--hf-token", "hush-5678", *form]) == 0
    printed = capsys.readouterr().out
    assert "hush" not in printed
    assert printed.count("***") == 2


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["table", "json"])
def test_print_config_says_what_has_no_effect(form: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Beside what is printed, so that scripts read JSON; by name, since a value may be anything."""
    assert run(["serve", "--print-config", "--hf-model-cache-volume", "/hidden", *form]) == 0
    printed = capsys.readouterr()
    assert printed.err.startswith("vectord: set for other servers, without effect here: --hf-model-cache-volume (")
    assert "hidden" not in printed.out + printed.err


# --- models ---------------------------------------------------------------------------------------------------


def test_models_lists_the_configured_and_the_known(capsys: pytest.CaptureFixture[str]) -> None:
    """Whether the files are here, where, how large; one that is missing says what to do and is no error."""
    assert run(["models", "some/model", "--json"]) == 0
    rows = {row["model"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["some/model"]["configured"]
    assert rows["some/model"]["source"] is None
    assert "not on this machine" in rows["some/model"]["problem"]
    default = rows[DEFAULT_MODEL]
    assert (default["configured"], default["source"]) == (False, "package")
    assert Path(default["folder"], "model.safetensors").is_file()
    assert default["bytes"] > 80e6


def test_models_looks_where_they_would_be_served_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the folder of models, and in the cache that .env names, though no library reads that."""
    for folder in (tmp_path / "all" / "bge-m3", tmp_path / "hub" / "models--some--model" / "snapshots" / ("0" * 40)):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    (tmp_path / "hub" / "models--some--model" / "refs").mkdir()
    (tmp_path / "hub" / "models--some--model" / "refs" / "main").write_text("0" * 40)
    (tmp_path / ".env").write_text(f"MODEL_PATH={tmp_path / 'all'}\nHF_HUB_CACHE={tmp_path / 'hub'}")
    monkeypatch.setenv("HF_HUB_CACHE", "")  # to be put back when the test ends
    monkeypatch.setenv("HF_HOME", "")  # the environment's would be nearer than .env
    assert run(["models", "BAAI/bge-m3", "some/model", "--json"]) == 0
    rows = {row["model"]: row for row in json.loads(capsys.readouterr().out)}
    assert (rows["BAAI/bge-m3"]["source"], rows["some/model"]["source"]) == ("folder", "cache")


def test_models_prints_whole_paths_into_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    """A line of the table is a line of text, however long the folder's name."""
    assert run(["models"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith(DEFAULT_MODEL)]
    assert Path(line.split()[-1]).is_dir()


# --- a start that cannot be -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["srve"], "vectord: unknown command 'srve'; did you mean serve?"),
        (["serve", "--prot", "80"], "vectord: unknown option '--prot'; did you mean --port?"),
        (["serve", "--print-confg"], "vectord: unknown option '--print-confg'; did you mean --print-config?"),
        (["serve", "--port", "x"], "vectord: --port (command line): expected a whole number from 0 to 65535, got 'x'"),
        (["serve", "--json"], "vectord: --json (command line): goes with --print-config"),
        (
            ["serve", "--backend", "openvin"],
            "vectord: unknown backend 'openvin'; there are: auto, fake, handler, onnx, onnxruntime, openvino",
        ),
        (["serve", "--device", "gpu"], "vectord: --device (command line): expected auto (CUDA, else MPS"),
        (["serve", "--dtype", "int3"], "vectord: --dtype (command line): expected one of auto, float32, bfloat16"),
        (["serve", "--profile", "x"], "vectord: unknown profile 'x'; there are: cohere, default"),
        (["serve", "--profile", "simple-inference-server"], "vectord: MODELS is not set, and the profile simple-"),
        (["serve", "--dialects", "x"], "vectord: There is no dialect 'x'; there are: cohere, "),
        (["serve", "nobody/nothing", "--offline"], "vectord: model nobody/nothing is not on this machine"),
        (["serve", "./nowhere"], "vectord: model ./nowhere: is not a folder"),
        (["serve", "http://host/model"], "vectord: model http://host/model: URLs are not fetched"),
        (["serve", "--served-model-name", "a,b"], "vectord: served_model_name: 2 names for 1 models"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_bad_start_is_one_line_and_exit_code_2(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is wrong, before the port is bound; no traceback."""
    assert refused(words, capsys).startswith(line)


def test_a_port_in_use_is_one_line_and_exit_code_2() -> None:
    """From a process of its own, with everything that is printed on the way."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        ended = vectord("serve", "--backend", "fake", "--port", port)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert len(ended.stderr.splitlines()) == 1
    assert port in ended.stderr


def test_what_has_no_effect_is_one_line_of_the_log() -> None:
    """Said when the server starts, in the log's own shape, whatever comes of the start."""
    environ = {"API_WORKERS": "4", "HF_MODEL_CACHE_VOLUME": "v", "LOG_FORMAT": "json"}
    ended = vectord("serve", "./nowhere", environ=environ)
    assert ended.returncode == 2
    told, refusal = ended.stderr.splitlines()
    line = json.loads(told)
    assert (line["level"], line["logger"]) == ("warning", "vectord.config")
    assert line["event"].startswith("set for other servers, without effect here: API_WORKERS, HF_MODEL_CACHE_VOLUME (")
    assert refusal.startswith("vectord: model ./nowhere")


def test_a_bad_variable_ends_the_process_with_code_2() -> None:
    """The exit code of the real process, by `python -m vectord`."""
    ended = vectord("serve", environ={"VECTORD_PRT": "80"})
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "vectord: unknown name 'VECTORD_PRT' (environment); did you mean VECTORD_PORT?\n"


def test_a_reader_that_leaves_is_no_traceback() -> None:
    """`vectord serve --help | head -1`."""
    command = f"{sys.executable} -m vectord serve --help | head -1"
    ended = subprocess.run(["bash", "-c", command], text=True, capture_output=True, check=False, timeout=60)
    assert ended.stdout == "Usage: vectord serve [MODEL ...] [options]\n"
    assert ended.stderr == ""


def test_help_and_bad_options_cost_no_heavy_import() -> None:
    """What answers at once imports neither the server nor a vendor's library."""
    script = "import sys; from vectord.cli.main import run; run(['serve', '--help']); print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", script], text=True, capture_output=True, check=True, timeout=60)
    loaded = set(ended.stdout.splitlines()[-1].split())
    assert loaded.isdisjoint(
        {"numpy", "openvino", "starlette", "uvicorn", "rich", "huggingface_hub", "tokenizers", "asyncio"}
    )


# --- vectord key ----------------------------------------------------------------------------------------------


def test_a_key_is_shown_and_its_stanza_can_be_appended(tmp_path: Path) -> None:
    """Standard output is what the file needs; the key itself goes where no redirection puts it beside that."""
    ended = vectord("key", "search")
    assert (ended.returncode, tomllib.loads(ended.stdout)["keys"][0]["name"]) == (0, "search")
    (key,) = (line.strip() for line in ended.stderr.splitlines() if line.startswith("    "))
    assert tomllib.loads(ended.stdout)["keys"][0]["sha256"] == sha256(key.encode()).hexdigest()
    file = tmp_path / "keys.toml"
    file.write_text(ended.stdout + vectord("key", "other").stdout)
    file.chmod(0o600)
    assert [key.name for key in read_keys(file)] == ["search", "other"]


@pytest.mark.parametrize("words", [[], ["a", "b"], ["--name"], ["1st"], ["a b"]], ids=str)
def test_a_key_takes_one_name(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """And not every text is one."""
    assert "name" in refused(["key", *words], capsys)
