"""`vectord completion`: the scripts, in the shells that are here."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from vectord.cli.commands import command_names
from vectord.cli.commands.completion import SHELLS, options
from vectord.cli.main import run


@pytest.fixture
def script(tmp_path: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest) -> Path:
    shell = request.param
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not here")
    assert run(["completion", shell]) == 0
    path = tmp_path / "script"
    path.write_text(capsys.readouterr().out)
    return path


def completed(script: Path, *words: str) -> set[str]:
    """What bash offers for the last of the words behind `vectord`."""
    listed = " ".join(f"'{word}'" for word in ("vectord", *words))
    code = (
        f'source {script}; COMP_WORDS=({listed}); COMP_CWORD={len(words)}; _vectord; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    ended = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stderr == ""
    return set(ended.stdout.split())


@pytest.mark.parametrize("script", ["bash"], indirect=True)
def test_bash_completes_commands_options_and_values(script: Path) -> None:
    """As typed, in a real bash."""
    assert completed(script, "") >= set(command_names())
    assert completed(script, "be") == {"bench"}
    assert completed(script, "bench", "--sc") == {"--scenarios"}
    assert completed(script, "serve", "--dtype", "b") == {"bfloat16"}
    assert completed(script, "bulk", "a", "b", "--on-error", "") == {"fail", "null"}
    assert {"--locked", "--lock-file", "--hf-home"} <= completed(script, "pull", "--")
    assert completed(script, "completion", "") == set(SHELLS)


@pytest.mark.parametrize("script", ["zsh", "fish"], indirect=True)
def test_other_shells_can_read_theirs(script: Path, request: pytest.FixtureRequest) -> None:
    """Without a fault of syntax."""
    shell = request.node.callspec.params["script"]
    ended = subprocess.run([shell, "-n", str(script)], capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("script", ["fish"], indirect=True)
def test_fish_completes_options(script: Path) -> None:
    """In a real fish."""
    code = f"source {script}; complete -C 'vectord bench --scen'; complete -C 'vectord serve --dtype bf'"
    ended = subprocess.run(["fish", "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout.split() == ["--scenarios", "bfloat16"]


@pytest.mark.parametrize("name", ["bench", "bulk", "check", "doctor", "pull", "serve"])
def test_every_command_with_options_has_them(name: str) -> None:
    """Read off its own help."""
    found = {flag for option in options(name) for flag in option.flags}
    assert {"--help", "--json"} <= found
    assert len(found) > 5


@pytest.mark.parametrize("words", [[], ["tcsh"], ["bash", "zsh"]], ids=str)
def test_it_takes_one_shell(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", *words]) == 2
    assert "takes one of bash, zsh, fish" in capsys.readouterr().err
