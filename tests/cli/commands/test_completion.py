"""`vectord completion`: the script for each shell, and the completions that it gets."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from vectord.cli.commands.completion import SHELLS
from vectord.cli.main import run, vectord


def completed(*words: str) -> set[str]:
    """The completions of the last word."""
    *before, incomplete = words
    return {item.value for item in ShellComplete(vectord, {}, "vectord", "").get_completions(before, incomplete)}


def test_commands_options_and_values_are_completed() -> None:
    assert {"serve", "bench", "completion"} <= completed("")
    assert completed("be") == {"bench"}
    assert completed("bench", "--sc") == {"--scenarios"}
    assert completed("serve", "--dtype", "b") == {"bfloat16"}
    assert completed("serve", "--profile", "simple") == {"simple-inference-server"}
    assert completed("bulk", "a", "b", "--on-error", "") == {"fail", "null"}
    assert {"--locked", "--lock-file", "--hf-home"} <= completed("pull", "--")
    assert completed("completion", "") == set(SHELLS)


def test_names_of_other_servers_are_not_completed() -> None:
    """They are accepted, and would hide the setting's own name in the list."""
    assert "--infinity-port" not in completed("serve", "--")
    assert completed("serve", "--max-batch-re") == {"--max-batch-requests"}


@pytest.fixture
def script(tmp_path: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest) -> Path:
    """The script for a shell, if that is installed."""
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    assert run(["completion", request.param]) == 0
    path = tmp_path / "script"
    path.write_text(capsys.readouterr().out)
    return path


@pytest.mark.parametrize("script", ["bash"], indirect=True)
def test_bash_completes_with_the_script(script: Path, tmp_path: Path) -> None:
    """The script runs the installed `vectord`."""
    command = tmp_path / "vectord"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m vectord "$@"\n')
    command.chmod(0o755)
    code = f"source {script}; COMP_WORDS=(vectord serve --dtype b); COMP_CWORD=3; "
    code += '_vectord_completion vectord; printf "%s\\n" "${COMPREPLY[@]}"'
    environ = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    ended = subprocess.run(["bash", "-c", code], env=environ, capture_output=True, text=True, check=True, timeout=60)
    assert (ended.stdout.split(), ended.stderr) == (["bfloat16"], "")


@pytest.mark.parametrize("script", ["zsh", "fish"], indirect=True)
def test_other_shells_accept_the_script(script: Path, request: pytest.FixtureRequest) -> None:
    """Without a syntax error."""
    shell = request.node.callspec.params["script"]
    ended = subprocess.run([shell, "-n", str(script)], capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
