"""What the commands print, and how a failed start ends: one line and exit code 2."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest

from vectord import __version__
from vectord.cli import main
from vectord.cli.main import run
from vectord.config.command_line import COMMON
from vectord.config.profiles import make_profile
from vectord.config.settings import SETTINGS
from vectord.products.common.profiles import profiles
from vectord.server.admission.keys import read_keys


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same_log: None) -> None:
    """An empty folder and environment."""
    monkeypatch.chdir(tmp_path)
    for profile in (make_profile(name, profiles()) for name in profiles()):
        for name in (
            *(name for setting in profile.settings for name in (setting.bare, *setting.env)),
            *profile.without_effect,
        ):
            monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))


def vectord(*words: str, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command in its own process."""
    command = [sys.executable, "-m", "vectord", *words]
    whole = os.environ | (environ or {})
    return subprocess.run(command, env=whole, text=True, capture_output=True, check=False, timeout=60)


def refused(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The line on stderr of a failed start."""
    assert run(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    return printed.err.strip()


# --- help -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["help"]], ids=" ".join)
def test_help_lists_the_commands(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """`serve` comes first, with an example to try. Each command has a sentence of its own."""
    assert run(words) == 0
    printed = capsys.readouterr().out
    assert re.search(r"Commands:\n  serve +\S", printed)
    assert "\n  models " in printed
    meanings = re.findall(r"(?m)^  [a-z]+ +(.+)", printed.partition("Commands:\n")[2].partition("\n\n")[0])
    assert len(set(meanings)) == len(meanings)
    assert "vectord serve\n" in printed


def test_no_command_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Help goes to stderr, and the exit code is 2."""
    assert run([]) == 2
    assert "Usage: vectord" in capsys.readouterr().err


def test_the_help_of_serve_starts_with_the_common_options(capsys: pytest.CaptureFixture[str]) -> None:
    """Ten options with their meaning, then the names of all settings in groups."""
    assert run(["serve", "--help"]) == 0
    text, common, own, named = re.split(r"\n\n(?:Common options|Options|All options, .*):\n", capsys.readouterr().out)
    assert text.startswith("Usage: vectord serve")
    assert re.findall(r"(?m)^  (?:-p, )?(--[a-z-]+)", common) == list(COMMON)
    assert len(COMMON) == 10
    assert "Port to listen on" in common
    assert "--print-config" in own
    assert re.findall(r"(?m)^  (\w+) ", named) == ["Sources", "Models", "Device", "Engine", "Server", "Telemetry"]
    assert {setting.flags[0] for setting in SETTINGS} <= set(re.findall(r"--[a-z0-9-]+", named))


@pytest.mark.parametrize("words", [["serve", "--help-all"], ["serve", "--prot", "--help-all"]], ids=" ".join)
def test_help_all_describes_every_setting(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Each option has its variables, its default and its meaning, below its section's heading."""
    assert run(words) == 0
    printed = capsys.readouterr().out
    for setting in SETTINGS:
        assert re.search(rf"(?m)[ ,]{setting.flags[0]}[ ,\n]", printed), setting.name
        assert all(re.search(rf"[ \[]{name}[,;\]]", printed) for name in setting.env), setting.name
        assert "".join(setting.meaning.split()) in "".join(printed.split())
    assert re.search(r"default:\s+8000", printed)
    assert "\nServer:\n" in printed


@pytest.mark.parametrize("words", [["serve", "--prot", "--help"], ["help", "serve"]], ids=" ".join)
def test_help_ignores_mistakes(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a misspelt option nor a bad variable prevents help."""
    monkeypatch.setenv("VECTORD_PORT", "nonsense")
    assert run(words) == 0
    assert "--port" in capsys.readouterr().out


@pytest.mark.parametrize("flag", ["--version", "-v", "-V"])
def test_version_is_one_line(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([flag]) == 0
    assert capsys.readouterr().out == f"vectord {__version__}\n"


# --- print-config ---------------------------------------------------------------------------------------------


def test_print_config_shows_values_and_sources(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each setting that is set has a line with its value, as the command line accepts it, and its source. --all adds
    the others."""
    monkeypatch.setenv("VECTORD_MAX_BATCH_TOKENS", "512")
    words = ["serve", "a", "b", "--print-config", "--no-auto-truncate"]
    assert run(words) == 0
    _, *shown = capsys.readouterr().out.splitlines()
    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in shown}
    assert lines["model.models"] == "a, b command line"
    assert lines["engine.auto_truncate"] == "false --no-auto-truncate (command line)"
    assert lines["device.max_batch_tokens"] == "512 VECTORD_MAX_BATCH_TOKENS (environment)"
    assert "server.port" not in lines
    assert run([*words, "--all"]) == 0
    _, *every = (" ".join(line.split()) for line in capsys.readouterr().out.splitlines())
    assert "server.port 8000 default" in every
    assert [line.split()[0] for line in every] == [f"{setting.section}.{setting.name}" for setting in SETTINGS]


def test_print_config_as_json_has_json_types(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--print-config", "--json", "--profile", "tei", "--port", "9"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["profile"] == "tei"
    assert printed["server"]["port"] == {"value": 9, "source": "command line", "name": "--port"}
    assert printed["server"]["dialects"]["value"][0] == "tei"
    assert printed["model"]["revision"] == {"value": None, "source": "default", "name": ""}
    assert printed["device"]["num_threads"]["source"] == "default"


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["table", "json"])
def test_print_config_shows_no_secret(form: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """*** shows that a key is set; an option without effect is named on stderr, without its value."""
    words = ["--api-key", "hush-1234", "--hf-token", "hush-5678", "--profile", "tei", "--uds-path", "/hush"]
    assert run(["serve", "--print-config", *words, *form]) == 0
    printed = capsys.readouterr()
    assert "hush" not in printed.out + printed.err
    assert printed.out.count("***") == 2
    assert printed.err.startswith("vectord: set, but without effect here: --uds-path (")


# --- models ---------------------------------------------------------------------------------------------------


def test_models_searches_the_folders_of_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder of models, and the hub's cache, both from the env file."""
    for folder in (tmp_path / "all" / "bge-m3", tmp_path / "hub" / "models--some--model" / "snapshots" / ("0" * 40)):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    (tmp_path / "hub" / "models--some--model" / "refs").mkdir()
    (tmp_path / "hub" / "models--some--model" / "refs" / "main").write_text("0" * 40)
    (tmp_path / ".env").write_text(f"VECTORD_MODEL_PATH={tmp_path / 'all'}\nHF_HUB_CACHE={tmp_path / 'hub'}")
    monkeypatch.setenv("HF_HUB_CACHE", "")  # restored after the test
    monkeypatch.setenv("HF_HOME", "")  # the environment's would win over the file's
    monkeypatch.setenv("VECTORD_ENV_FILE", str(tmp_path / ".env"))
    assert run(["models", "BAAI/bge-m3", "some/model", "--json"]) == 1  # found, but their files are not complete
    rows = {row["model"]: row for row in json.loads(capsys.readouterr().out)}
    assert (rows["BAAI/bge-m3"]["source"], rows["some/model"]["source"]) == ("folder", "cache")


# --- a failed start -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["srve"], "vectord: unknown command 'srve'; did you mean serve?"),
        (["run", "all-minilm"], "vectord: unknown command 'run'; did you mean serve?"),
        (["check"], "vectord: unknown command 'check'; did you mean doctor?"),
        (["--verison"], "vectord: unknown option '--verison'; did you mean --version?"),
        (
            ["--model-id", "x"],
            "vectord: unknown option '--model-id'; options of the server follow its command: vectord ",
        ),
        (  # click's nearest option, --version, is too different to be meant
            ["--verbosity"],
            "vectord: unknown option '--verbosity'; options of the server follow its command: vectord serve --",
        ),
        (["bulk"], "vectord: Missing argument 'IN'; usage: vectord bulk [OPTIONS] IN OUT [MODEL]..."),
        (["serve", "-m", "a.gguf"], "vectord: -m is another server's option: use --model with a hub id, a folder or a"),
        (["serve", "-ngl", "99"], "vectord: -ngl is another server's option: use --device cuda"),
        (["serve", "--ctx-size=9"], "vectord: --ctx-size is another server's option: a model's own length applies"),
        (["serve", "--prot", "80"], "vectord: unknown option '--prot'; did you mean --port?"),
        (["serve", "--print-confg"], "vectord: unknown option '--print-confg'; did you mean --print-config?"),
        (["serve", "--port", "x"], "vectord: --port (command line): expected a whole number from 0 to 65535, got 'x'"),
        (["serve", "--json"], "vectord: --json (command line): requires --print-config"),
        (["serve", "--all"], "vectord: --all (command line): requires --print-config"),
        (
            ["serve", "--backend", "openvin"],
            "vectord: unknown backend 'openvin'; there are: auto, fake, handler, onnx, onnxruntime, openvino",
        ),
        (["serve", "--device", "gpu"], "vectord: --device (command line): expected auto, cpu, cuda"),
        (["serve", "--dtype", "int3"], "vectord: --dtype (command line): expected one of auto, float32, bfloat16"),
        (["serve", "--profile", "x"], "vectord: unknown profile 'x'; there are: cohere, default"),
        (["serve", "--profile", "TEII"], "vectord: unknown profile 'TEII'; did you mean tei?"),
        (["serve", "--profile", "simple-inference-server"], "vectord: MODELS is not set, and the profile simple-"),
        (["serve", "--dialects", "x"], "vectord: There is no dialect 'x'; there are: cohere, "),
        (["serve", "nobody/nothing", "--offline"], "vectord: model nobody/nothing is not on this machine"),
        (["serve", "./nowhere"], "vectord: model ./nowhere is not a folder"),
        (["serve", "http://host/model"], "vectord: model http://host/model: URLs are not fetched"),
        (["serve", "--served-model-name", "a,b"], "vectord: served_model_name: 2 names for 1 models"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_failed_start_is_one_line_and_exit_code_2(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line names the problem; there is no traceback."""
    assert refused(words, capsys).startswith(line)


NOWHERE = "http://127.0.0.1:1"
MISUSED = {
    "key": "Missing argument 'NAME'; usage: vectord key [OPTIONS] NAME",
    "key a b": "Got unexpected extra argument (b); usage: vectord key [OPTIONS] NAME",
    "key 1st": "'1st' is not a valid key name: ",
    "completion": "Missing argument",
    "completion tcsh": "Invalid value for ",
    "completion bash zsh": "Got unexpected extra argument (zsh)",
    "rm": "name a model; vectord list has them",
    "show": "name a model; vectord list has them",
    "ps --port 1": f"--port: no server answers at {NOWHERE} (Connection refused); start one with",
    "ps bge-m3": "vectord ps takes no MODEL; vectord show prints the facts of one",
    "ps --models a,b": "vectord ps takes no MODEL; vectord show prints the facts of one",
    "stop": "name the models to unload; vectord ps lists them",
    "stop a --url nonsense": "--url: expected http://HOST:PORT or https://HOST:PORT",
    f"pull --url {NOWHERE}": "--url: name the models to pull",
    f"pull m --url {NOWHERE} --locked": "--locked: the server has its own lock file",
    "pull m --token boss": "--token: belongs to --url",
    **{
        f"{words} --url {NOWHERE} {option}": "--url: the server has its own settings; leave out the other options"
        for words, option in (
            ("ps", "--admin-key b"),
            ("stop a", "--admin-key b"),
            ("pull m", "--offline"),
            ("doctor", "--port 1"),
        )
    },
    "bench --scenarios embed": "--scenarios: expected some of embed_dense,embed_full,rerank",
    "bench --batch-size 129": "--batch-size: 129 is more than --max-batch-size 128",
    "bench --concurrency 0": "Invalid value for '--concurrency': 0 is not in the range 1<=x<=10000",
    **{
        f"{words} {NOWHERE}": f"{words.split()[-1]}: no server answers"
        for words in ("bench --url", "doctor --url", "doctor --against")
    },
    "doctor --token k": "--token: requires --url",
    "doctor --against-model m": "--against-model: requires --against",
    "doctor --cacert f": "--cacert: belongs to --url",
    "doctor --against h": "--against: expected http://HOST:PORT",
    f"doctor one two --url {NOWHERE}": "--url: name one model of the server",
    f"doctor --no-self-test --url {NOWHERE}": "--no-self-test: concerns the models of this machine",
    f"doctor --timeout 0 --url {NOWHERE}": "Invalid value for '--timeout': 0.0 is not in the range 0.1<=x<=3600",
}


@pytest.mark.parametrize(("words", "line"), MISUSED.items())
def test_a_misused_command_is_one_line_and_exit_code_2(
    words: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line names the option at fault."""
    assert refused(words.split(), capsys).startswith(f"vectord: {line}")


def test_an_error_of_the_output_ends_the_bars(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its line would continue the bar of an unfinished download."""

    def fail(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    ended: list[bool] = []
    handler = SimpleNamespace(end_bars=lambda: ended.append(True))
    monkeypatch.setattr(main, "terminal_handler", lambda: handler)
    monkeypatch.setattr(main.vectord, "invoke", fail)
    monkeypatch.setattr(os, "dup2", lambda *_descriptors: None)
    assert run(["profiles"]) == 1
    assert capfd.readouterr().err == "vectord: the output cannot be written: No space left on device\n"
    assert ended == [True]


def test_a_file_of_another_user_is_one_line(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """It names the file; exit code 2."""

    def fail(*_arguments: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "/models/hub")

    monkeypatch.setattr(main.vectord, "invoke", fail)
    assert run(["list"]) == 2
    assert capfd.readouterr().err == "vectord: /models/hub cannot be used: Permission denied\n"


def test_a_port_in_use_is_one_line_and_exit_code_2() -> None:
    """The process prints nothing else."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        ended = vectord("serve", "--backend", "fake", "--port", port)
    assert (ended.returncode, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert re.search(rf"Port {port} on 127.0.0.1 is in use.*--port", line)


def test_variables_without_effect_are_one_line_of_the_log() -> None:
    """The log has its configured format, also before a failed start."""
    environ = {"INFINITY_ENGINE": "4", "DO_NOT_TRACK": "v", "LOG_FORMAT": "json", "VECTORD_PROFILE": "infinity"}
    ended = vectord("serve", "./nowhere", environ=environ)
    assert ended.returncode == 2
    settings, logged, refusal = ended.stderr.splitlines()
    assert json.loads(settings)["event"] == "settings from the environment: LOG_FORMAT"
    line = json.loads(logged)
    assert (line["level"], line["logger"]) == ("warning", "vectord.config")
    assert line["event"].startswith("set, but without effect here: INFINITY_ENGINE, DO_NOT_TRACK (")
    assert refusal.startswith("vectord: model ./nowhere")


def test_a_bad_variable_ends_the_process_with_code_2() -> None:
    ended = vectord("serve", environ={"VECTORD_PRT": "80"})
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "vectord: unknown name 'VECTORD_PRT' (environment); did you mean VECTORD_PORT?\n"


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_processes_start_with_standard_streams(closed: str, tmp_path: Path) -> None:
    """Also those that it starts. Otherwise a client's socket takes the place of a closed one."""
    found = tmp_path / "found"
    child = f"import os, pathlib; [os.fstat(fd) for fd in range(3)]; pathlib.Path({str(found)!r}).touch()"
    start = f"main(); subprocess.run([sys.executable, '-c', {child!r}], check=True)"
    program = f"import subprocess, sys; from vectord.cli.main import main; {start}"
    command = shlex.join([sys.executable, "-c", program, "--version"])
    subprocess.run(["bash", "-c", f"{command} {closed}"], check=False, capture_output=True)
    assert found.exists()


FULL = "vectord: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("serve --help | head -1", ""),
        ("models >&-", ""),
        ("--help >&-", ""),
        *((f"{words} > /dev/full", FULL) for words in ("models", "serve --help-all") if Path("/dev/full").exists()),
    ],
)
def test_an_output_that_ends_causes_no_traceback(words: str, error: str) -> None:
    """A pipe, a closed output, and a full disk, which is exit code 1."""
    command = f"{shlex.quote(sys.executable)} -m vectord {words}"
    ended = subprocess.run(["bash", "-c", command], text=True, capture_output=True, check=False, timeout=60)
    assert (ended.returncode, ended.stderr) == (int(bool(error)), error)
    assert ended.stdout == ("Usage: vectord serve [OPTIONS] [MODEL]...\n" if "head" in words else "")


def test_names_beyond_ascii_are_printed_in_any_encoding(tmp_path: Path) -> None:
    """Escaped, without a traceback, in an environment without UTF-8."""
    (tmp_path / "mod\u00e8le").mkdir()
    (tmp_path / "mod\u00e8le" / "config.json").write_text("{}")
    environ = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    ended = vectord("models", "./mod\u00e8le", environ=environ)
    assert (ended.returncode, ended.stderr) == (1, "")
    assert ended.stdout.startswith("model    ./mod\\udcc3\\udca8le\n")


def test_help_imports_no_large_library() -> None:
    """Neither the server nor a vendor's library, so that help is fast."""
    script = "import sys; from vectord.cli.main import run; run(['serve', '--help']); print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", script], text=True, capture_output=True, check=True, timeout=60)
    loaded = set(ended.stdout.splitlines()[-1].split())
    assert loaded.isdisjoint(
        {"numpy", "openvino", "starlette", "uvicorn", "rich", "huggingface_hub", "tokenizers", "asyncio"}
    )


def test_a_model_begins_to_load_before_modules_that_only_the_server_needs() -> None:
    """asyncio and ssl take 40 ms, in which the model can already compile."""
    script = (
        "import sys; from vectord.cli.main import run; from vectord.engine.models import opening\n"
        "opening.load_ahead = lambda config: sys.exit(print(*sys.modules))\n"
        "run(['serve'])"
    )
    ended = subprocess.run([sys.executable, "-c", script], text=True, capture_output=True, check=True, timeout=60)
    loaded = set(ended.stdout.split())
    assert "vectord.observability.logs" in loaded
    assert loaded.isdisjoint({"asyncio", "ssl", "starlette", "tokenizers", "vectord.engine.engine"})


# --- vectord key ----------------------------------------------------------------------------------------------


def test_the_output_of_key_can_be_appended_to_the_file(tmp_path: Path) -> None:
    """Standard output has the entry for the file, standard error the key."""
    ended = vectord("key", "search")
    assert (ended.returncode, tomllib.loads(ended.stdout)["keys"][0]["name"]) == (0, "search")
    (key,) = (line.strip() for line in ended.stderr.splitlines() if line.startswith("    "))
    assert tomllib.loads(ended.stdout)["keys"][0]["sha256"] == sha256(key.encode()).hexdigest()
    file = tmp_path / "keys.toml"
    file.write_text(ended.stdout + vectord("key", "other").stdout)
    file.chmod(0o600)
    assert [key.name for key in read_keys(file)] == ["search", "other"]


def test_an_interrupt_during_the_imports_is_one_line() -> None:
    """Ctrl-C right after the start, here at the first import of the command line."""
    program = """
import signal, sys
from vectord.__main__ import main

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "vectord.cli.main":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
sys.exit(main())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (130, "vectord: interrupted\n")
